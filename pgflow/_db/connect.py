"""Open connections.

The engine's own connections are in autocommit mode and keep no session state - no SET, no session
locks, no temporary tables - so they work through a pooler in transaction mode. Only LISTEN and
prepared statements need a session; behind a pooler in transaction mode, which is detected, neither
is used. In our own sessions `jit` and parallel workers are off, since the estimated costs of some
views are high and both take longer than most answers. Stored functions set this themselves for
other callers.

Stored functions look again after they have waited for a lock, which one snapshot for the whole
transaction forbids. If the default of the database or role is another level than READ COMMITTED, or
read-only, a connection detects it (:func:`isolates`), and each call is a transaction of its own
that sets its level.

Connections lead to a server that takes writes, unless the connection string asks for another: of
several hosts, standbys are skipped. The host found last is tried first, and the one that did not
answer in time last, so after a failover only the first connection waits for the dead host.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import IsolationLevel, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgflow._db.deadlines import BEGIN_SECONDS, Limit, cut

CONNECT_SECONDS = 10
CONNECT_ONE_OF_SEVERAL_SECONDS = 3
"""A host that is frozen must not keep us long from the next."""

PATIENCE_SECONDS = 5.0
"""After so long without an answer a client asks
on another connection whether the server is there at all.
"""

POOL_RECONNECT_SECONDS = 1.0
"""A pool gives up so soon, and tries anew when asked again: its own delays grow to minutes, and a
server may be back long before.
"""

POOL_IDLE_SECONDS = 10.0
"""Seconds without need after which a pool closes a connection, and after as many another."""

GETCONN_SECONDS = 2.0
"""Seconds for which a pool is asked at once; longer waits ask again,
and the pool tries to connect again.
"""

log = logging.getLogger("pgflow")

POOLER_LOOKS = 8
"""Times that two connections are compared before a pooler is believed
to keep a session for each.
"""

PRIMARY_KNOWN_SINCE = 140_000
"""Version of libpq. Before, only sessions that write by default could be asked for, which a role
may have switched off.
"""

BEGIN: LiteralString = "begin isolation level read committed read write"
"""Before each call of the engine's, where that is not the default."""

BEGIN_AS_IS: LiteralString = "begin isolation level read committed"
"""Before a question, which a standby answers too."""

BEGIN_READING: LiteralString = "begin isolation level read committed read only"
"""Before a question that the server may give up."""

_AS_OURS: LiteralString = """
select current_setting('default_transaction_isolation') = 'read committed'
    and current_setting('default_transaction_read_only') = 'off',
  case when pg_backend_pid() = %s then set_config('jit', 'off', false)
    || set_config('max_parallel_workers_per_gather', '0', false) end
"""
"""A pooler answers with a process id of its own, and lends its sessions to others."""

_ISO: LiteralString = "set datestyle = iso"
"""psycopg reads no other. A pooler in transaction mode keeps this setting
for each of its clients.
"""

_ENVIRONMENT = {
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "connect_timeout": "PGCONNECT_TIMEOUT",
}
_HOSTS = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}


class Preparing:
    """Switch of prepared statements for all connections of an app,
    off once a pooler loses a prepared one.
    """

    def __init__(self) -> None:
        self.has_ended = False

    def end(self, error: BaseException) -> None:
        """Stop preparing statements: a pooler shares one session among clients."""
        if not self.has_ended:
            self.has_ended = True
            log.warning(
                "a prepared statement was lost (%s): the connection seems to use a pooler in "
                "transaction mode. pgflow stops preparing; pass App(prepare_threshold=None, "
                "listen=False), or connect to the server itself",
                " ".join(str(error).split()),
            )


@dataclass(frozen=True)
class ConnectOptions:
    """Parameters of the connections to the database.

    Attributes:
        dsn: Connection string; what it says of time-outs and of the kind of server wins.
        prepare_threshold: After how many uses a statement is prepared;
            None never, for a pooler that cannot.
        connect_timeout_seconds: Longest time of one attempt to connect; less where there are
            several hosts, if not given.
        preparing: Shared by all connections, which stop preparing together.
    """

    dsn: str
    prepare_threshold: int | None = 3
    connect_timeout_seconds: int | None = None
    preparing: Preparing = field(default_factory=Preparing, compare=False, repr=False)

    @property
    def prepares(self) -> bool:
        """True if statements may be prepared."""
        return self.prepare_threshold is not None and not self.preparing.has_ended

    def parameters(self, application_name: str) -> dict[str, Any]:
        """Keyword arguments of psycopg's ``connect``."""
        return {
            "autocommit": True,
            "application_name": application_name,
            "prepare_threshold": self.prepare_threshold if self.prepares else None,
            "client_encoding": "utf8",  # whatever the role's is: what is stored is UTF-8
            **connect_parameters(self.dsn, self.connect_timeout_seconds),
        }


