"""What the benchmarks run: the plainest workflows that still do what they are measured for."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from pgflow import AsyncApp, Signal, step, transaction, workflow

poke = Signal("poke", float)
latencies: dict[float, float] = {}
"""Seconds by the time of sending: the code of a workflow runs again on every replay, only its first run counts."""


@step
async def small(i: int) -> dict[str, int]:
    return {"i": i}


@workflow
async def ten_steps(x: int) -> int:
    for i in range(10):
        await small(i)
    return x


@transaction
async def insert(conn: psycopg.AsyncConnection[Any], i: int) -> int:
    await conn.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
    return i


@workflow
async def ten_transactions(x: int) -> int:
    for i in range(10):
        await insert(i)
    return x


@workflow
async def noop(x: int) -> int:
    return x


@workflow
async def stamp(sent: float) -> None:
    latencies.setdefault(sent, time.time() - sent)


@workflow
async def poked(times: int) -> None:
    for _ in range(times):
        sent = await poke.wait()
        latencies.setdefault(sent, time.time() - sent)


app = AsyncApp(include=[ten_steps, ten_transactions, noop, stamp, poked])
