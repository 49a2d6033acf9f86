"""The deterministic loop: asyncio as workflow code knows it, in one order, with the world shut
out.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from enginekit import Worker, run_to_end
from enginestore import Store, StoredRun
from exampleflows import look_up
from servers import HANG_SECONDS

import pgflow
from pgflow import step, workflow
from pgflow._engine.calls import Call
from pgflow._engine.drivers import Race, ThreadDriver, ThreadWaiter
from pgflow._engine.loop import MAX_SWALLOWED_UNWINDS, Unwind, WorkflowLoop
from pgflow.errors import NotInWorkflowError


class Timers:
    """The execution's part: timers that fire when a test says so."""

    def __init__(self, run_id: int = 1) -> None:
        self.run_id = run_id
        self.now_seconds = 0.0
        self.started: list[float] = []
        self.pending: dict[int, tuple[float, Callable[[], None]]] = {}

    def time_seconds(self) -> float:
        return self.now_seconds

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        number = len(self.started)
        self.started.append(delay_seconds)
        self.pending[number] = (self.now_seconds + delay_seconds, fire)
        return lambda: self.pending.pop(number, None) and None

    def fire_next(self) -> None:
        number = min(self.pending, key=lambda n: (self.pending[n][0], n))
        self.now_seconds, fire = self.pending.pop(number)
        fire()


class Bench:
    """A loop, its main task, and what the code under test has logged."""

    def __init__(self, main: Callable[[Bench], Any], run_id: int = 1) -> None:
        self.timers = Timers(run_id)
        self.loop = WorkflowLoop(self.timers)
        self.log: list[Any] = []
        self.gates: dict[str, asyncio.Future[Any]] = {}
        self.main = self.loop.create_task(main(self), name="main", context=contextvars.Context())
        self.loop.pump()

    def gate(self, name: str) -> asyncio.Future[Any]:
        """Something from outside that the code waits for."""
        return self.gates.setdefault(name, self.loop.create_future())

    def open(self, *names: str) -> None:
        """Brings it, one thing after the other."""
        for name in names:
            self.gate(name).set_result(name)
            self.loop.pump()

    def fire(self) -> None:
        """The next timer is due."""
        self.timers.fire_next()
        self.loop.pump()

    def finish(self) -> Any:
        """Fires timers until the main task is done."""
        while not self.main.done():
            self.fire()
        return self.main.result()


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(main: Callable[[Bench], Any], run_id: int = 1) -> Bench:
        made.append(Bench(main, run_id))
        return made[-1]

    yield make
    for one in made:
        one.loop.close()


def test_gather_starts_in_order_and_returns_in_the_order_of_its_arguments(bench):
    async def one(b: Bench, name: str) -> str:
        b.log.append(f"start {name}")
        await b.gate(name)
        b.log.append(f"end {name}")
        return name

    async def main(b: Bench) -> list[str]:
        return await asyncio.gather(*(one(b, name) for name in "abc"))

    b = bench(main)
    b.open("c", "a", "b")
    assert b.main.result() == ["a", "b", "c"]
    assert b.log == ["start a", "start b", "start c", "end c", "end a", "end b"]


def test_gather_raises_the_first_error_and_leaves_the_others_running(bench):
    async def fail() -> None:
        raise ValueError("first")

    async def main(b: Bench) -> str:
        other = asyncio.ensure_future(b.gate("other"))
        try:
            await asyncio.gather(fail(), other)
        except ValueError as error:
            return f"{error}, {other.done()}"
        return ""

    assert bench(main).main.result() == "first, False"


@pytest.mark.parametrize("run_id", [1, 2, 77, 2**20, 2**40 + 5])
def test_wait_over_a_set_of_tasks_keeps_the_order_of_their_creation(bench, run_id):
    async def one(b: Bench, i: int) -> int:
        await b.gate("go")
        b.log.append(i)
        return i

    async def main(b: Bench) -> list[int]:
        tasks = [asyncio.create_task(one(b, i)) for i in range(40)]
        done, pending = await asyncio.wait(set(tasks))
        assert not pending
        return [task.result() for task in done]

    b = bench(main, run_id)
    b.open("go")
    assert b.log == list(range(40))
    assert sorted(b.main.result()) == list(range(40))
    again = bench(main, run_id)
    again.open("go")
    assert again.main.result() == b.main.result()


