"""Join an open transaction of the application: the connections that ``app.using(connection)``
accepts.

The caller's connection is never committed and its session never changed. psycopg is built in;
objects of SQLAlchemy and Django are recognised by their module and handed to the integration, which
is imported only then. An integration uses this module, :mod:`pgflow._transactions.psycopg` and the
public surface.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from pgflow._db.connect import ConnectOptions, connect
from pgflow._db.query import AsyncExecutor, Executor, OnAsyncConnection, OnConnection, Row
from pgflow.errors import InvalidArgument

__all__ = ["Adapted", "Row", "adapt", "connect_within", "numbered", "refuse_without_transaction"]

INTEGRATIONS = {"sqlalchemy": "pgflow.sqlalchemy", "django": "pgflow.django"}
"""Module of a foreign library -> the module of ours that adapts its connections."""


@dataclass(frozen=True)
class Adapted:
    """A foreign connection as the engine uses it.

    Attributes:
        executor: Runs statements in the caller's transaction.
        is_async: True if it is for ``async def``.
        after_commit: Registers what to do once the caller has committed;
            None where the library has no such hook.
    """

    executor: Executor | AsyncExecutor
    is_async: bool
    after_commit: Callable[[Callable[[], None]], None] | None = None


def numbered(sql: str) -> tuple[str, list[str]]:
    """A statement with named placeholders (``:p0``) instead of ``%s``, and their names: for
    libraries that want names.
    """
    names: list[str] = []

    def name(_: re.Match[str]) -> str:
        names.append(f"p{len(names)}")
        return f"CAST(:{names[-1]} AS "

    # Every placeholder of ours is written %s::type, and "::" would clash with ":name".
    text = re.sub(r'%s::("?[a-z0-9 ]+"?(?:\[\])?)', lambda m: name(m) + m.group(1) + ")", sql)
    return text, names


def connect_within(dsn: str, application_name: str, seconds: int) -> psycopg.Connection[Any]:
    """A connection in autocommit mode to a server that takes writes; it is lost if that is silent
    for so long, and to others too.
    """
    return connect(ConnectOptions(dsn, None, seconds), application_name, seconds)


def refuse_without_transaction(connection: object) -> InvalidArgument:
    """The error for a connection on which nothing could be rolled back."""
    return InvalidArgument(
        f"{type(connection).__module__}.{type(connection).__qualname__} has no open transaction, "
        "so the start could not be part of one: open one first, or use the app itself"
    )


def adapt(connection: Any) -> Adapted:
    """A foreign connection as the engine uses it.

    Raises:
        InvalidArgument: It is of no library we know, or has no open transaction.
    """
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            raise refuse_without_transaction(connection)
        if isinstance(connection, psycopg.Connection):
            return Adapted(OnConnection(connection), is_async=False)
        return Adapted(OnAsyncConnection(connection), is_async=True)
    for cls in type(connection).__mro__:
        integration = INTEGRATIONS.get(cls.__module__.partition(".")[0])
        if integration is not None:
            adapted: Adapted = importlib.import_module(integration).adapt(connection)  # noqa: TID251 - one of our integrations, from a table in the code
            return adapted
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidArgument(
        f"app.using() knows connections of psycopg, SQLAlchemy and Django, not {kind}"
    )
