"""Pausing: nothing new starts, nothing is lost, and resuming goes on from there."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import pytest
from records import HOUR, SOON, events, eventually, launch, recover, run_row, settle, steps
from servers import login_of

import pgflow
from pgflow import RunCancelled, Signal, step, workflow
from pgflow.errors import WrongState

go = Signal("go", int)


@step
async def note(text: str) -> str:
    return text


@workflow
async def wait_for_go() -> int:
    await note("begun")
    return await go.wait()


async def test_a_waiting_run_that_is_paused_keeps_its_mail_and_goes_on_when_resumed(aflow, conn):
    run = await settle(aflow, wait_for_go)
    await aflow.app.pause(run.key, why="end of month")
    assert run_row(conn, run.key, "status, reason") == ("paused", "end of month")
    await run.send(go, 7)
    await aflow.until_idle()
    assert await run.status() == "paused"
    await aflow.app.resume(run.key, why="new month")
    assert await run.result(SOON) == 7
    said = conn.execute(
        "select name, payload from pgflow.timeline where event = 'operator' order by seq"
    ).fetchall()
    assert said == [
        ("pause", {"why": "end of month", "by": login_of(aflow.app.dsn)}),
        ("resume", {"why": "new month", "by": login_of(aflow.app.dsn)}),
    ]


async def test_a_queued_run_that_is_paused_does_not_begin(aflow, conn):
    aflow.include(wait_for_go)
    run = await aflow.app.start(wait_for_go)
    await aflow.app.pause(run.key)
    await aflow.until_idle()
    assert await run.status() == "paused"
    assert steps(conn, run.key) == []
    await aflow.app.resume(run.key)
    await run.send(go, 1)
    assert await run.result(SOON) == 1


async def test_a_running_run_that_is_paused_finishes_its_step_and_starts_nothing_new(aflow, conn):
    entered, proceed = asyncio.Event(), asyncio.Event()

    @step
    async def work(n: int) -> int:
        entered.set()
        await proceed.wait()
        return n

    @workflow
    async def busy() -> list[int]:
        working = asyncio.create_task(work(1))
        pgflow.set_state(heard=await go.wait())
        return [await working, await work(2)]

    run = await launch(aflow, busy)
    await entered.wait()
    await aflow.app.pause(run.key)
    await run.send(go, 5)  # whoever has taken this has seen the pause before it

    async def has_heard() -> bool:
        return await run.state() == {"heard": 5}

    await eventually(has_heard, "the worker has read its mail")
    proceed.set()
    await aflow.until_idle()
    assert await run.status() == "paused"
    assert [(name, status) for name, status, _ in steps(conn, run.key)] == [("work", "completed")]
    await aflow.app.resume(run.key)
    assert await run.result(SOON) == [1, 2]


@pytest.mark.full
async def test_time_passes_for_a_paused_run_but_nothing_happens(aflow):
    @workflow
    async def sleepy() -> str:
        await pgflow.sleep(HOUR)
        return await note("awake")

    run = await settle(aflow, sleepy)
    await aflow.app.pause(run.key)
    await aflow.skip(2 * HOUR)
    assert await run.status() == "paused"
    await aflow.app.resume(run.key)
    assert await run.result(SOON) == "awake"


@pytest.mark.full
async def test_a_deadline_ends_a_paused_run(aflow):
    run = await settle(aflow, wait_for_go.options(timeout=HOUR))
    await aflow.app.pause(run.key)
    await aflow.skip(HOUR)
    with pytest.raises(RunCancelled, match="deadline"):
        await run.result(SOON)


@pytest.mark.full
async def test_a_paused_run_can_be_cancelled_and_cleans_up(aflow):
    cleaned = []

    @workflow
    async def tidy() -> None:
        await note("begun")
        try:
            await go.wait()
        finally:
            cleaned.append(await note("cleaned"))

    run = await settle(aflow, tidy)
    await aflow.app.pause(run.key)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(SOON)
    assert cleaned == ["cleaned"]


@pytest.mark.full
async def test_a_pause_survives_a_crash(aflow):
    run = await settle(aflow, wait_for_go)
    await aflow.app.pause(run.key)
    await recover(aflow)
    assert await run.status() == "paused"
    await aflow.app.resume(run.key)
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == 1


@pytest.mark.full
async def test_pausing_twice_is_pausing_and_resuming_what_is_not_paused_is_nothing(aflow, conn):
    run = await settle(aflow, wait_for_go)
    await aflow.app.resume(run.key)
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await aflow.app.pause(run.key, why="first")
    await aflow.app.pause(run.key, why="second")
    assert run_row(conn, run.key, "status, reason") == ("paused", "first")
    await aflow.app.resume(run.key)
    await run.send(go, 1)
    assert await run.result(SOON) == 1


@pytest.mark.full
async def test_of_a_pause_and_a_resume_the_last_word_counts(aflow, conn):
    run = await settle(aflow, wait_for_go)
    with conn.transaction():
        conn.execute(
            "select pgflow.pause_run(%s), pgflow.resume_run(%s), pgflow.pause_run(%s)",
            (run.key,) * 3,
        )
    await aflow.until_idle()
    assert await run.status() == "paused"
    with conn.transaction():
        conn.execute(
            "select pgflow.resume_run(%s), pgflow.pause_run(%s), pgflow.resume_run(%s)",
            (run.key,) * 3,
        )
    await aflow.until_idle()
    assert await run.status() == "waiting"


async def test_what_has_ended_cannot_be_paused_and_its_retry_is_a_typed_error(aflow):
    @workflow
    async def quick() -> int:
        return 1

    run = await launch(aflow, quick.options(key="k"))
    assert await run.result(SOON) == 1
    await aflow.app.pause("k")
    await aflow.until_idle()
    assert await run.status() == "completed"
    with pytest.raises(
        WrongState, match="run 'k' is completed: only a stuck or failed run can be retried"
    ):
        await aflow.app.retry("k")


async def test_nobody_waits_for_a_run_to_be_paused(aflow):
    entered = asyncio.Event()

    @step
    async def endless() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow
    async def busy() -> None:
        await endless()

    run = await launch(aflow, busy)
    await entered.wait()
    await aflow.app.pause(run.key)
    assert await run.status() == "running"
    await run.cancel()
    with contextlib.suppress(RunCancelled):
        await run.result(SOON)
    assert await run.status() == "cancelled"


@pytest.mark.full
def test_a_paused_queue_lets_waiting_runs_wait_and_goes_on_when_resumed(flow, conn):
    flow.include(wait_for_go)
    conn.execute("select pgflow.pause_queue('default')")
    run = flow.start(wait_for_go)
    assert flow.until_idle() is None
    assert run.status() == "queued"
    assert conn.execute(
        "select queue, queued, paused_at is not null from pgflow.queues"
    ).fetchall() == [("default", 1, True)]
    conn.execute("select pgflow.resume_queue('default')")
    run.send(go, 1)
    flow.skip(timedelta(0))
    assert run.result(SOON) == 1
    assert ("signal_received", "go") in events(conn, run.key)