def test_wait_for_the_first_leaves_the_rest_pending(bench):
    async def main(b: Bench) -> tuple[int, int]:
        tasks = [asyncio.ensure_future(b.gate(name)) for name in "abc"]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return len(done), len(pending)

    b = bench(main)
    b.open("b")
    assert b.main.result() == (1, 2)


def test_wait_until_the_first_exception(bench):
    async def main(b: Bench) -> list[bool]:
        tasks = [asyncio.ensure_future(b.gate(name)) for name in "ab"]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.done() for task in tasks]

    b = bench(main)
    b.gate("b").set_exception(ValueError())
    b.loop.pump()
    assert b.main.result() == [False, True]


def test_a_task_group_cancels_its_members_in_the_order_of_their_creation(bench):
    async def patient(b: Bench, i: int) -> None:
        try:
            await b.gate(str(i))
        finally:
            b.log.append(i)

    async def main(b: Bench) -> None:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for i in range(9):
                    group.create_task(patient(b, i))
                await b.gate("fail")
                raise ValueError

    b = bench(main)
    b.open("fail")
    assert b.main.done()
    assert b.log == list(range(9))


def test_tasks_have_names_that_count_within_the_run(bench):
    async def main(b: Bench) -> list[str]:
        async def nothing() -> None: ...

        tasks = [asyncio.create_task(nothing()) for _ in range(2)]
        tasks.append(asyncio.create_task(nothing(), name="mine"))
        return [task.get_name() for task in tasks]

    assert bench(main).main.result() == ["task-2", "task-3", "mine"]


def test_options_of_create_task_from_later_pythons_are_accepted(bench):
    async def main(b: Bench) -> int:
        async def one() -> int:
            return 1

        return await b.loop.create_task(one(), eager_start=False)

    assert bench(main).main.result() == 1


def test_as_completed_over_coroutines_is_refused_in_favour_of_ours(bench):
    async def one() -> None: ...

    coroutines = [one(), one()]

    async def main(b: Bench) -> None:
        for done in asyncio.as_completed(coroutines):
            await done

    b = bench(main)
    for coroutine in coroutines:
        coroutine.close()
    with pytest.raises(NotInWorkflowError, match=r"use pgflow.as_completed\(\)"):
        b.main.result()


def test_as_completed_over_tasks_gives_them_as_they_finish(bench):
    async def main(b: Bench) -> list[str]:
        tasks = [asyncio.ensure_future(b.gate(name)) for name in "abc"]
        return [await done for done in asyncio.as_completed(tasks)]

    b = bench(main)
    b.open("b", "c", "a")
    assert b.main.result() == ["b", "c", "a"]


@workflow
async def taking_as_they_come() -> list[Any]:
    return [
        (await done)["name"]
        async for done in pgflow.as_completed([look_up(name) for name in "abc"])
    ]


def test_our_as_completed_gives_coroutines_as_they_finish():
    store = Store(taking_as_they_come)
    run = store.start(taking_as_they_come)
    worker = Worker(store)
    worker.play("claim 1", "body look_up 3", "body look_up 1", "body look_up 2")
    worker.finish()
    assert run.result() == ["c", "a", "b"]


def test_time_stands_still_until_an_outcome_brings_it(bench):
    async def main(b: Bench) -> list[float]:
        times = [b.loop.time()]
        await asyncio.sleep(0)
        times.append(b.loop.time())
        await asyncio.sleep(7)
        return [*times, b.loop.time()]

    assert bench(main).finish() == [0.0, 0.0, 7.0]


