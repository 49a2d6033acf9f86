"""Paths for the wire-cut proxy: every one through the API, as a caller and a worker go it, with one
cut allowed.

A path does its work once for a key, and returns when all is well. A caller who gets an error of the
infrastructure does what callers do: it says the same again under the same key, or reads back what
is there. Any other error is a finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path as FilePath
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker

import pgflow
from pgflow import App, AsyncApp, RunCancelled, Signal, read, step, transaction, workflow
from pgflow._db.failures import is_infrastructure
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow._worker.threads import DaemonThreads
from pgflow.app._sync import Portal
from pgflow.sqlalchemy import EngineProvider, SessionProvider
from pgflow.sqlalchemy.asyncio import AsyncEngineProvider, AsyncSessionProvider
from tests.kits import servers
from tests.kits.wire import Proxy

T = TypeVar("T")

SCHEMA = """
create schema app;
create table app.booked (key text not null, n int not null);
create table app.told (key text not null, n int not null, idempotency_key text not null);
create table app.asked (key text not null);
create table app.slow (key text not null);
create function app.take_long() returns trigger language plpgsql as $$ begin perform pg_sleep(1); return null; end $$;
create constraint trigger slow_commit after insert on app.slow deferrable initially deferred for each row execute function app.take_long();
"""
RESULT = timedelta(minutes=15)
MOMENT = timedelta(milliseconds=15)
RHYTHM = Rhythm(beat=0.1, look=0.1, dead_after=2.0)
CALLER = "caller"

go = Signal("go", int)
stages: dict[str, Stage] = {}
"""The stage of each path, for the bodies of steps: the first part of every key names it."""


BOOK = "insert into app.booked values (%s, %s)"


@transaction
async def book(conn: psycopg.AsyncConnection[Any], key: str, n: int) -> int:
    await conn.execute(BOOK, (key, n))
    return 1


@transaction
def book_in_thread(conn: psycopg.Connection[Any], key: str, n: int) -> int:
    conn.execute(BOOK, (key, n))
    return 1


@transaction
def book_with_session(session: Session, key: str, n: int) -> int:
    session.execute(text("insert into app.booked values (:key, :n)"), {"key": key, "n": n})
    return 1


@transaction
def book_with_connection(connection: Connection, key: str, n: int) -> int:
    connection.execute(text("insert into app.booked values (:key, :n)"), {"key": key, "n": n})
    return 1


@transaction
async def book_with_async_session(session: AsyncSession, key: str, n: int) -> int:
    await session.execute(text("insert into app.booked values (:key, :n)"), {"key": key, "n": n})
    return 1


@transaction
async def book_with_async_connection(connection: AsyncConnection, key: str, n: int) -> int:
    await connection.execute(text("insert into app.booked values (:key, :n)"), {"key": key, "n": n})
    return 1


@transaction
async def book_slowly(conn: psycopg.AsyncConnection[Any], key: str, n: int) -> int:
    await conn.execute(BOOK, (key, n))
    await conn.execute("insert into app.slow values (%s)", (key,))
    return 1


@transaction
def book_slowly_in_thread(conn: psycopg.Connection[Any], key: str, n: int) -> int:
    conn.execute(BOOK, (key, n))
    conn.execute("insert into app.slow values (%s)", (key,))
    return 1


@step
async def tell(key: str, n: int) -> int:
    """An outside write, on a connection that no cut concerns."""
    await stages[key.partition("/")[0]].tell(key, n, pgflow.idempotency_key())
    return 1


@step
async def tell_pair(pair: tuple[str, int]) -> int:
    return await tell.fn(*pair)


@read
async def look(n: int) -> int:
    return n


@step
async def labour(key: str) -> int:
    """Says how far it is, twice."""
    pgflow.heartbeat(1)
    await asyncio.sleep(0.1)  # a body that ends first takes its beat along
    pgflow.heartbeat(2)
    await asyncio.sleep(0.1)
    return await tell.fn(key, 0)


BOOKINGS: dict[str, Any] = {
    "psycopg": book, "psycopg in a thread": book_in_thread, "sqlalchemy session": book_with_session,
    "sqlalchemy connection": book_with_connection, "sqlalchemy async session": book_with_async_session,
    "sqlalchemy async connection": book_with_async_connection, "slow": book_slowly, "slow in a thread": book_slowly_in_thread,
}  # fmt: skip


@workflow
async def booking(key: str, how: str = "psycopg") -> int:
    made = BOOKINGS[how]
    first: int = await (made(key, 0) if made.is_async else made.aio(key, 0))
    return first + await tell(key, 0)


@workflow
def booking_in_thread(key: str) -> int:
    return book_in_thread(key, 0) + tell.sync(key, 0)


@workflow
async def single(key: str) -> int:
    return await book(key, 0)


@workflow
async def telling(key: str) -> int:
    return await tell(key, 0) + await look(1) + await tell(key, 1)


@workflow
async def waiting(key: str) -> int:
    await tell(key, 0)
    return await go.wait() + await book(key, 0)


@workflow
async def napping(key: str) -> int:
    await pgflow.sleep(MOMENT)
    try:
        await Signal("never", int).wait(timeout=MOMENT)
    except TimeoutError:
        return await book(key, 0)
    raise AssertionError


@workflow
async def labouring(key: str) -> int:
    return await labour(key)


@workflow
async def family(key: str) -> int:
    told = await pgflow.map(tell_pair, [(key, 0), (key, 1)])
    born = await asyncio.gather(
        pgflow.run_child(single, f"{key}.0"), pgflow.run_child(single, f"{key}.1")
    )
    return sum(told.values) + sum(born)


@workflow
async def generations(key: str, n: int = 0) -> int:
    await book(key, n)
    if n < 2:
        pgflow.continue_as_new(key, n + 1)
    return n


@transaction
async def commit_itself(conn: psycopg.AsyncConnection[Any], key: str) -> int:
    if key not in stages[key.partition("/")[0]].mended:
        await conn.execute("commit")
    await conn.execute(BOOK, (key, 0))
    return 1


@workflow
async def stubborn(key: str) -> int:
    return await commit_itself(key)


@step
async def endless(key: str) -> int:
    """Until the first worker has gone."""
    stage = stages[key.partition("/")[0]]
    stage.begun.set()
    if key not in stage.mended:
        await asyncio.Event().wait()
    return await tell.fn(key, 0)


@workflow
async def handed_over(key: str) -> int:
    return await book(key, 0) + await endless(key)


WORKFLOWS = [
    booking, booking_in_thread, single, telling, waiting, napping, labouring, family, generations, stubborn, handed_over,
]  # fmt: skip


class Stage:
    """A database, a proxy before it, and an app and a worker that know the database by its proxy
    only.
    """

    def __init__(
        self,
        path: Path,
        server_dsn: str,
        template: str,
        portal: Portal,
        prepare_threshold: int | None,
    ) -> None:
        self.path = path
        self._server_dsn = server_dsn
        self._template = template
        self._portal = portal
        self._prepare_threshold = prepare_threshold
        self._stack = contextlib.AsyncExitStack()
        self._told = asyncio.Lock()
        self.threads = DaemonThreads(4, "wirecut")
        self.mended: set[str] = set()
        self.begun = asyncio.Event()
        self.errors = 0
        """Number of times that a caller had to say it again."""
        self._sync_app: App | None = None
        self._workers = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Makes the database, and starts everything."""
        stages[self.path.name] = self
        self._database = servers.create_database(self._server_dsn, self._template)
        self.true_dsn = servers.dsn_of(self._server_dsn, self._database)
        self.proxy = Proxy(self._server_dsn, self._portal)
        self.dsn = make_conninfo(self.true_dsn, host="127.0.0.1", port=self.proxy.open())
        self.direct = await psycopg.AsyncConnection.connect(
            servers.witness(self.true_dsn), autocommit=True
        )
        self.app = self.make_app()
        await self._stack.enter_async_context(self.app)
        if self.path.has_worker:
            await self.start_worker()
        if self.path.prepare is not None:
            await self.path.prepare(self)

    def make_app(self, dsn: str | None = None) -> AsyncApp:
        """An app with every workflow and every provider."""
        return AsyncApp(
            dsn or self.dsn,
            include=[*WORKFLOWS, *self.path.more_workflows()],
            providers=self._providers(),
            prepare_threshold=self._prepare_threshold,
        )

    def _providers(self) -> list[Any]:
        if "sqlalchemy" not in self.path.name:
            return []
        url = self.url("pgflow step")
        engine, async_engine = create_engine(url), create_async_engine(url)
        self._stack.push_async_callback(async_engine.dispose)
        self._stack.callback(engine.dispose)
        return [
            SessionProvider(sessionmaker(engine)),
            EngineProvider(engine),
            AsyncSessionProvider(async_sessionmaker(async_engine)),
            AsyncEngineProvider(async_engine),
        ]

    def url(self, role: str) -> str:
        """The proxy's address as SQLAlchemy wants it."""
        port, user = self.proxy.port, psycopg.conninfo.conninfo_to_dict(self.dsn)
        password = f":{user['password']}" if user.get("password") else ""
        return f"postgresql+psycopg://{user['user']}{password}@127.0.0.1:{port}/{self._database}?application_name={role.replace(' ', '+')}"

    @property
    def sync_app(self) -> App:
        """The app for sync code, made when first used."""
        if self._sync_app is None:
            self._sync_app = App(
                self.dsn, include=WORKFLOWS, prepare_threshold=self._prepare_threshold
            )
        return self._sync_app

    async def start_worker(self) -> None:
        """A worker of the app."""
        options = WorkerOptions(
            concurrency=self.path.concurrency,
            poll_seconds=0.05,
            grace_seconds=2.0,
            rhythm=self.path.rhythm,
        )
        self.worker = await self._workers.enter_async_context(self.app._work(options))

    async def close(self) -> None:
        """Ends everything, and drops the database."""
        self.proxy.disarm()
        await self._workers.aclose()
        if self._sync_app is not None:
            await self.in_thread(self._sync_app.close)
        await self._stack.aclose()
        self.threads.shutdown()
        await self.direct.close()
        self.proxy.close()
        await asyncio.to_thread(servers.drop_database, self._server_dsn, self._database)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs sync code beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    async def tell(self, key: str, n: int, idempotency_key: str) -> None:
        """The witness of outside writes."""
        await self.direct.execute(
            "insert into app.told values (%s, %s, %s)", (key, n, idempotency_key)
        )

    async def rows(self, sql: Any, *params: Any) -> list[Any]:
        """Return rows from the database, asked past the proxy."""
        return await (await self.direct.execute(sql, params)).fetchall()

    async def until(self, condition: Callable[[], Awaitable[Any]]) -> None:
        """Waits for a condition; the patience is the trial's."""
        while not await condition():
            await asyncio.sleep(0.003)

    # ------------------------------------------------------------ what callers do

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Says it again, with the same key, while the infrastructure fails."""
        for _ in range(20):
            try:
                return await ask()
            except Exception as error:
                if not is_infrastructure(error):
                    raise
                self.errors += 1
            await asyncio.sleep(0.005)
        raise AssertionError("the infrastructure fails for ever")

    async def insist_in_thread(self, ask: Callable[[], T]) -> T:
        """The same for sync code."""
        return await self.insist(lambda: self.in_thread(ask))

    async def until_true(
        self, ask: Callable[[], Awaitable[Any]], is_true: Callable[[], Awaitable[bool]]
    ) -> None:
        """For what has no key: after an error, reads back whether it happened before it is said
        again.
        """
        while True:
            try:
                await ask()
            except Exception as error:
                if not is_infrastructure(error):
                    raise
                self.errors += 1
                await self.settled()
                if await is_true():
                    return
            else:
                assert await is_true(), "what succeeded is not there"
                return

    async def settled(self) -> None:
        """Until the server has finished what came over lines that were cut."""

        async def is_settled() -> bool:
            return self.proxy.is_settled

        await self.until(is_settled)

    async def asked(self, key: str) -> bool:
        """Return True if a caller's own row is there."""
        return bool(await self.rows("select from app.asked where key = %s", key))

    async def is_retried(self, key: str) -> bool:
        """Return True if a run that was stuck is asked to go on, goes on, or has come to its
        end.
        """
        asked = "select from pgflow.signal s join pgflow.run_key k using (chain_id) where k.key = %s and s.kind = 't'"
        return bool(await self.rows(asked, key)) or await self.status(key) != "stuck"

    async def sent(self, key: str) -> bool:
        """Return True if a signal was sent to the run."""
        return await self.count_signals(key) > 0

    async def count_signals(self, key: str) -> int:
        """Return the number of signals that the run was sent: on their way, delivered, or left
        over.
        """
        sql = """
            select (select count(*) from pgflow.signal s where s.chain_id = k.chain_id and s.kind = 's')
              + (select count(*) from pgflow.undelivered s where s.chain_id = k.chain_id and s.kind = 's')
              + (select count(*) from pgflow.unit u join pgflow.run r using (run_id)
                 join pgflow.unit_kind t on t.kind = u.kind where r.chain_id = k.chain_id and t.name = 'signal_received')
            from pgflow.run_key k where k.key = %s"""
        return int((await self.rows(sql, key))[0][0])

    async def status(self, key: str) -> str:
        """Return the status of the run."""
        return str((await self.rows("select status from pgflow.runs where key = %s", key))[0][0])

    async def until_status(self, key: str, *statuses: str) -> None:
        """Waits until the run is so."""

        async def holds() -> bool:
            return await self.status(key) in statuses

        await self.until(holds)


