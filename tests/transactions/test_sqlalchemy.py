"""SQLAlchemy 2: its sessions and connections as what a transaction writes with, and as what a start
joins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import (
    SOON,
    calling,
    calling_sync,
    count,
    events,
    eventually,
    launch,
    result_of,
    wait_until,
)
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.pool import NullPool

import pgflow
from pgflow import (
    App,
    InvalidArgument,
    RunFailed,
    RunNotFound,
    RunStuck,
    Signal,
    transaction,
    workflow,
)
from pgflow.meter import Meter
from pgflow.sqlalchemy import EngineProvider, SessionProvider
from pgflow.sqlalchemy.asyncio import AsyncEngineProvider, AsyncSessionProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgflow.testing import Harness

go = Signal("go", int)


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"
    sku: Mapped[str] = mapped_column(primary_key=True)
    n: Mapped[int]


@pytest.fixture(params=["psycopg", "psycopg2"])
def url(dsn: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of an engine with each driver for `def` code, beside which `async def` code
    has psycopg or asyncpg.
    """
    return dsn.replace("postgresql://", f"postgresql+{request.param}://")


def async_of(url: str) -> str:
    return url.replace("+psycopg2:", "+asyncpg:")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url, poolclass=NullPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Stock(sku="a", n=10), Stock(sku="b", n=10)])
    yield engine
    engine.dispose()


@pytest.fixture
def async_engine(url: str, engine: Engine) -> AsyncEngine:
    return create_async_engine(async_of(url), poolclass=NullPool)


def left(conn: psycopg.Connection, sku: str = "a") -> int:
    return conn.execute("select n from stock where sku = %s", (sku,)).fetchone()[0]


def provide_all(flow: Harness, engine: Engine, async_engine: AsyncEngine) -> None:
    """Gives the app a provider of each kind."""
    flow.app.definitions.providers += [
        SessionProvider(sessionmaker(engine)),
        EngineProvider(engine),
        AsyncSessionProvider(async_sessionmaker(async_engine)),
        AsyncEngineProvider(async_engine),
    ]


TAKE = text("update stock set n = n - :n where sku = :sku returning n")


@workflow
async def wait_for_go(first: int = 0) -> int:
    return first + await go.wait()


@transaction
def take_with_session(session: Session, sku: str, n: int) -> int:
    stock = session.get_one(Stock, sku)
    stock.n -= n
    session.add(Stock(sku=f"{sku} taken with a session", n=n))
    return stock.n


@transaction
def take_with_connection(connection: Connection, sku: str, n: int) -> int:
    return connection.execute(TAKE, {"n": n, "sku": sku}).scalar_one()


@transaction
async def take_with_async_session(session: AsyncSession, sku: str, n: int) -> int:
    stock = await session.get_one(Stock, sku)
    stock.n -= n
    session.add(Stock(sku=f"{sku} taken with an async session", n=n))
    return stock.n


@transaction
async def take_with_async_connection(connection: AsyncConnection, sku: str, n: int) -> int:
    return (await connection.execute(TAKE, {"n": n, "sku": sku})).scalar_one()


@workflow
async def order() -> list[int]:
    return [
        await take_with_session.aio("a", 1),
        await take_with_connection.aio("a", 2),
        await take_with_async_session("a", 3),
        await take_with_async_connection("a", 4),
    ]


@pytest.mark.full
def test_each_kind_of_connection_is_handed_to_the_transaction_that_asks_for_it(
    flow, engine, async_engine, conn
):
    provide_all(flow, engine, async_engine)
    run = launch(flow, order)
    assert run.result(SOON) == [9, 7, 4, 0]
    assert left(conn) == 0
    taken = conn.execute("select sku, n from stock where sku like '%taken%' order by n").fetchall()
    assert taken == [("a taken with a session", 1), ("a taken with an async session", 3)]
    assert [event for event, _ in events(conn, run.key)] == ["step_completed"] * 4