def test_a_timeout_starts_one_timer_and_gives_it_up_when_it_is_not_needed(bench):
    async def main(b: Bench) -> Any:
        async with asyncio.timeout(5):
            return await b.gate("a")

    b = bench(main)
    assert b.timers.started == [5.0]
    b.open("a")
    assert b.main.result() == "a"
    assert b.timers.pending == {}


def test_a_timeout_fires(bench):
    async def main(b: Bench) -> str:
        try:
            async with asyncio.timeout(5) as timeout:
                await b.gate("never")
        except TimeoutError:
            return f"late {timeout.expired()}"
        return ""

    assert bench(main).finish() == "late True"


def test_the_inner_of_two_timeouts_fires_alone(bench):
    async def main(b: Bench) -> list[str]:
        heard = []
        try:
            async with asyncio.timeout(9):
                try:
                    async with asyncio.timeout(5):
                        await b.gate("never")
                except TimeoutError:
                    heard.append("inner")
                await b.gate("never either")
        except TimeoutError:
            heard.append("outer")
        return heard

    assert bench(main).finish() == ["inner", "outer"]


def test_a_timeout_can_be_put_off(bench):
    async def main(b: Bench) -> str:
        try:
            async with asyncio.timeout(5) as timeout:
                timeout.reschedule(b.loop.time() + 50)
                await asyncio.sleep(20)
                b.log.append("slept")
                await b.gate("never")
        except TimeoutError:
            return f"late at {b.loop.time()}"
        return ""

    b = bench(main)
    assert b.finish() == "late at 50.0"
    assert b.log == ["slept"]


def test_a_timeout_of_nothing_expires_without_a_timer(bench):
    async def main(b: Bench) -> str:
        try:
            async with asyncio.timeout(0):
                await b.gate("never")
        except TimeoutError:
            return "late"
        return ""

    b = bench(main)
    assert b.main.result() == "late"
    assert b.timers.started == []


def test_wait_for_gives_up(bench):
    async def main(b: Bench) -> str:
        try:
            await asyncio.wait_for(b.gate("never"), 3)
        except TimeoutError:
            return f"late {b.gate('never').cancelled()}"
        return ""

    assert bench(main).finish() == "late True"


def test_timers_that_are_due_together_fire_in_the_order_of_their_start(bench):
    async def main(b: Bench) -> None:
        async def one(i: int) -> None:
            await asyncio.sleep(4)
            b.log.append(i)

        await asyncio.gather(*(one(i) for i in range(4)))

    b = bench(main)
    b.finish()
    assert b.log == [0, 1, 2, 3]


def test_a_cancel_is_raised_once(bench):
    async def main(b: Bench) -> str:
        try:
            await b.gate("a")
        except asyncio.CancelledError:
            await b.gate("b")
            return "cleaned up"
        return ""

    b = bench(main)
    b.main.cancel()
    b.loop.pump()
    b.open("b")
    assert b.main.result() == "cleaned up"


def test_a_cancel_reaches_the_innermost_of_nested_tasks(bench):
    async def inner(b: Bench) -> None:
        try:
            await b.gate("a")
        finally:
            b.log.append("inner")

    async def middle(b: Bench) -> None:
        try:
            await asyncio.create_task(inner(b))
        finally:
            b.log.append("middle")

    async def main(b: Bench) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(middle(b))
        finally:
            b.log.append("main")

    b = bench(main)
    b.main.cancel()
    b.loop.pump()
    assert b.main.cancelled()
    assert b.log == ["inner", "middle", "main"]


def test_a_shield_keeps_its_inside_from_being_cancelled(bench):
    async def inner(b: Bench) -> None:
        b.log.append(await b.gate("a"))

    async def main(b: Bench) -> None:
        task = asyncio.create_task(inner(b))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            b.log.append("cancelled")
            await task

    b = bench(main)
    b.main.cancel()
    b.loop.pump()
    b.open("a")
    assert b.main.done()
    assert b.log == ["cancelled", "a"]


