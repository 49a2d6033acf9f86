"""A timer that the code waits for alone: it fires when it is due, without a question, and is recorded
with what comes next.
"""

from __future__ import annotations

import asyncio
from typing import Any

from enginekit import SECOND, Worker, divergence, replay, saw, seen
from enginestore import Store, StoredRun
from exampleflows import add, paid

import pgflow.sync
from pgflow import workflow


def begun(flow: Any) -> tuple[Worker, StoredRun]:
    """A run that has come to its first standstill."""
    store = Store(flow)
    run = store.start(flow)
    worker = Worker(store)
    worker.play("claim 1")
    return worker, run


@workflow
async def sleeping_and_adding() -> int:
    await asyncio.sleep(0.5)
    saw("awake")
    return await add(1, 2)


def test_the_code_goes_on_when_the_timer_is_due_and_one_commit_records_it_with_the_next_licence():
    worker, run = begun(sleeping_and_adding)
    worker.store.now_us += SECOND
    worker.play("look 1")
    assert seen(worker) == ["'awake'"]
    assert (run.kinds(), worker.on_the_way) == ("", [])
    worker.play("send 1", "commit 1")
    assert run.kinds() == "tT"
    assert [start[2] for start in run.licensed().values()] == ["add"]
    worker.finish()
    assert run.result() == 3
    assert replay(run).end.ending.output == run.output


@workflow
def sleeping_in_a_thread() -> int:
    pgflow.sync.sleep(0.5)
    saw("awake")
    pgflow.sync.sleep(0.5)
    return 3


def test_so_does_code_in_a_thread():
    worker, run = begun(sleeping_in_a_thread)
    worker.store.now_us += SECOND
    worker.play("look 1")
    assert seen(worker) == ["'awake'"]
    worker.play("send 1", "commit 1")
    assert run.kinds() == "tTt"
    worker.finish()
    assert (run.result(), run.kinds()) == (3, "tTtT")


def test_it_does_not_fire_before_it_is_due():
    worker, _ = begun(sleeping_and_adding)
    worker.store.now_us += SECOND // 2 - 1
    worker.executions[1].look_due()
    assert seen(worker) == []
    worker.store.now_us += 1
    worker.executions[1].look_due()
    assert seen(worker) == ["'awake'"]


@workflow
async def sleeping_long_and_adding() -> int:
    await asyncio.sleep(60)
    saw("awake")
    return await add(1, 2)


def test_a_parked_run_goes_on_with_its_claim():
    worker, run = begun(sleeping_long_and_adding)
    worker.settle()
    assert run.place == "parked"
    worker.store.now_us += 61 * SECOND
    worker.store.wake_due()
    worker.play("claim 1")
    assert seen(worker) == ["'awake'"]
    worker.play("send 1", "commit 1")
    assert run.kinds() == "tT"
    worker.finish()
    assert run.result() == 3


def test_what_nobody_has_recorded_is_slept_again_by_the_next_holder():
    worker, run = begun(sleeping_and_adding)
    worker.store.now_us += SECOND
    worker.play("look 1", "send 1")
    other = worker.crash()
    other.play("claim 1")
    assert seen(other) == []
    other.finish()
    assert (run.result(), run.kinds().count("T")) == (3, 1)
    assert divergence(run) is None


@workflow
async def sleeping_beside_a_wait() -> str:
    wait = asyncio.ensure_future(paid.wait())
    await asyncio.wait([wait], timeout=0.5)
    saw("awake")
    return "heard" if wait.done() else "nothing"


def test_beside_a_wait_the_database_says_which_came_first():
    worker, run = begun(sleeping_beside_a_wait)
    worker.settle()
    worker = worker.crash()
    worker.settle()  # its claim tells of the timer
    worker.store.send(run, "paid", 7)  # nobody has told the worker
    worker.store.now_us += SECOND
    worker.play("look 1")
    assert seen(worker) == []
    worker.finish()
    assert run.result() == "heard"


def test_a_look_that_is_wanted_comes_first():
    worker, run = begun(sleeping_and_adding)
    worker.store.cancel(run)
    worker.store.now_us += SECOND
    worker.play("wake 1")
    assert seen(worker) == []
    worker.finish()
    assert run.status == "cancelled"
    assert "T" not in run.kinds()


def test_a_run_that_is_handed_back_leaves_its_timer_to_the_next_holder():
    worker, run = begun(sleeping_and_adding)
    worker.executions[1].drain()
    worker.store.now_us += SECOND
    worker.executions[1].look_due()
    assert seen(worker) == []
    other = worker.crash()
    other.finish()
    assert run.result() == 3


@workflow
async def sleeping_twice() -> list[str]:
    order: list[str] = []

    async def nap(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    await asyncio.gather(nap("late", 0.4), nap("soon", 0.2))
    return order


def test_of_two_that_are_due_the_earlier_goes_first():
    worker, run = begun(sleeping_twice)
    worker.store.now_us += SECOND
    worker.finish()
    assert run.result() == ["soon", "late"]
    assert replay(run).end.ending.output == run.output


def test_the_database_says_when_a_timer_is_due_whose_start_it_has_stamped_since_the_claim():
    worker, run = begun(sleeping_twice_in_turn)
    worker.store.now_us += SECOND
    worker.play("look 1", "send 1", "commit 1", "ack 1")
    assert (seen(worker), run.kinds()) == (["'once'"], "tTt")
    worker.store.now_us += SECOND
    worker.play("look 1")
    assert seen(worker) == ["'once'"]
    worker.play("send 1", "commit 1", "ack 1")
    assert (seen(worker), run.kinds()) == (["'once'", "'twice'"], "tTtT")


@workflow
async def sleeping_twice_in_turn() -> None:
    await asyncio.sleep(0.5)
    saw("once")
    await asyncio.sleep(0.5)
    saw("twice")


@workflow
async def sleeping_hardly_at_all() -> int:
    for _ in range(2000):
        await asyncio.sleep(1e-7)
    return 1


def test_thousands_that_are_due_at_once_need_no_stack():
    worker, run = begun(sleeping_hardly_at_all)
    worker.finish()
    assert (run.result(), run.kinds()) == (1, "tT" * 2000)
