"""What a worker spends on a unit of work, as the number of Python functions that it calls: most of
its time goes there, and a count is the same on each machine.

Two sizes are counted, and their difference divided by what the larger has more: so what a worker
does once, and for a run, is not in the count of a step. Only what each unit calls is counted: a
slow machine sends what it has in more flushes, and their share of a unit is a fraction that is
dropped.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from pycalls import Size, play
from records import in_a_loop

import pgflow
from pgflow import AsyncApp, Signal, step, transaction, workflow
from pgflow.assets import is_compiled

RUNS = 64

word = Signal("word", int)


@step
async def add(a: int, b: int) -> int:
    return a + b


@step
def add_in_thread(a: int, b: int) -> int:
    return a + b


@transaction
async def write(conn: psycopg.AsyncConnection, n: int) -> int:
    return n


@workflow
async def steps(n: int) -> int:
    for _ in range(n):
        await add(n, 1)
    return n


@workflow
async def steps_in_threads(n: int) -> int:
    for _ in range(n):
        await add_in_thread.aio(n, 1)
    return n


@workflow
async def transactions(n: int) -> int:
    for _ in range(n):
        await write(n)
    return n


@workflow
async def sleeps(n: int) -> int:
    for _ in range(n):
        await asyncio.sleep(0.001)
    return n


@workflow
async def empty(n: int) -> int:
    return n


@workflow
async def parks(n: int) -> int:
    return await word.wait() + n


@workflow
async def maps(n: int) -> int:
    return len((await pgflow.map(empty, range(n))).values)


# A few above what is seen; the transactional step calls psycopg, whose calls depend on what arrives.
MOST = [
    ("step", steps, Size(RUNS, 10), Size(RUNS, 20), 76),
    ("step in a thread", steps_in_threads, Size(RUNS, 5), Size(RUNS, 10), 80),
    ("transactional step", transactions, Size(RUNS, 2), Size(RUNS, 4), 630),
    ("empty run", empty, Size(200, 1), Size(600, 1), 77),
    ("sleep", sleeps, Size(RUNS, 5), Size(RUNS, 10), 76),
    ("park", parks, Size(200, 1), Size(600, 1), 100),
    ("child of a map", maps, Size(1, 200), Size(1, 600), 141),
]


@pytest.mark.skipif(is_compiled(), reason="machine code calls no Python functions")
@pytest.mark.parametrize(
    ("unit", "work", "small", "large", "most"),
    [
        pytest.param(*row, id=row[0], marks=() if row[1] in (steps, empty) else pytest.mark.full)
        for row in MOST
    ],
)
@in_a_loop
async def test_a_unit_of_work_takes_few_python_calls(
    dsn, monkeypatch, unit, work, small, large, most
):
    # goes by time, not by units
    monkeypatch.setattr("pgflow._worker.committer.SWEEP_SECONDS", 3600)
    async with AsyncApp(dsn, include=[work, empty]) as app:
        await play(app, dsn, work, Size(2, 2))  # what is made once: codecs, plans, connections
        before = await play(app, dsn, work, small)
        counted = await play(app, dsn, work, large)
    counted.subtract(before)
    units = large.all - small.all
    a_unit = sum(int(count / units + 0.2) for count in counted.values())  # 0.97 a unit is one
    print(f"\n{counted.total() / units:.1f} calls a {unit}, {a_unit} of them by each")
    for name, count in counted.most_common(100):
        if count >= units / 10:
            print(f"{count / units:8.2f}  {name}")
    assert a_unit <= most