def test_a_cancel_that_is_taken_back_is_forgotten(bench):
    async def main(b: Bench) -> str:
        try:
            await b.gate("a")
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
        async with asyncio.timeout(3):
            return await b.gate("b")

    b = bench(main)
    b.main.cancel()
    b.loop.pump()
    b.open("b")
    assert b.main.result() == "b"


def test_a_queue_is_first_in_first_out(bench):
    async def main(b: Bench) -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)

        async def produce() -> None:
            for i in range(4):
                await queue.put(i)
                b.log.append(f"put {i}")

        task = asyncio.create_task(produce())
        got = [await queue.get() for _ in range(4)]
        await task
        return got

    b = bench(main)
    assert b.main.result() == [0, 1, 2, 3]
    assert b.log == ["put 0", "put 1", "put 2", "put 3"]


def test_a_lock_and_a_semaphore_serve_in_the_order_of_asking(bench):
    async def main(b: Bench) -> None:
        lock, slots = asyncio.Lock(), asyncio.Semaphore(2)

        async def one(i: int) -> None:
            async with slots:
                b.log.append(f"in {i}")
                async with lock:
                    await b.gate(str(i))
                    b.log.append(i)

        await asyncio.gather(*(one(i) for i in range(3)))

    b = bench(main)
    assert b.log == ["in 0", "in 1"]
    b.open("0", "1", "2")
    assert b.log == ["in 0", "in 1", 0, "in 2", 1, 2]


def test_an_event_and_a_condition_wake_in_the_order_of_waiting(bench):
    async def main(b: Bench) -> None:
        event, condition = asyncio.Event(), asyncio.Condition()

        async def for_event(i: int) -> None:
            await event.wait()
            b.log.append(f"event {i}")

        async def for_condition(i: int) -> None:
            async with condition:
                await condition.wait()
                b.log.append(f"condition {i}")

        tasks = [asyncio.create_task(f(i)) for i in range(3) for f in (for_event, for_condition)]
        await b.gate("go")
        event.set()
        async with condition:
            condition.notify(2)
        await asyncio.wait(tasks[:4])
        async with condition:
            condition.notify_all()
        await asyncio.wait(tasks)

    b = bench(main)
    b.open("go")
    assert b.log == ["event 0", "event 1", "event 2", "condition 0", "condition 1", "condition 2"]


def test_a_barrier_lets_all_through_together(bench):
    async def main(b: Bench) -> list[int]:
        barrier = asyncio.Barrier(3)
        return await asyncio.gather(*(barrier.wait() for _ in range(3)))

    assert bench(main).main.result() == [0, 1, 2]


async def _open_socket() -> Any:
    return await asyncio.open_connection("127.0.0.1", 1)


async def _serve() -> Any:
    return await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


async def _use_raw_socket() -> Any:
    loop = asyncio.get_running_loop()
    with socket.socket() as plain:
        return await loop.sock_connect(plain, ("127.0.0.1", 1))


async def _look_up_name() -> Any:
    return await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def _use_thread() -> Any:
    return await asyncio.to_thread(print)


async def _use_executor() -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, print)


async def _start_program() -> Any:
    return await asyncio.create_subprocess_exec("true")


async def _start_shell() -> Any:
    return await asyncio.create_subprocess_shell("true")


async def _call_from_thread() -> Any:
    return asyncio.get_running_loop().call_soon_threadsafe(print)


async def _run_from_thread() -> Any:
    async def nothing() -> None: ...

    coroutine = nothing()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, asyncio.get_running_loop()).result(0)
    finally:
        coroutine.close()


async def _watch_descriptor() -> Any:
    return asyncio.get_running_loop().add_reader(0, print)


async def _handle_signal() -> Any:
    return asyncio.get_running_loop().add_signal_handler(10, print)


async def _change_task_factory() -> Any:
    return asyncio.get_running_loop().set_task_factory(None)


async def _stop() -> Any:
    return asyncio.get_running_loop().stop()


