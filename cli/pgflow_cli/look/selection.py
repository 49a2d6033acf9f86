"""Selection of runs: filters as options, and the run that a key names."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

from pgflow import inspect
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.parsing import parse_moment, parse_pairs

if TYPE_CHECKING:
    from pgflow_cli.look.database import Database

T = TypeVar("T")

OPEN = ("queued", "running", "waiting", "paused", "stuck")
ENDED = ("completed", "failed", "cancelled")
STATUSES = (*OPEN, *ENDED)


def complete_status(incomplete: str) -> list[str]:
    """Statuses that begin so, for the shell."""
    return [status for status in STATUSES if status.startswith(incomplete)]


Names = list[str] | None
WorkflowNames = Annotated[
    Names, opt("Only runs of this workflow; may be given again.", "--workflow", "-w")
]


@dataclass(frozen=True)
class Filters:
    """Filters that were asked for; nothing set means every run.

    Args:
        status: Only runs of this status; may be given again.
        queue: Only runs of this queue; may be given again.
        label: Only runs with this label; may be given again.
        key: Only runs whose key is this; * matches anything.
        since: Only runs created since: 2h, 7d, or a time.
        until: Only runs created until: 2h (ago), or a time.
        error: Only failed and stuck runs whose error has this text.
    """

    status: Annotated[Names, opt("--status", "-s", autocompletion=complete_status)] = None
    workflow: WorkflowNames = None
    queue: Annotated[Names, opt("--queue", "-q")] = None
    label: Annotated[Names, opt("--label", "-l", metavar="NAME=VALUE")] = None
    key: Annotated[str | None, opt("--key", "-k")] = None
    since: str | None = None
    until: str | None = None
    error: str | None = None
    keys: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return True if anything was asked for."""
        return any(vars(self).values())

    def chosen(self, *, tenant: str | None = None) -> inspect.RunFilter:
        """Return the filter as the readers take it.

        Args:
            tenant: Only runs of this tenant.

        Raises:
            Mistake: A status, label or time is invalid.
        """
        return inspect.RunFilter(
            status=_known_statuses(self.status or []),
            workflow=self.workflow or (),
            queue=self.queue or (),
            labels=parse_pairs(self.label, "--label"),
            key=self.key,
            keys=self.patterns,
            since=None if self.since is None else parse_moment(self.since, "--since"),
            until=None if self.until is None else parse_moment(self.until, "--until"),
            tenant=tenant,
            error=self.error,
        )


def split_words(given: list[str] | None) -> list[str]:
    """Return the words of an option that takes several, with commas or repeated."""
    return [word for text in given or () for word in text.split(",")]


def _known_statuses(statuses: list[str]) -> list[str]:
    words = split_words(statuses)
    for word in words:
        if word not in STATUSES:
            close = difflib.get_close_matches(word, STATUSES, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise Mistake(f"unknown status {word!r}.{hint} Pass one of {', '.join(STATUSES)}")
    return words


def find(database: Database, key: str, question: inspect.Question[T]) -> T:
    """Return the answer to a question about the run with a key.

    Raises:
        Mistake: No run has the key; the message names similar keys.
    """
    from pgflow.errors import RunNotFound

    try:
        return database.ask(question)
    except RunNotFound:
        if of := database.ask(inspect.list_runs(inspect.RunFilter(key=key), limit=1)).items:
            raise Mistake(
                f"run {key!r} is of tenant {of[0].tenant!r}: pass --tenant {of[0].tenant} before "
                "the command"
            ) from None
        keys = database.ask(inspect.find_keys(key[: max(1, len(key) // 2)], 500))
        close = difflib.get_close_matches(key, keys, 3)
        hint = f"there {'is' if len(close) == 1 else 'are'} {', '.join(close)}"
        hint = hint if close else "`pgflow list` shows those there are"
        raise Mistake(f"no run has the key {key!r}: {hint}") from None


def exists(database: Database, key: str) -> bool:
    """Return True if a run has the key."""
    from pgflow.errors import RunNotFound

    try:
        database.ask(inspect.find_run(key))
    except RunNotFound:
        return False
    return True


def find_run(database: Database, key: str) -> inspect.RunRow:
    """Return the run with a key; see `find`."""
    return find(database, key, inspect.find_run(key))


def find_detail(database: Database, key: str) -> inspect.RunDetail:
    """Return the run with a key, with its values; see `find`."""
    return find(database, key, inspect.find_detail(key))


def see(key: str) -> str:
    """Return the end of a line on a run, with the command that shows it."""
    return f"See it with: pgflow show {shlex.quote(key)}"


def complete_key(incomplete: str) -> list[str]:
    """Keys that begin so, for the shell; nothing where no database is named or it does not answer
    at once.
    """
    import os

    dsn = os.environ.get("PGFLOW_DSN") or os.environ.get("DATABASE_URL")
    if not dsn:
        return []
    import psycopg

    from pgflow.errors import InvalidArgument

    try:
        with inspect.connect(dsn, connect_timeout_seconds=2, patience_seconds=2.0) as connection:
            return inspect.ask(connection, inspect.find_keys(incomplete))
    except (psycopg.Error, InvalidArgument, UnicodeEncodeError):
        return []  # the latter two: the typed part is not text


Key = Annotated[str, arg("Key of the run.", metavar="KEY", autocompletion=complete_key)]