@dataclass(frozen=True)
class Path:
    """A way through the API, and where it is cut: roles, and of each the statements, or all that
    were seen.

    ``booked``, ``told`` and ``asked``: how many rows each key must have in the end.
    """

    name: str
    act: Callable[[Stage, str], Awaitable[None]]
    cuts: dict[str, tuple[str, ...]]
    promises: tuple[str, ...]
    booked: int = 0
    told: int = 0
    asked: int = 0
    status: str = "completed"
    signals: int = 0
    rhythm: Rhythm = RHYTHM
    concurrency: int = 20
    has_worker: bool = True
    prepare: Callable[[Stage], Awaitable[None]] | None = None
    more_workflows: Callable[[], list[Any]] = field(default=list)
    may_be_cut_twice: bool = True
    times: int = 1
    """Number of times that each cut is made."""
    is_rough: bool = False
    """True if attempts that fail are part of it."""


PATHS: dict[str, Path] = {}
ALL: tuple[str, ...] = ()
APP, STEP, WORKER, COMMITTER, HEART, LISTENER, RESULTS = (
    "pgflow app", "pgflow step", "pgflow worker", "pgflow committer", "pgflow heartbeat", "pgflow listener", "pgflow results",
)  # fmt: skip
START, SAME = ("G1", "G4", "G10", "G39"), ("G5", "G10", "G39")
STEPS, REST = ("G1", "G2", "G3", "G10", "G39"), ("G1", "G10", "G39")