@pytest.mark.parametrize("act", [
    _open_socket, _serve, _use_raw_socket, _look_up_name, _use_thread, _use_executor,
    _start_program, _start_shell, _call_from_thread, _run_from_thread, _watch_descriptor,
    _handle_signal, _change_task_factory, _stop,
])  # fmt: skip
def test_what_a_replay_would_do_again_is_refused_and_the_decorator_named(bench, act):
    b = bench(lambda _b: act())
    with pytest.raises(
        NotInWorkflowError,
        match=r"Put it into a function decorated with @pgflow\.step, or @pgflow\.read",
    ):
        b.main.result()


def test_code_cannot_close_the_loop_that_runs_it(bench):
    async def main(b: Bench) -> str:
        with contextlib.suppress(NotInWorkflowError):
            asyncio.get_running_loop().close()
        return await b.gate("a")

    b = bench(main)
    b.open("a")
    assert b.main.result() == "a"


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="untouched")


@workflow
async def setting_a_variable(value: str) -> list[str]:
    seen = [variable.get()]
    variable.set(value)

    async def inner() -> str:
        variable.set(f"{value} inside")
        await look_up("x")
        return variable.get()

    seen.append(await asyncio.create_task(inner()))
    await look_up("y")
    return [*seen, variable.get()]


def test_context_variables_do_not_leak_between_executions():
    store = Store(setting_a_variable)
    runs = [store.start(setting_a_variable, name) for name in ("one", "two")]
    worker = Worker(store)
    variable.set("the worker's")
    worker.play("claim 1", "claim 2", "body look_up 1", "body look_up 1")
    worker.finish()
    found = [run.result() for run in runs]
    assert found == [["untouched", f"{n} inside", n] for n in ("one", "two")]
    assert variable.get() == "the worker's"


def test_closing_ends_every_coroutine_in_the_order_of_creation(bench):
    async def one(b: Bench, i: int) -> None:
        try:
            await b.gate(str(i))
        finally:
            b.log.append(i)

    async def main(b: Bench) -> None:
        tasks = [asyncio.create_task(one(b, i)) for i in range(5)]
        try:
            await asyncio.gather(*tasks)
        finally:
            b.log.append("main")

    b = bench(main)
    b.loop.close()
    assert b.log == ["main", 0, 1, 2, 3, 4]


def test_closing_in_the_middle_of_a_clean_up_ends_it(bench):
    async def main(b: Bench) -> None:
        try:
            await b.gate("a")
        finally:
            b.log.append("begins to clean up")
            try:
                await b.gate("b")
            finally:
                b.log.append("ends")

    b = bench(main)
    b.open("a")
    b.loop.close()
    assert b.log == ["begins to clean up", "ends"]


def test_waiting_during_the_unwinding_is_unwound_too(bench, caplog):
    async def main(b: Bench) -> None:
        try:
            await b.gate("a")
        finally:
            try:
                await asyncio.sleep(0)
                b.log.append("never")
            finally:
                await asyncio.sleep(3)
                b.log.append("never")

    b = bench(main)
    b.loop.close()
    assert b.log == []
    assert b.timers.started == []
    assert "was abandoned" not in caplog.text


def test_code_that_catches_every_error_does_not_catch_the_unwinding(bench):
    async def main(b: Bench) -> None:
        while True:
            try:
                await b.gate("a")
            except Exception:  # noqa: PERF203
                b.log.append("caught")

    b = bench(main)
    b.loop.close()
    assert b.log == []


class Patience(list[Any]):
    """Counts how often code has swallowed an unwinding, and ends code that would go on for ever."""

    class Lost(BaseException):
        """Raised where nothing would ever give control back."""

    def swallow(self, error: BaseException) -> None:
        self.append(error)
        if isinstance(error, GeneratorExit):
            raise error
        if len(self) > 3 * MAX_SWALLOWED_UNWINDS:
            raise self.Lost


def assert_abandoned_once(swallowed: Patience, caplog: Any) -> None:
    assert len(swallowed) <= 2 * MAX_SWALLOWED_UNWINDS + 1
    assert caplog.text.count("would not be unwound and was abandoned") == 1


