"""Threads and the loop that they tell things: nothing is lost or told twice, whoever is faster."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from records import wait_until
from servers import HANG_SECONDS

from pgflow._worker.threads import Answer, DaemonThreads, Posts, SpareThreads


def test_what_threads_post_is_done_once_and_in_the_order_of_each():
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        posts = Posts(asyncio.get_running_loop())
        threads = [
            threading.Thread(
                target=lambda who=who: [posts.post(seen.append, (who, n)) for n in range(2_000)]
            )
            for who in range(4)
        ]
        for thread in threads:
            thread.start()
        while len(seen) < 8_000:
            await asyncio.sleep(0)
        for thread in threads:
            thread.join()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert len(seen) == 8_000
    for who in range(4):
        assert [n for one, n in seen if one == who] == list(range(2_000))


def test_what_is_posted_at_once_wakes_the_loop_once():
    woken = []

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        posts = Posts(loop)
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args, **kwargs: woken.append(1) or wake(*args, **kwargs)  # type: ignore[assignment, func-returns-value]
        for n in range(100):
            posts.post(seen.append, n)
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(main()) == list(range(100))
    assert woken == [1]


def test_a_call_that_fails_keeps_none_of_the_others_from_being_made():
    async def main() -> tuple[list[int], list[Any]]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        told: list[Any] = []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        posts = Posts(loop)
        for n in (1, 0, 2):
            posts.post(lambda n=n: seen.append(6 // n))
        for _ in range(3):
            await asyncio.sleep(0)
        return seen, told

    seen, told = asyncio.run(main())
    assert seen == [6, 3]
    assert [type(error) for error in told] == [ZeroDivisionError]


def test_a_thread_that_asks_gets_the_value_or_the_error():
    def double(n: int, answer: Answer) -> None:
        if n < 0:
            answer.fail(ValueError("negative"))
        else:
            answer.give(2 * n)

    async def main() -> None:
        posts = Posts(asyncio.get_running_loop())
        assert await asyncio.to_thread(posts.ask, double, 4) == 8
        with pytest.raises(ValueError, match="negative"):
            await asyncio.to_thread(posts.ask, double, -1)

    asyncio.run(main())


@pytest.mark.full
def test_a_thread_that_asks_a_closed_loop_is_told_so():
    loop = asyncio.new_event_loop()
    posts = Posts(loop)
    loop.close()
    with pytest.raises(RuntimeError, match="the event loop is closed"):
        posts.ask(lambda answer: answer.give(1))


def test_a_spare_thread_takes_the_next_work_in_a_context_of_its_own():
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    threads = SpareThreads(1, "spare-test")
    seen: list[tuple[int, int]] = []

    def work(n: int) -> None:
        seen.append((threading.get_ident(), variable.get()))
        variable.set(n)

    for n in range(1, 4):
        threads.run(lambda n=n: contextvars.Context().run(work, n))
        wait_until(
            lambda n=n: (
                len(seen) == n and any(t.name == "spare-test, spare" for t in threading.enumerate())
            ),
            "the thread rests",
        )
    assert len({ident for ident, _ in seen}) == 1
    assert [value for _, value in seen] == [0, 0, 0]
    threads.close()
    wait_until(
        lambda: not any(t.name.startswith("spare-test") for t in threading.enumerate()),
        "it has ended",
    )


def test_work_that_stands_still_keeps_nobody_waiting_and_no_more_are_kept_than_said():
    threads = SpareThreads(2, "standing-test")
    stop = threading.Event()
    began = threading.Barrier(6)

    def stand() -> None:
        began.wait(HANG_SECONDS)
        stop.wait(HANG_SECONDS)

    for _ in range(5):
        threads.run(stand)
    began.wait(HANG_SECONDS)
    stop.set()
    wait_until(
        lambda: (
            [t.name for t in threading.enumerate() if t.name.startswith("standing-test")]
            == ["standing-test, spare"] * 2
        ),
        "two are kept",
    )
    threads.close()
    done = threading.Event()
    threads.run(done.set)  # what comes after the end is done all the same
    assert done.wait(HANG_SECONDS)
    wait_until(
        lambda: not any(t.name.startswith("standing-test") for t in threading.enumerate()),
        "all have ended",
    )


def test_what_a_job_came_to_is_told_once_its_thread_is_free():
    threads = DaemonThreads(1, "job-test", max_lost=1)
    told: list[Any] = []
    done, stop = threading.Event(), threading.Event()

    def tell(outcome: Any) -> None:
        told.append(outcome)
        done.set()

    hung = threads.start(lambda: stop.wait(HANG_SECONDS), told.append)
    wait_until(lambda: hung.state == "running", "it runs")
    late = threads.start(lambda: 1, tell)
    never = threads.start(lambda: 2, told.append)
    assert not threads.give_up(never)
    assert threads.give_up(hung)
    assert done.wait(HANG_SECONDS)
    assert (told, late.state, threads.lost) == ([1], "done", 1)
    stop.set()
    wait_until(lambda: threads.lost == 0, "the lost thread has ended")
    assert threads.submit(lambda: 3).result(HANG_SECONDS) == 3
    assert told == [1, True]
    threads.shutdown()
