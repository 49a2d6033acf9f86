"""Obligations in the engine: a run that owes, and what its code has left behind."""

from __future__ import annotations

import asyncio
from decimal import Decimal

from enginekit import Worker, divergence
from enginestore import Store

import pgflow
from pgflow import Signal, step, workflow
from pgflow.authority import Admit

go = Signal("go", int)


@step
async def search(word: str) -> str:
    return word


@workflow
async def careless() -> str:
    admit = Admit(usd=Decimal("0.5"), pool="purse")
    searching = asyncio.ensure_future(search.options(admit=admit)("tea"))
    refund = pgflow.authority.owe("refund")
    await go.wait()
    del searching
    return refund.key


def test_what_the_code_has_left_behind_before_its_worker_was_lost_is_given_back():
    store = Store(careless)
    run = store.start(careless)
    worker = Worker(store)
    worker.settle()
    assert store.reserved == {(1, 3): Decimal("0.5")}
    store.send(run, "go", 1)
    worker.play("wake 1", "send 1", "commit 1")  # the signal is recorded, and nobody learns of it
    other = worker.crash()
    other.settle()
    assert (run.kinds(), run.place, store.reserved) == ("OmS", "parked", {})
    (key,) = run.owed()
    store.discharge(run, key)
    other.finish()
    assert run.result() == key
    assert divergence(run) is None