def abandon(bench: Callable[..., Bench]) -> tuple[Bench, Patience]:
    """A loop that has been closed over a coroutine that swallows every unwinding."""
    swallowed = Patience()

    async def main(b: Bench) -> None:
        while True:
            try:
                await b.loop.create_future()
            except BaseException as error:
                swallowed.swallow(error)

    b = bench(main)
    b.log.append(b.main.get_coro())
    b.loop.close()
    return b, swallowed


def test_a_coroutine_that_swallows_the_unwinding_is_abandoned_and_counted(bench, caplog):
    b, swallowed = abandon(bench)
    assert [type(error) for error in swallowed] == [Unwind] * MAX_SWALLOWED_UNWINDS
    assert_abandoned_once(swallowed, caplog)


def test_an_abandoned_coroutine_is_kept_from_the_collector(bench, caplog):
    """Finalised at any later moment, its clean-up would run in the context of whatever runs
    then.
    """
    caplog.set_level(logging.CRITICAL, logger="pgflow")  # a record would keep it
    b, swallowed = abandon(bench)
    b.log.clear()
    b.main = None
    gc.collect()
    assert {type(error) for error in swallowed} == {Unwind}


def test_a_coroutine_that_swallows_and_waits_for_the_same_again_is_abandoned(bench, caplog):
    swallowed = Patience()

    async def main(b: Bench) -> None:
        while True:
            try:
                await b.gate("a")
            except BaseException as error:
                swallowed.swallow(error)

    b = bench(main)
    b.loop.close()
    assert_abandoned_once(swallowed, caplog)


stubborn = Patience()


@workflow
async def swallowing_everything() -> None:
    while True:
        try:
            await look_up("x")
        except BaseException as error:
            stubborn.swallow(error)


def test_code_that_swallows_what_durable_calls_raise_while_it_is_taken_apart_is_abandoned(caplog):
    stubborn.clear()
    store = Store(swallowing_everything)
    store.start(swallowing_everything)
    worker = Worker(store)
    worker.play("claim 1")
    worker.crash()
    assert_abandoned_once(stubborn, caplog)


@contextlib.contextmanager
def no_noise(caplog: Any, capsys: Any) -> Iterator[None]:
    """Nothing is logged, printed, warned of or raised where nobody hears it, nor when the collector
    has come.
    """
    gc.collect()
    raised: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, raised.append
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert raised == []
    assert caplog.records == []
    assert capsys.readouterr() == ("", "")


def test_closing_is_silent(caplog, capsys):
    async def failing() -> None:
        raise ValueError("nobody asks")

    async def patient(b: Bench) -> None:
        await b.gate("c")

    async def main(b: Bench) -> None:
        b.log += [
            asyncio.create_task(failing()),
            asyncio.create_task(patient(b)),
            asyncio.ensure_future(b.gate("a")),
        ]
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(9))
            await asyncio.shield(b.gate("b"))

    with no_noise(caplog, capsys):
        b = Bench(main)
        b.loop.close()
        del b


def test_tasks_made_during_the_unwinding_are_unwound_too(caplog, capsys):
    async def nothing() -> None: ...

    async def late(b: Bench) -> None:
        await b.gate("late")

    async def main(b: Bench) -> None:
        for _ in range(62):
            await asyncio.create_task(nothing())
        try:
            await b.gate("a")
        finally:
            b.log += [asyncio.create_task(late(b)) for _ in range(130)]

    with no_noise(caplog, capsys):
        b = Bench(main)
        b.loop.close()
        del b


async def _numbers(b: Bench, name: str) -> AsyncIterator[int]:
    try:
        for i in range(9):
            yield i
    finally:
        b.log.append(name)


