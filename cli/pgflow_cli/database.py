"""The database that a command works on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.parsing import refuse_empty

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

Dsn = Annotated[
    str | None,
    typer.Option(
        callback=refuse_empty, help="Connection string; else PGFLOW_DSN, else DATABASE_URL, else the embedded server.", show_default=False
    ),
]

CONNECT_SECONDS = 10


def find_dsn(dsn: str | None, *, migrate: bool = True) -> str:
    """The database that a command works on; starts the embedded server where none is named.

    Args:
        dsn: What the command was given.
        migrate: Whether the embedded server's database gets the schema, if it lacks it.
    """
    from pgflow.dsn import resolve_dsn

    found = resolve_dsn(dsn)
    if found is not None:
        return found
    from pgflow.embedded import acquire

    server = acquire()
    if migrate:
        from pgflow.schema import migrate_dsn

        migrate_dsn(server.dsn)
    return server.dsn


def connect(dsn: str) -> psycopg.Connection[Any]:
    """A connection in autocommit mode; it may be to a standby, or through a pooler. Texts and times come as they are read here."""
    import psycopg

    connection = psycopg.connect(
        dsn, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name="pgflow cli", client_encoding="utf8", prepare_threshold=None
    )
    if not (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO"):
        connection.execute("set datestyle = iso")
    return connection


def name_of(connection: psycopg.Connection[Any]) -> str:
    """Where a connection leads, without anything secret: ``app@db:5432/orders``."""
    info = connection.info
    return f"{info.user}@{info.host}:{info.port}/{info.dbname}"


@contextmanager
def opened(dsn: str | None) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database that has our schema.

    Raises:
        SetupError: The schema is missing, foreign, or of another version.
        psycopg.Error: The database cannot be reached.
    """
    from pgflow.schema import require_schema

    with connect(find_dsn(dsn)) as connection:
        require_schema(connection)
        yield connection


def fetch_dicts(connection: psycopg.Connection[Any], query: str, params: Any = None) -> list[dict[str, Any]]:
    """Rows of a query as dictionaries."""
    from psycopg.rows import dict_row

    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), params).fetchall()
