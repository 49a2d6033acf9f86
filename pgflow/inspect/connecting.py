"""Connections for questions: one each, made patiently; and the meaning of their errors."""

from __future__ import annotations

from typing import Any

import psycopg

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


__all__ = ["connect", "database_error", "dsn_of_tenant", "is_infrastructure", "resolve_dsn"]
