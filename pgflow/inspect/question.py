"""Questions to the database, for sync and async code.

A reader makes a :class:`Question` and asks nothing itself. :func:`ask` and :func:`ask_async` put it
to an app or to a connection. A question is written once, as a generator: it yields one statement
after the other, gets the answer of each, and returns its result. The two colours only drive it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import fields
from functools import partial, wraps
from inspect import iscoroutinefunction
from itertools import count
from typing import Any, Generic, LiteralString, ParamSpec, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg.rows import tuple_row

from pgflow._db.query import (
    PIN,
    UNPIN,
    Query,
    ReadingQuery,
    changed,
    drive,
    drive_async,
    run,
    run_async,
)
from pgflow._db.tenants import text_on
from pgflow.errors import WrongColourError

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Steps: TypeAlias = Generator[Query[Any], Any, T]
"""Statements of a question, one after the other, each of which is answered before the next;
then its result.
"""

STREAMED_ROWS = 1000
"""Rows that a stream fetches at once."""

_STREAMS = count(1)
"""Numbers for the names of cursors: several may be open on one connection."""


class Question(Generic[T_co]):
    """Something to ask the database. It may be asked as often as you like.

    Readers of this room make questions; :func:`ask` and :func:`ask_async` put them.
    """

    def __init__(self, begin: Callable[[], Steps[T_co]]) -> None:
        self._begin = begin

    def __iter__(self) -> Steps[T_co]:
        """Begin to ask: yield statements, take their answers, return the result."""
        return self._begin()

    @property
    def first(self) -> Query[Any]:
        """The statement with which it begins; of most questions the only one."""
        return next(iter(self))


def statement(*parts: LiteralString) -> LiteralString:
    """Return a statement made of its parts: texts of ours, never one that was given."""
    return " ".join(parts)


def columns(row: type) -> LiteralString:
    """Return the columns of a row: the names of its fields."""
    return ", ".join(field.name for field in fields(row))


def select(row: type, rest: LiteralString) -> LiteralString:
    """Return the statement that selects the columns of a row.

    Args:
        row: A dataclass with a field for each column.
        rest: The statement, from its ``from`` on.
    """
    return statement("select", columns(row), rest)


def once(query: Query[T]) -> Question[T]:
    """Return a question of one statement."""

    def steps() -> Steps[T]:
        answer: T = yield query
        return answer

    return Question(steps)


def all_rows(row: Callable[..., T], sql: LiteralString, *values: object) -> Question[list[T]]:
    """Return a question for all rows of a statement with these values."""
    return once(Query(sql, values, lambda rows: [row(*found) for found in rows]))


def first_row(row: Callable[..., T], sql: LiteralString, *values: object) -> Question[T | None]:
    """Return a question for the first row of a statement; None if there is none."""
    return once(Query(sql, values, lambda rows: row(*rows[0]) if rows else None))


def only_row(row: Callable[..., T], sql: LiteralString, *values: object) -> Question[T]:
    """Return a question for the row of a statement that always has one."""
    return once(Query(sql, values, lambda rows: row(*rows[0])))


def listed(row: Callable[..., T], rest: LiteralString, *values: object) -> Question[list[T]]:
    """Return a question for all rows of a :func:`select` with these values."""
    return all_rows(row, select(row, rest), *values)  # type: ignore[arg-type]


def question(reader: Callable[P, Steps[T]]) -> Callable[P, Question[T]]:
    """Turn a generator of statements into a reader, which makes a question of them."""

    @wraps(reader)
    def make(*args: P.args, **kwargs: P.kwargs) -> Question[T]:
        return Question(lambda: reader(*args, **kwargs))

    return make


class Source(Protocol):
    """Interface of an app as :func:`ask` needs it: :class:`pgflow.App` has it."""

    def ask(self, query: Query[T]) -> T:
        """Run a statement and read its rows."""


class AsyncSource(Protocol):
    """As :class:`Source`, for async code: :class:`pgflow.AsyncApp` has it."""

    async def ask(self, query: Query[T]) -> T:
        """Run a statement and read its rows."""


def ask(source: psycopg.Connection[Any] | Source, question: Question[T]) -> T:
    """Ask the database, and return the answer.

    An app asks on connections of its own pool, one statement at a time. On a connection of yours
    the question is part of the transaction that is open there. Open one at REPEATABLE READ if
    several answers must be of one moment.

    Args:
        source: An open :class:`pgflow.App`, or a connection of psycopg to the database. Its row
            factory does not matter.
        question: The question, as a reader makes it.

    Raises:
        RunNotFound: The question is about a run, and no run has its key.
        InvalidArgument: A text holds a character that Postgres cannot store.
        WrongColourError: The source is of the other colour, or of another library.
        psycopg.Error: The database cannot be reached, or the role may not read this.

    Example::

        for run in inspect.ask(app, inspect.list_runs(inspect.RunFilter(status=["stuck"]))):
            print(run.key, run.why)
    """
    put = (
        partial(run, source)
        if isinstance(source, psycopg.Connection)
        else _way_of(source, is_async=False)
    )
    return drive(changed(iter(question), _reading), put)


async def ask_async(source: psycopg.AsyncConnection[Any] | AsyncSource, question: Question[T]) -> T:
    """Ask the database, and return the answer: :func:`ask` for async code.

    Args:
        source: An open :class:`pgflow.AsyncApp`, or an async connection of psycopg.
        question: The question, as a reader makes it.

    Raises:
        RunNotFound: The question is about a run, and no run has its key.
        InvalidArgument: A text holds a character that Postgres cannot store.
        WrongColourError: The source is of the other colour, or of another library.
        psycopg.Error: The database cannot be reached, or the role may not read this.
    """
    put = (
        partial(run_async, source)
        if isinstance(source, psycopg.AsyncConnection)
        else _way_of(source, is_async=True)
    )
    return await drive_async(changed(iter(question), _reading), put)


def _reading(query: Query[T]) -> Query[T]:
    if isinstance(query, ReadingQuery):
        return query
    return ReadingQuery(query.sql, query.params, query.read)


def _way_of(app: Any, *, is_async: bool) -> Any:
    """Return the ``ask`` method of an app.

    Raises:
        WrongColourError: The app has the other colour.
    """
    way = getattr(app, "ask", None)
    if way is None or iscoroutinefunction(way) != is_async:
        wanted = (
            "ask_async() takes an AsyncApp or an async" if is_async else "ask() takes an App or a"
        )
        raise WrongColourError(
            f"{wanted} connection of psycopg, not {type(app).__qualname__}: the other function "
            "takes the other colour"
        )
    return way


def stream(connection: psycopg.Connection[Any], question: Question[list[T]]) -> Iterator[T]:
    """Yield the answer to a question row by row, from a cursor of the server: for lists that are
    too long to be held.

    Args:
        connection: A connection of psycopg with an open transaction, which stays open meanwhile.
        question: A question of one statement whose answer is a list.

    Raises:
        psycopg.Error: No transaction is open, the database cannot be reached,
            or the role may not read this.
    """
    query = question.first
    with connection.cursor(
        name=f"pgflow_inspect_{next(_STREAMS)}", row_factory=tuple_row
    ) as cursor:
        connection.execute(PIN, prepare=False)
        cursor.execute(text_on(connection, query.sql), query.params)
        connection.execute(UNPIN, prepare=False)
        while rows := cursor.fetchmany(STREAMED_ROWS):
            yield from query.read(rows)


async def stream_async(
    connection: psycopg.AsyncConnection[Any], question: Question[list[T]]
) -> AsyncIterator[T]:
    """Yield the answer to a question row by row: :func:`stream` for async code.

    Args:
        connection: An async connection of psycopg with an open transaction,
            which stays open meanwhile.
        question: A question of one statement whose answer is a list.
    """
    query = question.first
    async with connection.cursor(
        name=f"pgflow_inspect_{next(_STREAMS)}", row_factory=tuple_row
    ) as cursor:
        await connection.execute(PIN, prepare=False)
        await cursor.execute(text_on(connection, query.sql), query.params)
        await connection.execute(UNPIN, prepare=False)
        while rows := await cursor.fetchmany(STREAMED_ROWS):
            for row in query.read(rows):
                yield row