def connect_parameters(dsn: str, connect_timeout_seconds: int | None = None) -> dict[str, Any]:
    """Return psycopg's keyword arguments for this database, without those that its string or the
    environment sets.
    """
    given = _said(dsn)
    timeout = connect_timeout_seconds or (
        CONNECT_ONE_OF_SEVERAL_SECONDS if len(_servers(given)) > 1 else CONNECT_SECONDS
    )
    wanted = {
        "connect_timeout": timeout,
        # a server that went over to another machine must not be written to while it is a standby
        "target_session_attrs": "primary" if pq.version() >= PRIMARY_KNOWN_SINCE else "read-write",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }
    return {
        name: value
        for name, value in wanted.items()
        if name not in given and not os.environ.get(_ENVIRONMENT.get(name, name))
    }


def _said(dsn: str) -> dict[str, Any]:
    """Return the parameters of a connection string, with the hosts and ports that libpq takes from
    the environment.
    """
    from_environment = {name: os.environ.get(variable) for name, variable in _HOSTS.items()}
    return {
        **{name: value for name, value in from_environment.items() if value},
        **conninfo_to_dict(dsn),
    }


# ---------------------------------------------------------------- which server first

Server = tuple[str, str]
"""Host and port."""

_standing: dict[Server, float] = {}
"""Time at which a server was last found to take writes; negative: at which it was last given up."""

left_servers: dict[Server, float] = {}
"""Time at which a server was left: connections opened before it are not used any more."""


def _servers(parameters: Mapping[str, Any]) -> list[Server]:
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    ports = str(parameters.get("port") or "5432").split(",")
    return [
        (host, ports[n] if len(ports) > 1 and n < len(ports) else ports[0])
        for n, host in enumerate(hosts)
    ]


def in_order(dsn: str) -> dict[str, str]:
    """Hosts and ports of a connection string, the most promising first; empty where there is
    nothing to choose.
    """
    given = _said(dsn)
    servers = _servers(given)
    wanted = given.get("target_session_attrs") or os.environ.get(
        "PGTARGETSESSIONATTRS", "read-write"
    )
    if (
        len(servers) < 2
        or wanted not in ("read-write", "primary")
        or given.get("load_balance_hosts") == "random"
    ):
        return {}
    order = sorted(range(len(servers)), key=lambda n: -_standing.get(servers[n], 0.0))
    ordered = {"port": ",".join(servers[n][1] for n in order)}
    for name in ("host", "hostaddr"):
        values = str(given.get(name) or "").split(",")
        if len(values) == len(servers):
            ordered[name] = ",".join(values[n] for n in order)
    return ordered


def server_of(connection: object) -> Server | None:
    """Return the server of one of our connections; None for another connection."""
    return getattr(connection, "server", None)


def give_up(server: Server) -> None:
    """A server did not answer in time: others are asked first, and the connections that lead there
    are used no more.
    """
    now = time.monotonic()
    _standing[server] = -now
    leave(server, now)


def leave(server: Server, before: float) -> None:
    """Leave a server that is not the primary any more:
    connections opened before this time are used no more.
    """
    left_servers[server] = max(before, left_servers.get(server, 0.0))


def last_left() -> float:
    """Return the time before which connections of other libraries may lead to a server that was
    left.
    """
    return max(left_servers.values(), default=0.0)


def cut_if_left(connection: object) -> None:
    """Cut a connection to a server that was left, on the thread that owns it."""
    if is_left(connection) and not connection.closed:  # type: ignore[attr-defined]
        cut(connection.pgconn.socket)  # type: ignore[attr-defined]


def is_left(connection: object) -> bool:
    """Return True if a connection leads to a server that was left since it was opened."""
    return isinstance(
        connection, (Connection, AsyncConnection)
    ) and connection.opened_at < left_servers.get(connection.server, 0.0)


# ---------------------------------------------------------------- connections


class Connection(psycopg.Connection[Any]):
    """A connection of ours for sync code.

    Attributes:
        opened_at: Time of opening, by this machine's clock that never goes back.
        server: Server that it leads to.
        patience_seconds: After so long without an answer its server is asked on another connection;
            if that has no answer either, this one is lost. None: it waits.
    """

    opened_at = 0.0
    server: Server = ("", "")
    patience_seconds: float | None = None

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Any:
        """Open a connection; see the module."""
        return _opened(super().connect(conninfo, **{**kwargs, **in_order(conninfo)}))

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for an answer, at most for the connection's patience if it has one."""
        if self.patience_seconds is None:
            return super().wait(*args, **kwargs)
        with patiently(self, self.patience_seconds):
            return super().wait(*args, **kwargs)


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for async code, without patience: it has that of the pool that lends it."""

    opened_at = 0.0
    server: Server = ("", "")

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Any:
        """Open a connection; see the module."""
        return _opened(await super().connect(conninfo, **{**kwargs, **in_order(conninfo)}))


_C = TypeVar("_C", Connection, AsyncConnection)


def _opened(connection: _C) -> _C:
    connection.opened_at = time.monotonic()
    connection.server = (connection.info.host, str(connection.info.port))
    _standing[connection.server] = connection.opened_at
    return connection


def deadline(connection: Connection | AsyncConnection, seconds: float) -> Limit:
    """Return the deadline of a wait for a connection's server, which is given up after it."""
    return Limit(connection.pgconn.socket, seconds, gave_up=lambda: give_up(connection.server))


