"""Readers of the server beneath the work, and of what each worker holds."""

from __future__ import annotations

import asyncio

import psycopg
from sqlkit import begin, commit, flush, one, unit

from pgflow import inspect
from pgflow.inspect import (
    list_held_runs,
    list_slow_statements,
    list_snapshots,
    list_tables,
    read_server,
)


def test_a_server_tells_its_sizes_and_who_keeps_dead_rows(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn) as other:
        server = inspect.ask(conn, read_server())
        assert (server.is_standby, server.sees_all) == (False, True)
        assert 0 < server.connections <= server.room
        tables = inspect.ask(conn, list_tables(None))
        assert [table.bytes for table in tables] == sorted((t.bytes for t in tables), reverse=True)
        assert {table.table for table in tables if table.is_hot} >= {"ready", "lease", "signal"}
        assert len(inspect.ask(conn, list_tables(3))) == 3
        assert server.bytes > sum(table.bytes for table in tables) > 0
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from pgflow.run")
        who = f"process {other.info.backend_pid}"
        assert who in {row.who for row in inspect.ask(conn, list_snapshots(0.0))}
        assert who not in {row.who for row in inspect.ask(conn, list_snapshots(3600.0))}
        found = next(r for r in inspect.ask(conn, list_snapshots(0.0)) if r.who == who)
        assert found.remedy == f"select pg_terminate_backend({other.info.backend_pid})"

    async def ask() -> int:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            return len(await inspect.ask_async(conn, list_tables(3)))

    assert asyncio.run(ask()) == 3


def test_statements_are_listed_where_the_server_counts_them(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("drop extension if exists pg_stat_statements")
        assert inspect.ask(conn, list_slow_statements()) is None
        conn.execute("create extension pg_stat_statements")
        found = inspect.ask(conn, list_slow_statements())
        is_loaded = "pg_stat_statements" in one(conn, "show shared_preload_libraries")
        assert (found is not None) == is_loaded


def test_a_worker_holds_runs_that_tell_what_they_do(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        held = begin(conn)
        assert [row.event for row in inspect.ask(conn, list_held_runs(held.worker))] == [None]
        starts = '[[2, "s", "ship", "1", null]]'
        commit(conn, flush(held, unit(name="pick", starts=starts)))
        (row,) = inspect.ask(conn, list_held_runs(held.worker, tenant=""))
        assert (row.key, row.workflow, row.event, row.name) == (
            held.key,
            "demo",
            "step_completed",
            "pick",
        )
        assert row.starts == ["ship"]
        assert inspect.ask(conn, list_held_runs(held.worker, tenant="other")) == []
        assert inspect.ask(conn, list_held_runs(held.worker + 1)) == []


def test_a_run_has_the_trace_of_its_start_or_one_of_its_own(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        held = begin(conn)
        found = inspect.ask(conn, inspect.read_trace(held.run_id))
        assert found == f"{inspect.derive_ids(held.root)[0]:032x}"
