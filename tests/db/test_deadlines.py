"""Every wait for a server ends: a frozen one is left, whichever library waits, and what a body asks
for may take its time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from records import SOON, count, wait_until
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from pgflow import App, Signal, transaction, workflow
from pgflow._db import deadlines
from pgflow._db._sync_pool import lent, make_pool
from pgflow._db.connect import ConnectOptions, connect, leave
from pgflow._transactions import protocol as transactions
from pgflow._worker import listener as listener_module
from pgflow._worker.options import Rhythm
from pgflow.sqlalchemy import SessionProvider
from pgflow.sqlalchemy.asyncio import AsyncEngineProvider, AsyncSessionProvider

go = Signal("go", int)
bodies: list[str] = []


def nap(seconds: float) -> float:
    """Return the seconds that a body rests: only the first does."""
    bodies.append("rest")
    return seconds if len(bodies) == 1 else 0


@transaction
async def rest(conn: psycopg.AsyncConnection[Any], seconds: float) -> str:
    await conn.execute("select pg_sleep(%s)", (nap(seconds),))
    return "rested"


@transaction
def rest_in_thread(conn: psycopg.Connection[Any], seconds: float) -> str:
    conn.execute("select pg_sleep(%s)", (nap(seconds),))
    return "rested"


@transaction
def rest_in_session(session: Session, seconds: float) -> str:
    session.execute(text("select pg_sleep(:s)"), {"s": nap(seconds)})
    return "rested"


@transaction
async def rest_in_async_session(session: AsyncSession, seconds: float) -> str:
    await session.execute(text("select pg_sleep(:s)"), {"s": nap(seconds)})
    return "rested"


@transaction
async def rest_in_async_connection(conn: AsyncConnection, seconds: float) -> str:
    await conn.execute(text("select pg_sleep(:s)"), {"s": nap(seconds)})
    return "rested"


LIBRARIES = {
    "psycopg async": rest,
    "psycopg": rest_in_thread.aio,
    "session": rest_in_session.aio,
    "async session": rest_in_async_session,
    "async connection": rest_in_async_connection,
}


@workflow
async def resting(library: str, seconds: float) -> str:
    return await LIBRARIES[library](seconds)


@workflow
async def waiting() -> int:
    return await go.wait()


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    bodies.clear()
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    engine, async_engine = (
        create_engine(url, poolclass=NullPool),
        create_async_engine(url, poolclass=NullPool),
    )
    providers = [
        SessionProvider(sessionmaker(engine)),
        AsyncSessionProvider(async_sessionmaker(async_engine)),
        AsyncEngineProvider(async_engine),
    ]
    with (
        App(dsn, include=[resting, waiting], providers=providers) as app,
        app.worker(poll_seconds=0.05),
    ):
        yield app
    engine.dispose()


@pytest.mark.full
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_engines_own_statements_in_a_transaction_have_a_deadline(
    app, dsn, conn, library, monkeypatch, caplog
):
    monkeypatch.setattr(transactions, "COMMIT_SECONDS", 0.3)
    run = app.start(resting, library, 0.5)
    wait_until(lambda: bodies, "the body runs")
    with psycopg.connect(dsn) as holder:
        # the fence gets no answer from here on
        holder.execute("select from pgflow.lease for update")
        asks = "select 1 from pg_stat_activity where datname = current_database() and application_name = 'pgflow worker' and query like '%transaction_status%'"
        wait_until(
            lambda: (
                conn.execute(asks).fetchone() or "no answer of the server in 0.3 s" in caplog.text
            ),
            "the wait is given up",
        )
    # in the one transaction whose fate was asked for, or in one of another try
    assert run.result(SOON) == "rested"


@pytest.mark.full
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_body_asks_for_may_take_its_time(app, library, monkeypatch):
    monkeypatch.setattr(transactions, "BEGIN_SECONDS", 1.5)
    monkeypatch.setattr(transactions, "COMMIT_SECONDS", 1.5)
    assert app.start(resting, library, 2.0).result(SOON) == "rested"
    assert bodies == ["rest"]


def leave_server(app: App, conn: psycopg.Connection) -> None:
    """Have the worker leave its server, as a heart does that has found another."""
    (here,) = app._background._on_loops.values()  # type: ignore[union-attr]
    (worker,) = here.workers
    leave((conn.info.host, str(conn.info.port)), time.monotonic())
    app._portal._loop.call_soon_threadsafe(worker.leave_server)  # type: ignore[union-attr]


@pytest.mark.full
@pytest.mark.parametrize("library", LIBRARIES)
def test_transactions_with_a_server_that_is_the_primary_no_more_are_cut_and_run_again(
    app, conn, library
):
    run = app.start(resting, library, 3600.0)
    asleep = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
    wait_until(lambda: conn.execute(asleep).fetchone() == (1,), "the body sleeps in the database")
    leave_server(app, conn)
    wait_until(lambda: len(bodies) == 2, "the body runs again")
    assert run.result(SOON) == "rested"


def test_everything_of_a_worker_leaves_a_server_that_is_the_primary_no_more(app, conn):
    app.run(resting, "psycopg async", 0.0)
    pids = "select pid from pg_stat_activity where datname = current_database() and application_name in ('pgflow worker', 'pgflow committer', 'pgflow listener')"
    before = {pid for (pid,) in conn.execute(pids)}
    leave_server(app, conn)
    waiter = 1  # the listener of those who wait for results asks for itself
    wait_until(
        lambda: len(before & {pid for (pid,) in conn.execute(pids)}) == waiter,
        "all of them are opened anew",
    )
    assert app.run(resting, "psycopg", 0.0) == "rested"


@pytest.mark.full
def test_a_heart_that_hears_nothing_asks_on_another_connection(dsn, conn, caplog):
    pid = "select pid from pg_stat_activity where datname = current_database() and application_name = 'pgflow heartbeat'"
    with (
        App(dsn, include=[waiting]) as app,
        app.worker(rhythm=Rhythm(beat=0.1, look=0.1, dead_after=1.0)),
    ):
        wait_until(
            lambda: conn.execute("select 1 from pgflow.worker where beat > 1").fetchone(),
            "the heart beats",
        )
        (before,) = conn.execute(pid).fetchone()  # type: ignore[misc]
        os.kill(before, signal.SIGSTOP)
        try:
            wait_until(
                lambda: {row[0] for row in conn.execute(pid)} - {before}, "it beats elsewhere"
            )
            assert "no answer of the server in 2 s" in caplog.text
        finally:
            os.kill(before, signal.SIGCONT)


@pytest.mark.full
def test_a_listener_whose_server_is_frozen_listens_anew(dsn, conn, monkeypatch):
    monkeypatch.setattr(listener_module, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(listener_module, "BEGIN_SECONDS", 0.3)
    pid = "select pid from pg_stat_activity where datname = current_database() and application_name = 'pgflow listener'"
    with App(dsn, include=[waiting]) as app, app.worker():
        wait_until(lambda: conn.execute(pid).fetchone(), "it listens")
        (before,) = conn.execute(pid).fetchone()  # type: ignore[misc]
        os.kill(before, signal.SIGSTOP)
        try:
            wait_until(
                lambda: {row[0] for row in conn.execute(pid)} - {before}, "it listens elsewhere"
            )
        finally:
            os.kill(before, signal.SIGCONT)


@pytest.mark.full
def test_a_long_statement_of_a_client_is_waited_for_while_its_server_is_there(dsn):
    with connect(ConnectOptions(dsn), "pgflow", 0.2) as connection:
        assert connection.execute("select 'slept' from pg_sleep(1.2)").fetchone() == ("slept",)


def test_a_client_leaves_a_server_that_is_not_there(dsn, monkeypatch):
    monkeypatch.setattr("pgflow._db.connect._answers", lambda info: False)
    pool = make_pool(ConnectOptions(dsn), "pgflow", 2)
    with pool:
        with (
            pytest.raises(psycopg.OperationalError, match="no answer of the server in 0.2 s"),
            lent(pool, 0.2) as connection,
        ):
            connection.execute("select pg_sleep(10)")
        with lent(pool) as connection:
            assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.alone
def test_a_client_leaves_every_connection_to_a_server_that_is_not_there(dsn, monkeypatch):
    monkeypatch.setattr("pgflow._db.connect._answers", lambda info: False)
    pool = make_pool(ConnectOptions(dsn), "pgflow", 2)
    with pool:
        with lent(pool) as one, lent(pool) as other:
            idle = {one.info.backend_pid, other.info.backend_pid}
        with pytest.raises(psycopg.OperationalError), lent(pool, 0.2) as connection:
            connection.execute("select pg_sleep(10)")
        with lent(pool) as one, lent(pool) as other:
            assert idle.isdisjoint({one.info.backend_pid, other.info.backend_pid})


@pytest.mark.full
def test_a_wait_that_is_over_cuts_nothing_any_more(conn):
    with deadlines.Limit(conn.fileno(), 0.0):
        pass
    time.sleep(2 * deadlines.LOOK_SECONDS)
    assert count(conn, "pgflow.lease") == 0
