"""A worker that is asked to stop leaves no run behind, whatever was on its way at that moment."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from records import count, eventually

from pgflow import AsyncApp, Signal, read, workflow
from pgflow._db.query import Query
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.options import WorkerOptions
from pgflow._worker.worker import Worker

go = Signal("go", int)


@read
async def look(n: int) -> str:
    return str(n) * 40_000


@workflow
async def work(n: int) -> int:
    for i in range(n):
        await look(i)
    return await go.wait()


class Withheld:
    """Calls of one stored function whose answers do not come before they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
        self.arrived, self.release = asyncio.Event(), asyncio.Event()
        ask = WorkerConnection.ask

        async def withhold(control: WorkerConnection, query: Query[Any]) -> Any:
            answer = await ask(control, query)
            if f"pgflow.{function}(" in query.sql and answer:
                self.arrived.set()
                await self.release.wait()
            return answer

        monkeypatch.setattr(WorkerConnection, "ask", withhold)


class Unasked(Withheld):
    """As `Withheld`, but the question itself waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
        self.arrived, self.release = asyncio.Event(), asyncio.Event()
        ask = WorkerConnection.ask

        async def withhold(control: WorkerConnection, query: Query[Any]) -> Any:
            if f"pgflow.{function}(" in query.sql:
                self.arrived.set()
                await self.release.wait()
            return await ask(control, query)

        monkeypatch.setattr(WorkerConnection, "ask", withhold)


async def stop_until_answered(worker: Worker, *withheld: Withheld) -> None:
    """Asks the worker to stop, and lets the answers go when it has ended without them, or waits for
    them.
    """
    stopping = asyncio.create_task(worker.stop())
    for each in withheld:
        await asyncio.wait([stopping], timeout=0.3)
        each.release.set()
    await stopping


def left(conn: psycopg.Connection) -> dict[str, int]:
    """Rows of the tables that say where runs are."""
    return {table: count(conn, f"pgflow.{table}") for table in ("worker", "lease", "ready")}


def test_a_worker_asked_to_stop_hands_back_what_a_claim_on_its_way_brings(dsn, conn, monkeypatch):
    async def stop() -> None:
        claimed, released = (
            Withheld(monkeypatch, "claim_runs"),
            Unasked(monkeypatch, "release_runs"),
        )
        async with AsyncApp(dsn, include=[work]) as app:
            for _ in range(10):
                await app.start(work, 0)
            async with app._work(WorkerOptions()) as worker:
                await claimed.arrived.wait()
                await stop_until_answered(worker, claimed, released)

    asyncio.run(stop())
    assert left(conn) == {"worker": 0, "lease": 0, "ready": 10}


def test_a_worker_asked_to_stop_hands_back_runs_whose_journals_are_on_their_way(
    dsn, conn, monkeypatch
):
    async def stop() -> None:
        async with AsyncApp(dsn, include=[work]) as app:
            run = await app.start(work, 9)  # a journal that is too long for the answer of the claim
            async with app.worker():
                await eventually(lambda: count(conn, "pgflow.parked"), "the run waits")
            await run.send(go, 1)
            loaded = Withheld(monkeypatch, "load_units")
            async with app._work(WorkerOptions()) as worker:
                await loaded.arrived.wait()
                await stop_until_answered(worker, loaded)

    asyncio.run(stop())
    assert left(conn) == {"worker": 0, "lease": 0, "ready": 1}