@pytest.mark.full
def test_an_app_takes_the_providers_it_is_given(engine, dsn, conn):
    @workflow
    def take_all() -> list[int]:
        return [take_with_session("a", 1), take_with_connection("a", 1)]

    providers = [SessionProvider(scoped_session(sessionmaker(engine))), EngineProvider(engine)]
    with App(dsn, include=[take_all], providers=providers) as app:
        assert app.run(take_all) == [9, 8]
    assert left(conn) == 8


@pytest.mark.full
def test_objects_are_flushed_before_the_result_is_recorded_so_a_failing_flush_is_the_outcome(
    flow, engine, conn
):
    @transaction
    def add_twice(session: Session) -> None:
        session.get_one(Stock, "b").n = 0
        session.add(Stock(sku="a", n=1))

    flow(providers=[SessionProvider(sessionmaker(engine))])
    run = launch(flow, calling_sync(add_twice))
    with pytest.raises(RunFailed, match="IntegrityError"):
        run.result(SOON)
    assert left(conn, "b") == 10
    assert [event for event, _ in events(conn, run.key)] == ["step_failed"]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_body_that_raises_leaves_nothing(flow, engine, async_engine, conn, colour):
    @transaction
    def fail(session: Session) -> None:
        session.get_one(Stock, "a").n = 0
        session.flush()
        raise ValueError("no")

    @transaction
    async def fail_async(session: AsyncSession) -> None:
        (await session.get_one(Stock, "a")).n = 0
        await session.flush()
        raise ValueError("no")

    @workflow
    async def order_nothing() -> str:
        try:
            await (fail.aio() if colour == "sync" else fail_async())
        except ValueError as error:
            return str(error)
        return ""

    flow(
        providers=[
            SessionProvider(sessionmaker(engine)),
            AsyncSessionProvider(async_sessionmaker(async_engine)),
        ]
    )
    assert result_of(flow, order_nothing) == "no"
    assert left(conn) == 10


LEVEL = text("show transaction_isolation")


def taking_one(interfere: Callable[[], None]) -> dict[str, Any]:
    """Bodies that take one of a stock, by what they are given; each tells its level."""

    @transaction(isolation="repeatable read")
    def with_session(session: Session) -> str:
        level = session.execute(LEVEL).scalar_one()
        stock = session.get_one(Stock, "a")
        interfere()
        stock.n -= 1
        return level

    @transaction(isolation="repeatable read")
    def with_connection(connection: Connection) -> str:
        level = connection.execute(LEVEL).scalar_one()
        interfere()
        connection.execute(TAKE, {"n": 1, "sku": "a"})
        return level

    @transaction(isolation="repeatable read")
    async def with_async_session(session: AsyncSession) -> str:
        level = (await session.execute(LEVEL)).scalar_one()
        stock = await session.get_one(Stock, "a")
        interfere()
        stock.n -= 1
        return level

    @transaction(isolation="repeatable read")
    async def with_async_connection(connection: AsyncConnection) -> str:
        level = (await connection.execute(LEVEL)).scalar_one()
        interfere()
        await connection.execute(TAKE, {"n": 1, "sku": "a"})
        return level

    return {
        "session": with_session.aio,
        "connection": with_connection.aio,
        "async session": with_async_session,
        "async connection": with_async_connection,
    }


