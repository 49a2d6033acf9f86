"""What a run sends: the documents of its flushes, which the database reads by their fields."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from enginekit import SECOND, Worker
from enginestore import Store
from exampleflows import add, charged_child, look_up, paid

import pgflow
from pgflow import step, workflow
from pgflow.authority import Admit, gate
from pgflow.effects import effect

HOUR = timedelta(hours=1)


def documents(flow: Any, *args: Any, others: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    """Return what a run sends until it ends, or until only a message could bring it on."""
    store = Store(flow, *others)
    store.start(flow, *args)
    worker = Worker(store)
    told = []
    while moves := worker.offered():
        worker.play(moves[0])
        if moves[0].startswith("send"):
            told += [json.loads(document) for _, _, document in worker.on_the_way]
    worker.crash()
    return told


def asked(told: list[dict[str, Any]], field: str) -> list[Any]:
    """Return what its questions have in a field."""
    questions = [one for document in told for one in document.get("questions", ())]
    return [one[field] for one in questions if one.get(field)]


@pytest.mark.parametrize(("ttl", "seconds"), [(HOUR, 3600.0), (None, None)])
def test_a_lock_is_asked_for_with_the_time_that_it_may_be_held(ttl, seconds):
    @workflow
    async def locking() -> None:
        async with pgflow.lock("a", ttl=ttl), pgflow.lock("b"):
            await add(1, 1)

    assert asked(documents(locking), "locks") == [
        [[1, "a", False, seconds, None, []]],
        [[3, "b", False, None, None, [1]]],
    ]


@pgflow.read(max_age=HOUR)
async def price(n: int) -> int:
    return n


@effect(risk="reversible")
async def pay(n: int) -> None: ...


def test_an_effect_names_the_newest_of_each_read_that_ages():
    @workflow
    async def paying() -> None:
        await look_up("x")
        await price(1)
        await pay(await price(2))

    (effects,) = asked(documents(paying), "effects")
    assert [one["reads"] for one in effects] == [[["price", 3, 3600.0]]]


@workflow
async def gated() -> None:
    asyncio.ensure_future(gate("g", 1, approvers=["ann"]))
    await add(1, 1)
    await paid.wait()


def test_a_run_that_stays_in_memory_asks_once_at_a_gate():
    told = documents(gated)
    assert len(asked(told, "new_gates")) == 1
    assert asked(told, "gates") == [[[2, "g"]]] * 2


@workflow
async def childless() -> None:
    await add(1, 1)


@workflow
async def parent() -> None:
    await add(1, 1)
    await pgflow.run_child(charged_child, 1)


def test_the_end_of_a_run_is_told_to_children_if_it_had_any():
    ends = [
        [document for document in documents(flow, others=(charged_child,)) if "ends" in document]
        for flow in (childless, parent)
    ]
    assert [document.get("kin") for document in ends[0]] == [None]
    assert [document.get("kin") for document in ends[1] if document["ends"][0][0] == 1] == [[1]]


@step
async def dear() -> int:
    return 1


ADMIT = Admit(usd=1)


@workflow
async def drawing(again: bool) -> None:
    await dear.options(admit=ADMIT)()
    await add(1, 1)
    await dear.options(admit=ADMIT)()
    await add(1, 2)
    if again:
        pgflow.continue_as_new(False)


@pytest.mark.parametrize("again", [False, True])
def test_what_a_call_has_reserved_ends_with_the_call_and_all_of_it_with_the_run(again):
    told = [document for document in documents(drawing, again) if document["runs"][0][0] == 1]
    told_over = [[call for _, call in document.get("draws", ())] for document in told]
    assert told_over == [[0], [1], [0], [3], [None]]


def test_a_message_that_was_taken_is_not_taken_by_the_next_wait():
    @workflow
    async def hearing() -> int:
        return await paid.wait() + await paid.wait()

    store = Store(hearing)
    run = store.start(hearing)
    worker = Worker(store)
    worker.settle()
    store.now_us += SECOND
    store.send(run, "paid", 7)
    worker.finish()
    assert (run.place, run.kinds()) == ("parked", "S")
    worker.crash()
