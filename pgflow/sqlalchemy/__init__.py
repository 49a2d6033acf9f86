"""SQLAlchemy 2: transactions for steps, and starts inside the application's own.

    engine = create_engine("postgresql+psycopg://...")
    app = App(include=[checkout], providers=[SessionProvider(sessionmaker(engine))])

    @transaction
    def reserve(session: Session, sku: str) -> int: ...

``app.using(session)`` takes a ``Session``, ``AsyncSession``, ``Connection`` or ``AsyncConnection``.
The providers for async code are in :mod:`pgflow.sqlalchemy.asyncio`, which needs
``sqlalchemy[asyncio]``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import TimeoutError as NoRoom
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pgflow._transactions.join import Adapted, Row, numbered, refuse_without_transaction
from pgflow._transactions.provider import Transaction, is_class, rolled_back_in_time
from pgflow.errors import InvalidArgument

__all__ = ["EngineProvider", "SessionProvider", "adapt"]

_ISOLATION = {
    "read committed": "READ COMMITTED",
    "repeatable read": "REPEATABLE READ",
    "serializable": "SERIALIZABLE",
}


def statement(sql: str, params: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """A statement of ours with SQLAlchemy's named parameters."""
    named, names = numbered(sql)
    return text(named), dict(zip(names, params, strict=True))


def rows_of(result: Any) -> list[Row]:
    """All rows of a result."""
    return [tuple(row) for row in result.all()]


def isolation_options(isolation: str | None) -> dict[str, Any]:
    """Execution options of an isolation level."""
    return {} if isolation is None else {"isolation_level": _ISOLATION[isolation]}


class _Executor:
    """Runs statements on a Session or Connection, in its transaction."""

    def __init__(self, target: Session | Connection) -> None:
        self._target = target

    def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        return rows_of(self._target.execute(*statement(sql, params)))


# ---------------------------------------------------------------- transactions for steps


def socket_of(connection: Connection) -> int | None:
    """Return the socket of a connection, or None if its driver does not expose it. psycopg,
    psycopg2 and asyncpg do.
    """
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "fileno"):
        return int(driver.fileno())
    transport = getattr(driver, "_transport", None)
    return None if transport is None else int(transport.get_extra_info("socket").fileno())


@contextmanager
def no_room_is_trouble() -> Iterator[None]:
    """A pool that has no connection in time says nothing of the step: as psycopg's own pool does,
    whose error this becomes.

    So does a server that cannot be reached, of which asyncpg says only what the system says.
    """
    try:
        yield
    except (NoRoom, OSError) as error:
        raise psycopg.OperationalError(str(error)) from error


class _SessionTransaction(_Executor):
    def __init__(self, session: Session, connection: Connection) -> None:
        super().__init__(session)
        self.connection: Any = session
        self.driver_connection = connection.connection.driver_connection
        self._below = connection

    def fileno(self) -> int | None:
        return socket_of(self._below)

    def flush(self) -> None:
        self.connection.flush()

    def commit(self) -> None:
        self.connection.commit()


class _ConnectionTransaction(_Executor):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.connection: Any = connection
        self.driver_connection = connection.connection.driver_connection

    def fileno(self) -> int | None:
        return socket_of(self.connection)

    def flush(self) -> None:
        """A Connection holds nothing back."""

    def commit(self) -> None:
        self.connection.commit()


class SessionProvider:
    """Hands ``Session`` objects to ``def`` steps.

    Args:
        sessions: A ``sessionmaker`` or ``scoped_session`` factory bound to an engine on the same
            database as pgflow.
    """

    def __init__(self, sessions: sessionmaker[Any] | Callable[[], Session]) -> None:
        self._sessions = sessions

    def provides(self, annotation: Any) -> bool:
        """``sqlalchemy.orm.Session``."""
        return is_class(annotation, Session)

    @contextmanager
    def begin(self, isolation: str | None) -> Iterator[Transaction]:
        """Open a session in a new transaction."""
        with self._sessions() as session:
            with no_room_is_trouble():
                connection = session.connection(execution_options=isolation_options(isolation))
            check_connection(session, connection)
            with rolled_back_in_time(socket_of(connection), roll_back=session.rollback):
                yield _SessionTransaction(session, connection)


class EngineProvider:
    """Hands ``Connection`` objects to ``def`` steps.

    Args:
        engine: An engine on the same database as pgflow.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def provides(self, annotation: Any) -> bool:
        """``sqlalchemy.Connection``."""
        return is_class(annotation, Connection)

    @contextmanager
    def begin(self, isolation: str | None) -> Iterator[Transaction]:
        """A connection in a transaction."""
        with no_room_is_trouble():
            opened = self._engine.connect()
        with opened as connection:
            connection.execution_options(**isolation_options(isolation))
            check_connection(connection, connection)
            with rolled_back_in_time(socket_of(connection), roll_back=connection.rollback):
                yield _ConnectionTransaction(connection)


# ---------------------------------------------------------------- the application's own connection


def adapt(target: Any) -> Adapted:
    """A Session or Connection of SQLAlchemy as the engine uses it; pgflow calls this for
    ``app.using(...)``.
    """
    if isinstance(target, scoped_session):
        target = target()
    if isinstance(target, Session):
        check_connection(target, target.connection())
        return Adapted(_Executor(target), is_async=False, after_commit=after_commit(target))
    if isinstance(target, Connection):
        check_connection(target, target)
        return Adapted(_Executor(target), is_async=False)
    if type(target).__module__.startswith("sqlalchemy.ext.asyncio"):
        adapted: Adapted = importlib.import_module("pgflow.sqlalchemy.asyncio").adapt(target)  # noqa: TID251 - a constant
        return adapted
    raise InvalidArgument(
        "app.using() takes a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, "
        f"not {target!r}"
    )


DRIVERS = ("psycopg", "psycopg_async", "asyncpg", "psycopg2")
"""Those whose errors the engine can read."""


def check_connection(target: Any, connection: Connection) -> None:
    """Refuse a connection in autocommit mode, set on itself, its session or its engine: it has no
    transaction to join.

    And one of a driver whose errors the engine cannot read.
    """
    dialect = connection.dialect
    if dialect.driver not in DRIVERS:
        raise InvalidArgument(
            "pgflow reads the errors of psycopg, asyncpg and psycopg2, not those of "
            f"{dialect.name}+{dialect.driver}: give create_engine a URL that begins with "
            "postgresql+psycopg://"
        )
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise refuse_without_transaction(target)


def after_commit(session: Session) -> Callable[[Callable[[], None]], None]:
    """Register a function to call after the outermost commit of a session."""

    def register(action: Callable[[], None]) -> None:
        if _ACTIONS not in session.info:
            session.info[_ACTIONS] = []
            event.listen(session, "after_commit", _committed)
        if action not in session.info[_ACTIONS]:
            session.info[_ACTIONS].append(action)

    return register


_ACTIONS = "pgflow_after_commit"


def _committed(session: Session) -> None:
    if not session.in_nested_transaction():
        actions, session.info[_ACTIONS] = session.info[_ACTIONS], []
        for action in actions:
            action()
