"""Cancelling: whatever a run is doing, its code may clean up, and cancelled is final."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from records import (
    HOUR,
    SOON,
    count,
    events,
    eventually,
    launch,
    recover,
    run_row,
    settle,
    steps,
    wait_until,
)
from servers import HANG_SECONDS, login_of
from sqlkit import one

import pgflow
from pgflow import KeyConflict, RunCancelled, RunNotFound, Signal, read, step, workflow
from pgflow.errors import WrongState
from pgflow.testing import AsyncHarness

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


def caused(conn: Any) -> Any:
    query = "select payload from pgflow.timeline where event = 'call_cancelled' and call = 0"
    return one(conn, query)


@pytest.mark.full
async def test_a_queued_run_is_cancelled_without_a_worker_and_without_its_code(aflow, conn):
    aflow.include(wait_for_go)
    run = await aflow.app.start(wait_for_go)
    await run.cancel()
    await assert_cancelled(run)
    await aflow.until_idle()
    assert events(conn, run.key) == [("operator", "cancel")]


@pytest.mark.full
async def test_a_waiting_run_is_cancelled_at_its_wait_and_says_why_and_by_whom(aflow, conn):
    run = await settle(aflow, wait_for_go)
    await aflow.app.cancel(run.key, why="the customer left")
    await assert_cancelled(run, "the customer left")
    assert run_row(conn, run.key, "status, reason") == ("cancelled", "the customer left")
    assert run_row(conn, run.key, "reason_code, reason_detail") == ("asked", {"by": "postgres"})
    assert caused(conn) == {"why": "the customer left", "by": "postgres"}


async def test_a_run_in_a_step_is_cancelled_there_and_that_is_no_result_of_the_step(aflow, conn):
    entered = asyncio.Event()
    stopped = []

    @step
    async def endless() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    @workflow
    async def busy() -> None:
        await endless()

    run = await launch(aflow, busy)
    await entered.wait()
    await run.cancel()
    await assert_cancelled(run)
    await eventually(lambda: stopped, "the body is stopped")
    assert steps(conn, run.key) == [("endless", "abandoned", 1)]


@pytest.mark.full
def test_a_run_in_a_step_in_a_thread_does_not_wait_for_the_thread(flow):
    entered, release = threading.Event(), threading.Event()

    @step
    def endless() -> None:
        entered.set()
        release.wait(HANG_SECONDS)

    @workflow
    async def busy() -> None:
        await endless.aio()

    run = launch(flow, busy)
    try:
        assert entered.wait(HANG_SECONDS)
        run.cancel()
        with pytest.raises(RunCancelled):
            run.result(SOON)
    finally:
        release.set()


async def test_a_run_between_two_attempts_of_a_step_is_cancelled_there(aflow, conn):
    @step(retries=pgflow.Retries(first_delay=HOUR))
    async def shaky() -> None:
        raise OSError

    @workflow
    async def patient() -> None:
        await shaky()

    run = await settle(aflow, patient)
    await run.cancel()
    await assert_cancelled(run)
    assert steps(conn, run.key) == [("shaky", "abandoned", 1)]
    assert await aflow.until_idle() is None


async def test_a_run_that_was_cancelled_while_no_worker_lived_is_cancelled_by_the_next(aflow, conn):
    cleaned = []

    @workflow
    async def tidy() -> None:
        try:
            await note("begun")
            await go.wait()
        finally:
            cleaned.append(await note("cleaned"))

    run = await settle(aflow, tidy)
    await aflow.crash()
    await run.cancel(why="ordered twice", by="ann")
    assert await run.status() != "cancelled"
    asked = "select verb, why, sent_by from pgflow.orders where key = %s"
    found = conn.execute(asked, (run.key,)).fetchall()
    assert found == [("cancel", "ordered twice", f"ann ({login_of(aflow.app.dsn)})")]
    await aflow.until_idle()
    await assert_cancelled(run, "ordered twice")
    assert cleaned[-1] == "cleaned"
    assert conn.execute(asked, (run.key,)).fetchall() == []


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_run_that_has_recorded_nothing_but_waits_may_clean_up_too(aflow, colour):
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
async def test_durable_calls_work_in_a_finally_and_survive_a_crash_there(aflow, conn):
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
    await recover(aflow)
    await assert_cancelled(run)
    assert tidying.cleaned == [1, 2, 2]
    found = steps(conn, run.key)
    assert found == [("note", "completed", 1), ("clean", "completed", 1), ("clean", "completed", 2)]


async def test_what_is_shielded_goes_on_and_its_result_can_be_had(aflow):
    entered, proceed = asyncio.Event(), asyncio.Event()

    @step
    async def precious() -> str:
        entered.set()
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

    run = await launch(aflow, guard)
    await entered.wait()
    await run.cancel()
    await eventually(run.state, "the workflow has caught the cancellation")
    proceed.set()
    assert await run.result(SOON) == "cancelled, kept"


async def test_a_workflow_that_swallows_the_cancellation_completes(aflow):
    @workflow
    async def stubborn() -> str:
        try:
            await note("begun")
            await go.wait()
        except asyncio.CancelledError:
            return "not today"
        return ""

    run = await settle(aflow, stubborn)
    await run.cancel()
    assert await run.result(SOON) == "not today"


async def test_a_workflow_that_fails_while_it_cleans_up_has_failed(aflow):
    @workflow
    async def clumsy() -> None:
        try:
            await note("begun")
            await go.wait()
        finally:
            raise ValueError("dropped it")

    run = await settle(aflow, clumsy)
    await run.cancel()
    with pytest.raises(pgflow.RunFailed, match="dropped it"):
        await run.result(SOON)


async def test_every_task_of_a_run_is_cancelled(aflow):
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

    run = await settle(aflow, many)
    ended.clear()
    await run.cancel()
    await assert_cancelled(run)
    assert sorted(ended) == [0, 1, 2, 3]


@pytest.mark.full
@pytest.mark.parametrize("where", ["waiting", "in a step", "in a map"])
def test_a_sync_workflow_is_cancelled_where_it_waits_and_may_clean_up(flow, where):
    entered, release = threading.Event(), threading.Event()
    cleaned = []

    @step
    def endless(n: int) -> None:
        entered.set()
        release.wait(HANG_SECONDS)

    @workflow
    def busy() -> None:
        try:
            note.sync("begun")
            match where:
                case "waiting":
                    entered.set()
                    pgflow.sync.sleep(HOUR)
                case "in a step":
                    endless(1)
                case _:
                    pgflow.sync.map(endless, [1, 2])
        except asyncio.CancelledError:
            cleaned.append(note.sync("cleaned"))
            raise

    run = launch(flow, busy)
    try:
        assert entered.wait(HANG_SECONDS)
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
    aflow, conn, request_, waits_for
):
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
    run = await launch(aflow, patient)
    await eventually(
        lambda: count(conn, "pg_locks", "locktype = 'advisory' and not granted"),
        "the run is about to park",
    )
    await (run.cancel() if request_ == "cancel" else aflow.app.pause(run.key))
    conn.execute("select pg_advisory_unlock(7)")
    await aflow.until_idle()
    assert await run.status() == ("cancelled" if request_ == "cancel" else "paused")


async def test_a_cancel_that_comes_too_late_changes_nothing(aflow, conn):
    @workflow
    async def quick() -> int:
        return 1

    run = await launch(aflow, quick)
    await aflow.until_idle()
    assert await run.result(SOON) == 1
    await run.cancel()
    await aflow.until_idle()
    assert await run.result(SOON) == 1
    assert await run.status() == "completed"
    assert count(conn, "pgflow.signal") == 0


@pytest.mark.parametrize("first", ["the message", "the cancel"])
async def test_of_a_message_and_a_cancel_what_was_sent_first_counts(aflow, conn, first):
    run = await settle(aflow, wait_for_go)
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
async def test_many_cancels_and_completions_at_once_leave_each_run_with_one_outcome(aflow, conn):
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


async def test_cancelled_is_final(aflow):
    run = await settle(aflow, wait_for_go.options(key="k"))
    await run.cancel()
    await assert_cancelled(run)
    await run.send(go, 1)
    await aflow.app.resume("k")
    with pytest.raises(WrongState, match="run 'k' is cancelled"):
        await aflow.app.retry("k")
    again = await settle(aflow, wait_for_go.options(key="k"))
    await assert_cancelled(again)
    with pytest.raises(KeyConflict):
        await aflow.start(workflow(name="other")(wait_for_go.fn).options(key="k"))


def test_nobody_cannot_be_cancelled(flow):
    with pytest.raises(RunNotFound):
        flow.app.cancel("nobody")


@pytest.mark.full
async def test_force_ends_a_run_whose_code_will_not(aflow, conn):
    entered = asyncio.Event()

    @workflow
    async def immortal() -> None:
        await note("begun")
        while True:
            entered.set()
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    run = await settle(aflow, immortal)
    await run.cancel()
    await aflow.until_idle()
    assert await run.status() == "waiting"
    conn.execute("select pgflow.cancel_run(%s, 'enough', force => true)", (run.key,))
    await aflow.until_idle()
    await assert_cancelled(run, "enough")


@pytest.mark.full
def test_a_cancel_from_sql_is_a_cancel(flow, conn):
    run = settle(flow, wait_for_go)
    conn.execute("select pgflow.cancel_run(%s, 'from psql', sent_by => 'ada')", (run.key,))
    wait_until(lambda: run.status() == "cancelled", "the next poll cancels it")
    assert caused(conn) == {"why": "from psql", "by": "ada (postgres)"}
