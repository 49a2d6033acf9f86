"""Whatever a body or a definition does, its run comes to an end that somebody hears of, and the
worker goes on or says that it cannot.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from typing import Any

import psycopg
import pydantic
import pytest
from records import SOON, in_a_loop, wait_until
from servers import HANG_SECONDS

import pgflow
from pgflow import (
    App,
    AsyncApp,
    Retries,
    RunCancelled,
    RunFailed,
    RunStuck,
    read,
    step,
    transaction,
    workflow,
)
from pgflow._client.results import ResultWaiter
from pgflow._db.connect import ConnectOptions
from pgflow._engine.execution import Execution
from pgflow._transactions.psycopg import PsycopgProvider
from pgflow._worker.committer import Flusher
from pgflow._worker.executor import Executor
from pgflow._worker.heartbeat import Heartbeat, Watchdog
from pgflow._worker.lanes import Lanes, QueueRates
from pgflow._worker.listener import Listener, ListenerCallbacks
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow._worker.pager import Pager
from pgflow._worker.parts import MAX_FAILURES, cancel, keep_going
from pgflow._worker.poller import Poller
from pgflow._worker.rates import Rates
from pgflow._worker.relays import Relays
from pgflow._worker.scheduler import Scheduler
from pgflow._worker.sql_work import EntityMail, SqlFlows
from pgflow._worker.threads import DaemonThreads
from pgflow._worker.upkeep import Retirer, Sealer, Upkeep
from pgflow._worker.worker import Worker
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import WorkerFailed


class Odd(BaseException):
    """Exception of no kind that anybody expects."""


RAISES: dict[str, Callable[[], BaseException]] = {
    "GeneratorExit": GeneratorExit, "KeyboardInterrupt": KeyboardInterrupt, "SystemExit": lambda: SystemExit(3),
    "StopIteration": lambda: StopIteration(4), "StopAsyncIteration": lambda: StopAsyncIteration(4), "CancelledError": asyncio.CancelledError,
    "a group": lambda: BaseExceptionGroup("g", [ValueError(1), KeyboardInterrupt()]), "MemoryError": MemoryError, "a BaseException": lambda: Odd("x"),
}  # fmt: skip


def raise_it(name: str) -> None:
    error = RAISES[name]()
    raise error


@step(retries=1)
async def in_step(name: str) -> None:
    raise_it(name)


@step(retries=1)
def in_sync_step(name: str) -> None:
    raise_it(name)


@read(retries=1)
async def in_read(name: str) -> None:
    raise_it(name)


@transaction
async def in_transaction(conn: psycopg.AsyncConnection, name: str) -> None:
    raise_it(name)


@transaction
def in_sync_transaction(conn: psycopg.Connection, name: str) -> None:
    raise_it(name)


@read(retries=1)
def in_sync_read(name: str) -> None:
    raise_it(name)


@decision(retries=1)
async def in_decision(name: str) -> Choice[int]:
    raise_it(name)
    return Choice(1)


@decision(retries=1)
def in_sync_decision(name: str) -> Choice[int]:
    raise_it(name)
    return Choice(1)


BODIES = {
    body.name: body
    for body in (
        in_step,
        in_sync_step,
        in_read,
        in_sync_read,
        in_transaction,
        in_sync_transaction,
        in_decision,
        in_sync_decision,
    )
}


@workflow
async def calling(body: str, name: str) -> None:
    call = BODIES[body]
    await (call.aio(name) if not call.is_async else call(name))


@workflow
async def quick() -> int:
    return 5


@workflow
async def raising_itself(name: str) -> None:
    raise_it(name)


@workflow
def raising_itself_in_a_thread(name: str) -> None:
    raise_it(name)


holding: list[Callable[[], Any]] = []


@step(retries=Retries(max_attempts=2, first_delay=0.01))
async def failing_once() -> int:
    raise ValueError


@step
async def holding_up() -> int:
    return int(await holding.pop()())


@workflow
async def trying_twice() -> int:
    return await failing_once()


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn, include=[calling, quick, raising_itself, raising_itself_in_a_thread])
    with app, app.worker(grace_seconds=1):
        yield app


@pytest.mark.parametrize(
    ("body", "name"),
    [
        pytest.param(body, name, marks=() if i % len(RAISES) == j else pytest.mark.full)
        for i, body in enumerate(BODIES)
        for j, name in enumerate(RAISES)
    ],
)
def test_whatever_a_body_raises_its_run_ends_and_the_worker_goes_on(app, body, name):
    with pytest.raises(RunFailed):
        app.start(calling, body, name).result(SOON)
    assert app.start(quick).result(SOON) == 5


@pytest.mark.parametrize("of", [raising_itself, raising_itself_in_a_thread], ids=["async", "sync"])
@pytest.mark.parametrize("name", RAISES)
def test_whatever_workflow_code_raises_its_run_ends_and_the_worker_goes_on(app, of, name):
    with pytest.raises(RunCancelled if name == "CancelledError" else RunFailed):
        app.start(of, name).result(SOON)
    assert app.start(quick).result(SOON) == 5


@in_a_loop
async def test_an_interrupt_that_a_body_raises_is_not_the_end_of_an_async_app(dsn):
    app = AsyncApp(dsn, include=[calling, quick])
    async with app, app.worker(grace_seconds=1):
        with pytest.raises(RunFailed):
            await (await app.start(calling, "in_step", "KeyboardInterrupt")).result(SOON)
        assert await (await app.start(quick)).result(SOON) == 5


@step(retries=1)
async def with_tasks() -> None:
    async def leave() -> None:
        sys.exit(3)

    await asyncio.gather(leave(), asyncio.sleep(0.01))


@workflow
async def calling_tasks() -> None:
    await with_tasks()


def test_a_task_of_a_body_that_exits_does_not_end_the_loop_of_an_app(dsn, caplog):
    """asyncio lets KeyboardInterrupt and SystemExit of a task leave the loop."""
    app = App(dsn, include=[calling_tasks, quick])
    with app, app.worker(grace_seconds=1):
        with pytest.raises(RunFailed):
            app.start(calling_tasks).result(SOON)
        assert app.start(quick).result(SOON) == 5
    assert "a task raised SystemExit" in caplog.text


@effect(risk="final")
async def in_effect(name: str) -> None:
    raise_it(name)


@effect(risk="final")
def in_sync_effect(name: str) -> None:
    raise_it(name)


@workflow
async def acting(effect: str, name: str) -> None:
    await (in_effect(name) if effect == "async" else in_sync_effect.aio(name))


@pytest.mark.parametrize("effect", ["async", "sync"])
@pytest.mark.parametrize("name", RAISES)
def test_whatever_an_effect_raises_its_outcome_is_unknown(dsn, effect, name):
    app = App(dsn, include=[acting, quick])
    with app, app.worker(grace_seconds=1):
        with pytest.raises(RunStuck):
            app.start(acting, effect, name).result(SOON)
        assert app.start(quick).result(SOON) == 5


@pytest.mark.full
def test_what_cannot_be_judged_holds_its_run(dsn, monkeypatch, caplog):
    def broken(*_: Any) -> Any:
        raise Odd("the judge")

    monkeypatch.setattr("pgflow._worker.bodies._failed_result", broken)
    app = App(dsn, include=[calling, quick])
    with app, app.worker(grace_seconds=1):
        with pytest.raises(
            RunStuck, match=r"engine.*cannot process the result of step in_step: Odd: the judge"
        ):
            app.start(calling, "in_step", "MemoryError").result(SOON)
        assert app.start(quick).result(SOON) == 5


@pytest.mark.full
def test_a_body_that_is_cancelled_before_it_begins_holds_its_run(dsn, monkeypatch):
    """By nobody who wanted it: something that its worker awaited was cancelled."""

    async def cancelled(*_: Any) -> Any:
        raise asyncio.CancelledError

    monkeypatch.setattr("pgflow._worker.progress.Progress.last_details", cancelled)
    app = App(dsn, include=[trying_twice, quick])
    with app, app.worker(grace_seconds=1):
        with pytest.raises(
            RunStuck, match="cannot process the result of step failing_once: CancelledError"
        ):
            app.start(trying_twice).result(SOON)
        assert app.start(quick).result(SOON) == 5


class Touchy(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        raise_it(name)
        return name


@workflow
async def reading(touchy: Touchy) -> None: ...


@pytest.mark.full
@pytest.mark.parametrize("name", RAISES)
def test_whatever_the_reading_of_an_input_raises_its_run_ends_and_the_worker_goes_on(
    dsn, conn, name
):
    app = App(dsn, include=[reading, quick])
    with app, app.worker(grace_seconds=1):
        conn.execute(
            "select pgflow.start_run('reading', %s, key => 'touchy')",
            (json.dumps({"touchy": {"name": name}}),),
        )
        conn.execute("select pgflow.wake()")
        wait_until(
            lambda: conn.execute(
                "select from pgflow.runs where key = 'touchy' and status in ('stuck', 'failed', "
                "'cancelled')"
            ).fetchall(),
            "an end",
        )
        assert app.start(quick).result(SOON) == 5
        assert worker_of(app).failure is None


class Broken:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise RuntimeError("odd")


class Panicking:
    """As pydantic's core does: its panics are no Exceptions."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise Odd("panic")


