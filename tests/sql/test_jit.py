"""A server with LLVM compiles what its planner takes for dear. It never compiles a statement of the
engine.

On a server of our own, which compiles everything that it is not kept from but what is cheapest, and
counts what it has compiled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
import servers
from clikit import pgflow as command
from ownserver import OwnServer
from poolers import bouncer
from records import in_a_loop

import pgflow
from pgflow import AsyncApp
from pgflow._db.connect import ConnectOptions, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILED = """
select query, toplevel from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and s.jit_functions > 0 order by query
"""


GO = pgflow.Signal("go", int)


@pgflow.transaction
async def add(conn: psycopg.AsyncConnection, number: int) -> int:
    cursor = await conn.execute(
        "select sum(n * %s) as the_bodys_own from generate_series(1, 300) n where n < 4", (number,)
    )
    return int((await cursor.fetchone())[0])


@pgflow.step
async def double(number: int) -> int:
    return 2 * number


@pgflow.workflow
async def child(number: int) -> int:
    return await double(number)


@pgflow.workflow
async def parent(number: int) -> int:
    await pgflow.sleep(0.01)
    told = await GO.wait()
    return await pgflow.run_child(child, number) + await add(number) + told


class Compiling(NamedTuple):
    """A database of a server that compiles whatever it may, and a connection that has switched that
    off for itself.
    """

    dsn: str
    conn: psycopg.Connection

    def forget(self) -> None:
        self.conn.execute("select pg_stat_statements_reset()")

    def compiled(self) -> list[tuple[str, bool]]:
        """Return (query, True if a client said it) of everything compiled since."""
        return self.conn.execute(COMPILED).fetchall()


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    settings = {"jit": "on", "jit_above_cost": "1", "pg_stat_statements.track": "all"}
    with OwnServer(str(servers.find_programs_with_llvm()), **settings) as server:
        yield server


@pytest.fixture
def compiling(server: OwnServer) -> Iterator[Compiling]:
    name = servers.create_database(server.dsn)
    dsn = servers.dsn_of(server.dsn, name)
    quick = f"{dsn}?options=-c%20jit%3Doff"
    servers.install_schema(quick)
    with psycopg.connect(quick, autocommit=True) as conn:
        conn.execute("create extension pg_stat_statements")
        compiling = Compiling(dsn, conn)
        compiling.forget()
        yield compiling
        assert conn.execute("select * from pgflow.check()").fetchall() == []
    servers.drop_database(server.dsn, name)


@pytest.mark.full
@in_a_loop
async def test_what_the_engine_says_is_not_compiled_and_what_a_body_says_is_as_ever(compiling):
    app = AsyncApp(compiling.dsn, include=[parent, child])
    async with app, app.worker():
        runs = [await app.start(parent, n) for n in range(5)]
        for run in runs:
            await run.send(GO, 7)
        got = await asyncio.gather(*(run.result() for run in runs))
        assert got == [2 * n + 6 * n + 7 for n in range(5)]
    found = compiling.compiled()
    assert [query for query, _ in found if "the_bodys_own" in query] != []
    assert [query for query, _ in found if "the_bodys_own" not in query] == []


@pytest.mark.full
def test_who_calls_a_function_by_sql_waits_for_no_compiler(compiling):
    with psycopg.connect(compiling.dsn, autocommit=True) as conn:
        got = conn.execute("select count(*) as mine from generate_series(1, 300)").fetchone()
        assert got == (300,)
        for n in range(3):
            conn.execute("select pgflow.start_run('parent', '{\"number\": 1}', %s)", (f"run-{n}",))
            conn.execute("select pgflow.send_signal(%s, 'go', '1')", (f"run-{n}",))
        conn.execute("select * from pgflow.wake()")
        conn.execute("select * from pgflow.result('run-1')")
        conn.execute("select pgflow.run_status('run-1')")
        conn.execute("select pgflow.cancel_run('run-2', 'enough')")
    found = compiling.compiled()
    assert [query for query, is_said in found if is_said and "mine" in query] != []
    assert [query for query, is_said in found if not is_said] == []


@pytest.mark.full
def test_a_session_of_ours_reads_views_uncompiled(compiling):
    with connect(ConnectOptions(compiling.dsn), "test") as ours:
        found = ours.execute("select * from pgflow.runs order by run_id desc limit 50").fetchall()
        assert found == []
    assert compiling.compiled() == []


@pytest.mark.full
def test_doctor_says_which_looks_at_views_are_compiled(compiling):
    def found() -> tuple[str, str]:
        (row,) = [
            row for row in command(compiling.dsn, "doctor").data if row["check"] == "compiling"
        ]
        return row["level"], row["found"]

    level, said = found()
    assert level == "warn"
    assert "pgflow.runs, pgflow.steps" in said
    database = compiling.conn.info.dbname
    compiling.conn.execute(f"alter database {database} set jit_above_cost = 100000")
    assert found() == ("ok", "Postgres does not compile (jit) what reads the views")
    compiling.conn.execute(f"alter database {database} set jit = off")
    assert found() == ("ok", "this server compiles nothing (jit)")


def test_a_session_that_a_pooler_lends_to_others_is_left_as_it_is(dsn, conn):
    conn.execute(f"alter database {conn.info.dbname} set jit = on")
    with (
        bouncer(dsn, "transaction") as pooled,
        connect(ConnectOptions(pooled, prepare_threshold=None), "test") as ours,
    ):
        assert ours.execute("select current_setting('jit')").fetchone() == ("on",)
    with connect(ConnectOptions(dsn), "test") as ours:
        assert ours.execute("select current_setting('jit')").fetchone() == ("off",)
        most = ours.execute("show max_parallel_workers_per_gather").fetchone()
        assert most == ("0",)
