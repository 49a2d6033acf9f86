"""Parked runs that wait in memory: a claim by the same worker goes on from there, without a replay,
unless something was added to their journals meanwhile.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from records import SOON, launch, settle

import pgflow
from pgflow import Signal, step, workflow

word = Signal("word", int)
woken: list[str] = []
unwound: list[str] = []


@step
async def double(n: int) -> int:
    return 2 * n


@workflow
async def listens(name: str) -> int:
    woken.append(name)
    try:
        first = await double(await word.wait())
        await asyncio.sleep(3600)
        return first + await word.wait(timeout=timedelta(hours=1))
    finally:
        unwound.append(name)


@workflow
async def child(n: int) -> int:
    await asyncio.sleep(3600)
    return n


@workflow
async def parent(name: str) -> int:
    woken.append(name)
    return sum([await pgflow.run_child(child, n) for n in range(3)])


@pytest.fixture(autouse=True)
def nothing_woken() -> None:
    woken.clear()
    unwound.clear()


async def test_a_parked_run_goes_on_where_it_waits(aflow):
    run = await settle(aflow, listens, "one")
    await run.send(word, 1)
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=1))
    await aflow.until_idle()
    await run.send(word, 5)
    assert await run.result(SOON) == 7
    assert (woken, unwound) == (["one"], ["one"])


async def test_a_time_out_of_a_parked_run_is_raised_where_it_waits(aflow):
    run = await launch(aflow, listens, "one")
    await run.send(word, 1)
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=1))
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=1))
    with pytest.raises(pgflow.RunFailed):
        await run.result(SOON)
    assert woken == ["one"]


async def test_a_parked_parent_is_not_replayed_for_its_children(aflow):
    run = await launch(aflow, parent, "one", beside=[child])
    for _ in range(3):
        await aflow.until_idle()
        await aflow.skip(timedelta(hours=1))
    assert await run.result(SOON) == 3
    assert woken == ["one"]


async def test_a_run_is_replayed_if_its_journal_has_grown(aflow):
    run = await settle(aflow, listens, "one")
    await aflow.app.pause(run.key)
    await aflow.app.resume(run.key)
    await aflow.until_idle()
    await run.send(word, 1)
    await aflow.until_idle()
    assert woken == ["one", "one"]
    await run.cancel()
    with pytest.raises(pgflow.RunCancelled):
        await run.result(SOON)
    assert woken == ["one", "one"]


async def test_the_oldest_is_unwound_where_too_many_wait(aflow, monkeypatch):
    monkeypatch.setattr("pgflow._worker.runs.MAX_RESTING", 1)
    aflow.include(listens)
    runs = []
    for name in ("one", "two"):
        runs.append(await aflow.start(listens, name))
        await aflow.until_idle()
    assert unwound == ["one"]
    for run in runs:
        await run.cancel()
        with pytest.raises(pgflow.RunCancelled):
            await run.result(SOON)
    assert woken == ["one", "two", "one"]
