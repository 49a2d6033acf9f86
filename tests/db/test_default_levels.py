"""Databases whose transactions are by default serializable, repeatable read or read-only: the
engine's own say what they are.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from servers import HANG_SECONDS
from wirekit import on_wire, query

import pgflow
from pgflow import App, AsyncApp, Signal, step, transaction, workflow
from pgflow._db.connect import ConnectOptions, connect
from pgflow._db.failures import is_infrastructure
from pgflow._db.query import Query, run
from pgflow._db.wire import OwnWire

go = Signal("go", int)
DEFAULTS = {
    "repeatable read": "default_transaction_isolation = 'repeatable read'",
    "serializable": "default_transaction_isolation = serializable",
    "read only": "default_transaction_read_only = on",
}
LEVELS = """
create table public.level (role text, isolation text);
grant all on public.level to public;
create function public.note_level() returns trigger language plpgsql as $$ begin
  insert into public.level values (current_setting('application_name'), current_setting('transaction_isolation'));
  return null;
end $$;
do $$ declare t regclass; begin
  for t in select c.oid from pg_class c where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'r' loop
    execute format('create trigger note_level after insert or update or delete on %s execute function public.note_level()', t);
  end loop;
end $$;
"""


@pytest.fixture(params=DEFAULTS)
def odd_dsn(request: pytest.FixtureRequest, dsn: str, conn: psycopg.Connection) -> str:
    conn.execute(LEVELS)
    conn.execute(f"alter database {conn.info.dbname} set {DEFAULTS[request.param]}")
    return dsn


@step
async def tell(n: int) -> int:
    return n


@transaction
async def book(conn: psycopg.AsyncConnection[Any], n: int) -> str:
    row = await (await conn.execute("select current_setting('transaction_isolation')")).fetchone()
    assert row is not None
    return f"{n} {row[0]}"


@transaction
def book_in_thread(conn: psycopg.Connection[Any], n: int) -> str:
    row = conn.execute("select current_setting('transaction_isolation')").fetchone()
    assert row is not None
    return f"{n} {row[0]}"


@workflow
async def child(n: int) -> int:
    return await tell(n)


@workflow
async def job() -> list[str]:
    told = await tell(1)
    received = await go.wait()
    await pgflow.sleep(timedelta(milliseconds=5))
    born = await pgflow.run_child(child, 1)
    return [await book(told), await book_in_thread.aio(received + born)]


ENGINE = ("pgflow worker", "pgflow committer", "pgflow heartbeat", "pgflow app", "pgflow results")


@pytest.mark.full
def test_the_engine_s_transactions_are_read_committed_and_steps_are_as_the_database_says(
    odd_dsn, conn
):
    async def main() -> list[str]:
        async with AsyncApp(odd_dsn, include=[job, child]) as app, app.worker():
            await app.start_many(child, [(n,) for n in range(300)])
            run = await app.start(job.options(key="j"))
            await app.send("j", go, 1)
            return await run.result(HANG_SECONDS)

    first, second = asyncio.run(main())
    with psycopg.connect(odd_dsn) as fresh:
        (default,) = fresh.execute("show transaction_isolation").fetchone()
    assert (first, second) == (f"1 {default}", f"2 {default}")
    levels = conn.execute(
        "select distinct role, isolation from public.level where role = any(%s)", (list(ENGINE),)
    ).fetchall()
    assert {level for _, level in levels} == {"read committed"}
    found = {role for role, _ in levels}
    assert found >= {"pgflow worker", "pgflow committer", "pgflow heartbeat", "pgflow app"}


@pytest.mark.full
def test_clients_for_sync_code_too(odd_dsn, conn):
    with App(odd_dsn, include=[job, child]) as app, app.worker():
        run = app.start(job)
        app.start_many(child, [(n,) for n in range(300)])
        run.send(go, 1)
        assert len(run.result(HANG_SECONDS)) == 2
    levels = conn.execute(
        "select distinct isolation from public.level where role = any(%s)", (list(ENGINE),)
    ).fetchall()
    assert levels == [("read committed",)]


def test_a_session_kept_for_the_next_test_is_not_lent_past_new_defaults(dsn, conn):
    psycopg.connect(dsn, autocommit=True).close()
    conn.execute(f"alter database {conn.info.dbname} set {DEFAULTS['serializable']}")
    with psycopg.connect(dsn) as new:
        assert new.execute("show transaction_isolation").fetchone() == ("serializable",)


def test_a_call_that_fails_leaves_no_transaction_open(odd_dsn):
    async def use(wire: OwnWire) -> Any:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await wire.ask(query("select 1 / %s::int", 0))
        status = wire.connection.info.transaction_status
        return status, await wire.ask(query("select current_setting('transaction_isolation')"))

    assert on_wire(odd_dsn, use) == (psycopg.pq.TransactionStatus.IDLE, [("read committed",)])


def test_the_least_numbers_of_a_type_are_sent_too(odd_dsn):
    least = (-(2**15), -(2**31), -(2**63), [-(2**63)], -1.5)
    sql = "select %s::smallint, %s::int, %s::bigint, %s::bigint[], %s::float8"
    with connect(ConnectOptions(odd_dsn), "app") as own:
        assert run(own, Query(sql, least, list)) == [least]


def test_a_call_that_is_cancelled_leaves_the_connection_to_the_next(odd_dsn, conn):
    async def use(wire: OwnWire) -> Any:
        call = asyncio.create_task(wire.ask(query("select pg_sleep(60)")))
        while not conn.execute(
            "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'",
            (wire.connection.info.backend_pid,),
        ).fetchall():
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return await wire.ask(query("select 1"))

    assert on_wire(odd_dsn, use) == [(1,)]


def test_an_error_of_the_commit_itself_is_the_answer(odd_dsn, conn):
    conn.execute("create table public.late (n int)")
    conn.execute(
        "create function public.refuse() returns trigger language plpgsql as $$ begin raise "
        "exception using errcode = '40001'; end $$"
    )
    conn.execute(
        "create constraint trigger late after insert on public.late deferrable initially deferred "
        "for each row execute function public.refuse()"
    )

    async def use(wire: OwnWire) -> Any:
        with pytest.raises(psycopg.errors.SerializationFailure) as error:
            await wire.ask(query("insert into public.late values (1) returning n"))
        return is_infrastructure(error.value), await wire.ask(
            query("select count(*) from public.late")
        )

    assert on_wire(odd_dsn, use) == (True, [(0,)])
