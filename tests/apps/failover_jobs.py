"""The workflow that goes on through fail-overs: what it has booked it notes outside, where no
server can lose it.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg

from pgflow import AsyncApp, step, transaction, workflow

BOOKINGS = 4


@transaction
async def book(conn: psycopg.AsyncConnection[Any], key: str, n: int) -> int:
    await conn.execute("insert into app.booked values (%s, %s)", (key, n))
    return n


@transaction
def book_in_thread(conn: psycopg.Connection[Any], key: str, n: int) -> int:
    conn.execute("insert into app.booked values (%s, %s)", (key, n))
    return n


@step(retries=10)
async def note(key: str, n: int) -> None:
    """It runs once the booking before it is acknowledged."""
    with open(os.environ["FAILOVER_NOTES"], "a") as notes:  # noqa: ASYNC230, PTH123  one short line, written at once
        notes.write(f"{key} {n} {time.monotonic()}\n")
    await asyncio.sleep(0.1)


@workflow
async def tale(key: str) -> int:
    total = 0
    for n in range(BOOKINGS):
        total += await (book(key, n) if n % 2 == 0 else book_in_thread.aio(key, n))
        await note(key, n)
    return total


app = AsyncApp(include=[tale])
