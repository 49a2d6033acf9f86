"""One stored-function call, in both colours.

A :class:`Query` says what to call, with what, and how to read the rows; it is written once, in
``pgflow/_db/calls``. :func:`run` and :func:`run_async` drive it, and turn the engine's SQLSTATEs
into its exceptions (`pgflow._db.failures`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, LiteralString, Protocol, TypeVar

import psycopg
from psycopg.rows import tuple_row

from pgflow._db.connect import BEGIN, BEGIN_AS_IS, BEGIN_READING, is_idle, isolates
from pgflow._db.failures import raise_ours
from pgflow._db.tenants import of_own, text_on
from pgflow.errors import PgflowError

T = TypeVar("T")


Row = tuple[Any, ...]

SET_TENANT: LiteralString = "select pg_catalog.set_config('pgflow.tenant', %s::text, true)"
"""Has the transaction act for a tenant."""

_PIN: LiteralString = "set local search_path = pg_catalog, pg_temp"
"""Has a statement take operators and functions of Postgres alone, none that others have planted."""
PIN: LiteralString = (
    "select pg_catalog.set_config('pgflow.path', pg_catalog.current_setting('search_path'), true); "
    f"{_PIN}"
)
"""Does so for an open transaction, up to :data:`UNPIN`."""
UNPIN: LiteralString = (
    "select pg_catalog.set_config('search_path', pg_catalog.current_setting('pgflow.path'), true)"
)


class JsonTexts(list[str]):
    """An argument of type ``json[]``: on a wire its texts travel as they are, without the escapes
    of an array's text.
    """


@dataclass(frozen=True)
class Query(Generic[T]):
    """A call of a stored function, with psycopg's placeholders;
    every argument is cast to its exact type.
    """

    sql: LiteralString
    params: Sequence[Any]
    read: Callable[[list[Row]], T]


@dataclass(frozen=True)
class ReadingQuery(Query[T]):
    """A query that only reads, by operators and functions of Postgres and by ours.

    Attributes:
        seconds: Time after which the server gives it up; None for any.
    """

    seconds: float | None = None


@dataclass(frozen=True)
class TenantQuery(Query[T]):
    """A query of a session that acts for one tenant, for as long as the query takes."""

    tenant: str


def in_tenant(query: Query[T], tenant: str) -> Query[T]:
    """Return a query as a client of a tenant sends it."""
    return TenantQuery(of_own(query.sql), query.params, query.read, tenant)


def run(conn: psycopg.Connection[Any], query: Query[T]) -> T:
    """Run a query on a connection. Raises the engine's error for its SQLSTATEs."""
    try:
        rows = (
            _isolated(conn, query)
            if isinstance(query, (ReadingQuery, TenantQuery)) or isolates(conn)
            else conn.execute(text_on(conn, query.sql), query.params).fetchall()
        )
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise_ours(error)
        raise
    return query.read(rows)


async def run_async(conn: psycopg.AsyncConnection[Any], query: Query[T]) -> T:
    """As :func:`run`, for an async connection."""
    try:
        rows = await (
            _isolated_async(conn, query)
            if isinstance(query, (ReadingQuery, TenantQuery)) or isolates(conn)
            else _fetched_async(conn, query)
        )
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise_ours(error)
        raise
    return query.read(rows)


async def _fetched_async(conn: psycopg.AsyncConnection[Any], query: Query[T]) -> list[Row]:
    return await (await conn.execute(text_on(conn, query.sql), query.params)).fetchall()


def _message(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], query: Query[Any]
) -> tuple[str, Sequence[Any], int]:
    """Return a query as one message, its parameters, and the number of statements before it. It is
    a transaction of its own, but for a question in an open one.
    """
    text = text_on(conn, query.sql)
    if isinstance(query, TenantQuery):
        return f"{BEGIN}; {_PIN}; {SET_TENANT}; {text}; commit", (query.tenant, *query.params), 3
    if not isinstance(query, ReadingQuery):
        return f"{BEGIN}; {text}; commit", query.params, 1
    if not is_idle(conn):
        return f"{PIN}; {text}; {UNPIN}", query.params, 2
    if query.seconds is None:  # may lock a row
        is_standby = conn.info.parameter_status("in_hot_standby") == "on"
        begin = BEGIN if isolates(conn) and not is_standby else BEGIN_AS_IS
        return f"{begin}; {_PIN}; {text}; commit", query.params, 2
    milliseconds = max(1, round(query.seconds * 1000))
    limit = f"set local statement_timeout = {milliseconds}"
    return f"{BEGIN_READING}; {_PIN}; {limit}; {text}; commit", query.params, 3


