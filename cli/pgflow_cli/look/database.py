"""The database that a command works on."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pgflow import inspect
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.parsing import refuse_empty

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    import psycopg

    from pgflow.app import ConnectionClient

T = TypeVar("T")

Dsn = Annotated[
    str | None,
    opt(
        "Connection string; else PGFLOW_DSN, else DATABASE_URL, else the embedded server.",
        callback=refuse_empty,
    ),
]


def find_dsn(dsn: str | None, *, migrate: bool = True) -> str:
    """Return the database that a command works on, for the tenant that PGFLOW_TENANT names; starts
    the embedded server where none is named.

    Args:
        dsn: Connection string that the command was given.
        migrate: True to install the schema in the embedded server's database, if it lacks it.
    """
    from pgflow.inspect.connecting import dsn_of_tenant, resolve_dsn  # a probe needs no reader

    tenant = os.environ.get("PGFLOW_TENANT")
    found = resolve_dsn(dsn)
    if found is not None and tenant:
        return dsn_of_tenant(found, tenant)
    if found is not None:
        return found
    from pgflow.embedded import acquire_unnamed

    server = acquire_unnamed()
    if migrate:
        from pgflow.schema import migrate_dsn

        migrate_dsn(server.dsn)
    return find_dsn(server.dsn)


def connect(dsn: str) -> psycopg.Connection[Any]:
    """Return a connection of a command."""
    from pgflow.inspect.connecting import connect as connect_patiently

    return connect_patiently(dsn, name="pgflow cli")


def connect_to_any(dsn: str) -> psycopg.Connection[Any]:
    """Return the same; if no server takes writes, a connection to one that does not, to find out
    why.
    """
    import psycopg
    from psycopg.conninfo import make_conninfo

    try:
        return connect(dsn)
    except psycopg.OperationalError as error:
        if not is_refused_as_standby(error):
            raise
    return connect(make_conninfo(dsn, target_session_attrs="any"))


def is_refused_as_standby(error: BaseException) -> bool:
    """Return True if a server was reached, and passed over because it takes no writes: libpq says
    so itself, in these words.
    """
    return "session is read-only" in str(error) or "server is in hot standby mode" in str(error)


def name_of(connection: psycopg.Connection[Any]) -> str:
    """Return the target of a connection, without anything secret: ``app@db:5432/orders``."""
    info = connection.info
    return f"{info.user}@{info.host}:{info.port}/{info.dbname}"


class Database:
    """The database of a command. It is connected to when the command first asks it something, so a
    mistake in the command line is found before.

    Attributes:
        given: Connection string that the command was given; None for that of the environment.
    """

    def __init__(self, dsn: str | None) -> None:
        self.given = dsn
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        """Return it; nothing is connected yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool | None:
        """Close the connection, if there is one."""
        return self._opened.__exit__(kind, error, at)

    @property
    def dsn(self) -> str:
        """Its connection string."""
        return find_dsn(self.given)

    def dsn_of(self, node: inspect.NodeRow) -> str:
        """Return the connection string of a node of its cluster."""
        from pgflow.inspect.nodes import dsn_of_node

        return dsn_of_node(self.dsn, node)

    @cached_property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection, to a database that has our schema.

        Raises:
            SetupError: The schema is missing, foreign, or of another version.
            psycopg.Error: The database cannot be reached.
        """
        from pgflow.schema import naming_refusals, require_schema

        connection = self._opened.enter_context(connect(self.dsn))
        require_schema(connection)
        self._opened.enter_context(naming_refusals(connection))
        return connection

    @cached_property
    def client(self) -> ConnectionClient:
        """A client on the connection."""
        from pgflow.app import ConnectionClient

        return ConnectionClient(self.connection)

    def ask(self, question: inspect.Question[T]) -> T:
        """Return the answer to a reader's question. Commands hold no statements of their own."""
        return fetch(self.connection, question)

    def now(self) -> datetime:
        """Return the time by the database's clock, from which ages are computed."""
        return self.ask(inspect.database_now())


def fetch(connection: psycopg.Connection[Any], question: inspect.Question[T]) -> T:
    """Return the answer of the database to a reader's question. Commands hold no statements of
    their own.
    """
    return inspect.ask(connection, question)


def fetch_dicts(
    connection: psycopg.Connection[Any], query: str, params: Any = None
) -> list[dict[str, Any]]:
    """Rows of a query to the server itself as dictionaries."""
    from psycopg.rows import dict_row

    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), params).fetchall()
