"""Sagas of children: what a child that has completed did is taken back by its parent, if that
fails.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from records import SOON, launch, recover, result_of, run_row, settle

import pgflow
from pgflow import RunCancelled, RunFailed, Signal, workflow
from pgflow.effects import Accepted, effect

calls: list[str] = []


class Trouble(Exception):
    """Trouble that makes a run fail."""


@pytest.fixture(autouse=True)
def world() -> None:
    calls.clear()


@effect(risk="compensable")
async def reserve(name: str) -> str:
    calls.append(f"reserve {name}")
    return f"paper of {name}"


@reserve.compensate
async def release(paper: str, name: str) -> None:
    assert paper == f"paper of {name}"
    calls.append(f"release {name}")


@effect(risk="compensable")
async def ship(name: str) -> Accepted:
    calls.append(f"ship {name}")
    return Accepted(f"ref {name}")


@ship.compensate
async def call_back(ref: Accepted, name: str) -> None:
    calls.append(f"call back {name} {ref.ref}")


@workflow(raises=[Trouble])
async def leg(name: str, fails: bool = False) -> str:
    await reserve(f"{name} there")
    await reserve(f"{name} back")
    if fails:
        raise Trouble(name)
    return name


@workflow
async def legs(name: str) -> str:
    """A child with a child of its own, over two generations."""
    if name.endswith("2"):
        await reserve(f"{name} late")
        return name
    await reserve(f"{name} own")
    await pgflow.run_child(leg, f"{name} grand")
    pgflow.continue_as_new(f"{name}2")


@workflow
async def journey(fails: bool) -> str:
    async with pgflow.effects.saga():
        await reserve("first")
        await pgflow.run_child(leg, "middle")
        await reserve("last")
        if fails:
            raise Trouble
    return "done"


@workflow
def journey_sync(fails: bool) -> str:
    with pgflow.sync.saga():
        reserve.sync("first")
        pgflow.sync.run_child(leg, "middle")
        reserve.sync("last")
        if fails:
            raise Trouble
    return "done"


def unbalanced(conn: psycopg.Connection[Any]) -> list[Any]:
    """Effects of the whole family that are not taken back exactly once."""
    return conn.execute(
        """select e.effect from pgflow.effects e where e.compensates is null and e.status = 'confirmed'
        and (select count(*) from pgflow.effects c where c.compensates = e.effect and c.status = 'confirmed') <> 1"""
    ).fetchall()


@pytest.mark.full
@pytest.mark.parametrize("made", [journey, journey_sync])
def test_what_a_completed_child_did_is_taken_back_among_what_its_parent_did(flow, conn, made):
    flow.include(made, leg)
    with pytest.raises(RunFailed):
        flow.start(made, True).result(SOON)
    found = calls[4:]
    assert found == ["release last", "release middle back", "release middle there", "release first"]
    assert unbalanced(conn) == []


@pytest.mark.parametrize("made", [journey, journey_sync])
def test_what_went_well_stays(flow, made):
    flow.include(made, leg)
    assert flow.start(made, False).result(SOON) == "done"
    assert len(calls) == 4


@pytest.mark.full
async def test_a_child_that_failed_has_taken_back_its_own_and_nobody_does_again(aflow, conn):
    @workflow
    async def parent() -> None:
        async with pgflow.effects.saga():
            await reserve("first")
            try:
                await pgflow.run_child(leg, "middle", True)
            except RunFailed:
                await reserve("instead")
            raise Trouble

    aflow.include(parent, leg)
    with pytest.raises(RunFailed):
        await (await aflow.start(parent)).result(SOON)
    assert calls[3:] == [
        "release middle back",
        "release middle there",
        "reserve instead",
        "release instead",
        "release first",
    ]
    assert unbalanced(conn) == []


@pytest.mark.full
async def test_grandchildren_and_earlier_generations_of_children_are_taken_back_too(aflow, conn):
    @workflow
    async def parent() -> None:
        async with pgflow.effects.saga():
            await pgflow.run_child(legs, "a")
            raise Trouble

    aflow.include(parent, leg, legs)
    with pytest.raises(RunFailed):
        await (await aflow.start(parent)).result(SOON)
    assert calls[4:] == [
        "release a2 late",
        "release a grand back",
        "release a grand there",
        "release a own",
    ]
    assert unbalanced(conn) == []


async def test_where_two_effects_have_one_name_a_childs_is_taken_back_as_the_one_that_it_was(
    aflow, conn
):
    @effect(name="reserve", risk="compensable")
    async def another(name: str) -> str:
        return name

    @another.compensate
    async def take_back_another(paper: str, name: str) -> None:
        calls.append(f"another {name}")

    @workflow
    async def child() -> None:
        await another("b")

    @workflow
    async def parent() -> None:
        async with pgflow.effects.saga():
            await pgflow.run_child(legs, "a")
            await pgflow.run_child(child)
            raise Trouble

    aflow.include(parent, leg, legs, child)
    with pytest.raises(RunFailed):
        await (await aflow.start(parent)).result(SOON)
    assert calls[4:] == [
        "another b",
        "release a2 late",
        "release a grand back",
        "release a grand there",
        "release a own",
    ]
    assert unbalanced(conn) == []


@pytest.mark.full
async def test_what_a_child_did_is_carried_into_the_next_generation_of_its_parent(aflow, conn):
    @workflow
    async def parent(n: int) -> None:
        async with pgflow.effects.saga():
            await pgflow.run_child(leg, f"leg {n}")
            if n < 2:
                pgflow.continue_as_new(n + 1)
            raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, parent.options(key="k"), 0, beside=[leg])
    assert run_row(conn, "k", "generation") == (3,)
    assert calls[6:] == [f"release leg {n} {way}" for n in (2, 1, 0) for way in ("back", "there")]
    assert unbalanced(conn) == []


async def test_without_a_block_the_parent_takes_back_what_something_takes_back(aflow, conn):
    @workflow
    async def parent() -> None:
        await pgflow.map(leg, ["a", "b"])
        raise Trouble

    aflow.include(parent, leg)
    with pytest.raises(RunFailed):
        await (await aflow.start(parent)).result(SOON)
    found = sorted(calls[4:])
    assert found == ["release a back", "release a there", "release b back", "release b there"]
    assert unbalanced(conn) == []


@pytest.mark.full
async def test_what_a_child_had_accepted_is_taken_back_with_its_reference(aflow):
    @workflow
    async def sending() -> None:
        await ship("tea")
        await ship("milk")

    @workflow
    async def parent() -> None:
        async with pgflow.effects.saga():
            await pgflow.run_child(sending)
            raise Trouble

    aflow.include(parent, sending)
    run = await settle(aflow, parent)
    await aflow.app.confirm_effect("ref tea")
    await aflow.app.confirm_effect("ref milk", "failed")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert calls == ["ship tea", "ship milk", "call back tea ref tea"]


@pytest.mark.full
async def test_a_child_that_may_outlive_its_parent_answers_for_itself(aflow):
    @workflow
    async def parent() -> None:
        async with pgflow.effects.saga():
            await pgflow.run_child(leg.options(when_parent_ends="abandon"), "own")
            raise Trouble

    aflow.include(parent, leg)
    with pytest.raises(RunFailed):
        await (await aflow.start(parent)).result(SOON)
    assert calls == ["reserve own there", "reserve own back"]


@pytest.mark.full
async def test_a_fork_takes_back_nothing_of_its_origins_children(aflow):
    with pytest.raises(RunFailed):
        await result_of(aflow, journey.options(key="k"), True, beside=[leg])
    calls.clear()
    await aflow.app.fork("k", "f", from_step="release", effects="repeat")
    with pytest.raises(RunFailed):
        await aflow.app.get("f", journey).result(SOON)
    assert calls == []


@pytest.mark.full
async def test_a_crash_between_takes_each_back_once(aflow, conn):
    run = await launch(aflow, journey, True, beside=[leg])
    await recover(aflow)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert unbalanced(conn) == []


go = Signal("go", str)


@workflow
async def waiting_leg(name: str, stubborn: bool) -> str:
    """Waits after it has reserved; a stubborn one completes though it is cancelled."""
    async with pgflow.effects.saga():
        await reserve(name)
        try:
            await go.wait()
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await reserve(f"{name} all the same")
    return name


@workflow
async def impatient(stubborn: bool) -> None:
    async with pgflow.effects.saga():
        await reserve("first")
        async with asyncio.timeout(60):
            await pgflow.run_child(waiting_leg.options(key="child"), "middle", stubborn)


@workflow
def impatient_sync(stubborn: bool) -> None:
    with pgflow.sync.saga():
        reserve.sync("first")
        pgflow.sync.map(waiting_leg_of, ["middle stubborn" if stubborn else "middle"])


@workflow
async def waiting_leg_of(what: str) -> str:
    name, _, stubborn = what.partition(" ")
    return await waiting_leg.fn(name, bool(stubborn))


@pytest.mark.full
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("made", [impatient, impatient_sync])
def test_a_child_that_runs_is_cancelled_and_waited_for(flow, conn, made, stubborn, crashes):
    flow.include(made, waiting_leg, waiting_leg_of)
    run = settle(flow, made.options(key="k"), stubborn)
    assert calls == ["reserve first", "reserve middle"]
    if crashes:
        flow.crash()
    run.cancel()
    flow.until_idle()
    with pytest.raises(RunCancelled):
        run.result(SOON)
    own = (
        ["reserve middle all the same", "release middle all the same", "release middle"]
        if stubborn
        else ["release middle"]
    )
    assert calls[2:] == [*own, "release first"]
    assert unbalanced(conn) == []


@pytest.mark.full
async def test_a_time_out_in_a_block_waits_until_the_child_has_unwound(aflow, conn):
    from datetime import timedelta

    aflow.include(impatient, waiting_leg)
    run = await settle(aflow, impatient, False)
    await aflow.skip(timedelta(minutes=2))
    await aflow.until_idle()
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert calls == ["reserve first", "reserve middle", "release middle", "release first"]
    assert unbalanced(conn) == []


@pytest.mark.full
def test_a_child_whose_effects_were_taken_back_is_not_handed_over(flow, conn):
    run = launch(flow, journey.options(key="k"), True, beside=[leg])
    with pytest.raises(RunFailed):
        run.result(SOON)
    del calls[:]
    flow.app.restart("k", effects="reuse", input={"fails": False})
    assert run.result(SOON) == "done"
    assert calls == ["reserve first", "reserve middle there", "reserve middle back", "reserve last"]
    flow.app.restart("k", effects="reuse", input={"fails": True})
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert calls[4:] == [
        "release last",
        "release middle back",
        "release middle there",
        "release first",
    ], "handed over, and taken back with the rest"
    assert unbalanced(conn) == []


@effect(risk="compensable")
async def file_report(number: int, text: str) -> str:
    calls.append(f"file {number}")
    return text


@file_report.compensate
async def shred(filed: str, number: int, text: str) -> None:
    assert filed == text
    calls.append(f"shred {number} of {len(text)}")


@workflow
async def reports(count: int, size: int) -> str:
    """A child whose effects take and return long texts."""
    for number in range(count):
        await file_report(number, "x" * size)
    return "filed"


@pytest.mark.full
@pytest.mark.parametrize("fails", [False, True], ids=["and_is_caught", "and_fails_it"])
async def test_a_child_that_did_more_than_its_parent_can_be_given_takes_it_back_itself(
    aflow, fails
):
    @workflow
    async def filing() -> str:
        try:
            return await pgflow.run_child(reports, 6, 100_000)
        except RunFailed as error:
            if fails:
                raise
            return str(error)

    handle = await launch(aflow, filing, beside=[reports])
    if fails:
        with pytest.raises(RunFailed, match="which is given it to take it back"):
            await handle.result(SOON)
    else:
        assert "its 6 effects" in await handle.result(SOON)
    assert calls[6:] == [f"shred {number} of 100000" for number in reversed(range(6))]


@pytest.mark.full
async def test_what_just_fits_is_given_to_the_parent_and_a_run_of_its_own_may_do_more(aflow):
    @workflow
    async def filing() -> None:
        async with pgflow.effects.saga():
            await pgflow.run_child(reports, 5, 100_000)
            raise Trouble

    aflow.include(filing, reports)
    with pytest.raises(RunFailed):
        await (await aflow.start(filing)).result(SOON)
    assert calls[5:] == [f"shred {number} of 100000" for number in reversed(range(5))]
    assert await (await aflow.start(reports, 8, 100_000)).result(SOON) == "filed"


@pytest.mark.full
async def test_a_child_that_is_abandoned_leaves_nothing_and_may_do_more(aflow):
    @workflow
    async def filing() -> str:
        return await pgflow.run_child(reports.options(when_parent_ends="abandon"), 6, 100_000)

    aflow.include(filing, reports)
    assert await (await aflow.start(filing)).result(SOON) == "filed"


@pytest.mark.full
async def test_the_effects_of_blocks_that_a_run_leaves_open_are_taken_back_in_the_order_of_their_calls(
    aflow,
):
    @workflow
    async def parent() -> None:
        async def aside() -> None:
            async with pgflow.effects.saga():
                await pgflow.run_child(leg, "aside")
                await reserve("after it")
                await pgflow.sleep(3600)

        task = asyncio.create_task(aside())
        await reserve("at first")
        await pgflow.sleep(60)
        del task
        raise Trouble

    aflow.include(parent, leg)
    run = await settle(aflow, parent)
    await aflow.skip(60)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert [call for call in calls if call.startswith("release")] == [
        "release after it",
        "release aside back",
        "release aside there",
        "release at first",
    ]
