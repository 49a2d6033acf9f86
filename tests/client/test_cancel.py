"""Cancelling: whatever a run is doing, its code may clean up, and cancelled is final."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import HOUR, SOON, count, events, eventually, run_row, steps, wait_until
from servers import HANG_SECONDS, login_of

import pgflow
from pgflow import KeyConflict, RunCancelled, RunNotFound, Signal, read, step, workflow
from pgflow.errors import WrongState

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness, Harness

go = Signal("go", int)


@step
async def note(text: str) -> str:
    return text


@workflow
async def wait_for_go() -> int:
    await note("begun")
    return await go.wait()


async def assert_cancelled(run: Any, why: str = "cancelled") -> None:
    with pytest.raises(RunCancelled, match=f"was cancelled: {why}"):
        await run.result(SOON)
    assert await run.status() == "cancelled"


# ---------------------------------------------------------------- wherever it is


@pytest.mark.full
async def test_a_queued_run_is_cancelled_without_a_worker_and_without_its_code(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    aflow.include(wait_for_go)
    run = await aflow.app.start(wait_for_go)
    await run.cancel()
    await assert_cancelled(run)
    await aflow.until_idle()
    assert events(conn, run.key) == [("operator", "cancel")]


@pytest.mark.full
async def test_a_waiting_run_is_cancelled_at_its_wait_and_says_why_and_by_whom(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    aflow.include(wait_for_go)
    run = await aflow.start(wait_for_go)
    await aflow.until_idle()
    await aflow.app.cancel(run.key, why="the customer left")
    await assert_cancelled(run, "the customer left")
    assert run_row(conn, run.key, "status, reason") == ("cancelled", "the customer left")
    assert run_row(conn, run.key, "reason_code, reason_detail") == ("asked", {"by": "postgres"})
    (cause,) = conn.execute(
        "select payload from pgflow.timeline where event = 'call_cancelled' and call = 0"
    ).fetchone()
    assert cause == {"why": "the customer left", "by": "postgres"}


async def test_a_run_in_a_step_is_cancelled_there_and_that_is_no_result_of_the_step(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    started = asyncio.Event()
    stopped = []

    @step
    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    @workflow
    async def busy() -> None:
        await endless()

    aflow.include(busy)
    run = await aflow.start(busy)
    await started.wait()
    await run.cancel()
    await assert_cancelled(run)
    await eventually(lambda: stopped, "the body is stopped")
    assert steps(conn, run.key) == [("endless", "abandoned", 1)]


@pytest.mark.full
def test_a_run_in_a_step_in_a_thread_does_not_wait_for_the_thread(flow: Harness) -> None:
    started, release = threading.Event(), threading.Event()

    @step
    def endless() -> None:
        started.set()
        release.wait(HANG_SECONDS)

    @workflow
    async def busy() -> None:
        await endless.aio()

    flow.include(busy)
    run = flow.start(busy)
    try:
        assert started.wait(HANG_SECONDS)
        run.cancel()
        with pytest.raises(RunCancelled):
            run.result(SOON)
    finally:
        release.set()


async def test_a_run_between_two_attempts_of_a_step_is_cancelled_there(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    @step(retries=pgflow.Retries(first_delay=HOUR))
    async def shaky() -> None:
        raise OSError

    @workflow
    async def patient() -> None:
        await shaky()

    aflow.include(patient)
    run = await aflow.start(patient)
    await aflow.until_idle()
    await run.cancel()
    await assert_cancelled(run)
    assert steps(conn, run.key) == [("shaky", "abandoned", 1)]
    assert await aflow.until_idle() is None


async def test_a_run_that_was_cancelled_while_no_worker_lived_is_cancelled_by_the_next(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    cleaned = []

    @workflow
    async def tidy() -> None:
        try:
            await note("begun")
            await go.wait()
        finally:
            cleaned.append(await note("cleaned"))

    aflow.include(tidy)
    run = await aflow.start(tidy)
    await aflow.until_idle()
    await aflow.crash()
    await run.cancel(why="ordered twice", by="ann")
    assert await run.status() != "cancelled"
    asked = "select verb, why, sent_by from pgflow.orders where key = %s"
    assert conn.execute(asked, (run.key,)).fetchall() == [
        ("cancel", "ordered twice", f"ann ({login_of(aflow.app.dsn)})")
    ]
    await aflow.until_idle()
    await assert_cancelled(run, "ordered twice")
    assert cleaned[-1] == "cleaned"
    assert conn.execute(asked, (run.key,)).fetchall() == []


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_run_that_has_recorded_nothing_but_waits_may_clean_up_too(
    aflow: AsyncHarness, colour: str
) -> None:
    cleaned = []

    @workflow
    async def tidy() -> None:
        try:
            await go.wait()
        finally:
            cleaned.append(await note("cleaned"))

    @workflow
    def tidy_sync() -> None:
        try:
            go.sync.wait()
        finally:
            cleaned.append(note.sync("cleaned"))

    aflow.include(tidy, tidy_sync)
    run = await aflow.start(tidy if colour == "async" else tidy_sync)
    await aflow.until_idle()
    await run.cancel()
    await assert_cancelled(run)
    assert cleaned == ["cleaned"]


# ---------------------------------------------------------------- cleaning up


class Tidying:
    """A workflow that cleans up in a finally: with a step, a sleep, and a step that hangs."""

    def __init__(self) -> None:
        self.cleaned: list[int] = []
        self.hanging = asyncio.Event()

        @step
        async def clean(n: int) -> None:
            self.cleaned.append(n)
            if self.cleaned == [1, 2]:
                self.hanging.set()
                await asyncio.Event().wait()

        @workflow
        async def tidy() -> None:
            try:
                await note("begun")
                await go.wait()
            finally:
                await clean(1)
                await pgflow.sleep(HOUR)
                await clean(2)

        self.tidy = tidy

    async def cancel(self, aflow: AsyncHarness) -> Any:
        """A run of it that is cancelled, and sleeps in its finally."""
        aflow.include(self.tidy)
        run = await aflow.start(self.tidy)
        await aflow.until_idle()
        await run.cancel()
        await aflow.until_idle()
        assert await run.status() == "waiting"
        return run


@pytest.mark.full
async def test_durable_calls_work_in_a_finally_and_survive_a_crash_there(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    tidying = Tidying()
    run = await tidying.cancel(aflow)
    await run.cancel()
    await aflow.until_idle()
    assert await run.status() == "waiting", "once is enough"
    clock = asyncio.create_task(aflow.skip(HOUR))
    await tidying.hanging.wait()
    clock.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await clock
    await aflow.crash()
    await aflow.until_idle()
    await assert_cancelled(run)
    assert tidying.cleaned == [1, 2, 2]
    assert steps(conn, run.key) == [
        ("note", "completed", 1),
        ("clean", "completed", 1),
        ("clean", "completed", 2),
    ]


async def test_what_is_shielded_goes_on_and_its_result_can_be_had(aflow: AsyncHarness) -> None:
    started, proceed = asyncio.Event(), asyncio.Event()

    @step
    async def precious() -> str:
        started.set()
        await proceed.wait()
        return "kept"

    @workflow
    async def guard() -> str:
        task = asyncio.create_task(precious())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            pgflow.set_state(cancelled=True)
            return f"cancelled, {await task}"

    aflow.include(guard)
    run = await aflow.start(guard)
    await started.wait()
    await run.cancel()
    await eventually(run.state, "the workflow has caught the cancellation")
    proceed.set()
    assert await run.result(SOON) == "cancelled, kept"


async def test_a_workflow_that_swallows_the_cancellation_completes(aflow: AsyncHarness) -> None:
    @workflow
    async def stubborn() -> str:
        try:
            await note("begun")
            await go.wait()
        except asyncio.CancelledError:
            return "not today"
        return ""

    aflow.include(stubborn)
    run = await aflow.start(stubborn)
    await aflow.until_idle()
    await run.cancel()
    assert await run.result(SOON) == "not today"


async def test_a_workflow_that_fails_while_it_cleans_up_has_failed(aflow: AsyncHarness) -> None:
    @workflow
    async def clumsy() -> None:
        try:
            await note("begun")
            await go.wait()
        finally:
            raise ValueError("dropped it")

    aflow.include(clumsy)
    run = await aflow.start(clumsy)
    await aflow.until_idle()
    await run.cancel()
    with pytest.raises(pgflow.RunFailed, match="dropped it"):
        await run.result(SOON)


async def test_every_task_of_a_run_is_cancelled(aflow: AsyncHarness) -> None:
    ended = []

    @workflow
    async def many() -> None:
        async def one(n: int) -> None:
            try:
                await note("begun")
                await (go.wait() if n % 2 else pgflow.sleep(HOUR))
            finally:
                ended.append(n)

        async with asyncio.TaskGroup() as group:
            for n in range(4):
                group.create_task(one(n))

    aflow.include(many)
    run = await aflow.start(many)
    await aflow.until_idle()
    ended.clear()
    await run.cancel()
    await assert_cancelled(run)
    assert sorted(ended) == [0, 1, 2, 3]


@pytest.mark.full
@pytest.mark.parametrize("where", ["waiting", "in a step", "in a map"])
def test_a_sync_workflow_is_cancelled_where_it_waits_and_may_clean_up(
    flow: Harness, where: str
) -> None:
    started, release = threading.Event(), threading.Event()
    cleaned = []

    @step
    def endless(n: int) -> None:
        started.set()
        release.wait(HANG_SECONDS)

    @workflow
    def busy() -> None:
        try:
            note.sync("begun")
            match where:
                case "waiting":
                    started.set()
                    pgflow.sync.sleep(HOUR)
                case "in a step":
                    endless(1)
                case _:
                    pgflow.sync.map(endless, [1, 2])
        except asyncio.CancelledError:
            cleaned.append(note.sync("cleaned"))
            raise

    flow.include(busy)
    run = flow.start(busy)
    try:
        assert started.wait(HANG_SECONDS)
        if where == "waiting":
            flow.until_idle()
        run.cancel()
        with pytest.raises(RunCancelled):
            run.result(SOON)
    finally:
        release.set()
    assert cleaned == ["cleaned"]


@pytest.mark.full
@pytest.mark.parametrize("request_", ["cancel", "pause"])
@pytest.mark.parametrize("waits_for", ["time", "a signal"])
async def test_a_request_that_crosses_a_run_on_its_way_to_park_is_not_lost(
    aflow: AsyncHarness, conn: psycopg.Connection, request_: str, waits_for: str
) -> None:
    @workflow
    async def patient() -> None:
        await note("begun")
        await (pgflow.sleep(HOUR) if waits_for == "time" else go.wait())

    # Whoever parks looks for mail first, and then stands still here until the test lets go.
    conn.execute("""
        create function stand_still() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock_shared(7); return null; end $$;
        create trigger stand_still after insert on pgflow.parked execute function stand_still();
        select pg_advisory_lock(7);
    """)
    aflow.include(patient)
    run = await aflow.start(patient)
    await eventually(
        lambda: count(conn, "pg_locks", "locktype = 'advisory' and not granted"),
        "the run is about to park",
    )
    await (run.cancel() if request_ == "cancel" else aflow.app.pause(run.key))
    conn.execute("select pg_advisory_unlock(7)")
    await aflow.until_idle()
    assert await run.status() == ("cancelled" if request_ == "cancel" else "paused")


# ---------------------------------------------------------------- final


async def test_a_cancel_that_comes_too_late_changes_nothing(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    @workflow
    async def quick() -> int:
        return 1

    aflow.include(quick)
    run = await aflow.start(quick)
    assert await run.result(SOON) == 1
    await run.cancel()
    await aflow.until_idle()
    assert await run.result(SOON) == 1
    assert await run.status() == "completed"
    assert count(conn, "pgflow.signal") == 0


@pytest.mark.parametrize("first", ["the message", "the cancel"])
async def test_of_a_message_and_a_cancel_what_was_sent_first_counts(
    aflow: AsyncHarness, conn: psycopg.Connection, first: str
) -> None:
    aflow.include(wait_for_go)
    run = await aflow.start(wait_for_go)
    await aflow.until_idle()
    conn.execute("select pgflow.pause_queue('default')")
    if first == "the message":
        await run.send(go, 7)
    await run.cancel()
    if first == "the cancel":
        await run.send(go, 7)
    conn.execute("select pgflow.resume_queue('default')")
    await aflow.until_idle()
    if first == "the message":
        assert await run.result(SOON) == 7
    else:
        await assert_cancelled(run)


@pytest.mark.full
async def test_many_cancels_and_completions_at_once_leave_each_run_with_one_outcome(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    @read
    async def look(n: int) -> int:
        return n

    @workflow
    async def quick(n: int) -> int:
        return await look(n) + await look(n)

    aflow.include(quick)
    runs = [await aflow.start(quick, n) for n in range(30)]
    await asyncio.gather(*(run.cancel() for run in runs))
    await aflow.until_idle()
    for n, run in enumerate(runs):
        if await run.status() == "completed":
            assert await run.result(SOON) == 2 * n
        else:
            await assert_cancelled(run)
    assert count(conn, "pgflow.outcome") == 30


async def test_cancelled_is_final(aflow: AsyncHarness) -> None:
    aflow.include(wait_for_go)
    run = await aflow.start(wait_for_go.options(key="k"))
    await aflow.until_idle()
    await run.cancel()
    await assert_cancelled(run)
    await run.send(go, 1)
    await aflow.app.resume("k")
    with pytest.raises(WrongState, match="run 'k' is cancelled"):
        await aflow.app.retry("k")
    again = await aflow.start(wait_for_go.options(key="k"))
    await aflow.until_idle()
    await assert_cancelled(again)
    with pytest.raises(KeyConflict):
        await aflow.start(workflow(name="other")(wait_for_go.fn).options(key="k"))


def test_nobody_cannot_be_cancelled(flow: Harness) -> None:
    with pytest.raises(RunNotFound):
        flow.app.cancel("nobody")


@pytest.mark.full
async def test_force_ends_a_run_whose_code_will_not(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    started = asyncio.Event()

    @workflow
    async def immortal() -> None:
        await note("begun")
        while True:
            started.set()
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    aflow.include(immortal)
    run = await aflow.start(immortal)
    await aflow.until_idle()
    await run.cancel()
    await aflow.until_idle()
    assert await run.status() == "waiting"
    conn.execute("select pgflow.cancel_run(%s, 'enough', force => true)", (run.key,))
    await aflow.until_idle()
    await assert_cancelled(run, "enough")


@pytest.mark.full
def test_a_cancel_from_sql_is_a_cancel(flow: Harness, conn: psycopg.Connection) -> None:
    flow.include(wait_for_go)
    run = flow.start(wait_for_go)
    flow.until_idle()
    conn.execute("select pgflow.cancel_run(%s, 'from psql', sent_by => 'ada')", (run.key,))
    wait_until(lambda: run.status() == "cancelled", "the next poll cancels it")
    (cause,) = conn.execute(
        "select payload from pgflow.timeline where event = 'call_cancelled' and call = 0"
    ).fetchone()
    assert cause == {"why": "from psql", "by": "ada (postgres)"}
