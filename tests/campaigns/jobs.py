"""Workflows that the workers of the campaigns run."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg

import pgflow
from pgflow import AsyncApp, Retries, Signal, read, step, transaction, workflow
from tests.kits import servers

SCHEMA = """
create schema app;
create table app.booked (key text, n int, note text, at timestamptz default clock_timestamp());
create table app.seen (key text, n int);
"""

MS = timedelta(milliseconds=1)

go = Signal("go", Any)

tries: Counter[str] = Counter()
"""Number of times that each body has run in this process."""


@transaction
async def book(conn: psycopg.AsyncConnection[Any], key: str, n: int, note: str = "") -> int:
    await conn.execute("insert into app.booked values (%s, %s, %s)", (key, n, note))
    return n


@transaction
def book_in_thread(conn: psycopg.Connection[Any], key: str, n: int, note: str = "") -> int:
    conn.execute("insert into app.booked values (%s, %s, %s)", (key, n, note))
    return n


@transaction
async def book_slowly(conn: psycopg.AsyncConnection[Any], key: str, n: int, ms: int) -> int:
    """Stays inside its transaction for a while, which is where a fault should find it."""
    await conn.execute("insert into app.booked values (%s, %s)", (key, n))
    await asyncio.sleep(ms / 1000)
    return n


@step(retries=Retries(max_attempts=10, first_delay=MS))
async def rest(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


@step
async def die(key: str) -> None:
    """Takes its worker along, and leaves a trace that no rollback removes."""
    async with await psycopg.AsyncConnection.connect(
        servers.witness(os.environ["PGFLOW_DSN"]), autocommit=True
    ) as conn:
        await conn.execute("insert into app.seen values (%s, 0)", (key,))
    os._exit(1)


class Trouble(Exception):
    """Trouble that a step reports."""


@step(retries=Retries(max_attempts=3, first_delay=timedelta(hours=1)))
async def trip() -> None:
    raise Trouble("tried again in an hour")


@transaction
async def end_early(conn: psycopg.AsyncConnection[Any]) -> None:
    """Ends the transaction itself, which makes its run stuck."""
    await conn.commit()


RAISE = "do $$ begin raise exception using errcode = '{}', message = 'injected'; end $$"


@transaction
async def refuse(conn: psycopg.AsyncConnection[Any], key: str, state: str, times: int) -> int:
    await conn.execute("insert into app.booked values (%s, 0)", (key,))
    tries[key] += 1
    if tries[key] <= times:
        await conn.execute(RAISE.format(state))
    return tries[key]


@transaction
def refuse_in_thread(conn: psycopg.Connection[Any], key: str, state: str, times: int) -> int:
    conn.execute("insert into app.booked values (%s, 0)", (key,))
    tries[key] += 1
    if tries[key] <= times:
        conn.execute(RAISE.format(state))
    return tries[key]


@read
async def hand_out(index: int) -> Any:
    """One of the values that could be mistaken for none."""
    tries[f"value {index}"] += 1
    return NOTHINGS[index]


NOTHINGS: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {}, [None], {"": None})


@workflow
async def booking(key: str, steps: int, ms: int = 0) -> int:
    """Transactional steps, a pause after each."""
    total = 0
    for n in range(steps):
        total += await (book(key, n) if n % 2 else book_in_thread.aio(key, n))
        if ms:
            await rest(ms)
    return total


@workflow
async def slow_booking(key: str, steps: int, ms: int) -> int:
    """Transactional steps that are long in themselves."""
    return sum([await book_slowly(key, n, ms) for n in range(steps)])


@workflow
async def following(key: str, count: int) -> int:
    """Takes signals, one after the other, and books each."""
    for n in range(count):
        await book(key, n, str(await go.wait()))
    return count


@workflow
async def napping(key: str, naps: list[int]) -> int:
    """Sleeps for so many milliseconds each time, and books when it woke."""
    for n, ms in enumerate(naps):
        await pgflow.sleep(ms * MS)
        await book(key, n)
    return len(naps)


@workflow
async def poison(key: str) -> None:
    await die(key)


@workflow
async def refusing(key: str, state: str, times: int, thread: bool) -> int:
    return await (refuse_in_thread.aio(key, state, times) if thread else refuse(key, state, times))


@workflow
async def nothings(key: str) -> list[Any]:
    """Gets every value before a wait and looks at it after the replay that follows."""
    found = [await hand_out(index) for index in range(len(NOTHINGS))]
    await book(key, 0, repr(found))
    await go.wait()
    return [repr(found), repr(await go.wait())]


@workflow
async def staying(kind: str) -> str:
    """Stays in one state until somebody ends it."""
    match kind:
        case "in a step":
            await rest(3_600_000)
        case "in a transaction":
            await book_slowly(kind, 0, 3_600_000)
        case "waiting":
            await go.wait()
        case "waiting for a time":
            await go.wait(timeout=timedelta(hours=1))
        case "sleeping":
            await pgflow.sleep(3600)
        case "trying again":
            await trip()
        case "with a child":
            await pgflow.run_child(staying, "waiting")
        case "stuck":
            await end_early()
        case "cleaning up":
            try:
                await go.wait()
            finally:
                await book(kind, 0)
    return kind


@workflow
async def named(name: str) -> str:
    """Waits for one signal of a name that somebody made up."""
    return f"{name}{await Signal(name, str).wait()}"


WORKFLOWS = (booking, slow_booking, following, napping, poison, refusing, nothings, staying, named)

app = AsyncApp(include=WORKFLOWS)