Act = Callable[[Stage, str], Awaitable[None]]


def path(
    name: str, cuts: dict[str, tuple[str, ...]], promises: tuple[str, ...], **options: Any
) -> Callable[[Act], Act]:
    """Declares a path."""

    def declare(act: Act) -> Act:
        PATHS[name] = Path(name, act, cuts, promises, **options)
        return act

    return declare


async def ends(stage: Stage, run: Any, value: Any) -> None:
    """Waits for the result."""
    assert await stage.insist(lambda: run.result(RESULT)) == value


async def ends_well(stage: Stage, key: str, of: Any, value: Any) -> None:
    """Waits for the result of a run known by its key."""
    await ends(stage, stage.app.get(key, of), value)


@path("start", {APP: ALL}, START, booked=1)
async def _start(stage: Stage, key: str) -> None:
    await ends(stage, await stage.insist(lambda: stage.app.start(single.options(key=key), key)), 1)


@path(
    "start without a key",
    {APP: ("start_run", "pg_notify")},
    START,
    booked=1,
    may_be_cut_twice=False,
)
async def _start_without_key(stage: Stage, key: str) -> None:
    """One cut, and the caller does not even notice: the app knows the key that it made up."""
    run = await stage.app.start(single, key)
    assert await stage.rows("select from pgflow.run_key where key = %s", run.key)
    await ends(stage, run, 1)