def test_an_abandoned_generator_is_closed_when_the_loop_is_and_not_by_the_collector(bench):
    async def main(b: Bench) -> None:
        for name in "abc":
            async for _ in _numbers(b, name):
                break
        gc.collect()
        await asyncio.sleep(0)
        b.log.append("still open")
        await b.gate("x")

    b = bench(main)
    gc.collect()
    assert b.log == ["still open"]
    b.loop.close()
    assert b.log == ["still open", "a", "b", "c"]


def test_a_generator_that_is_closed_by_hand_is_closed_there(bench):
    async def main(b: Bench) -> None:
        async with contextlib.aclosing(_numbers(b, "a")) as numbers:
            async for _ in numbers:
                break
        b.log.append("after")

    b = bench(main)
    b.loop.close()
    assert b.log == ["a", "after"]


def test_a_generator_that_waits_is_unwound_with_its_task(bench):
    async def waiting(b: Bench) -> AsyncIterator[int]:
        try:
            yield await b.gate("a")
        finally:
            b.log.append("generator")

    async def main(b: Bench) -> None:
        try:
            async for _ in waiting(b):
                b.log.append("never")
        finally:
            b.log.append("main")

    b = bench(main)
    b.loop.close()
    assert b.log == ["generator", "main"]


charged: list[str] = []


@step
async def charge_card(what: str) -> str:
    charged.append(what)
    return what


async def _paying() -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        await charge_card("in the clean-up of a generator")


@workflow
async def abandoning_a_generator() -> int:
    async for number in _paying():
        return (await look_up("x" * number))["size"]
    return 0


def test_no_step_runs_for_real_when_an_abandoned_generator_is_closed():
    charged.clear()
    _, run = run_to_end(abandoning_a_generator)
    assert run.result() == 1
    assert charged == []


def test_a_generator_is_closed_in_the_context_of_its_run():
    seen: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            seen.append(variable.get())

    @workflow(name="abandoning in a context")
    async def abandoning_in_a_context() -> None:
        variable.set("the run's")
        async for _ in numbers():
            break
        await look_up("x")

    variable.set("the worker's")
    run_to_end(abandoning_in_a_context)
    assert seen == ["the run's"]


def test_a_run_that_leaves_its_worker_is_taken_apart_there_and_then_in_its_own_context():
    seen: list[str] = []

    @workflow(name="leaving in a context")
    async def leaving_in_a_context() -> None:
        variable.set("the run's")
        try:
            await pgflow.Signal("never", int).wait()
        finally:
            seen.append(variable.get())

    variable.set("the worker's")
    store = Store(leaving_in_a_context)
    run = store.start(leaving_in_a_context)
    Worker(store).settle()
    assert run.place == "parked"
    gc.collect()
    assert seen == ["the run's"]


def test_it_works_inside_a_running_loop_and_leaves_that_as_it_was():
    seen: list[Any] = []

    async def outer() -> None:
        loop, task, hooks = (
            asyncio.get_running_loop(),
            asyncio.current_task(),
            sys.get_asyncgen_hooks(),
        )

        async def main(b: Bench) -> None:
            seen.append(asyncio.get_running_loop() is b.loop)
            seen.append(asyncio.current_task().get_name())
            async for _ in _numbers(b, "a"):
                break
            await asyncio.sleep(3)
            raise ValueError("inside")

        b = Bench(main)
        b.fire()
        assert isinstance(b.main.exception(), ValueError)
        b.loop.close()
        assert (asyncio.get_running_loop(), asyncio.current_task(), sys.get_asyncgen_hooks()) == (
            loop,
            task,
            hooks,
        )
        await asyncio.sleep(0)

    asyncio.run(outer())
    assert seen == [True, "main"]