@pytest.mark.full
@pytest.mark.parametrize("kind", ["session", "connection", "async session", "async connection"])
def test_a_serialization_failure_is_tried_again_and_not_recorded(
    flow, engine, async_engine, conn, kind
):
    bodies = []

    def interfere() -> None:
        bodies.append(1)
        if len(bodies) == 1:
            conn.execute("update stock set n = n - 1")

    body = taking_one(interfere)[kind]

    provide_all(flow, engine, async_engine)
    run = launch(flow, calling(body))
    assert run.result(SOON) == "repeatable read"
    assert (len(bodies), left(conn)) == (2, 8)
    assert [event for event, _ in events(conn, run.key)] == ["step_completed"]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_body_that_commits_by_itself_holds_the_run(flow, engine, conn, kind):
    @transaction
    def rash(session: Session) -> None:
        session.get_one(Stock, "a").n = 0
        session.commit()

    @transaction
    def rash_connection(connection: Connection) -> None:
        connection.execute(TAKE, {"n": 10, "sku": "a"})
        connection.commit()

    @workflow
    async def order_rashly() -> None:
        await (rash.aio() if kind == "session" else rash_connection.aio())

    flow.app.definitions.providers += [
        SessionProvider(sessionmaker(engine)),
        EngineProvider(engine),
    ]
    with pytest.raises(RunStuck, match="committed_outside"):
        result_of(flow, order_rashly)
    assert left(conn) == 0


@pytest.mark.full
def test_a_savepoint_in_the_body_is_the_bodys_own_affair(flow, engine, conn):
    @transaction
    def careful(session: Session) -> int:
        try:
            with session.begin_nested():
                session.add(Stock(sku="a", n=1))
        except Exception:
            session.get_one(Stock, "b").n = 5
        return 1

    flow.app.definitions.providers.append(SessionProvider(sessionmaker(engine)))
    assert result_of(flow, calling_sync(careful)) == 1
    assert (left(conn, "a"), left(conn, "b")) == (10, 5)


@pytest.mark.full
@pytest.mark.parametrize("ends", ["commits", "raises"])
def test_what_a_transaction_starts_shares_its_fate(flow, engine, conn, ends):
    @transaction
    def start_other(session: Session) -> None:
        flow.app.using(session).start(wait_for_go.options(key="other"), 1)
        flow.app.using(session).send("other", go, 2)
        if ends == "raises":
            raise ValueError

    @workflow
    def starter() -> str:
        try:
            start_other()
        except ValueError:
            return "raises"
        return "commits"

    flow.app.definitions.providers.append(SessionProvider(sessionmaker(engine)))
    assert result_of(flow, starter, beside=[wait_for_go]) == ends
    if ends == "raises":
        with pytest.raises(RunNotFound):
            flow.app.get("other", wait_for_go).status()
    else:
        assert flow.app.get("other", wait_for_go).result(SOON) == 3


KINDS = {
    "session": take_with_session, "connection": take_with_connection,
    "async session": take_with_async_session, "async connection": take_with_async_connection,
}  # fmt: skip

REFUSE_COMMITS = """
create sequence commits;
create function refuse() returns trigger language plpgsql as $$
begin
  if nextval('commits') <= %s then
    raise exception using errcode = '%s', message = 'refused by the commit';
  end if;
  return null;
end $$;
create constraint trigger refuse after update on stock deferrable initially deferred for each row execute function refuse();
"""