@path("start from sync code", {APP: ALL}, START, booked=1)
async def _start_sync(stage: Stage, key: str) -> None:
    await stage.insist_in_thread(lambda: stage.sync_app.start(single.options(key=key), key))
    await ends_well(stage, key, single, 1)


@path("start many", {APP: ("start_runs", "pg_notify")}, START, booked=3)
async def _start_many(stage: Stage, key: str) -> None:
    keys = [f"{key}.{n}" for n in range(3)]
    runs = await stage.insist(lambda: stage.app.start_many(single, [(k,) for k in keys], keys=keys))
    assert [run.key for run in runs] == keys
    for run in runs:
        await ends(stage, run, 1)


@path(
    "start many without keys",
    {APP: ("start_runs", "pg_notify")},
    START,
    booked=3,
    may_be_cut_twice=False,
)
async def _start_many_without_keys(stage: Stage, key: str) -> None:
    """As with one: the app knows the keys that it made up."""
    for run in await stage.app.start_many(single, [(f"{key}.{n}",) for n in range(3)]):
        await ends(stage, run, 1)


@path("start in a transaction, psycopg", {CALLER: ALL}, SAME, booked=1, asked=1)
async def _start_in_psycopg(stage: Stage, key: str) -> None:
    async def ask() -> None:
        async with await psycopg.AsyncConnection.connect(
            stage.dsn, application_name=CALLER
        ) as conn:
            await conn.execute("insert into app.asked values (%s)", (key,))
            await stage.app.using(conn).start(single.options(key=key), key)

    await _in_callers_transaction(stage, key, ask)


@path("start in a transaction, psycopg in a thread", {CALLER: ALL}, SAME, booked=1, asked=1)
async def _start_in_psycopg_sync(stage: Stage, key: str) -> None:
    def ask() -> None:
        with psycopg.connect(stage.dsn, application_name=CALLER) as conn:
            conn.execute("insert into app.asked values (%s)", (key,))
            stage.sync_app.using(conn).start(single.options(key=key), key)

    await _in_callers_transaction(stage, key, lambda: stage.in_thread(ask))


