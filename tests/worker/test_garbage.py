"""A run leaves nothing to the garbage collector: its passes look at all that a worker holds, so what
refers to itself is paid by every other run.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import SOON

import pgflow
from pgflow import Signal, step, transaction, workflow
from pgflow._worker.executor import CommitResults
from pgflow.testing import AsyncHarness

RUNS = 10
word = Signal("word", int)


@step
async def add(a: int, b: int) -> int:
    return a + b


@step
def add_in_thread(a: int, b: int) -> int:
    return a + b


@transaction
async def write(conn: psycopg.AsyncConnection) -> int:
    return 1


@workflow
async def steps() -> int:
    return await add(await add(1, 2), 3)


@workflow
async def sleeps() -> int:
    await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        await pgflow.sleep(0.001)
    return 1


@workflow
async def parks() -> int:
    return await word.wait()


@workflow
async def gathers_and_parks() -> int:
    taken = await asyncio.gather(word.wait(), word.wait(), add(1, 2))
    return sum(taken)


@workflow
async def sleeps_long() -> int:
    await asyncio.sleep(3600)
    return 1


@workflow
def in_a_thread() -> int:
    return add_in_thread(1, 2)


@workflow
async def in_transactions() -> int:
    return await write()


@workflow
async def child(n: int) -> int:
    return n


@workflow
async def parents() -> int:
    return sum((await pgflow.map(child, range(3))).values) + await pgflow.run_child(child, 1)


@workflow
async def late_child(n: int) -> int:
    await asyncio.sleep(3600)
    return n


@workflow
async def parents_that_park() -> int:
    found = await pgflow.map(late_child, range(2))
    return sum(found.values) + await pgflow.run_child(late_child, 1)


@workflow
async def many_sleeps() -> int:
    for _ in range(100):
        await asyncio.sleep(0.0001)
    return 1


@workflow
async def many_children() -> int:
    return sum([await pgflow.run_child(child, 1) for _ in range(100)])


@workflow
def hundred_in_threads() -> int:
    return sum(add_in_thread(1, 0) for _ in range(100))


PARKED = (sleeps_long, parks, gathers_and_parks, parents_that_park)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(work, id=work.name, marks=() if work in (steps, parks) else pytest.mark.full)
        for work in (
            steps,
            sleeps,
            parks,
            gathers_and_parks,
            sleeps_long,
            in_a_thread,
            in_transactions,
            parents,
            parents_that_park,
        )
    ],
)
async def test_a_run_leaves_nothing_to_the_garbage_collector(aflow, work):
    await _leaves_nothing(aflow, work)


async def test_a_run_that_is_claimed_again_before_its_park_is_delivered_leaves_nothing(
    aflow, monkeypatch
):
    delivered = CommitResults._committed

    def overtaken(self: Any, execution: Any, flush: Any, answer: Any, server: Any) -> None:
        if answer is None or answer["place"] != "parked":
            return delivered(self, execution, flush, answer, server)
        self._runs.executions[execution.run_id] = object()  # of the other connection's claim
        delivered(self, execution, flush, answer, server)
        del self._runs.executions[execution.run_id]

    monkeypatch.setattr(CommitResults, "_committed", overtaken)
    await _leaves_nothing(aflow, parks)


@pytest.mark.full
@pytest.mark.parametrize(
    ("work", "resting"),
    [(many_sleeps, 0), (many_children, 256), (many_children, 0), (hundred_in_threads, 0)],
    ids=["sleeps", "parks", "replays", "def"],
)
async def test_a_thousand_units_leave_nothing_to_the_garbage_collector(
    aflow, monkeypatch, work, resting
):
    monkeypatch.setattr("pgflow._worker.host.PATIENCE_US", 0)  # parents park for each child
    monkeypatch.setattr("pgflow._worker.host.PATIENCE_A_RUN_US", 0)
    monkeypatch.setattr("pgflow._worker.runs.MAX_RESTING", resting)
    await _leaves_nothing(aflow, work)


async def _leaves_nothing(aflow: AsyncHarness, work: Any) -> None:
    aflow.include(work, child, late_child)
    await _play(aflow, work, 2)  # what is made once: threads, connections, statements
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await _play(aflow, work, RUNS)
        gc.collect()
        left = Counter(type(found).__qualname__ for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left["Execution"] + left["WorkflowTask"] + left["ThreadDriver"] == 0, left
    assert sum(left.values()) < RUNS, left


async def _play(aflow: AsyncHarness, work: Any, runs: int) -> None:
    handles = [await aflow.start(work) for _ in range(runs)]
    for _ in range(2 if work in PARKED else 0):
        await aflow.until_idle()
        await aflow.skip(timedelta(hours=2))
        for handle in handles if work in (parks, gathers_and_parks) else ():
            await handle.send(word, 1)
    for handle in handles:
        await handle.result(SOON)
