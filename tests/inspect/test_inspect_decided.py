"""Decisions with what became of them: acts, gates, charges, the end of the run."""

from __future__ import annotations

from decimal import Decimal

import pytest
from records import SOON, settle

import pgflow
from pgflow import InvalidArgument, inspect, step, workflow
from pgflow.authority import Approve
from pgflow.decisions import Choice, Usage, decision
from pgflow.effects import effect


class Full(Exception):
    """No room."""


@decision(retries=1)
async def pick(what: str) -> Choice[str]:
    return Choice(
        what,
        why="it is near",
        evidence=["map"],
        alternatives=["tram"],
        policy="thrift",
        model="m-1",
        usage=Usage(usd=Decimal("0.02"), tokens=30),
    )


@step(retries=1)
async def look(what: str) -> str:
    pgflow.authority.charge(usd=Decimal("0.01"), model="m-2")
    return what


@effect(risk="compensable")
async def book(what: str) -> str:
    return what


@book.compensate
async def cancel(found: str, what: str) -> None:
    assert found == what


@workflow
async def trip() -> None:
    async with pgflow.effects.saga():
        car = await pick("car")
        await look.because(car)(car.value)
        with pgflow.because(car):
            await pgflow.authority.gate("sure", car.value)
        await book.because(car)(car.value)
        bed = await pick.because(car)("bed")
        await look.because(bed)(bed.value)
        await book.because(bed)(bed.value)
        raise Full


def test_nothing_is_read_of_no_runs(conn):
    assert inspect.ask(conn, inspect.list_decided([])).items == []
    with pytest.raises(InvalidArgument, match="not a place in this list"):
        inspect.list_decided([1], after=7)


async def test_a_decision_has_what_rests_on_it_and_what_became_of_that(aflow, conn):
    run = await settle(aflow, trip.options(key="trip-1", labels={"set": "a"}))
    ((gate,),) = conn.execute("select gate from pgflow.gates").fetchall()
    await aflow.app.answer(gate, Approve(), by="ann")
    with pytest.raises(pgflow.RunFailed):
        await run.result(SOON)
    number = inspect.ask(conn, inspect.find_run("trip-1")).run_id
    page = inspect.ask(conn, inspect.list_decided([number], limit=1))
    (car,), (bed,) = page, inspect.ask(conn, inspect.list_decided([number], after=page.next))
    assert (car.value, bed.value, bed.decision) == ("car", "bed", f"{car.decision}/pick/1")
    assert (car.status, car.labels) == ("failed", {"set": "a"})
    assert str(car.run_error).endswith(".Full")
    assert (car.policy, car.model, car.usage) == ("thrift", "m-1", {"usd": "0.02", "tokens": 30})
    assert car.charged == bed.charged == {"usd": Decimal("0.01")}
    assert [(said["name"], said["verdict"], said["by"]) for said in car.gates] == [
        ("sure", "approve", ["ann"])
    ]
    assert bed.gates == []
    found = [(act["kind"], act["name"], act["taken_back"]) for act in car.acts]
    assert found == [("step", "look", None), ("effect", "book", "confirmed")]
    found = [act["key"] for act in bed.acts]
    assert found == [f"{bed.decision}/look/1", f"{bed.decision}/book/1"]