def _literals(params: Sequence[Any]) -> list[Any]:
    """Return parameters to be written into a statement: in ``-32768::smallint`` the cast would come
    before the sign, and the least of a type out of range.
    """
    return [str(param) if type(param) is int and param < 0 else param for param in params]


def _isolated(conn: psycopg.Connection[Any], query: Query[T]) -> list[Row]:
    """Run a query in one message, with what must be set for it: a frozen client holds no lock
    between a call and its COMMIT.
    """
    if conn.pgconn.pipeline_status:  # which takes one statement a message
        return OnConnection(conn).execute(query.sql, query.params)
    is_own = is_idle(conn)
    try:
        with psycopg.ClientCursor(conn, row_factory=tuple_row) as cursor:
            text, params, before = _message(conn, query)
            cursor.execute(text.encode(), _literals(params))
            for _ in range(before):
                cursor.nextset()
            return cursor.fetchall()
    except psycopg.Error:
        if is_own and not conn.closed:
            conn.rollback()
        raise


async def _isolated_async(conn: psycopg.AsyncConnection[Any], query: Query[T]) -> list[Row]:
    """As :func:`_isolated`, for an async connection."""
    if conn.pgconn.pipeline_status:
        return await OnAsyncConnection(conn).execute(query.sql, query.params)
    is_own = is_idle(conn)
    try:
        async with psycopg.AsyncClientCursor(conn, row_factory=tuple_row) as cursor:
            text, params, before = _message(conn, query)
            await cursor.execute(text.encode(), _literals(params))
            for _ in range(before):
                cursor.nextset()
            return await cursor.fetchall()
    except psycopg.Error:
        if is_own and not conn.closed:
            await conn.rollback()
        raise


def run_all(conn: psycopg.Connection[Any], queries: Sequence[Callable[[], Query[T]]]) -> list[T]:
    """Run queries, all or none, in a pipeline: each is sent while the server works on those before
    it.

    Args:
        conn: In autocommit mode.
        queries: Makers of the queries.
    """
    if len(queries) < 2:
        return [run(conn, make()) for make in queries]
    try:
        with conn.pipeline(), conn.transaction():
            sent = [
                (query, conn.execute(query.sql, query.params))
                for query in (make() for make in queries)
            ]
            return [query.read(cursor.fetchall()) for query, cursor in sent]
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise_ours(error)
        raise


async def run_all_async(
    conn: psycopg.AsyncConnection[Any], queries: Sequence[Callable[[], Query[T]]]
) -> list[T]:
    """As :func:`run_all`, for an async connection."""
    if len(queries) < 2:
        return [await run_async(conn, make()) for make in queries]
    try:
        async with conn.pipeline(), conn.transaction():
            sent = [
                (query, await conn.execute(query.sql, query.params))
                for query in (make() for make in queries)
            ]
            return [query.read(await cursor.fetchall()) for query, cursor in sent]
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise_ours(error)
        raise


class Executor(Protocol):
    """Interface of another library's connection, which runs a query in the open transaction of the
    caller.
    """

    def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """Return the rows of a statement with psycopg's placeholders."""


class AsyncExecutor(Protocol):
    """As :class:`Executor`, for async code."""

    async def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """Return the rows of a statement with psycopg's placeholders."""


def run_on(executor: Executor, query: Query[T]) -> T:
    """Run a query through another library."""
    return run_through(executor.execute, query)


def run_through(execute: Callable[[LiteralString, Sequence[Any]], list[Row]], query: Query[T]) -> T:
    """As :func:`run_on`, by this way of executing it."""
    try:
        return query.read(execute(query.sql, query.params))
    except Exception as error:
        raise_ours(error)
        raise


