"""The jobs of workers and clients whose schema is upgraded while they work; nothing here but the
public API.

Recorded releases hold runs of `order` in flight (`tests/releases`), which this code has to bring to
their end: do not change what it records. `python upgrade_jobs.py DSN start FIRST LAST` starts runs,
`signal FIRST LAST` brings those on that wait.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

import psycopg

import pgflow
from pgflow import App, AsyncApp, Signal, read, step, transaction, workflow
from pgflow.effects import effect

STEPS = 4

go = Signal("go", int)


@transaction
async def book(conn: psycopg.AsyncConnection[Any], key: str, n: int) -> int:
    await conn.execute("insert into app.booked values (%s, %s)", (key, n))
    return n


async def _witness(key: str, n: int) -> None:
    """On a connection of its own, which no transaction of the engine takes back."""
    async with await psycopg.AsyncConnection.connect(
        os.environ["PGFLOW_DSN"], autocommit=True
    ) as witness:
        await witness.execute(
            "insert into app.told values (%s, %s, %s)", (key, n, pgflow.idempotency_key())
        )


@step(retries=10)
async def tell(key: str, n: int) -> str:
    await _witness(key, n)
    return f"told {n}"


@effect(risk="idempotent")
async def charge(key: str) -> str:
    await _witness(key, -1)
    return "charged"


@read
async def look(n: int) -> int:
    await asyncio.sleep(0.02)
    return n


@workflow
async def part(key: str) -> int:
    return await book(f"{key}/part", 0)


@workflow
async def order(key: str) -> int:
    total = 0
    for n in range(STEPS):
        total += await look(1)
        total += await book(key, n)
        await tell(key, n)
    await pgflow.sleep(timedelta(seconds=0.3))
    await charge(key)
    total += await go.wait()
    total += await pgflow.run_child(part, key)
    for n in range(STEPS, 2 * STEPS):
        total += await book(key, n)
        await tell(key, n)
    return total


SIGNAL = 100
EXPECTED = STEPS + sum(range(2 * STEPS)) + SIGNAL

app = AsyncApp(include=[order, part])


def key_of(n: int) -> str:
    return f"order-{n}"


def main() -> None:
    dsn, act, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with App(dsn, include=[order, part]) as client:
        for key in map(key_of, range(first, last)):
            if act == "start":
                client.start(order.options(key=key), key)
            else:
                client.send(key, go, SIGNAL)


if __name__ == "__main__":
    main()
