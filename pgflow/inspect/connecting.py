"""Connections for questions: one each, made patiently; and the meaning of their errors."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pgflow._db.connect import PATIENCE_SECONDS, ConnectOptions
from pgflow._db.connect import connect as connect_patiently
from pgflow._db.dsn import resolve_dsn
from pgflow._db.failures import database_error, is_infrastructure
from pgflow._db.tenants import dsn_of_tenant


def connect(
    dsn: str,
    *,
    name: str = "pgflow inspect",
    connect_timeout_seconds: int | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> psycopg.Connection[Any]:
    """Return a connection in autocommit mode, to a server that takes writes unless the connection
    string asks for another. It may go through a pooler.

    Args:
        dsn: Connection string.
        name: Name that ``pg_stat_activity`` shows.
        connect_timeout_seconds: Longest time to connect.
        patience_seconds: Silence after which it is checked that the server is there at all: a
            question may take long, and a server that is frozen must not.

    Raises:
        psycopg.OperationalError: No server can be reached.
    """
    options = ConnectOptions(
        dsn, prepare_threshold=None, connect_timeout_seconds=connect_timeout_seconds
    )
    return connect_patiently(options, name, patience_seconds)


def connect_to_any(dsn: str, *, name: str = "pgflow inspect") -> psycopg.Connection[Any]:
    """Return such a connection; if no server takes writes, one to a server that does not, to find
    out why.
    """
    try:
        return connect(dsn, name=name)
    except psycopg.OperationalError as error:
        if not is_refused_as_standby(error):
            raise
    return connect(make_conninfo(dsn, target_session_attrs="any"), name=name)


def is_refused_as_standby(error: BaseException) -> bool:
    """Return True if a server was reached, and passed over because it takes no writes: libpq says
    so itself, in these words.
    """
    return "session is read-only" in str(error) or "server is in hot standby mode" in str(error)


__all__ = [
    "connect", "connect_to_any", "database_error", "dsn_of_tenant", "is_infrastructure",
    "is_refused_as_standby", "resolve_dsn",
]  # fmt: skip