async def _in_callers_transaction(
    stage: Stage, key: str, ask: Callable[[], Awaitable[Any]]
) -> None:
    """There is a run if and only if there is the caller's row."""
    await stage.until_true(ask, lambda: stage.asked(key))
    await stage.app.nudge()
    assert await stage.rows("select from pgflow.run_key where key = %s", key), (
        "the caller's row without its run"
    )
    await ends_well(stage, key, single, 1)


async def _with_engines(stage: Stage) -> None:
    stage.engine = create_engine(stage.url(CALLER))  # type: ignore[attr-defined]
    stage.async_engine = create_async_engine(stage.url(CALLER))  # type: ignore[attr-defined]
    stage._stack.push_async_callback(stage.async_engine.dispose)  # type: ignore[attr-defined]
    stage._stack.callback(stage.engine.dispose)  # type: ignore[attr-defined]


ASKED = text("insert into app.asked values (:key)")


@path(
    "start in a transaction, sqlalchemy session",
    {CALLER: ALL, APP: ("wake", "pg_notify")},
    SAME,
    booked=1,
    asked=1,
    prepare=_with_engines,
)
async def _start_in_session(stage: Stage, key: str) -> None:
    def ask() -> None:
        with Session(stage.engine) as session, session.begin():  # type: ignore[attr-defined]
            session.execute(ASKED, {"key": key})
            stage.sync_app.using(session).start(single.options(key=key), key)

    await _in_callers_transaction(stage, key, lambda: stage.in_thread(ask))


@path(
    "start in a transaction, sqlalchemy async session",
    {CALLER: ALL, APP: ("wake", "pg_notify")},
    SAME,
    booked=1,
    asked=1,
    prepare=_with_engines,
)
async def _start_in_async_session(stage: Stage, key: str) -> None:
    async def ask() -> None:
        async with AsyncSession(stage.async_engine) as session, session.begin():  # type: ignore[attr-defined]
            await session.execute(ASKED, {"key": key})
            await stage.app.using(session).start(single.options(key=key), key)

    await _in_callers_transaction(stage, key, ask)


async def _with_django(stage: Stage) -> None:
    sys.path.insert(0, str(FilePath(__file__).parents[1] / "apps"))
    import django_project
    from django.db import connections

    parts = psycopg.conninfo.conninfo_to_dict(stage.dsn)
    alias, role = (CALLER, CALLER) if "start" in stage.path.name else ("default", STEP)
    # In place: connections that exist hold on to the settings that they were made with.
    connections.settings.setdefault(alias, {**connections.settings["default"]}).update(
        NAME=parts["dbname"],
        USER=parts["user"],
        PASSWORD=parts.get("password") or "",
        HOST="127.0.0.1",
        PORT=str(stage.proxy.port),
        OPTIONS={"application_name": role},
    )
    del django_project


@path(
    "start in a transaction, django",
    {CALLER: ALL, APP: ("wake", "pg_notify")},
    SAME,
    booked=1,
    asked=1,
    prepare=_with_django,
)
async def _start_in_django(stage: Stage, key: str) -> None:
    from django.db import close_old_connections, connections
    from django.db import transaction as django_transaction

    def ask() -> None:
        close_old_connections()  # as at the beginning of a request
        connection = connections[CALLER]
        with django_transaction.atomic(using=CALLER):
            with connection.cursor() as cursor:
                cursor.execute("insert into app.asked values (%s)", (key,))
            stage.sync_app.using(connection).start(single.options(key=key), key)

    await _in_callers_transaction(stage, key, lambda: stage.in_thread(ask))


@path("claim, poll and wake", {WORKER: ALL}, REST, booked=1, told=1, signals=1)
async def _claim(stage: Stage, key: str) -> None:
    """Started and signalled past the proxy: what is cut is the worker's own, its look at schedules
    among it, which else comes once in half a minute.
    """
    stage.worker._scheduler.look_now()
    await stage.rows(
        "select pgflow.start_run('waiting', json_build_object('key', %s::text), %s)", key, key
    )
    await stage.until_status(key, "waiting")
    await stage.rows("select pgflow.send_signal(%s, 'go', '1')", key)
    await ends_well(stage, key, waiting, 2)


@path("flush, a run alone", {COMMITTER: ALL}, REST, told=2)
async def _flush_alone(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(telling.options(key=key), key), 3)


@path("flush, a batch", {COMMITTER: ("connect", "commit_units")}, REST, told=10)
async def _flush_batch(stage: Stage, key: str) -> None:
    keys = [f"{key}.{n}" for n in range(5)]
    for run in await stage.app.start_many(telling, [(k,) for k in keys], keys=keys):
        await ends(stage, run, 3)


