"""Handlers beside each other: signals, updates that run at the same time, and queries."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from records import SOON, events, launch, settle

import pgflow
from pgflow import RunFailed, Signal, workflow
from pgflow.errors import DefinitionError, InvalidArgument, NotStorable

moved = Signal("moved", str)
stop = Signal("stop", bool)
let_go = Signal("let_go", str)


@dataclass
class Parcel:
    places: list[str] = field(default_factory=list)
    is_over: bool = False


@workflow
async def parcel(max_parallel: int | None = 1) -> list[str]:
    state = Parcel()
    await pgflow.updates.serve(state, until=lambda: state.is_over, max_parallel=max_parallel)
    return state.places


@parcel.on_signal(moved)
async def move(state: Parcel, place: str) -> None:
    if place == "the sea":
        raise ValueError("sunk")
    await asyncio.sleep(0)
    state.places.append(place)
    pgflow.set_state(places=state.places)


@parcel.on_signal(stop)
def end(state: Parcel, _why: bool) -> None:  # noqa: FBT001
    state.is_over = True


@parcel.update
async def wait_for(state: Parcel, word: str) -> str:
    state.places.append(f"asked {word}")
    found = await let_go.wait()
    state.places.append(f"answered {word}")
    return found


@workflow
def letter() -> list[str]:
    state = Parcel()
    pgflow.sync.serve(state, until=lambda: state.is_over)
    return state.places


@letter.on_signal(moved)
def move_letter(state: Parcel, place: str) -> None:
    pgflow.sync.sleep(0.001)
    state.places.append(place)


@letter.on_signal(stop)
def end_letter(state: Parcel, _why: bool) -> None:  # noqa: FBT001
    state.is_over = True


@letter.update
def stamp(state: Parcel, cents: int) -> int:
    state.places.append(f"stamp of {cents}")
    return len(state.places)


@parcel.query
def place(state: dict[str, Any], nth: int, *, shout: bool = False) -> str:
    found = str(state["places"][nth])
    return found.upper() if shout else found


@dataclass
class Published:
    places: list[str]


@parcel.query
def count(state: Published) -> int:
    return len(state.places)


async def test_signals_are_handled_in_their_order_beside_the_wait_for_updates(aflow):
    run = await launch(aflow, parcel)
    for name in ("Ulm", "Bonn"):
        await run.send(moved, name)
        await aflow.until_idle()
        await aflow.crash()
    assert await run.query(place, 1) == "Bonn"
    assert await run.query(place, nth=0, shout=True) == "ULM"
    assert await run.query(count) == 2
    await run.send(stop, True)
    await aflow.until_idle()
    assert await run.result(SOON) == ["Ulm", "Bonn"]


async def test_a_sync_workflow_handles_signals_and_updates_one_at_a_time(aflow):
    run = await launch(aflow, letter.options(key="letter"))
    await run.send(moved, "Ulm")
    await aflow.until_idle()
    assert await run.execute_update(stamp, 85) == 2
    await aflow.crash()
    await run.send(moved, "Bonn")
    await aflow.until_idle()
    await run.send(stop, True)
    assert await run.result(SOON) == ["Ulm", "stamp of 85", "Bonn"]


@pytest.mark.parametrize(
    ("max_parallel", "order"),
    [
        pytest.param(1, ["asked a", "answered a", "asked b", "answered b"], marks=pytest.mark.full),
        (2, ["asked a", "asked b", "answered a", "answered b"]),
        pytest.param(
            None, ["asked a", "asked b", "answered a", "answered b"], marks=pytest.mark.full
        ),
    ],
)
async def test_updates_run_side_by_side_as_far_as_the_code_allows(aflow, max_parallel, order):
    run = await launch(aflow, parcel, max_parallel)
    sent = [await run.start_update(wait_for, word) for word in "ab"]
    await aflow.until_idle()
    await aflow.crash()
    await run.send(let_go, "first")
    await aflow.until_idle()
    await run.send(stop, True)
    await run.send(let_go, "second")
    assert [await one.result(SOON) for one in sent] == ["first", "second"]
    assert await run.result(SOON) == order


async def test_serve_ends_with_the_handlers_under_way(aflow, conn):
    run = await launch(aflow, parcel.options(key="p"), 2)
    sent = await run.start_update(wait_for, "a")
    await aflow.until_idle()
    await run.send(stop, True)
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await run.send(let_go, "late")
    assert await sent.result(SOON) == "late"
    assert await run.result(SOON) == ["asked a", "answered a"]
    assert ("update_replied", "wait_for") in events(conn, "p")


@pytest.mark.full
@pytest.mark.parametrize("made", [parcel, letter])
async def test_a_cancelled_run_gives_its_handlers_up(aflow, made):
    run = await settle(aflow, made)
    await run.cancel()
    await aflow.until_idle()
    assert await run.status() == "cancelled"


async def test_an_error_of_a_signal_handler_ends_the_run(aflow):
    run = await launch(aflow, parcel)
    await run.send(moved, "the sea")
    with pytest.raises(RunFailed, match="sunk"):
        await run.result(SOON)


async def test_a_signal_with_a_handler_is_checked_where_it_is_sent(aflow):
    run = await settle(aflow, parcel)
    with pytest.raises(InvalidArgument, match="moved"):
        await aflow.app.send(run.key, Signal("moved", int), 5)
    with pytest.raises(RunFailed, match="max_parallel must be 1 or more"):
        await (await aflow.start(parcel, 0)).result(SOON)
    with pytest.raises(NotStorable, match="query count"):
        await run.query(count)
    await run.cancel()


def test_what_cannot_be_a_handler_is_refused_where_it_is_declared():
    async def late(state: Parcel, place: str) -> None: ...

    with pytest.raises(DefinitionError, match="two handlers of signal 'moved'"):
        parcel.on_signal(moved)(late)
    with pytest.raises(DefinitionError, match="plain def"):
        letter.on_signal(let_go)(late)
    with pytest.raises(DefinitionError, match=r"takes a pgflow\.Signal"):
        parcel.on_signal("moved")(late)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="the state and the payload"):
        parcel.on_signal(let_go)(lambda: None)
    with pytest.raises(DefinitionError, match="published state"):
        parcel.query(lambda: None)  # type: ignore[arg-type, misc]
