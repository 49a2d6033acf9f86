"""Durable time: sleeps, time-outs, and the clock and chance that a replay repeats."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from records import HOUR, SOON, events, launch, recover, result_of, run_row, settle, steps

import pgflow
from pgflow import InvalidArgument, Signal, step, workflow

go = Signal("go", int)


@step
async def echo(value: str) -> str:
    return value


@pytest.mark.full
async def test_a_sleep_ends_at_its_time_and_not_before(aflow, conn):
    @workflow
    async def sleepy() -> str:
        await pgflow.sleep(HOUR)
        return "awake"

    run = await launch(aflow, sleepy)
    due = await aflow.until_idle()
    (began, reason, now) = run_row(conn, run.key, "created_at, reason, pgflow.now_()")
    assert due is not None
    assert began <= due - HOUR <= now
    assert reason == f"until {due:%Y-%m-%dT%H:%M:%SZ}"
    await aflow.skip(timedelta(minutes=59))
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(minutes=1))
    assert await run.result(SOON) == "awake"
    assert events(conn, run.key) == [("timer_started", None), ("timer_fired", None)]


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_sleep_has_a_name_that_a_run_may_lack_which_sleeps_already(flow, conn, colour):
    names: list[str | None] = [None]

    @workflow
    async def sleepy() -> str:
        await pgflow.sleep(HOUR, name=names[0])
        return "awake"

    @workflow
    def sleepy_sync() -> str:
        pgflow.sync.sleep(HOUR, name=names[0])
        return "awake"

    which = sleepy if colour == "async" else sleepy_sync
    flow.include(which)
    runs = []
    for name in (None, "until tomorrow"):
        names[0] = name
        runs.append(flow.start(which))
        flow.until_idle()
        flow.crash()
    flow.skip(HOUR)
    assert [run.result(SOON) for run in runs] == ["awake", "awake"]
    assert events(conn, runs[0].key)[0] == ("timer_started", None)
    assert events(conn, runs[1].key)[0] == ("timer_started", "until tomorrow")
    with pytest.raises(InvalidArgument, match="1 to 255 bytes"):
        pgflow._flow.timers._checked("")


async def test_a_named_sleep_is_cancelled_as_any_other(aflow):
    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(60):
                await pgflow.sleep(HOUR, name="too long")
        except TimeoutError:
            return await echo("given up")
        return "slept"

    run = await settle(aflow, impatient)
    await aflow.crash()
    await aflow.skip(61)
    assert await run.result(SOON) == "given up"


@pytest.mark.full
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_after_a_crash_only_the_remainder_of_a_sleep_is_slept(flow, colour):
    @workflow
    async def sleepy() -> str:
        text = await echo("slept")
        await pgflow.sleep(HOUR)
        return text

    @workflow
    def sleepy_sync() -> str:
        text = echo.sync("slept")
        pgflow.sync.sleep(HOUR)
        return text

    flow.include(sleepy, sleepy_sync)
    run = flow.start(sleepy if colour == "async" else sleepy_sync)
    due = flow.until_idle()
    flow.skip(timedelta(minutes=40))
    flow.crash()
    assert flow.until_idle() == due
    flow.skip(timedelta(minutes=19))
    assert run.status() == "waiting"
    flow.skip(timedelta(minutes=1))
    assert run.result(SOON) == "slept"


@pytest.mark.full
async def test_asyncio_sleep_is_durable_too(aflow):
    @workflow
    async def sleepy() -> str:
        return await asyncio.sleep(3600, "awake")

    run = await settle(aflow, sleepy)
    await aflow.crash()
    await aflow.skip(HOUR)
    assert await run.result(SOON) == "awake"


async def test_short_sleeps_need_no_help(aflow):
    @workflow
    async def doze() -> None:
        await pgflow.sleep(0.05)
        await pgflow.sleep(timedelta(milliseconds=20))
        await pgflow.sleep(0)

    await result_of(aflow, doze)


async def test_many_sleeps_end_in_the_order_of_their_times(aflow):
    @workflow
    async def sleepers() -> list[int]:
        woken = []

        async def sleeper(hours: int) -> None:
            await pgflow.sleep(hours * HOUR)
            woken.append(hours)

        await asyncio.gather(*(sleeper(hours) for hours in (3, 1, 4, 2)))
        return woken

    run = await settle(aflow, sleepers)
    await aflow.skip(10 * HOUR)
    assert await run.result(SOON) == [1, 2, 3, 4]


BAD_DELAYS = [-1, timedelta(seconds=-1), float("nan"), float("inf"), timedelta(days=365 * 200)]


@pytest.mark.parametrize("delay", BAD_DELAYS)
def test_delays_that_are_none_are_refused(flow, delay):
    @workflow
    async def odd() -> str:
        try:
            await pgflow.sleep(delay)
        except InvalidArgument as error:
            return str(error)
        return ""

    assert "a delay must be between 0 seconds and a hundred years" in result_of(flow, odd)


@pytest.mark.full
async def test_a_timeout_around_a_step_ends_it_durably(aflow, conn):
    started = asyncio.Event()
    bodies = []

    @step
    async def endless() -> None:
        bodies.append(1)
        started.set()
        await asyncio.Event().wait()

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(3600):
                await endless()
        except TimeoutError:
            await go.wait()
            return await echo("too long")
        return ""

    run = await launch(aflow, impatient)
    await started.wait()
    await aflow.skip(HOUR)
    assert await run.status() == "waiting"
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == "too long"
    assert bodies == [1]
    assert steps(conn, run.key) == [("endless", "abandoned", 1), ("echo", "completed", 1)]


async def test_a_timeout_that_is_not_reached_leaves_nothing_to_wait_for(aflow, conn):
    @workflow
    async def quick() -> str:
        async with asyncio.timeout(3600):
            text = await echo("quick")
        return text + await asyncio.wait_for(echo("er"), 3600)

    run = await launch(aflow, quick)
    assert await aflow.until_idle() is None
    assert await run.result(SOON) == "quicker"
    assert [event for event, _ in events(conn, run.key)].count("call_cancelled") == 2


@pytest.mark.full
async def test_a_timeout_goes_on_over_a_crash_and_ends_waits_of_every_kind(aflow):
    @workflow
    async def never() -> None:
        await go.wait()

    @workflow
    async def impatient(kind: str) -> str:
        try:
            async with asyncio.timeout(3600):
                match kind:
                    case "sleep":
                        await pgflow.sleep(5 * HOUR)
                    case "signal":
                        await go.wait()
                    case "child":
                        await pgflow.run_child(never)
                    case "gather":
                        await asyncio.gather(go.wait(), pgflow.sleep(5 * HOUR))
        except TimeoutError:
            return f"{kind} took too long"
        return ""

    aflow.include(impatient, never)
    kinds = ["sleep", "signal", "child", "gather"]
    runs = [await aflow.start(impatient, kind) for kind in kinds]
    await aflow.until_idle()
    await aflow.skip(timedelta(minutes=30))
    await recover(aflow)
    assert [await run.status() for run in runs] == ["waiting"] * 4
    await aflow.skip(timedelta(minutes=31))
    assert [await run.result(SOON) for run in runs] == [f"{kind} took too long" for kind in kinds]


async def test_the_inner_of_two_timeouts_fires_first(aflow):
    @workflow
    async def nested() -> list[str]:
        said = []
        try:
            async with asyncio.timeout(7200):
                try:
                    async with asyncio.timeout(3600):
                        await go.wait()
                except TimeoutError:
                    said.append("inner")
                await go.wait()
        except TimeoutError:
            said.append("outer")
        return said

    run = await settle(aflow, nested)
    await aflow.skip(HOUR)
    assert await run.status() == "waiting"
    await aflow.skip(HOUR)
    assert await run.result(SOON) == ["inner", "outer"]


@pytest.mark.full
async def test_a_deadline_that_is_over_already_is_a_timeout_at_once(aflow):
    @workflow
    async def late() -> str:
        try:
            async with asyncio.timeout(0):
                await go.wait()
        except TimeoutError:
            return "late"
        return ""

    assert await result_of(aflow, late) == "late"


@pytest.mark.full
async def test_now_is_the_databases_time_of_the_last_outcome_and_the_same_on_replay(aflow, conn):
    seen: list[list[datetime]] = []

    @workflow
    async def clock() -> list[datetime]:
        times = [pgflow.now(), pgflow.now()]
        seen.append(times)
        await echo("tick")
        times.append(pgflow.now())
        await pgflow.sleep(HOUR)
        times.append(pgflow.now())
        await go.wait()
        await echo("tock")
        times.append(pgflow.now())
        return times

    aflow.include(clock)
    database = [conn.execute("select pgflow.now_()").fetchone()[0]]
    run = await settle(aflow, clock)
    database.append(conn.execute("select pgflow.now_()").fetchone()[0])
    await aflow.skip(HOUR)
    await recover(aflow)
    await run.send(go, 1)
    times = await run.result(SOON)
    database.append(conn.execute("select pgflow.now_()").fetchone()[0])
    assert all(earlier == times[0] for earlier, _, *_ in seen)
    assert times[0] == times[1]
    assert database[0] <= times[0] <= times[2] <= database[1]
    assert times[2] + HOUR <= times[3] <= times[4] <= database[2]
    assert times[0].tzinfo is not None


@pytest.mark.full
async def test_chance_is_the_same_on_replay_and_different_for_every_run_and_generation(aflow):
    seen: dict[tuple[str, int], set[tuple[Any, ...]]] = {}

    @workflow
    async def gamble(again: bool = False) -> None:
        info = pgflow.run_info()
        drawn = (pgflow.random(), pgflow.uuid(), pgflow.uuid())
        seen.setdefault((info.key, info.generation), set()).add(drawn)
        await go.wait()
        if again:
            pgflow.continue_as_new()

    aflow.include(gamble)
    runs = [await aflow.start(gamble, True) for _ in range(2)]
    await aflow.until_idle()
    await aflow.crash()
    for _ in range(2):
        for run in runs:
            await run.send(go, 1)
        await aflow.until_idle()
    assert [len(drawn) for drawn in seen.values()] == [1] * 4
    draws = [draw for drawn in seen.values() for draw in drawn]
    assert len({value for draw in draws for value in draw}) == 12
    assert all(0 <= draw[0] < 1 and draw[1].version == 4 for draw in draws)