@path(
    "flush with the next claim", {COMMITTER: ("commit_and_claim",)}, REST, booked=6, concurrency=2
)
async def _flush_and_claim(stage: Stage, key: str) -> None:
    """More runs than the worker may work on: what ends one claims another."""
    keys = [f"{key}.{n}" for n in range(6)]
    for run in await stage.app.start_many(single, [(k,) for k in keys], keys=keys):
        await ends(stage, run, 1)


def _book_by(how: str) -> Act:
    async def act(stage: Stage, key: str) -> None:
        await ends(stage, await stage.app.start(booking.options(key=key), key, how), 2)

    return act


for _how in (
    "psycopg",
    "psycopg in a thread",
    "sqlalchemy session",
    "sqlalchemy connection",
    "sqlalchemy async session",
    "sqlalchemy async connection",
):
    path(f"transaction, {_how}", {STEP: ALL}, STEPS, booked=1, told=1)(_book_by(_how))
for _how in ("slow", "slow in a thread"):
    path(f"commit in progress, {_how}", {STEP: ("commit",)}, STEPS, booked=1, told=1, times=10)(
        _book_by(_how)
    )


@path("transaction, sync workflow", {STEP: ALL, COMMITTER: ALL}, STEPS, booked=1, told=1)
async def _book_in_thread(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(booking_in_thread.options(key=key), key), 2)


def _django_workflows() -> list[Any]:
    sys.path.insert(0, str(FilePath(__file__).parents[1] / "apps"))
    import django_project  # noqa: F401  settings first
    from django.db import connection

    from pgflow import django

    @django.transaction
    def book_with_django(key: str) -> int:
        with connection.cursor() as cursor:
            cursor.execute(BOOK, (key, 0))
        return 1

    @workflow(name="booking_with_django")
    async def booking_with_django(key: str) -> int:
        return await book_with_django.aio(key) + await tell(key, 0)

    return [booking_with_django]


@path(
    "transaction, django",
    {STEP: ALL},
    STEPS,
    booked=1,
    told=1,
    prepare=_with_django,
    more_workflows=_django_workflows,
)
async def _book_with_django(stage: Stage, key: str) -> None:
    await ends(
        stage,
        await stage.app.start(
            stage.app.definitions.workflows["booking_with_django"].options(key=key), key
        ),
        2,
    )


@path(
    "park, timers and time-outs",
    {COMMITTER: ALL, WORKER: ("poll", "wake", "claim_runs")},
    REST,
    booked=1,
)
async def _nap(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(napping.options(key=key), key), 1)


@path(
    "map and children",
    {COMMITTER: ALL, WORKER: ("wake", "claim_runs", "pg_notify")},
    REST,
    booked=2,
    told=2,
)
async def _family(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(family.options(key=key), key), 4)


@path("continue as new", {COMMITTER: ALL, STEP: ALL}, STEPS, booked=3)
async def _generations(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(generations.options(key=key), key), 2)


@path("heartbeat of a step", {WORKER: ("beat_step",)}, REST, told=1)
async def _labour(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(labouring.options(key=key), key), 1)


@path("signal", {APP: ("deliver_signal", "pg_notify")}, REST, booked=1, told=1, signals=1)
async def _signal(stage: Stage, key: str) -> None:
    run = await stage.insist(lambda: stage.app.start(waiting.options(key=key), key))
    await stage.until_status(key, "waiting")
    await stage.until_true(lambda: stage.app.send(key, go, 1), lambda: stage.sent(key))
    await ends(stage, run, 2)


@path(
    "signal that is kept",
    {APP: ("deliver_signal", "wake", "pg_notify")},
    REST,
    booked=1,
    told=1,
    signals=1,
)
async def _signal_kept(stage: Stage, key: str) -> None:
    run = await stage.insist(
        lambda: stage.app.start(
            waiting.options(key=key, run_at=datetime.now(UTC) + timedelta(seconds=1)), key
        )
    )
    await stage.until_true(lambda: stage.app.send(key, go, 1), lambda: stage.sent(key))
    await ends(stage, run, 2)


@path(
    "signal from sync code",
    {APP: ("deliver_signal", "pg_notify")},
    REST,
    booked=1,
    told=1,
    signals=1,
)
async def _signal_sync(stage: Stage, key: str) -> None:
    run = await stage.insist_in_thread(lambda: stage.sync_app.start(waiting.options(key=key), key))
    await stage.until_status(key, "waiting")
    await stage.until_true(
        lambda: stage.in_thread(lambda: run.send(go, 1)), lambda: stage.sent(key)
    )
    await ends_well(stage, key, waiting, 2)