@workflow
async def badly_annotated() -> Broken:
    return Broken()


@workflow
async def badly_asked(value: Broken) -> int:
    return 1


@workflow
async def panicking() -> Panicking:
    return Panicking()


@pytest.mark.full
@pytest.mark.parametrize("name", ["badly_annotated", "badly_asked", "panicking"])
def test_a_bad_annotation_started_from_sql_holds_its_run_and_no_other(dsn, conn, name):
    app = App(dsn, include=[badly_annotated, badly_asked, panicking, quick])
    with app, app.worker(grace_seconds=1):
        conn.execute("select pgflow.start_run(%s, key => 'bad')", (name,))
        conn.execute("select pgflow.wake()")
        wait_until(
            lambda: conn.execute(
                "select status from pgflow.runs where key = 'bad' and status in ('stuck', 'failed')"
            ).fetchall(),
            "what was to come",
        )
        assert app.start(quick).result(SOON) == 5
        if name != "badly_asked":
            found = conn.execute("select reason from pgflow.runs where key = 'bad'").fetchall()
            assert found == [("definition",)]


@pytest.mark.full
def test_a_run_at_which_the_engine_fails_again_and_again_is_held(dsn, monkeypatch):
    begin, tries = Execution.start, []

    def broken(self: Execution) -> None:
        if self.claim.workflow == "calling":
            tries.append(1)
            raise LookupError("a part of the engine")
        begin(self)

    monkeypatch.setattr(Execution, "start", broken)
    app = App(dsn, include=[calling, quick])
    with app, app.worker(grace_seconds=1):
        with pytest.raises(
            RunStuck, match=r"the engine failed on it 3 times: LookupError: a part of the engine"
        ):
            app.start(calling, "in_step", "MemoryError").result(SOON)
        assert app.start(quick).result(SOON) == 5
    assert len(tries) == 3