@pytest.mark.full
@pytest.mark.parametrize("sqlstate", ["40001", "23505"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_the_server_refuses_is_waited_out_if_it_is_trouble_and_else_the_outcome(
    flow, engine, async_engine, conn, kind, sqlstate
):
    conn.execute(REFUSE_COMMITS % (2, sqlstate))
    take: Any = KINDS[kind]

    @workflow
    async def order_one() -> int:
        return await (take("a", 1) if "async" in kind else take.aio("a", 1))

    provide_all(flow, engine, async_engine)
    run = launch(flow, order_one)
    if sqlstate == "40001":
        assert run.result(SOON) == 9
        assert [event for event, _ in events(conn, run.key)] == ["step_completed"]
    else:
        with pytest.raises(RunFailed, match="refused by the commit"):
            run.result(SOON)
        assert (left(conn), count(conn, "stock")) == (10, 2)
        assert [event for event, _ in events(conn, run.key)] == ["step_failed"]


LOSE_CONNECTIONS = """
create sequence losses;
create function lose() returns trigger language plpgsql as $$
begin
  if nextval('losses') <= 2 then
    perform pg_terminate_backend(pg_backend_pid()), pg_sleep(10);
  end if;
  return new;
end $$;
create {} on stock {} for each row execute function lose();
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "when", [("trigger lose before update", ""), ("constraint trigger lose after update", "deferrable initially deferred")],
    ids=["in the body", "at the commit"],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_is_lost_is_no_outcome(flow, engine, async_engine, conn, kind, when):
    conn.execute(LOSE_CONNECTIONS.format(*when))
    take: Any = KINDS[kind]

    @workflow
    async def order_one() -> int:
        return await (take("a", 1) if "async" in kind else take.aio("a", 1))

    provide_all(flow, engine, async_engine)
    run = launch(flow, order_one)
    assert run.result(SOON) == 9
    assert left(conn) == 9
    assert conn.execute("select last_value from losses").fetchone() == (3,)
    assert [event for event, _ in events(conn, run.key)] == ["step_completed"]


@pytest.mark.full
def test_a_server_that_cannot_be_reached_is_waited_out(flow, url, engine, conn):
    """asyncpg raises an error of the system here, which SQLAlchemy hands on as it is."""
    tries = []
    elsewhere = [make_url(async_of(url)).set(port=1), make_url(async_of(url))]

    class Moving:
        def __call__(self) -> AsyncSession:
            tries.append(1)
            return AsyncSession(
                create_async_engine(elsewhere[min(len(tries), 2) - 1], poolclass=NullPool)
            )

    flow.app.definitions.providers.append(AsyncSessionProvider(Moving()))  # type: ignore[arg-type]
    assert result_of(flow, calling(take_with_async_session, "a", 3)) == 7
    assert (left(conn), len(tries)) == (7, 2)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["connection", "async connection"])
def test_long_values_are_kept_as_they_are(flow, engine, async_engine, kind):
    """They travel as an array of texts, which each driver writes in its own way."""
    value = {"said": 'a "quoted" \\ text, {with} NULL\n' * 400, "then": ["é" * 3000, None]}

    @transaction
    def sync_long(connection: Connection) -> dict[str, Any]:
        return value

    @transaction
    async def async_long(connection: AsyncConnection) -> dict[str, Any]:
        return value

    @workflow
    async def tell() -> dict[str, Any]:
        return await (async_long() if "async" in kind else sync_long.aio())

    flow.app.definitions.providers += [EngineProvider(engine), AsyncEngineProvider(async_engine)]
    assert result_of(flow, tell) == value


@pytest.mark.parametrize("error", [IntegrityError, OperationalError])
def test_an_error_of_what_listens_to_the_commit_is_none_of_the_commit(flow, engine, conn, error):
    bodies = []
    cause = (
        psycopg.errors.UniqueViolation
        if error is IntegrityError
        else psycopg.errors.SerializationFailure
    )

    def fail(_: Session) -> None:
        raise error("elsewhere", None, cause("elsewhere"))

    @transaction
    def take_and_tell(session: Session) -> int:
        bodies.append(1)
        session.get_one(Stock, "a").n -= 1
        event.listen(session, "after_commit", fail)
        return 1

    flow.app.definitions.providers.append(SessionProvider(sessionmaker(engine)))
    run = launch(flow, calling_sync(take_and_tell))
    assert run.result(SOON) == 1
    assert (left(conn), bodies) == (9, [1])
    assert [event for event, _ in events(conn, run.key)] == ["step_completed"]


async def occupy(
    pool: Engine | AsyncEngine, is_taken: asyncio.Event, is_free: asyncio.Event
) -> None:
    """Keeps a connection of a pool until it is to be free."""
    if isinstance(pool, AsyncEngine):
        async with pool.connect():
            is_taken.set()
            await is_free.wait()
    else:
        with pool.connect():
            is_taken.set()
            await is_free.wait()


@pytest.mark.full
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_pool_that_has_no_connection_in_time_is_waited_out(dsn, url, engine, conn, colour):
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.05}
    narrow, async_narrow = (
        create_engine(url, **options),
        create_async_engine(async_of(url), **options),
    )
    body = take_with_async_connection if colour == "async" else take_with_connection.aio

    @workflow
    async def order_one() -> int:
        return await body("a", 1)

    async def main() -> tuple[int, list[tuple[str, str | None]]]:
        meter, is_free, is_taken = Meter(), asyncio.Event(), asyncio.Event()
        providers = [EngineProvider(narrow), AsyncEngineProvider(async_narrow)]
        async with (
            pgflow.AsyncApp(dsn, include=[order_one], providers=providers) as app,
            app.worker(meter=meter),
        ):
            pool = async_narrow if colour == "async" else narrow
            occupied = asyncio.create_task(occupy(pool, is_taken, is_free))
            await is_taken.wait()
            run = await app.start(order_one)
            await eventually(
                lambda: meter.retries["transaction", "infrastructure"] >= 2, "it is tried again"
            )
            is_free.set()
            answer = await run.result(SOON)
            await occupied
            await async_narrow.dispose()
            return answer, await asyncio.to_thread(events, conn, run.key)

    name = f"take_with_{'async_' * (colour == 'async')}connection"
    assert asyncio.run(main()) == (9, [("step_completed", name)])
    narrow.dispose()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["session", "scoped session", "connection"])
def test_a_start_that_is_rolled_back_leaves_nothing_and_one_that_is_committed_exactly_one_run(
    flow, engine, conn, kind
):
    flow.include(wait_for_go)
    flow.until_idle()
    opened: Any = {
        "session": lambda: Session(engine),
        "scoped session": lambda: scoped_session(sessionmaker(engine)),
        "connection": engine.connect,
    }[kind]()
    try:
        opened.execute(TAKE, {"n": 1, "sku": "a"})
        flow.app.using(opened).start(wait_for_go.options(key="gone"))
        opened.rollback()
        assert (count(conn, "pgflow.runs"), left(conn)) == (0, 10)
        opened.execute(TAKE, {"n": 1, "sku": "a"})
        run = flow.app.using(opened).start(wait_for_go.options(key="k"), 1)
        flow.app.using(opened).start(wait_for_go.options(key="k"), 1)
        flow.app.using(opened).send("k", go, 2)
        assert count(conn, "pgflow.runs") == 0
        opened.commit()
    finally:
        opened.close()
    flow.app.nudge()
    assert run.result(SOON) == 3
    assert (count(conn, "pgflow.runs"), left(conn)) == (1, 9)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_the_same_holds_for_the_async_twins(aflow, async_engine, conn, kind):
    aflow.include(wait_for_go)
    await aflow.until_idle()
    async with (
        AsyncSession(async_engine) if kind == "session" else async_engine.connect() as opened
    ):
        await opened.execute(TAKE, {"n": 1, "sku": "a"})
        await aflow.app.using(opened).start(wait_for_go.options(key="gone"))
        await opened.rollback()
        assert (count(conn, "pgflow.runs"), left(conn)) == (0, 10)
        await opened.execute(TAKE, {"n": 1, "sku": "a"})
        run = await aflow.app.using(opened).start(wait_for_go.options(key="k"), 1)
        await aflow.app.using(opened).send("k", go, 2)
        assert count(conn, "pgflow.runs") == 0
        await opened.commit()
    await aflow.app.nudge()
    assert await run.result(SOON) == 3
    assert (count(conn, "pgflow.runs"), left(conn)) == (1, 9)


@pytest.mark.full
def test_a_savepoint_that_is_rolled_back_takes_the_start_with_it(flow, engine, conn):
    flow.include(wait_for_go)
    with Session(engine) as session:
        flow.app.using(session).start(wait_for_go.options(key="kept"))
        with session.begin_nested() as savepoint:
            flow.app.using(session).start(wait_for_go.options(key="dropped"))
            savepoint.rollback()
        with session.begin_nested():
            flow.app.using(session).start(wait_for_go.options(key="kept too"))
        session.commit()
    found = conn.execute("select key from pgflow.runs order by key").fetchall()
    assert found == [("kept",), ("kept too",)]


@pytest.mark.full
def test_the_commit_of_a_session_wakes_the_worker_without_a_poll(dsn, engine):
    with App(dsn, include=[wait_for_go]) as app, app.worker(poll_seconds=3600):
        parked = app.start(wait_for_go, 1)
        wait_until(lambda: parked.status() == "waiting", "the run waits")
        with Session(engine) as session, session.begin():
            started = app.using(session).start(wait_for_go, 10)
            app.using(session).send(started.key, go, 1)
            app.using(session).send(parked.key, go, 1)
        assert (parked.result(SOON), started.result(SOON)) == (2, 11)


@pytest.mark.full
async def test_the_commit_of_an_async_session_wakes_the_worker_without_a_poll(
    aflow, dsn, async_engine
):
    async with pgflow.AsyncApp(dsn, include=[wait_for_go]) as app, app.worker(poll_seconds=3600):
        async with AsyncSession(async_engine) as session, session.begin():
            started = await app.using(session).start(wait_for_go, 10)
            await app.using(session).send(started.key, go, 1)
        assert await started.result(SOON) == 11


@pytest.mark.full
def test_the_commit_wakes_only_after_the_outermost_commit_and_once(flow, engine):
    nudges = []
    flow.include(wait_for_go)
    with Session(engine) as session:
        event.listen(session, "after_commit", lambda s: nudges.append(s.in_nested_transaction()))
        with session.begin_nested():
            run = flow.app.using(session).start(wait_for_go, 1)
        with pytest.raises(RunNotFound):
            run.status()
        session.commit()
        assert nudges == [True, False]
        flow.until_idle()
        assert run.status() == "waiting"


def test_a_driver_whose_errors_nobody_reads_is_refused(flow):
    with (
        Session(create_engine("sqlite://")) as session,
        pytest.raises(
            InvalidArgument, match=r"not those of sqlite\+pysqlite: give create_engine a URL"
        ),
    ):
        flow.app.using(session)


def test_a_connection_in_autocommit_is_refused(flow, engine):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(InvalidArgument, match="no open transaction"):
            flow.app.using(connection)


async def test_an_async_connection_in_autocommit_is_refused(aflow, async_engine):
    async with async_engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(InvalidArgument, match="no open transaction"):
            aflow.app.using(connection)


@pytest.mark.parametrize(
    "kind",
    ["connection of such an engine", "session of such an engine", "session of a derived engine"],
)
def test_an_engine_in_autocommit_is_refused(flow, url, conn, kind):
    flow.include(wait_for_go)
    autocommit = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    derived = create_engine(url, poolclass=NullPool).execution_options(isolation_level="AUTOCOMMIT")
    opened: Any = (
        autocommit.connect()
        if kind.startswith("connection")
        else Session(derived if "derived" in kind else autocommit)
    )
    with opened, pytest.raises(InvalidArgument, match="no open transaction"):
        flow.app.using(opened).start(wait_for_go.options(key="k"))
    assert count(conn, "pgflow.runs") == 0


async def test_an_async_session_of_an_engine_in_autocommit_is_refused(aflow, url, conn):
    aflow.include(wait_for_go)
    engine = create_async_engine(async_of(url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(InvalidArgument, match="no open transaction"):
            await aflow.app.using(session).start(wait_for_go.options(key="k"))
    assert count(conn, "pgflow.runs") == 0


def test_a_step_whose_provider_hands_out_autocommit_writes_nothing(flow, url, conn):
    @transaction
    def write(session: Session, n: int) -> None:
        session.execute(text("insert into written values (:n)"), {"n": n})

    conn.execute("create table written (n int)")
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    flow.app.definitions.providers.append(SessionProvider(sessionmaker(engine)))
    with pytest.raises(RunFailed, match="no open transaction"):
        result_of(flow, calling_sync(write, 1))
    assert count(conn, "written") == 0