@path("signal in a transaction", {CALLER: ALL}, SAME, booked=1, told=1, asked=1, signals=1)
async def _signal_in_transaction(stage: Stage, key: str) -> None:
    run = await stage.app.start(waiting.options(key=key), key)

    async def ask() -> None:
        async with await psycopg.AsyncConnection.connect(
            stage.dsn, application_name=CALLER
        ) as conn:
            await conn.execute("insert into app.asked values (%s)", (key,))
            await stage.app.using(conn).send(key, go, 1)

    await stage.until_true(ask, lambda: stage.asked(key))
    await ends(stage, run, 2)


@path("cancel", {APP: ("cancel_run", "wake", "pg_notify")}, REST, told=1, status="cancelled")
async def _cancel(stage: Stage, key: str) -> None:
    run = await stage.insist(lambda: stage.app.start(waiting.options(key=key), key))
    await stage.until_status(key, "waiting")
    await stage.insist(run.cancel)
    with contextlib.suppress(RunCancelled):
        raise AssertionError(await stage.insist(lambda: run.result(RESULT)))


@path(
    "pause and resume",
    {APP: ("pause_run", "resume_run", "run_status")},
    REST,
    booked=1,
    told=1,
    signals=1,
)
async def _pause(stage: Stage, key: str) -> None:
    run = await stage.insist(lambda: stage.app.start(waiting.options(key=key), key))
    await stage.until_status(key, "waiting")
    await stage.insist(lambda: stage.app.pause(key))
    await stage.until_status(key, "paused")
    assert await stage.insist(run.status) == "paused"
    await stage.insist(lambda: stage.app.resume(key))
    await stage.until_status(key, "waiting")
    await stage.rows("select pgflow.send_signal(%s, 'go', '1')", key)
    await ends(stage, run, 2)


@path("retry", {APP: ("retry_run",)}, REST, booked=1, is_rough=True)
async def _retry(stage: Stage, key: str) -> None:
    await stage.insist(lambda: stage.app.start(stubborn.options(key=key), key))
    await stage.until_status(key, "stuck")
    # what it committed by itself
    await stage.direct.execute("delete from app.booked where key = %s", (key,))
    stage.mended.add(key)
    # Not said again once it is done: a run that has completed since can no longer be retried.
    await stage.until_true(lambda: stage.app.retry(key), lambda: stage.is_retried(key))
    await stage.until_status(key, "completed")


@path("result", {RESULTS: ALL, LISTENER: ALL}, REST, booked=1)
async def _result(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(napping.options(key=key), key), 1)


@path("signs of life", {HEART: ("beat", "observe_workers")}, REST, booked=1)
async def _beat(stage: Stage, key: str) -> None:
    await ends(stage, await stage.app.start(single.options(key=key), key), 1)
    await _is_alive(stage)


async def _is_alive(stage: Stage) -> None:
    """The heart has been heard since, and nobody took it for dead."""
    worker = stage.worker
    ((before,),) = await stage.rows(
        "select beat from pgflow.worker where worker_id = %s", worker.worker_id
    )

    async def has_beaten() -> bool:
        return bool(
            await stage.rows(
                "select from pgflow.worker where worker_id = %s and beat > %s",
                worker.worker_id,
                before,
            )
        )

    await stage.until(has_beaten)


@path(
    "a death among the others",
    {HEART: ("reap_worker",), WORKER: ("claim_runs",)},
    REST,
    booked=1,
    rhythm=Rhythm(beat=0.1, look=0.03, dead_after=0.2),
)
async def _reap(stage: Stage, key: str) -> None:
    """A worker that has claimed the run, and never says another word."""
    async with stage.direct.transaction():
        await stage.rows(
            "select pgflow.start_run('single', json_build_object('key', %s::text), %s)", key, key
        )
        ((worker_id,),) = await stage.rows(
            "select pgflow.register_worker('nowhere', 1, array['default'], 1, '0')"
        )
        claimed = await stage.rows(
            "select c.key from pgflow.claim_runs(%s, array(select lane_id from pgflow.lane where "
            "workflow = 'single'), 1, array[77::bigint], true) c",
            worker_id,
        )
        assert claimed == [(key,)], claimed
    await ends_well(stage, key, single, 1)


async def _life(stage: Stage, key: str) -> None:
    """One worker begins, holds the run in the middle of a body, and is stopped; another
    finishes.
    """
    await stage.rows(
        "select pgflow.start_run('handed_over', json_build_object('key', %s::text), %s)", key, key
    )
    stage.begun.clear()
    await stage.insist(lambda: _begin_and_leave(stage))
    stage.mended.add(key)
    await stage.insist(lambda: _begin_and_finish(stage, key))