@in_a_loop
async def test_a_loop_that_fails_begins_again_and_at_last_is_given_up(monkeypatch):
    monkeypatch.setattr("pgflow._worker.parts.back_off_seconds", lambda *_: 0.0)
    tries: list[int] = []
    given_up: list[tuple[str, str]] = []

    async def loop() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise asyncio.CancelledError  # of something in it
        if len(tries) == 2:
            return
        raise ValueError(len(tries))

    await keep_going("it", loop, lambda name, error: given_up.append((name, str(error))))
    assert len(tries) == MAX_FAILURES
    assert given_up == [("it", str(MAX_FAILURES))]


def waiter_of(app: App) -> ResultWaiter:
    assert app._background is not None
    (here,) = app._background._on_loops.values()
    assert here.waiter is not None
    return here.waiter


def worker_of(app: App) -> Worker:
    assert app._background is not None
    (here,) = app._background._on_loops.values()
    return here.workers[0]


LOOPS: dict[str, tuple[Any, str]] = {
    "claims": (Executor, "_claim_once"), "polls": (Poller, "poll"), "flushes": (Flusher, "_flush_old"), "upkeep": (Upkeep, "_compare_schema"),
    "commits": (Executor, "execute"), "results": (ResultWaiter, "_run"), "lanes": (Lanes, "look"),
    "pages": (Pager, "look"), "seals": (Sealer, "round"), "retention": (Retirer, "round"), "beats": (Heartbeat, "_look"), "the heart's look at the loop": (Watchdog, "look"), "news": (Listener, "_execute"),
    "the mailbox of entities": (EntityMail, "round"), "schedules": (Scheduler, "_round"),
    "relays": (Relays, "round"), "lines": (QueueRates, "round"), "workflows in SQL": (SqlFlows, "round"),
    "rates": (Rates, "_tell"),
}  # fmt: skip
"""Calls that each loop, task and thread of a worker makes on its way."""

