"""Workflows that rewrite a register, one at a time, and raise a counter that is an entity, for the
processes of `tests/registers.py`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import psycopg

import pgflow
from pgflow import AsyncApp, step, workflow
from pgflow.errors import LockLost

TTL_SECONDS = 2.0
TIMES = 20

REGISTER = """
create schema app;
create table app.register (key text primary key, fence bigint not null default 0, n int not null);
create table app.entry (run text primary key, key text not null, fence bigint not null, n int);
"""


class Refused(Exception):
    """The register has seen a greater fence."""


@step(retries=1, raises=[Refused])
async def raise_by_one(key: str, fence: int) -> int:
    """Reads and writes in two transactions, as a register outside would be: in between anything may
    happen. What it refuses is an older fence, and a run that it has served before.
    """
    run = pgflow.run_info().key
    dsn = os.environ["PGFLOW_DSN"]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        seen = await _one(
            conn,
            "update app.register set fence = %s where key = %s and fence <= %s returning n",
            fence,
            key,
            fence,
        )
        if seen is None:
            raise Refused(f"fence {fence} of {key}")
        await asyncio.sleep(0.02)
        done = await _one(
            conn,
            """
            with written as (
              insert into app.entry (run, key, fence, n)
              select %s, key, fence, %s from app.register where key = %s and fence = %s
              on conflict do nothing returning n
            ), raised as (
              update app.register r set n = w.n from written w where r.key = %s
            )
            select coalesce((select n from written), (select n from app.entry where run = %s))
            """,
            run,
            seen + 1,
            key,
            fence,
            key,
            run,
        )
        if done is None:
            raise Refused(f"fence {fence} of {key}")
        return int(done)


async def _one(conn: psycopg.AsyncConnection[Any], query: Any, *params: Any) -> Any:
    row = await (await conn.execute(query, params)).fetchone()
    return row and row[0]


@workflow
async def rewrite(key: str) -> int:
    """Raises a register by one, however often its lock is lost."""
    while True:
        try:
            async with pgflow.lock(key, ttl=TTL_SECONDS) as fence:
                return await raise_by_one(key, fence)
        except (LockLost, Refused):
            continue


@workflow
async def rewrite_patiently(key: str) -> int:
    """The same, under a lock that lasts."""
    async with pgflow.lock(key) as fence:
        return await raise_by_one(key, fence)


@pgflow.entities.entity("counter of lock_jobs")
@dataclass
class Counter:
    """A number that every run raises."""

    n: int = 0

    @pgflow.entities.update
    def add(self, n: int) -> int:
        """Raises it."""
        self.n += n
        return self.n


@workflow
async def count_up(key: str) -> int:
    """Raises a counter by one, again and again."""
    for _ in range(TIMES):
        n = await Counter.add(key, 1)
    return n


app = AsyncApp(include=[rewrite, rewrite_patiently, count_up])
