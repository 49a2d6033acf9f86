"""Opening connections.

The engine's own connections are in autocommit mode and use nothing of a session - no SET, no session
locks, no temporary tables - so that they work through a pooler in transaction mode. Only LISTEN needs
a session, and has a polling fallback.

Stored functions look again after they have waited for a lock, which one snapshot for the whole transaction
forbids. Where the database or the role has another default than READ COMMITTED, or read-only, a connection
knows that (:func:`isolates`), and each call is a transaction of its own that says its level.
"""

from __future__ import annotations

import asyncio
import select
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import IsolationLevel, pq
from psycopg_pool import AsyncConnectionPool, ConnectionPool

PRIMARY_KNOWN_SINCE = 140_000
"""Version of libpq. Before, only sessions that write by default could be asked for, which a role may have switched off."""

BEGIN: LiteralString = "begin isolation level read committed read write"
"""Before each call of the engine's, where that is not the default."""

_AS_OURS: LiteralString = """
select current_setting('default_transaction_isolation') = 'read committed' and current_setting('default_transaction_read_only') = 'off'
"""


@dataclass(frozen=True)
class ConnectOptions:
    """How to reach the database.

    Attributes:
        dsn: Connection string.
        prepare_threshold: After how many uses a statement is prepared; None never, for a pooler that cannot.
        connect_timeout_seconds: How long one attempt to connect may take.
    """

    dsn: str
    prepare_threshold: int | None = 3
    connect_timeout_seconds: int = 10

    def parameters(self, application_name: str) -> dict[str, Any]:
        """Keyword arguments of psycopg's ``connect``."""
        return {
            "autocommit": True,
            "prepare_threshold": self.prepare_threshold,
            "connect_timeout": self.connect_timeout_seconds,
            "application_name": application_name,
            # a server that went over to another machine must not be written to while it is a standby
            "target_session_attrs": "primary" if pq.version() >= PRIMARY_KNOWN_SINCE else "read-write",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        }


def isolates(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether each call on this connection of the engine's must be a transaction that says its isolation level."""
    return connection.isolation_level is not None and connection.autocommit


def _learn(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute(_AS_OURS).fetchone()
    if row is None or not row[0]:
        connection.isolation_level, connection.read_only = IsolationLevel.READ_COMMITTED, False


async def _learn_async(connection: psycopg.AsyncConnection[Any]) -> None:
    row = await (await connection.execute(_AS_OURS)).fetchone()
    if row is None or not row[0]:
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await connection.set_read_only(False)


def connect(options: ConnectOptions, application_name: str) -> psycopg.Connection[Any]:
    """A connection for sync code."""
    connection = psycopg.connect(options.dsn, **options.parameters(application_name))
    try:
        _learn(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def connect_async(options: ConnectOptions, application_name: str) -> psycopg.AsyncConnection[Any]:
    """A connection for async code. If it is given up half-way, so is its socket: the server would wait for it for a minute."""
    try:
        connection = await psycopg.AsyncConnection.connect(options.dsn, **options.parameters(application_name))
        try:
            await _learn_async(connection)
        except BaseException:
            await connection.close()
            raise
    except asyncio.CancelledError as error:
        raise error.with_traceback(None) from None  # whose frames hold what is half open, for as long as anybody holds the task
    return connection


def _has_news(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether there is something to read on an idle connection: mostly its end, which the server or the network has brought about."""
    looked_at = select.poll()
    looked_at.register(connection.fileno(), select.POLLIN)
    return bool(looked_at.poll(0))


def _check(connection: psycopg.Connection[Any]) -> None:
    if _has_news(connection):
        ConnectionPool.check_connection(connection)


async def _check_async(connection: psycopg.AsyncConnection[Any]) -> None:
    if _has_news(connection):
        await AsyncConnectionPool.check_connection(connection)


def make_pool(options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool = False) -> ConnectionPool[Any]:
    """A closed pool for sync code. It hands out no connection that has died while it was idle, as far as this end can know.

    ``is_lent``: its connections are for the application's transactions, whose isolation level is the application's.
    """
    return ConnectionPool(
        options.dsn, min_size=0, max_size=max_size, open=False, kwargs=options.parameters(application_name), name=application_name,
        check=_check, configure=None if is_lent else _learn,
    )


def make_pool_async(options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool = False) -> AsyncConnectionPool[Any]:
    """A closed pool for async code; see :func:`make_pool`."""
    return AsyncConnectionPool(
        options.dsn, min_size=0, max_size=max_size, open=False, kwargs=options.parameters(application_name), name=application_name,
        check=_check_async, configure=None if is_lent else _learn_async,
    )