def patiently(connection: Connection | AsyncConnection, seconds: float) -> Limit:
    """Return the deadline of a wait for a connection's server, which is given up after it unless it
    answers on another connection.
    """
    return Limit(
        connection.pgconn.socket,
        seconds,
        lambda: _answers(connection.info),
        lambda: give_up(connection.server),
    )


def _answers(info: psycopg.ConnectionInfo) -> bool:
    """Return True if the server of a connection takes another one.
    One that refuses is there, too.
    """
    known = make_conninfo(
        info.dsn, connect_timeout=CONNECT_ONE_OF_SEVERAL_SECONDS, target_session_attrs="any"
    )
    try:
        psycopg.connect(known, password=info.password, application_name="pgflow probe").close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.Error:
        return True
    return True


def isolates(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return True if a call on this connection must be a transaction of its own that sets its
    isolation level.
    """
    return connection.isolation_level is not None and is_idle(connection)


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return True if a call on this connection is a transaction of its own, not part of an open
    one.
    """
    return connection.autocommit and connection.info.transaction_status == pq.TransactionStatus.IDLE


def _is_iso(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")


def set_up(connection: psycopg.Connection[Any]) -> None:
    """Set the session to write times in psycopg's format."""
    if not _is_iso(connection):
        with Limit(connection.pgconn.socket, BEGIN_SECONDS):
            connection.execute(_ISO)


async def set_up_async(connection: psycopg.AsyncConnection[Any]) -> None:
    """As :func:`set_up`, for async code."""
    if not _is_iso(connection):
        with Limit(connection.pgconn.socket, BEGIN_SECONDS):
            await connection.execute(_ISO)


def learn(connection: psycopg.Connection[Any]) -> None:
    """Prepare a connection for our calls: note if each must set its isolation level."""
    set_up(connection)
    with Limit(connection.pgconn.socket, BEGIN_SECONDS):
        row = connection.execute(_AS_OURS, (connection.info.backend_pid,)).fetchone()
    if row is None or not row[0]:
        connection.isolation_level, connection.read_only = IsolationLevel.READ_COMMITTED, False


async def learn_async(connection: psycopg.AsyncConnection[Any]) -> None:
    """As :func:`learn`, for async code."""
    await set_up_async(connection)
    with Limit(connection.pgconn.socket, BEGIN_SECONDS):
        row = await (await connection.execute(_AS_OURS, (connection.info.backend_pid,))).fetchone()
    if row is None or not row[0]:
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await connection.set_read_only(False)


def connect(
    options: ConnectOptions, application_name: str, patience_seconds: float | None = None
) -> Connection:
    """A connection for sync code."""
    connection: Connection = Connection.connect(options.dsn, **options.parameters(application_name))
    try:
        learn(connection)
    except BaseException:
        connection.close()
        raise
    connection.patience_seconds = patience_seconds
    return connection


async def connect_async(options: ConnectOptions, application_name: str) -> AsyncConnection:
    """A connection for async code. If it is given up half-way, so is its socket: the server would
    wait for it for a minute.
    """
    try:
        connection: AsyncConnection = await AsyncConnection.connect(
            options.dsn, **options.parameters(application_name)
        )
        try:
            await learn_async(connection)
        except BaseException:
            await connection.close()
            raise
    except asyncio.CancelledError as error:
        # Its frames hold what is half open, for as long as anything holds the task.
        raise error.with_traceback(None) from None
    return connection


# ---------------------------------------------------------------- for pools


def pool_parameters(
    options: ConnectOptions, application_name: str, max_size: int
) -> dict[str, Any]:
    """Keyword arguments of psycopg's pools, in both colours; it is closed as yet."""
    return {
        "conninfo": options.dsn,
        "kwargs": options.parameters(application_name),
        "name": application_name,
        "open": False,
        "min_size": 0,
        "max_size": max_size,
        "max_idle": POOL_IDLE_SECONDS,
        "reconnect_timeout": POOL_RECONNECT_SECONDS,
    }


def has_news(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return True if an idle connection has something to read: mostly its end, which the server or
    the network has brought about.
    """
    looked_at = select.poll()
    looked_at.register(connection.fileno(), select.POLLIN)
    return bool(looked_at.poll(0))


# ---------------------------------------------------------------- poolers


def is_behind_pooler(connection: psycopg.Connection[Any], options: ConnectOptions) -> bool:
    """Return True if a pooler gives each transaction another session, as PgBouncer does in
    transaction mode.

    A pooler answers with a process id of its own. A pooler in session mode keeps one process for
    each client, and shares it with no other.
    """
    mine = {_backend_of(connection)}
    if mine == {connection.info.backend_pid}:
        return False
    with connect(options, "pgflow", PATIENCE_SECONDS) as other:
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
