"""The database that a command works on, and the form of the answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pgflow import inspect
from pgflow.console.output import Column, Form, print_one, print_rows, table
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.parsing import refuse_empty

if TYPE_CHECKING:
    import psycopg
    from rich.console import RenderableType

    from pgflow.app import ConnectionClient

T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 0.5
"""Longest time between two looks at something that a command waits for."""

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


def look_until(look: Callable[[], T], is_over: Callable[[T], bool], seconds: float | None) -> T:
    """Look again and again, ever more seldom, until something is over or the time is; return what
    was seen last.

    Args:
        look: Function that looks.
        is_over: Function that judges what was seen.
        seconds: Longest time; None for any.
    """
    until = None if seconds is None else time.monotonic() + seconds
    pause = 0.01
    while True:
        seen = look()
        if is_over(seen) or (until is not None and time.monotonic() >= until):
            return seen
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_SECONDS, pause * 1.5)


class Database(ExitStack):
    """The database of a command. It is connected to when the command first asks it something, so a
    mistake in the command line is found before.

    Attributes:
        given: Connection string that the command was given; None for that of the environment.
        form: Form of the answer.
    """

    def __init__(self, dsn: str | None, form: Form = Form.TABLE) -> None:
        super().__init__()
        self.given = dsn
        self.form = form

    @property
    def dsn(self) -> str:
        """Its connection string."""
        return find_dsn(self.given)

    @cached_property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection, to a database that has our schema.

        Raises:
            SetupError: The schema is missing, foreign, or of another version.
            psycopg.Error: The database cannot be reached.
        """
        from pgflow.schema import naming_refusals, require_schema

        connection = self.enter_context(connect(self.dsn))
        require_schema(connection)
        self.enter_context(naming_refusals(connection))
        return connection

    @cached_property
    def client(self) -> ConnectionClient:
        """A client on the connection."""
        from pgflow.app import ConnectionClient

        return ConnectionClient(self.connection)

    def ask(self, question: inspect.Question[T]) -> T:
        """Return the answer to a reader's question. Commands hold no statements of their own."""
        return inspect.ask(self.connection, question)

    def pages(
        self, question: Callable[[Any], inspect.Question[inspect.Listing[T]]], after: Any = None
    ) -> Iterator[list[T]]:
        """Yield the pages of a list, to its end.

        Args:
            question: Maker of the question about the page after a place.
            after: Place after which the first page begins; None for the beginning.
        """
        while True:
            page = self.ask(question(after))
            yield page.items
            if (after := page.next) is None:
                return

    @cached_property
    def now(self) -> datetime:
        """The time by the database's clock when first asked for, from which ages are computed."""
        return self.ask(inspect.database_now())

    def answer(self, row: Mapping[str, Any], text: str | Callable[[], RenderableType]) -> None:
        """Print one thing: `row` for machines, or `text` for people."""
        print_one(self.form, row, text)

    def print(
        self,
        rows: Sequence[Any],
        columns: str | Sequence[Column],
        empty: str,
        names: Sequence[str] | type = (),
        **shows: Callable[[Any], Any],
    ) -> None:
        """Print rows; see `print_rows` and, for columns with ages, `table`."""
        if isinstance(columns, str):
            is_shown = self.form is Form.TABLE and rows
            columns = table(columns, self.now, **shows) if is_shown else ()
        print_rows(self.form, columns, rows, names=names, empty=empty)
