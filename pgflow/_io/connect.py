"""Opening connections.

The engine's own connections are in autocommit mode and use nothing of a session - no SET, no session
locks, no temporary tables - so that they work through a pooler in transaction mode. Only LISTEN needs
a session, and has a polling fallback.
"""

from __future__ import annotations

import asyncio
import select
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool


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
            "target_session_attrs": "read-write",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        }


def connect(options: ConnectOptions, application_name: str) -> psycopg.Connection[Any]:
    """A connection for sync code."""
    return psycopg.connect(options.dsn, **options.parameters(application_name))


async def connect_async(options: ConnectOptions, application_name: str) -> psycopg.AsyncConnection[Any]:
    """A connection for async code. If it is given up half-way, so is its socket: the server would wait for it for a minute."""
    try:
        return await psycopg.AsyncConnection.connect(options.dsn, **options.parameters(application_name))
    except asyncio.CancelledError as error:
        raise error.with_traceback(None) from None  # whose frames hold what is half open, for as long as anybody holds the task


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


def make_pool(options: ConnectOptions, application_name: str, max_size: int) -> ConnectionPool[Any]:
    """A closed pool for sync code. It hands out no connection that has died while it was idle, as far as this end can know."""
    return ConnectionPool(
        options.dsn, min_size=0, max_size=max_size, open=False, kwargs=options.parameters(application_name), name=application_name,
        check=_check,
    )


def make_pool_async(options: ConnectOptions, application_name: str, max_size: int) -> AsyncConnectionPool[Any]:
    """A closed pool for async code; see :func:`make_pool`."""
    return AsyncConnectionPool(
        options.dsn, min_size=0, max_size=max_size, open=False, kwargs=options.parameters(application_name), name=application_name,
        check=_check_async,
    )
