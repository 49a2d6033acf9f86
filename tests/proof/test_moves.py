"""A move by logical replication: rows arrive on another server without its roles' numbers and without
sequences, and the runs go on there.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import flowkit
import psycopg
import pytest
import servers
from ownserver import OwnServer
from psycopg import sql

import pgflow
from pgflow import Signal, transaction, workflow
from pgflow.testing import AsyncHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

go = Signal("go", int)
PADDING = 40
"""Roles that the new server has besides, so that no role has the number that it had."""
SEQUENCES = """
select format('select setval(%L, %s);', format('%I.%I', schemaname, sequencename), last_value)
from pg_sequences where last_value is not null
"""
SLEEPER = """
begin
  one: insert into public.mark (what) values (current_user);
  sleep '1 hour';
  two: insert into public.mark (what) values (current_user);
end
"""


@transaction
async def book(conn: psycopg.AsyncConnection, key: str) -> str:
    await conn.execute("insert into public.booked values (%s)", (key,))
    return key


@workflow
async def part(key: str) -> str:
    await pgflow.sleep(timedelta(hours=1))
    return await book(f"{key}/part")


@workflow
async def order(key: str) -> int:
    async with pgflow.lock(f"door-{key}"):
        await book(key)
        n = await go.wait()
    await pgflow.run_child(part, key)
    await pgflow.events.publish("done", {"key": key}, key=key)
    return n


@workflow
async def waits(key: str) -> str:
    return (await pgflow.events.wait_for_event("done", {"key": key})).key


async def play(dsn: str, began: list[str], ends: list[str], hours: int = 2) -> None:
    """Starts orders and those who wait for them, and brings some of them to their end."""
    async with AsyncHarness(dsn) as h:
        h.include(order, waits, part)
        for key in began:
            await h.start(order.options(key=f"order-{key}"), key)
            await h.start(waits.options(key=f"waits-{key}"), key)
        await h.until_idle()
        for key in ends:
            await h.app.send(f"order-{key}", go, 1)
        if ends:
            await h.until_idle()
            await h.skip(timedelta(hours=hours))
            await h.until_idle()


def run(server: OwnServer, program: str, *arguments: str) -> None:
    """One of the server's programs, as whoever runs the tests."""
    path = str(servers.find_test_programs(server.wanted) / program)
    command = [sys.executable, "-m", "pgflow.embedded._namespace", path, "-d", server.dsn]
    there = {**os.environ, "PYTHONPATH": str(servers.REPOSITORY)}
    done = subprocess.run(
        [*command, *arguments], env=there, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def both() -> Iterator[tuple[OwnServer, OwnServer]]:
    """The old server and the new one, which has the roles and nothing else."""
    with OwnServer(wal_level="logical") as old, OwnServer() as new:
        servers.install_schema(old.dsn)
        scratch = servers.dsn_of(new.dsn, servers.create_database(new.dsn))
        with psycopg.connect(new.dsn, autocommit=True) as conn:
            for n in range(PADDING):
                conn.execute(f"create role padding_{n}")
        servers.install_schema(scratch)
        for server in (old, new):
            servers.make_login(server.dsn, "alice", "pgflow_client")
        yield old, new


@pytest.mark.full
def test_runs_go_on_where_logical_replication_has_brought_their_rows(
    both: tuple[OwnServer, OwnServer], tmp_path: Path
) -> None:
    old, new = both
    with psycopg.connect(old.dsn, autocommit=True) as there:
        there.execute("create table public.booked (key text primary key)")
        there.execute("create publication moving for all tables")
        there.execute("grant create on schema public to pgflow_test_alice")
        there.execute("set role pgflow_test_alice")
        flowkit.make(there, "sleeper()", SLEEPER.strip())
        there.execute("select pgflow.revoke_workflow('sleeper', 'public', 'start')")
        flowkit.begin(there, "sleeper")
        there.execute("reset role")
        flowkit.work(there)
        asyncio.run(play(old.dsn, ["a", "b"], []))

        dump = str(tmp_path / "schema.dump")
        run(old, "pg_dump", "-s", "-Fc", "--no-publications", "-f", dump)
        run(new, "pg_restore", dump)
        with psycopg.connect(new.dsn, autocommit=True) as here:
            subscribe = "create subscription moving connection {} publication moving"
            here.execute(sql.SQL(subscribe).format(sql.Literal(old.dsn)))
            copying = "select 1 from pg_subscription_rel where srsubstate <> 'r' limit 1"
            servers.wait_until(lambda: here.execute(copying).fetchone() is None, "it is copied")
            asyncio.run(play(old.dsn, ["c"], ["a"]))
            upto = there.execute("select pg_current_wal_flush_lsn()").fetchone()
            arrived = "select bool_and(replay_lsn >= %s) from pg_stat_replication"
            servers.wait_until(lambda: there.execute(arrived, upto).fetchone()[0], "all arrives")  # type: ignore[index]
            here.execute("drop subscription moving")
            register = "select pgflow.register_worker('h', 1, '{default}', 1, '1')"
            with pytest.raises(psycopg.Error, match="sequences are behind"):
                here.execute(register)
            for (statement,) in there.execute(SEQUENCES).fetchall():
                here.execute(statement)

    with psycopg.connect(new.dsn, autocommit=True) as here:
        definers = here.execute("select distinct definer::text from pgflow.workflows").fetchall()
        assert definers == [("pgflow_test_alice",)]
        rights = here.execute("select rights from pgflow.workflows").fetchall()
        assert rights == [({"start": ["pgflow_test_alice"]},)]
        asyncio.run(play(new.dsn, ["d"], []))
        pgflow.testing.set_clock(new.dsn, timedelta(hours=2))
        flowkit.work(here)
        asyncio.run(play(new.dsn, [], ["b", "c", "d"], hours=5))
        ends = here.execute("select distinct status from pgflow.runs").fetchall()
        assert ends == [("completed",)]
        assert flowkit.marks(here) == ["pgflow_test_alice"] * 2
        booked = here.execute("select count(*) from public.booked").fetchone()
        assert booked == (8,)
        assert servers.complaints(here) == []