FAILS: dict[str, Callable[[str], BaseException]] = {
    "an error": lambda where: LookupError(f"in {where}"), "a cancel": lambda where: asyncio.CancelledError(f"in {where}"),
    "a BaseException": lambda where: Odd(f"in {where}"),
}  # fmt: skip


@pytest.mark.parametrize(
    "fails",
    [
        "an error",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("a cancel", "a BaseException")),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_fails_once_begins_again_and_the_work_goes_on(
    dsn, monkeypatch, caplog, loop, fails
):
    owner, method = LOOPS[loop]
    if fails != "an error" and loop == "commits":
        pytest.skip("this ends the worker: below")
    sound, failed = getattr(owner, method), threading.Event()

    def once(self: Any, *args: Any, **options: Any) -> Any:
        if not failed.is_set() and armed:
            failed.set()
            raise FAILS[fails](loop)
        return sound(self, *args, **options)

    armed: list[int] = []
    monkeypatch.setattr(owner, method, once)
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("pgflow._worker.lanes.LANES_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("pgflow._worker.lanes.RATES_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("pgflow._worker.pager.PAGES_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("pgflow._worker.listener.CHECK_SECONDS", 0.05)
    monkeypatch.setattr("pgflow._worker.rates.COUNTS_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("pgflow._worker.upkeep.SEALING_OFF_SECONDS", 0.05)
    app = App(dsn, include=[quick, pgflow.events.Relay("r", ["t"], to=repr)])
    app.pager()(print)
    with app, app.worker(grace_seconds=1, poll_seconds=0.1):
        armed.append(1)
        assert app.start(quick).result(SOON) == 5
        assert failed.wait(HANG_SECONDS)
        assert app.start(quick).result(SOON) == 5
        wait_until(lambda: worker_of(app)._listener.listening, "listening again")
        assert worker_of(app).failure is None
    assert f"in {loop}" in caplog.text


@pytest.mark.full
@pytest.mark.parametrize("fails", ["a cancel", "a BaseException"])
def test_a_committer_that_ends_ends_the_worker_loudly(dsn, monkeypatch, fails):
    owner, method = LOOPS["commits"]
    sound, armed = getattr(owner, method), []

    def broken(self: Any, *args: Any, **options: Any) -> Any:
        if armed:
            raise FAILS[fails]("commits")
        return sound(self, *args, **options)

    monkeypatch.setattr(owner, method, broken)
    app = App(dsn, include=[quick])
    with app:
        with pytest.raises(WorkerFailed, match="the committer"), app.worker(grace_seconds=1):
            assert app.start(quick).result(SOON) == 5
            armed.append(1)
            app.start(quick)
            wait_until(lambda: worker_of(app).failed.is_set(), "a failure")
        armed.clear()
        with app.worker(grace_seconds=1):
            assert app.start(quick).result(SOON) == 5


@pytest.mark.parametrize(
    "payload",
    ["r\u00b2", "r" + "9" * 5000, "m1,x," + "9" * 5000, ";;", "r\u0663"],
    ids=lambda text: ascii(text[:5]),
)
def test_nothing_that_anybody_notifies_ends_a_listener(dsn, conn, caplog, payload):
    app = App(dsn, include=[quick])
    with app, app.worker(grace_seconds=1, poll_seconds=3600):
        assert app.start(quick).result(SOON) == 5
        wait_until(lambda: worker_of(app)._listener.listening, "listening")
        for channel, text in (("pgflow_work", payload), ("pgflow_done", payload[1:])):
            conn.execute("select pg_notify(%s, %s)", (channel, text))
        for _ in range(3):
            conn.execute("select pgflow.start_run('quick')")
            conn.execute("select pgflow.wake()")
        assert app.start(quick).result(SOON) == 5
    assert "the listener on" not in caplog.text


def test_looks_for_results_that_are_cancelled_leave_nobody_waiting(dsn):
    app = App(dsn, include=[quick])
    with app, app.worker(grace_seconds=1):
        assert app.start(quick).result(SOON) == 5
        waiting = Thread(
            target=lambda: outcome.append(ended_with(lambda: app.get(key, quick).result(SOON)))
        )
        outcome: list[str] = []
        key = app.start(quick.options(queue="nobody")).key
        waiting.start()
        waiter = waiter_of(app)
        wait_until(
            lambda: waiter._waits and waiter._task is not None and not waiter._task.done(),
            "somebody who waits",
        )
        assert waiter._task is not None
        waiter._task.get_loop().call_soon_threadsafe(waiter._task.cancel)
        waiting.join(HANG_SECONDS)
        assert outcome == [
            "WorkerFailed: polling for results failed: CancelledError: the polling task was cancelled"
        ]
        assert app.start(quick).result(SOON) == 5


@in_a_loop
async def test_who_asks_for_a_result_as_the_looks_for_another_end_gets_it(dsn, monkeypatch):
    app = AsyncApp(dsn, include=[quick])
    async with app, app.worker(grace_seconds=1):
        runs = [await app.start(quick) for _ in range(3)]
        assert [await run.result(SOON) for run in runs] == [5, 5, 5]
        waiter = app._here.waiter
        assert waiter is not None
        ask = waiter._control.ask

        async def news_meanwhile(query: Any) -> Any:
            answer = await ask(query)
            waiter._look_now()
            return answer

        monkeypatch.setattr(waiter._control, "ask", news_meanwhile)
        assert [await run.result(SOON) for run in runs] == [5, 5, 5]


def ended_with(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Proxy:
    """Asked for its class it fails, as such objects of web frameworks do outside of a request."""

    __class__ = property(lambda _: {}["no request"])  # type: ignore[assignment]

    def hold_up(self, until: Callable[[], object]) -> None:
        wait_until(until, "what was to come")


@workflow
async def held_up() -> int:
    return await holding_up()


def test_a_heart_goes_on_whatever_holds_up_the_loop(dsn, caplog):
    @step
    async def hold() -> int:
        Proxy().hold_up(lambda: "cannot inspect the worker's loop" in caplog.text)
        return 1

    holding.append(hold.fn)
    app = App(dsn, include=[held_up])
    with app, app.worker(grace_seconds=1, rhythm=Rhythm(blocked_after=0.05, look=0.05)):
        assert app.start(held_up).result(HANG_SECONDS) == 1
        assert worker_of(app)._heartbeat.is_beating


@pytest.mark.full
@pytest.mark.parametrize("loop", ["claims", "polls", "flushes", "commits"])
def test_a_loop_that_cannot_go_on_ends_the_worker_and_the_caller_is_told(dsn, monkeypatch, loop):
    owner, method = LOOPS[loop]
    sound, armed = getattr(owner, method), []

    def broken(self: Any, *args: Any, **options: Any) -> Any:
        if armed:
            raise LookupError(f"in {loop}")
        return sound(self, *args, **options)

    monkeypatch.setattr(owner, method, broken)
    monkeypatch.setattr("pgflow._worker.parts.back_off_seconds", lambda *_: 0.01)
    monkeypatch.setattr("pgflow._worker.committer.back_off_seconds", lambda *_: 0.01)
    monkeypatch.setattr("pgflow._worker.runs.MAX_ENGINE_FAILURES", 1000)
    app = App(dsn, include=[calling, quick])
    with app:
        with (
            pytest.raises(
                WorkerFailed, match=rf"has failed and hands its runs back: .*LookupError: in {loop}"
            ),
            app.worker(grace_seconds=1, poll_seconds=0.1),
        ):
            assert app.start(quick).result(SOON) == 5
            armed.append(1)
            if loop in ("claims", "commits"):
                app.start(quick).result(SOON)
            wait_until(lambda: worker_of(app).failed.is_set(), "a failure")
        armed.clear()
        with app.worker(grace_seconds=1):  # another one works
            assert app.start(quick).result(SOON) == 5


@in_a_loop
async def test_a_worker_that_fails_ends_the_context_of_an_async_app(dsn, monkeypatch):
    armed: list[int] = []
    sound = Poller.poll

    async def broken(self: Any) -> Any:
        if armed:
            raise LookupError("in polls")
        return await sound(self)

    monkeypatch.setattr(Poller, "poll", broken)
    monkeypatch.setattr("pgflow._worker.parts.back_off_seconds", lambda *_: 0.01)
    app = AsyncApp(dsn, include=[quick])
    async with app:
        with pytest.raises(WorkerFailed, match="the loop of polls: LookupError: in polls"):
            async with app.worker(grace_seconds=1, poll_seconds=0.1):
                assert await (await app.start(quick)).result(SOON) == 5
                armed.append(1)
                await asyncio.Event().wait()
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        armed.clear()
        async with app.worker(grace_seconds=1):
            assert await (await app.start(quick)).result(SOON) == 5


def test_a_heart_whose_thread_is_gone_ends_the_worker(dsn, monkeypatch):
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(
        "pgflow._worker.heartbeat.Heartbeat.is_beating", property(lambda self: False)
    )
    app = App(dsn, include=[quick])
    with (
        app,
        pytest.raises(WorkerFailed, match="its heartbeat has stopped"),
        app.worker(grace_seconds=1),
    ):
        wait_until(lambda: worker_of(app).failed.is_set(), "what was to come")


released = threading.Event()


@step(
    timeout=timedelta(seconds=1),
    retries=Retries(max_attempts=2, first_delay=timedelta(seconds=0.01)),
)
def hanging() -> int:
    released.wait(HANG_SECONDS)
    return 1


@step
def at_once() -> int:
    return 2


@workflow
def hanging_around() -> str:
    try:
        return str(hanging())
    except TimeoutError:
        return "timed out"


@workflow
def with_a_sync_step() -> int:
    return at_once()


@pytest.fixture
def _hang() -> Iterator[None]:
    released.clear()
    yield
    released.set()


@pytest.mark.full
@pytest.mark.usefixtures("_hang")
def test_threads_lost_to_bodies_that_hang_are_replaced_and_the_world_is_told(dsn, conn, caplog):
    from pgflow.meter import Meter

    meter = Meter()
    app = App(dsn, include=[hanging_around, with_a_sync_step])
    with app, app.worker(concurrency=4, grace_seconds=1, meter=meter):
        runs = [app.start(hanging_around) for _ in range(4)]
        assert [run.result(SOON) for run in runs] == ["timed out"] * 4
        assert app.start(with_a_sync_step).result(SOON) == 2
        assert "step hanging continues in its thread after it was given up: 1 of 32" in caplog.text
        assert meter.threads_lost == 8
        wait_until(
            lambda: conn.execute("select lost_threads from pgflow.workers").fetchall() == [(8,)],
            "what was to come",
        )
        released.set()
        wait_until(
            lambda: conn.execute("select lost_threads from pgflow.workers").fetchall() == [(0,)],
            "what was to come",
        )
        assert app.start(with_a_sync_step).result(SOON) == 2


@transaction
def hanging_with_a_lock(conn: psycopg.Connection, lock: int) -> int:
    conn.execute("select pg_advisory_xact_lock(%s)", (lock,))
    released.wait(HANG_SECONDS)
    return 1


@transaction
def locking(conn: psycopg.Connection, lock: int) -> int:
    conn.execute("select pg_advisory_xact_lock(%s)", (lock,))
    return 2


@workflow
def hanging_in_a_transaction(lock: int) -> int:
    try:
        return hanging_with_a_lock.options(timeout=1)(lock)
    except TimeoutError:
        return locking(lock)


@pytest.mark.full
@pytest.mark.usefixtures("_hang")
def test_connections_and_locks_of_transactions_that_hang_are_replaced_and_freed(dsn):
    count = WorkerOptions.transaction_connections + 1
    app = App(dsn, include=[hanging_in_a_transaction])
    with app, app.worker(concurrency=count, grace_seconds=1):
        runs = [app.start(hanging_in_a_transaction, lock) for lock in range(count)]
        assert [run.result(HANG_SECONDS) for run in runs] == [2] * count
        pool = next(
            p.pool for p in worker_of(app).definitions.providers if isinstance(p, PsycopgProvider)
        )
        wait_until(lambda: worker_of(app).lost_threads == count, "what was to come")
        assert pool.max_size == WorkerOptions.transaction_connections + count
        released.set()
        wait_until(
            lambda: pool.max_size == WorkerOptions.transaction_connections, "what was to come"
        )


@pytest.mark.full
@pytest.mark.usefixtures("_hang")
def test_a_worker_that_has_lost_too_many_threads_hands_its_runs_back_and_says_so(dsn, caplog):
    app = App(dsn, include=[hanging_around, with_a_sync_step])
    with app:
        with (
            pytest.raises(
                WorkerFailed,
                match="[456] of its threads are lost to bodies that do not end, as many as it may "
                "lose",
            ),
            app.worker(concurrency=2, grace_seconds=0.5, max_lost_threads=4),
        ):
            for _ in range(4):
                app.start(hanging_around).result(SOON)
        with app.worker(concurrency=2, grace_seconds=0.5):
            assert app.start(with_a_sync_step).result(SOON) == 2
    assert "threads that worker 1 may lose are lost" in caplog.text


def test_a_pool_replaces_lost_threads_up_to_its_bound():
    threads = DaemonThreads(2, "test", max_lost=2)
    stop = threading.Event()
    hung = [threads.submit(stop.wait, 60) for _ in range(2)]
    wait_until(lambda: all(job.running() for job in hung), "what was to come")
    late = [threads.submit(stop.wait, 60) for _ in range(2)]
    assert threads.give_up(hung[0])
    assert not threads.give_up(hung[0])
    assert threads.give_up(hung[1])
    wait_until(lambda: all(job.running() for job in late), "what was to come")
    assert threads.lost == 2
    waiting = threads.submit(lambda: 3)
    assert threads.give_up(late[0])  # one more than are replaced
    with pytest.raises(TimeoutError):
        waiting.result(0.2)
    stop.set()
    assert waiting.result(HANG_SECONDS) == 3
    wait_until(lambda: threads.lost == 0, "what was to come")
    assert [threads.submit(lambda: 4).result(HANG_SECONDS) for _ in range(5)] == [4] * 5
    assert not threads.give_up(waiting)
    threads.shutdown()


def test_a_job_that_never_began_costs_no_thread():
    threads = DaemonThreads(1, "test", max_lost=1)
    stop = threading.Event()
    first = threads.submit(stop.wait, 60)
    second = threads.submit(lambda: 2)
    second.cancel()
    assert not threads.give_up(second)
    stop.set()
    assert first.result(HANG_SECONDS)
    assert threads.submit(lambda: 3).result(HANG_SECONDS) == 3
    threads.shutdown()


@pytest.mark.full
def test_a_task_that_has_dropped_a_cancel_is_cancelled_again():
    async def play() -> None:
        begun = asyncio.Event()

        async def deaf() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.Event().wait()

        task = asyncio.create_task(deaf())
        await begun.wait()
        await cancel([task])
        assert task.cancelled()

    asyncio.run(play())


@pytest.mark.parametrize("ticks", range(6))
def test_a_listener_ends_though_its_cancel_meets_a_notification(dsn, ticks):
    """A cancel in one turn of the loop with news: asyncio.wait_for of Python 3.11, in which psycopg
    3.2 waits, drops it.
    """

    async def play() -> None:
        loop = asyncio.get_running_loop()
        news, heard, closing = asyncio.Event(), [], []
        callbacks = ListenerCallbacks(heard.append, news.set, lambda *failed: None)
        listener = Listener(ConnectOptions(dsn), ["met"], callbacks)
        listener.start()
        await news.wait()
        assert listener._connection is not None
        beside = os.dup(listener._connection.pgconn.socket)

        def after(turns: int) -> None:
            if turns:
                loop.call_soon(after, turns - 1)
            else:
                closing.append(loop.create_task(listener.stop()))

        def readable() -> None:
            loop.remove_reader(beside)
            after(ticks)

        loop.add_reader(beside, readable)
        try:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
                await other.execute("notify met, 'news'")
            while not closing:
                await asyncio.sleep(0)
            await closing[0]
        finally:
            os.close(beside)

    asyncio.run(play())
