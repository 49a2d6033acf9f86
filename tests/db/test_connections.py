"""Connections of a worker: few, whatever it works on, and fewer while nothing is to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest
from records import in_a_loop

import pgflow
from pgflow import AsyncApp
from pgflow._db import connect

HELD = """
select application_name, count(*) from pg_stat_activity
where datname = current_database() and application_name like 'pgflow%' and application_name not in ('pgflow app', 'pgflow results') group by 1
"""
"""Those of workers; the app that starts runs and waits for them has its own."""


class Gate:
    """Gate at which bodies wait inside their transaction."""

    inside: set[int]
    go_on: asyncio.Event


@pgflow.transaction
async def hold(conn: psycopg.AsyncConnection, number: int) -> int:
    await conn.execute("select 1")
    Gate.inside.add(number)
    await Gate.go_on.wait()
    return number


@pgflow.step
async def note(number: int) -> int:
    return number


@pgflow.workflow
async def holding(number: int) -> int:
    return await hold(number)


@pgflow.workflow
async def noting(number: int) -> int:
    for _ in range(5):
        await note(number)
    return number


@pytest.fixture(autouse=True)
def shut() -> None:
    Gate.inside, Gate.go_on = set(), asyncio.Event()


def held(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute(HELD).fetchall())


async def until(
    condition: Callable[[], bool],
    meanwhile: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0.02),
) -> None:
    while not condition():
        await meanwhile()


@pytest.mark.full
@in_a_loop
@pytest.mark.alone
async def test_many_runs_want_no_more_than_five(conn, dsn):
    app = AsyncApp(dsn, include=[noting])
    async with app, app.worker():
        runs = await app.start_many(noting, [(n,) for n in range(200)])
        most = 0
        while await runs[-1].status() != "completed":
            most = max(most, sum(held(conn).values()))
        assert [await run.result() for run in runs] == list(range(200))
    assert most == 5


@pytest.mark.full
@in_a_loop
@pytest.mark.alone
async def test_a_worker_that_rests_keeps_one_connection_for_commits_and_none_for_transactions(
    conn, dsn, monkeypatch
):
    monkeypatch.setattr("pgflow._worker.committer.IDLE_SECONDS", 0.1)
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.1)
    monkeypatch.setattr("pgflow._db.connect.POOL_IDLE_SECONDS", 0.1)
    app = AsyncApp(dsn, include=[noting, holding])
    rests = {"pgflow worker": 1, "pgflow committer": 1, "pgflow listener": 1, "pgflow heartbeat": 1}
    async with app, app.worker():
        await app.start_many(holding, [(n,) for n in range(4)])
        await until(
            lambda: (
                held(conn).get("pgflow step", 0) > 0 and held(conn).get("pgflow committer", 0) == 2
            ),
            meanwhile=lambda: app.start_many(noting, [(n,) for n in range(200)]),
        )
        Gate.go_on.set()
        await until(lambda: held(conn) == rests)
        run = await app.start(noting, 7)
        assert await run.result() == 7


@pytest.mark.parametrize(
    ("options", "most"), [({}, 4), ({"transaction_connections": 2}, 2)], ids=["as it is", "two"]
)
@in_a_loop
async def test_only_so_many_transactions_are_open_at_once_and_the_others_come_next(
    conn, dsn, options, most
):
    app = AsyncApp(dsn, include=[holding])
    async with app, app.worker(**options):
        runs = await app.start_many(holding, [(n,) for n in range(20)])
        await until(lambda: len(Gate.inside) == most)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(Gate.inside) == held(conn)["pgflow step"] == most
        Gate.go_on.set()
        assert [await run.result() for run in runs] == list(range(20))


def test_hosts_from_the_environment_are_tried_by_their_standing(monkeypatch):
    monkeypatch.setenv("PGHOST", "old,new")
    monkeypatch.setenv("PGPORT", "5432,5433")
    monkeypatch.setattr(connect, "_standing", {("old", "5432"): -5.0, ("new", "5433"): 3.0})
    assert connect.in_order("dbname=app") == {"host": "new,old", "port": "5433,5432"}
    found = connect.connect_parameters("dbname=app")["connect_timeout"]
    assert found == connect.CONNECT_ONE_OF_SEVERAL_SECONDS
    assert connect.in_order("host=another port=1 dbname=app") == {}, "the connection string wins"
