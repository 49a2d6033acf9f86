"""The answer of a check, and what a check is given."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from pgflow import inspect
from pgflow.inspect.connecting import connect_to_any

if TYPE_CHECKING:
    import psycopg


T = TypeVar("T")
Level = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """One result of a check.

    Attributes:
        level: ``ok``; ``warn``: it works, and will hurt; ``fail``: it does not work.
        found: The state it found.
        do: The remedy; empty where all is well.
    """

    level: Level
    found: str
    do: str = ""


Findings = Generator[Finding, None, Any]
"""Findings of a check, which returns the words for a database that has no such trouble."""


Check = Callable[["Patient"], Findings]

ok = partial(Finding, "ok")
warn = partial(Finding, "warn")
fail = partial(Finding, "fail")


@dataclass(frozen=True)
class Patient:
    """The database that is examined.

    Attributes:
        dsn: Its connection string.
        connection: A connection to it, in autocommit mode.
    """

    dsn: str
    connection: psycopg.Connection[Any]

    def ask(self, question: inspect.Question[T]) -> T:
        """Return the answer of the database to a reader's question."""
        with self._own_names():
            return inspect.ask(self.connection, question)

    def rows(self, query: str, params: Any = None) -> list[dict[str, Any]]:
        """Rows of a query to the server itself, of its settings, its catalogs and its activity."""
        from psycopg.rows import dict_row

        with self._own_names(), self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode(), params).fetchall()

    def row(self, query: str, params: Any = None) -> dict[str, Any]:
        """Return the only row of such a query."""
        return self.rows(query, params)[0]

    @contextmanager
    def _own_names(self) -> Iterator[None]:
        """A transaction in which no function of another schema passes for the server's."""
        with self.connection.transaction():
            self.connection.execute("set local search_path = pg_catalog, pg_temp")
            yield

    def second_connection(self) -> psycopg.Connection[Any]:
        """Another connection to the same database."""
        return connect_to_any(self.dsn, name="pgflow cli")


def findings_of(check: Check, patient: Patient) -> list[Finding]:
    """Return the findings of a check, or its words for a database that has no such trouble."""
    findings: list[Finding] = []

    def collect() -> Iterator[Finding]:
        if words := (yield from check(patient)):
            findings.append(ok(words))

    return list(collect()) or findings


def each(
    question: Callable[[], inspect.Question[Sequence[T]]],
    words: str,
    trouble: Callable[[T], tuple[str, str] | None],
    level: Level = "warn",
) -> Check:
    """Return a check with a finding for each row of an answer.

    Args:
        question: Maker of the question.
        words: Words for an answer without trouble; ``{}`` in them is the number of rows.
        trouble: Function that returns the state of a row and the remedy; None for no trouble.
        level: Level of the findings.
    """

    def check(patient: Patient) -> Findings:
        rows = patient.ask(question())
        for row in rows:
            if told := trouble(row):
                yield Finding(level, *told)
        return words.format(len(rows))

    return check