def _press_ctrl_c(_signum: int, _frame: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "handler",
    [signal.default_int_handler, _press_ctrl_c, functools.partial(_press_ctrl_c)],
    ids=["Python's", "own", "partial"],
)
def test_an_interrupt_escapes_and_leaves_the_outer_loop_as_it_was(handler):
    async def main(_b: Bench) -> None:
        signal.raise_signal(signal.SIGINT)

    seen = []

    async def outer() -> None:
        loop, hooks = asyncio.get_running_loop(), sys.get_asyncgen_hooks()
        before = signal.signal(signal.SIGINT, handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                Bench(main)
        finally:
            signal.signal(signal.SIGINT, before)
        seen.append((asyncio.get_running_loop(), sys.get_asyncgen_hooks()) == (loop, hooks))

    asyncio.run(outer())
    assert seen == [True]


def test_pressing_ctrl_c_twice_escapes_from_workflow_code():
    async def main(_b: Bench) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    async def outer() -> None:
        with pytest.raises(KeyboardInterrupt):
            Bench(main)
        seen.append("escaped")

    seen: list[str] = []
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell has jobs in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(outer())
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["escaped"]


@workflow
async def interrupting() -> None:
    await look_up("x")
    raise KeyboardInterrupt


async def _run_with_interrupts() -> StoredRun:
    return run_to_end(interrupting)[1]


def test_an_interrupt_that_the_code_raises_itself_fails_the_run():
    """Under asyncio.run, whose handler of SIGINT has not raised it."""
    try:
        run = asyncio.run(_run_with_interrupts())
    except KeyboardInterrupt:
        pytest.fail("the interrupt has left the run")
    assert run.status == "failed"
    assert "KeyboardInterrupt" in str(run.error)


@workflow
async def leaving() -> None:
    await look_up("x")
    sys.exit(3)


def test_a_workflow_that_exits_fails_and_takes_nobody_with_it():
    _, run = run_to_end(leaving)
    assert run.status == "failed"


def test_a_thread_that_comes_to_its_wait_while_it_is_closed_is_not_left_behind():
    ended = threading.Event()

    class Racing(ThreadDriver):
        """Closed by somebody else exactly when the thread has found itself open and is about to
        wait.
        """

        def check_open(self) -> None:
            super().check_open()
            self.close()

    def main() -> None:
        try:
            driver.block(Race())
        except Unwind:
            ended.set()
            raise

    driver: Any = Racing(
        lambda job: threading.Thread(target=job, daemon=True).start(),
        lambda: None,
        main,
        contextvars.Context(),
    )
    driver.start()
    assert ended.wait(HANG_SECONDS)


def threaded(main: Callable[[], Any], waits: threading.Semaphore) -> ThreadDriver:
    """Return a driver whose function has begun, and tells when it waits or has returned."""
    driver = ThreadDriver(
        lambda job: threading.Thread(target=job, daemon=True).start(),
        waits.release,
        main,
        contextvars.Context(),
    )
    driver.start()
    return driver


def test_a_function_goes_on_once_at_the_outcome_of_its_call_or_a_cancel():
    waits, begins = threading.Semaphore(0), threading.Event()
    calls = [Call(number, "x", ThreadWaiter()) for number in (1, 2)]
    came: list[Any] = []

    def main() -> None:
        begins.wait(HANG_SECONDS)
        for call in calls:
            try:
                driver.block(call)
                came.append(call.number)
            except asyncio.CancelledError:
                came.append("cancelled")

    def go_on(*, is_waited_for: bool) -> None:
        driver.resume()
        assert driver.busy == is_waited_for
        if is_waited_for:
            assert waits.acquire(timeout=HANG_SECONDS)
            driver.land()

    driver = threaded(main, waits)
    driver.resume()  # it runs: this lets it pass no wait
    begins.set()
    assert waits.acquire(timeout=HANG_SECONDS)
    driver.land()
    go_on(is_waited_for=False)
    assert calls[0].waiter is not None
    calls[0].waiter.set_result(1)
    go_on(is_waited_for=True)
    assert came == [1]
    go_on(is_waited_for=False)
    driver.cancel()
    go_on(is_waited_for=True)
    assert came == [1, "cancelled"]
    assert calls[1].waiter is not None
    calls[1].waiter.set_result(2)
    go_on(is_waited_for=False)
    assert (driver.done, driver.outcome()) == (True, (None, None))
