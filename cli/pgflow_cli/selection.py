"""Selection of runs: filters as options, and the condition they make.

A condition is fixed text with placeholders; what was typed only ever travels as a parameter.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.database import fetch_dicts
from pgflow_cli.failures import Mistake
from pgflow_cli.output import dump
from pgflow_cli.parsing import parse_moment, parse_pairs

if TYPE_CHECKING:
    import psycopg

OPEN = ("queued", "running", "waiting", "paused", "stuck")
ENDED = ("completed", "failed", "cancelled")
STATUSES = (*OPEN, *ENDED)


def complete_status(incomplete: str) -> list[str]:
    """Statuses that begin so, for the shell."""
    return [status for status in STATUSES if status.startswith(incomplete)]


Statuses = Annotated[
    list[str] | None, typer.Option("--status", "-s", help="Only runs of this status; may be given again.", autocompletion=complete_status)
]
WorkflowNames = Annotated[list[str] | None, typer.Option("--workflow", "-w", help="Only runs of this workflow; may be given again.")]
Queues = Annotated[list[str] | None, typer.Option("--queue", "-q", help="Only runs of this queue; may be given again.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only runs with this label; may be given again.")
]
KeyPatterns = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY]...", help="Only runs with these keys; * stands for anything.", show_default=False)
]
KeyPattern = Annotated[str | None, typer.Option("--key", "-k", help="Only runs whose key is this; * stands for anything.")]
Since = Annotated[str | None, typer.Option(help="Only runs created since: 2h, 7d, or a time.")]
Until = Annotated[str | None, typer.Option(help="Only runs created until: 2h (ago), or a time.")]


@dataclass(frozen=True)
class Filters:
    """Filters that were asked for; nothing set means every run."""

    status: list[str] | None = None
    workflow: list[str] | None = None
    queue: list[str] | None = None
    label: list[str] | None = None
    key: str | None = None
    since: str | None = None
    until: str | None = None
    keys: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return True if anything was asked for."""
        return any(vars(self).values())

    def condition(self) -> tuple[str, list[Any]]:
        """A condition on ``pgflow.runs``, and its parameters.

        Raises:
            Mistake: Something that was typed means nothing.
        """
        parts: list[tuple[str, Any]] = []
        if self.status:
            parts.append(("status = any(%s)", _known_statuses(self.status)))
        if self.workflow:
            parts.append(("workflow = any(%s)", self.workflow))
        if self.queue:
            parts.append(("queue = any(%s)", self.queue))
        if self.label:
            parts.append(("labels @> %s::jsonb", dump(parse_pairs(self.label, "--label"))))
        if self.key is not None:
            parts.append(("key like %s", _like(self.key)) if "*" in self.key else ("key = %s", self.key))
        if self.patterns:
            parts.append(_any_key(self.patterns))
        if self.since is not None:
            parts.append(_created(">=", self.since, "--since"))
        if self.until is not None:
            parts.append(_created("<", self.until, "--until"))
        return " and ".join(text for text, _ in parts) or "true", [param for _, param in parts]


def _known_statuses(statuses: list[str]) -> list[str]:
    words = [word for status in statuses for word in status.split(",")]
    for word in words:
        if word not in STATUSES:
            close = difflib.get_close_matches(word, STATUSES, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise Mistake(f"there is no status {word!r}.{hint} There are {', '.join(STATUSES)}")
    return words


def _any_key(patterns: list[str]) -> tuple[str, list[str]]:
    """An exact key is looked up by its index."""
    if any("*" in pattern for pattern in patterns):
        return "key like any(%s)", [_like(pattern) for pattern in patterns]
    return "key = any(%s)", patterns


def _like(pattern: str) -> str:
    escaped = pattern.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return escaped.replace("*", "%")


def _created(comparison: str, text: str, what: str) -> tuple[str, Any]:
    moment = parse_moment(text, what)
    return (f"created_at {comparison} clock_timestamp() - %s" if isinstance(moment, timedelta) else f"created_at {comparison} %s"), moment


def find_run(connection: psycopg.Connection[Any], key: str, columns: str = "*") -> dict[str, Any]:
    """The run that a key names, found by the index on keys: a history may be long.

    Raises:
        Mistake: There is none; says which keys are like it.
    """
    import psycopg

    from pgflow._db.calls.result import find_chain
    from pgflow._db.query import run
    from pgflow.errors import RunNotFound

    looks: tuple[tuple[str, Any], ...]
    try:
        chain = run(connection, find_chain(key))
        looks = (("run_id = %s", chain), ("chain_id = %s and generation > 1", chain))
    except RunNotFound:
        looks = ()
    except psycopg.errors.InsufficientPrivilege:  # an auditor reads views only
        looks = (("key = %s and tenant = ''", key),)
    for condition, param in looks:
        rows = fetch_dicts(connection, f"select {columns} from pgflow.runs where {condition}", (param,))  # noqa: S608 - our own words
        if rows:
            return rows[0]
    raise Mistake(f"no run has the key {key!r}{_similar_keys(connection, key)}")


_RECENT_KEYS = """
select key from (select key, run_id from pgflow.runs order by run_id desc limit 20000) recent
where key like %s order by run_id desc limit %s
"""


def _similar_keys(connection: psycopg.Connection[Any], key: str) -> str:
    keys = [row["key"] for row in fetch_dicts(connection, _RECENT_KEYS, (_like(key[: max(1, len(key) // 2)]) + "%", 500))]
    close = difflib.get_close_matches(key, keys, 3)
    return f": there {'is' if len(close) == 1 else 'are'} {', '.join(close)}" if close else ": `pgflow list` shows those there are"


def complete_key(incomplete: str) -> list[str]:
    """Keys that begin so, for the shell; nothing where no database is named or it does not answer at once."""
    import os

    dsn = os.environ.get("PGFLOW_DSN") or os.environ.get("DATABASE_URL")
    if not dsn:
        return []
    import psycopg

    from pgflow._db.connect import ConnectOptions, connect

    try:
        with connect(ConnectOptions(dsn, connect_timeout_seconds=2), "pgflow cli", 2.0) as connection:
            return [row["key"] for row in fetch_dicts(connection, _RECENT_KEYS, (_like(incomplete) + "%", 30))]
    except (psycopg.Error, UnicodeEncodeError):  # the latter: what is typed so far is no text
        return []


Key = Annotated[str, typer.Argument(metavar="KEY", help="Key of the run.", autocompletion=complete_key, show_default=False)]
