"""Opening connections.

The engine's own connections are in autocommit mode and use nothing of a session - no SET, no session
locks, no temporary tables - so that they work through a pooler in transaction mode. Only LISTEN and
prepared statements need a session: a pooler in transaction mode is noticed, and then neither is used.

Stored functions look again after they have waited for a lock, which one snapshot for the whole transaction
forbids. Where the database or the role has another default than READ COMMITTED, or read-only, a connection
knows that (:func:`isolates`), and each call is a transaction of its own that says its level.
"""

from __future__ import annotations

import asyncio
import logging
import select
import time
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg import IsolationLevel, pq
from psycopg_pool import AsyncConnectionPool, ConnectionPool

log = logging.getLogger("pgflow")

POOLER_LOOKS = 8
"""So often two connections are compared before a pooler is believed to keep a session for each."""

PRIMARY_KNOWN_SINCE = 140_000
"""Version of libpq. Before, only sessions that write by default could be asked for, which a role may have switched off."""

BEGIN: LiteralString = "begin isolation level read committed read write"
"""Before each call of the engine's, where that is not the default."""

_AS_OURS: LiteralString = """
select current_setting('default_transaction_isolation') = 'read committed' and current_setting('default_transaction_read_only') = 'off'
"""

_ISO: LiteralString = "set datestyle = iso"
"""psycopg reads no other. A pooler in transaction mode keeps this setting for each of its clients."""


class Preparing:
    """Whether statements are prepared on the connections of an app, which ends for all of them where a pooler loses what was prepared."""

    def __init__(self) -> None:
        self.has_ended = False

    def end(self, error: BaseException) -> None:
        """Somebody between here and the server lends one session to many: from now on nothing is prepared."""
        if not self.has_ended:
            self.has_ended = True
            log.warning(
                "a prepared statement was lost (%s): a pooler in transaction mode seems to be in between. Nothing more is prepared; "
                "pass App(prepare_threshold=None, listen=False), or connect to the server itself", " ".join(str(error).split()),
            )


@dataclass(frozen=True)
class ConnectOptions:
    """How to reach the database.

    Attributes:
        dsn: Connection string.
        prepare_threshold: After how many uses a statement is prepared; None never, for a pooler that cannot.
        connect_timeout_seconds: How long one attempt to connect may take.
        preparing: Shared by all connections, which stop preparing together.
    """

    dsn: str
    prepare_threshold: int | None = 3
    connect_timeout_seconds: int = 10
    preparing: Preparing = field(default_factory=Preparing, compare=False, repr=False)

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared."""
        return self.prepare_threshold is not None and not self.preparing.has_ended

    def parameters(self, application_name: str) -> dict[str, Any]:
        """Keyword arguments of psycopg's ``connect``."""
        return {
            "autocommit": True,
            "prepare_threshold": self.prepare_threshold if self.prepares else None,
            "connect_timeout": self.connect_timeout_seconds,
            "application_name": application_name,
            "client_encoding": "utf8",  # whatever the role's is: what is stored is UTF-8
            # a server that went over to another machine must not be written to while it is a standby
            "target_session_attrs": "primary" if pq.version() >= PRIMARY_KNOWN_SINCE else "read-write",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        }


def isolates(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether a call on this connection must be a transaction of its own that says its isolation level."""
    if connection.isolation_level is None or not connection.autocommit:
        return False
    return connection.info.transaction_status == pq.TransactionStatus.IDLE  # else it is part of somebody's transaction


def _is_iso(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")


def _set_up(connection: psycopg.Connection[Any]) -> None:
    if not _is_iso(connection):
        connection.execute(_ISO)


async def _set_up_async(connection: psycopg.AsyncConnection[Any]) -> None:
    if not _is_iso(connection):
        await connection.execute(_ISO)


def _learn(connection: psycopg.Connection[Any]) -> None:
    _set_up(connection)
    row = connection.execute(_AS_OURS).fetchone()
    if row is None or not row[0]:
        connection.isolation_level, connection.read_only = IsolationLevel.READ_COMMITTED, False


async def _learn_async(connection: psycopg.AsyncConnection[Any]) -> None:
    await _set_up_async(connection)
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


def _is_alive(connection: psycopg.Connection[Any], options: ConnectOptions) -> bool:
    if not options.prepares:
        connection.prepare_threshold = None
    try:
        if _has_news(connection):
            ConnectionPool.check_connection(connection)
    except psycopg.Error:
        connection.close()
        return False
    return True


async def _is_alive_async(connection: psycopg.AsyncConnection[Any], options: ConnectOptions) -> bool:
    if not options.prepares:
        connection.prepare_threshold = None
    try:
        if _has_news(connection):
            await AsyncConnectionPool.check_connection(connection)
    except psycopg.Error:
        await connection.close()
        return False
    return True


class Pool(ConnectionPool[Any]):
    """A pool that hands out no connection that has died while it was idle, as far as this end can know.

    The pool's own ``check=`` waits for a second, two, four, before it looks at the next connection: those that it gets
    instead of the dead may have died too by then, where the server ends idle sessions soon.
    """

    def __init__(self, options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool) -> None:
        super().__init__(
            options.dsn, min_size=0, max_size=max_size, open=False, kwargs=options.parameters(application_name), name=application_name,
            configure=_set_up if is_lent else _learn,
        )
        self._options = options

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        """A connection that is alive."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            connection: psycopg.Connection[Any] = super().getconn(deadline - time.monotonic())
            try:
                is_alive = _is_alive(connection, self._options)
            except BaseException:
                self.putconn(connection)
                raise
            if is_alive:
                return connection
            self.putconn(connection)


class AsyncPool(AsyncConnectionPool[Any]):
    """As :class:`Pool`, for async code."""

    def __init__(self, options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool) -> None:
        super().__init__(
            options.dsn, min_size=0, max_size=max_size, open=False, kwargs=options.parameters(application_name), name=application_name,
            configure=_set_up_async if is_lent else _learn_async,
        )
        self._options = options

    async def getconn(self, timeout: float | None = None) -> psycopg.AsyncConnection[Any]:
        """A connection that is alive."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            connection: psycopg.AsyncConnection[Any] = await super().getconn(deadline - time.monotonic())
            try:
                is_alive = await _is_alive_async(connection, self._options)
            except BaseException:
                await self.putconn(connection)
                raise
            if is_alive:
                return connection
            await self.putconn(connection)


def make_pool(options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool = False) -> ConnectionPool[Any]:
    """A closed pool for sync code.

    ``is_lent``: its connections are for the application's transactions, whose isolation level is the application's.
    """
    return Pool(options, application_name, max_size, is_lent=is_lent)


def make_pool_async(options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool = False) -> AsyncConnectionPool[Any]:
    """A closed pool for async code; see :func:`make_pool`."""
    return AsyncPool(options, application_name, max_size, is_lent=is_lent)


def is_behind_pooler(connection: psycopg.Connection[Any], options: ConnectOptions) -> bool:
    """Whether a pooler is in between that gives each transaction another session, as PgBouncer does in transaction mode.

    A pooler answers with a process id of its own. One that keeps a session for each client keeps its process, too, and
    gives nobody else the same.
    """
    mine = {_backend_of(connection)}
    if mine == {connection.info.backend_pid}:
        return False
    with connect(options, "pgflow") as other:
        for _ in range(POOLER_LOOKS):
            theirs = _backend_of(other)
            mine.add(_backend_of(connection))
            if theirs in mine or len(mine) > 1:
                return True
    return False


def _backend_of(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("select pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])