for _name, _roles in {
    "app": ("", "pgflow", APP, STEP),
    "control": (WORKER,),
    "others": (COMMITTER, HEART, LISTENER),
}.items():
    path(
        f"start and stop of a worker, {_name}",
        dict.fromkeys(_roles, ALL),
        STEPS,
        booked=1,
        told=1,
        has_worker=False,
    )(_life)


async def _begin_and_finish(stage: Stage, key: str) -> None:
    async with _life_of(stage, 2.0) as app:
        await app.get(key, handed_over).result(RESULT)


async def _begin_and_leave(stage: Stage) -> None:
    async with _life_of(stage, 0.0):
        await stage.begun.wait()


@asynccontextmanager
async def _life_of(stage: Stage, grace_seconds: float) -> AsyncIterator[AsyncApp]:
    rhythm = Rhythm(beat=0.05, look=0.05, dead_after=0.4)
    app = stage.make_app()
    async with (
        app,
        app._work(
            WorkerOptions(
                concurrency=5, poll_seconds=0.05, grace_seconds=grace_seconds, rhythm=rhythm
            )
        ),
    ):
        yield app


@dataclass
class Verdict:
    """Complaints on a path."""

    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)


async def judge(stage: Stage, keys: dict[str, str]) -> Verdict:
    """Compares what is in the database with what each key, done under the cut beside it, should
    have come to.
    """
    path, found = stage.path, Verdict()
    for table, times in (("booked", path.booked), ("told", path.told), ("asked", path.asked)):
        await _judge_rows(stage, table, times, keys, found)
    statuses = await stage.rows("select key, status, input->>'key' from pgflow.runs")
    found.wrong += [f"{k} is {status}" for k, status, _ in statuses if status != path.status]
    runs = Counter(stem(given) for _, _, given in statuses)
    found.wrong += [f"{k} has no run: {cut}" for k, cut in keys.items() if not runs[k]]
    if path.name == "start without a key":
        found.doubled += sum(n - 1 for n in runs.values())
    if path.signals:
        for key, cut in keys.items():
            if (n := await stage.count_signals(key)) != path.signals:
                found.wrong.append(f"{key} was sent {n} signals: {cut}")
    await _judge_journal(stage, found)
    found.wrong += [
        f"check(): {i}: {d}"
        for i, d in await stage.rows("select invariant, detail from pgflow.check()")
    ]
    return found


def stem(key: str) -> str:
    """The key of the trial, of a key made from it."""
    return key.partition(".")[0]


async def _judge_rows(
    stage: Stage, table: str, times: int, keys: dict[str, str], found: Verdict
) -> None:
    columns = {"booked": "key, n, ''", "told": "key, n, idempotency_key", "asked": "key, 0, ''"}[
        table
    ]
    rows: dict[str, list[Any]] = {}
    for key, n, idempotency_key in await stage.rows(f"select {columns} from app.{table}"):
        rows.setdefault(stem(key), []).append((key, n, idempotency_key))
    for key, cut in keys.items():
        here = rows.pop(key, [])
        distinct = {(k, n) for k, n, _ in here}
        if len(distinct) < times:
            found.lost += times - len(distinct)
            found.wrong.append(f"{table} lacks {key}: {cut}")
        if table != "told" and len(here) > times:
            found.doubled += len(here) - times
            found.wrong.append(f"{table} has {key} {len(here)} times: {cut}")
        if len(set(here)) > len(distinct):
            found.wrong.append(f"{key} was told under two keys: {cut}")
    found.wrong += [f"{table} has {key}, for which nobody asked" for key in rows]


async def _judge_journal(stage: Stage, found: Verdict) -> None:
    if not stage.path.is_rough:
        failures = await stage.rows(
            "select u.name, u.payload::text from pgflow.unit u join pgflow.unit_kind k using "
            "(kind) where k.name in ('step_failed', 'attempt_failed')"
        )
        found.wrong += [f"recorded as a failure of {name}: {payload}" for name, payload in failures]
        ((torn,),) = await stage.rows(
            "select count(*) from app.booked b where not exists (select from pgflow.unit u where "
            "u.xmin = b.xmin)"
        )
        if torn:
            found.wrong.append(f"{torn} bookings committed without the unit that records them")
    ((torn,),) = await stage.rows(
        "select count(*) from app.asked a where not exists (select from pgflow.run r where r.xmin "
        "= a.xmin)"
        " and not exists (select from pgflow.signal s where s.xmin = a.xmin)"
    )
    if torn and not stage.path.signals:
        found.wrong.append(
            f"{torn} rows of a caller committed without the run that was started beside them"
        )
