"""The number of what a run did before multiplies nothing: its tenth step costs what its thousandth
does, and so do sleeps, signals and children, with a worker that has no free place.

The cost is the number of Python functions that the worker calls, statements among them. A cost that
grew with the number before it would be three times as high from the second size to the third as
from the first to the second.
"""

from __future__ import annotations

import asyncio

import pytest
from pycalls import ENDED, Size, play
from records import in_a_loop
from servers import HANG_SECONDS

import pgflow
from pgflow import AsyncApp, Signal, step, workflow
from pgflow.assets import is_compiled

UNITS = (10, 30, 90)
PARENTS = 8
word = Signal("word", int)


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def steps(n: int) -> int:
    for _ in range(n):
        await add(n, 1)
    return n


@workflow
async def sleeps(n: int) -> int:
    for _ in range(n):
        await asyncio.sleep(0.0001)
    return n


@workflow
async def one(n: int) -> int:
    return n


@workflow
async def children_in_turn(n: int) -> int:
    for i in range(n):
        await pgflow.run_child(one, i)
    return n


@workflow
async def maps(n: int) -> int:
    return len((await pgflow.map(one, range(n))).values)


@workflow
async def signals(n: int) -> int:
    for i in range(n):
        await pgflow.send(pgflow.run_info().key, word, i)
        await word.wait()
    return n


@pytest.mark.full
@pytest.mark.skipif(is_compiled(), reason="machine code calls no Python functions")
@in_a_loop
async def test_a_parent_that_parks_for_each_child_reads_as_much_for_the_last_as_for_the_first(
    dsn, monkeypatch
):
    """It waits in memory while it is parked, and is not replayed for each result."""
    monkeypatch.setattr("pgflow._worker.host.PATIENCE_US", 0)
    monkeypatch.setattr("pgflow._worker.host.PATIENCE_A_RUN_US", 0)
    monkeypatch.setattr("pgflow._worker.committer.SWEEP_SECONDS", 3600)
    async with AsyncApp(dsn, include=[children_in_turn, one]) as app:
        await play(app, dsn, children_in_turn, Size(2, 2), until=ENDED)
        counts = [
            await play(app, dsn, children_in_turn, Size(PARENTS, units), until=ENDED)
            for units in UNITS
        ]
    assert counts[-1]["execution.Execution.go_on"] > PARENTS * UNITS[-1] / 2
    assert counts[-1]["units.parse_units"] < PARENTS
    for name in ("codecs.Codec.decode", None):
        first, second, third = (
            (count.total() if name is None else count[name]) / PARENTS for count in counts
        )
        early = (second - first) / (UNITS[1] - UNITS[0])
        late = (third - second) / (UNITS[2] - UNITS[1])
        print(f"\n{name or 'calls'}: {early:.1f} a child, then {late:.1f}")
        assert late < 1.5 * early


@pytest.mark.full
@pytest.mark.skipif(is_compiled(), reason="machine code calls no Python functions")
@pytest.mark.parametrize(
    "work", [steps, sleeps, children_in_turn, maps, signals], ids=lambda work: work.name
)
@in_a_loop
async def test_a_unit_costs_the_same_however_many_came_before_it(dsn, monkeypatch, work):
    monkeypatch.setattr("pgflow._worker.host.PATIENCE_US", int(HANG_SECONDS * 1e6))
    monkeypatch.setattr("pgflow._worker.committer.SWEEP_SECONDS", 3600)
    async with AsyncApp(dsn, include=[work, one]) as app:
        await play(app, dsn, work, Size(2, 2))
        calls = [
            (await play(app, dsn, work, Size(PARENTS, units), concurrency=PARENTS)).total()
            for units in UNITS
        ]
    first, second, third = (count / PARENTS for count in calls)
    early = (second - first) / (UNITS[1] - UNITS[0])
    late = (third - second) / (UNITS[2] - UNITS[1])
    print(f"\n{work.name}: {early:.0f} calls a unit, then {late:.0f}")
    assert late < 1.5 * early