async def run_on_async(executor: AsyncExecutor, query: Query[T]) -> T:
    """As :func:`run_on`, for async code."""
    return await run_by(executor.execute, query)


async def run_by(
    execute: Callable[[LiteralString, Sequence[Any]], Awaitable[list[Row]]], query: Query[T]
) -> T:
    """As :func:`run_on_async`, by this way of executing it."""
    try:
        return query.read(await execute(query.sql, query.params))
    except Exception as error:
        raise_ours(error)
        raise


# ---------------------------------------------------------------- statements that depend on answers

Steps = Generator[Query[Any], Any, T]
"""Statements, each of which is answered before the next; then a result."""


def one_step(query: Query[T]) -> Steps[T]:
    """Return the steps of one statement."""
    answer: T = yield query
    return answer


def steps_in_tenant(steps: Steps[T], tenant: str) -> Steps[T]:
    """Return steps as a client of a tenant runs them, in a transaction that may go on to act as
    before.
    """
    said = "select coalesce(current_setting('pgflow.tenant', true), '')"
    was: str = yield Query(said, (), lambda rows: str(rows[0][0]))
    yield Query(SET_TENANT, (tenant,), list)
    result = yield from changed(steps, lambda query: replace(query, sql=of_own(query.sql)))
    yield Query(SET_TENANT, (was,), list)
    return result


def changed(steps: Steps[T], change: Callable[[Query[Any]], Query[Any]]) -> Steps[T]:
    """Return steps with other statements in place of their own."""
    advance: Callable[[], Query[Any]] = partial(next, steps)
    while True:
        try:
            query = advance()
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            advance = partial(steps.send, (yield change(query)))
        except (psycopg.Error, PgflowError) as error:
            advance = partial(steps.throw, error)


def drive(steps: Steps[T], put: Callable[[Query[Any]], Any]) -> T:
    """Put statements to the database, and return their result. An error goes to the steps, which
    may know another way.
    """
    advance: Callable[[], Query[Any]] = partial(next, steps)
    while True:
        try:
            query = advance()
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            advance = partial(steps.send, put(query))
        except (psycopg.Error, PgflowError) as error:
            advance = partial(steps.throw, error)


async def drive_async(steps: Steps[T], put: Callable[[Query[Any]], Awaitable[Any]]) -> T:
    """As :func:`drive`, for async code."""
    advance: Callable[[], Query[Any]] = partial(next, steps)
    while True:
        try:
            query = advance()
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            advance = partial(steps.send, await put(query))
        except (psycopg.Error, PgflowError) as error:
            advance = partial(steps.throw, error)


def run_steps(executor: Executor, steps: Steps[T]) -> T:
    """Run statements in the open transaction of the caller, and return their result."""
    return drive(steps, partial(run_on, executor))


async def run_steps_async(executor: AsyncExecutor, steps: Steps[T]) -> T:
    """As :func:`run_steps`, for async code."""
    return await drive_async(steps, partial(run_on_async, executor))


def tuples_of(connection: psycopg.Connection[Any]) -> psycopg.Cursor[Row]:
    """A cursor that takes our placeholders and gives tuples, whatever its owner likes better."""
    if issubclass(connection.cursor_factory, psycopg.RawCursor):
        return psycopg.Cursor(connection, row_factory=tuple_row)
    return connection.cursor(row_factory=tuple_row)


def async_tuples_of(connection: psycopg.AsyncConnection[Any]) -> psycopg.AsyncCursor[Row]:
    """As :func:`tuples_of`, for an async connection."""
    if issubclass(connection.cursor_factory, psycopg.AsyncRawCursor):
        return psycopg.AsyncCursor(connection, row_factory=tuple_row)
    return connection.cursor(row_factory=tuple_row)


class OnConnection:
    """An open transaction of a connection of psycopg."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """Run a statement in the transaction."""
        with tuples_of(self._connection) as cursor:
            return cursor.execute(text_on(self._connection, sql), params).fetchall()


class OnAsyncConnection:
    """An open transaction of an async connection of psycopg."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """Run a statement in the transaction."""
        async with async_tuples_of(self._connection) as cursor:
            text = text_on(self._connection, sql)
            return await (await cursor.execute(text, params)).fetchall()
