"""``pgflow list``: runs, by what they do and what they are called."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.nodes import ask_all
from pgflow_cli.look.options import Chosen, Db, Rows
from pgflow_cli.look.output import (
    Column,
    Form,
    as_object,
    console,
    dump,
    labelled,
    make_table,
    note,
    plain,
    print_rows,
    table,
    value_of,
)
from pgflow_cli.look.parsing import seconds_option
from pgflow_cli.look.selection import Filters

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

_NAMES = (
    "key", "status", "workflow", "queue", "labels", "priority", "attempt", "worker_id",
    "generation", "created_at", "since", "run_at", "deadline_at", "finished_at", "why",
    "tenant",
)  # fmt: skip
_COUNT_COLUMNS = table("status runs#")


def list_runs(
    filters: Chosen,
    form: Rows,
    database: Db,
    patterns: Annotated[list[str] | None, arg(metavar="[KEY]...")] = None,
    *,
    limit: Annotated[int, opt("--limit", "-n", min=0)] = 50,
    count: bool = False,
    watch: bool = False,
    all_nodes: bool = False,
    every: Annotated[float, seconds_option("--every", shown="2s", least=0.1)] = 2.0,
) -> None:
    """Lists runs, the newest first.

    Args:
        patterns: Only runs with these keys; * matches anything.
        limit: At most so many, the newest; 0 for all.
        count: Only how many there are of each status.
        watch: Look again and again, until Ctrl-C.
        all_nodes: Of all nodes of the cluster.
        every: With --watch: time between looks.
    """
    if all_nodes:
        if watch:
            raise Mistake("--all-nodes asks each node once: leave out --watch")
        _list_all(database, replace(filters, patterns=patterns or []), limit, count, form)
        return
    listing = _Listing(database, replace(filters, patterns=patterns or []), limit, count, form)
    if watch:
        _watch(listing, every)
        return
    rows = listing.read()
    listing.print(rows)
    if listing.has_more:
        _tell_of_more(limit)


def _list_all(database: Database, filters: Filters, limit: int, counts: bool, form: Form) -> None:
    """Print the runs of all nodes, and a line for each node that is silent."""
    names = ("node", "status", "runs") if counts else ("node", *_NAMES)
    rows: list[dict[str, Any]] = []
    has_more = False

    def read(there: Database) -> Sequence[Any]:
        nonlocal has_more
        listing = _Listing(there, filters, limit, counts, form)
        found = listing.read()
        has_more = has_more or listing.has_more
        return found

    for asked in ask_all(database, read):
        if asked.silence is not None:
            note(f"Node {asked.node.node} is silent: {asked.silence}")
            continue
        found: Any = asked.answer
        rows += [{"node": asked.node.node, **as_object(row, names[1:])} for row in found]
    if not counts:
        rows.sort(key=lambda row: row["created_at"], reverse=True)
        has_more = has_more or 0 < limit < len(rows)
        rows = rows[: limit or None]
    columns = _COUNT_COLUMNS if counts else run_columns(rows, database.now())
    columns = [Column("NODE", "node", right=True), *columns]
    print_rows(form, columns, rows, names=names, empty="No node has such runs.")
    if counts:
        total: Counter[str] = Counter()
        for row in rows:
            total[row["status"]] += row["runs"]
        note("In all: " + ", ".join(f"{runs} {status}" for status, runs in total.items()))
    elif has_more:
        _tell_of_more(limit)


def _tell_of_more(limit: int) -> None:
    note(f"The newest {limit}; there are more: --limit 0 shows all.")


@dataclass
class _Listing:
    """Runs, or their number by status, as often as they are asked for."""

    database: Database
    filters: Filters
    limit: int
    counts: bool
    form: Form
    has_more: bool = False

    def read(self) -> Sequence[Any]:
        """Return the newest runs up to the limit, or a count for each status."""
        chosen = self.filters.chosen()
        if self.counts:
            found = self.database.ask(inspect.count_runs(chosen))
            return [{"status": status, "runs": runs} for status, runs in found.items()]
        page = self.database.ask(inspect.list_runs(chosen, limit=self.limit or None))
        self.has_more = page.next is not None
        return page.items

    def columns(self, rows: Sequence[Any], now: datetime | None = None) -> list[Column]:
        """Return the columns of a table of these."""
        return _COUNT_COLUMNS if self.counts else run_columns(rows, now or self.database.now())

    def print(self, rows: Sequence[Any]) -> None:
        """Print them."""
        names = ("status", "runs") if self.counts else _NAMES
        empty = "" if rows else self._nothing()
        print_rows(self.form, self.columns(rows), rows, names=names, empty=empty)

    def text(self, rows: Sequence[Any]) -> str:
        """Return them as JSON on one line."""
        return dump([as_object(row, () if self.counts else _NAMES) for row in rows])

    def _nothing(self) -> str:
        if not self.filters:
            return "There are no runs yet: start one with `pgflow start` or `pgflow run`."
        unknown = self.database.ask(inspect.unknown_queues(self.filters.queue or []))
        return (
            f"No runs match: queue {unknown[0]!r} does not exist." if unknown else "No runs match."
        )


def run_columns(rows: Sequence[Any], now: datetime) -> list[Column]:
    """Columns of a table of runs."""
    columns = table(
        "key/48 status since workflow/24 queue/20@110 TRIES>@130 why*200",
        now=now,
        TRIES=lambda row: value_of(row, "attempt") or "",
    )
    if any(value_of(row, "labels") for row in rows):
        labels = Column(
            "LABELS", lambda row: labelled(value_of(row, "labels")), from_width=110, most=30
        )
        columns.insert(-1, labels)
    if any(value_of(row, "tenant") for row in rows):
        columns.insert(1, Column("TENANT", "tenant", most=20))
    return columns


# ---------------------------------------------------------------- watching


def _watch(listing: _Listing, every: float) -> None:
    try:
        if listing.form is Form.TABLE and sys.stdout.isatty():
            _watch_table(listing, every)
        else:
            _watch_changes(listing, every)
    except KeyboardInterrupt:
        return


def _watch_table(listing: _Listing, every: float) -> None:
    from rich.console import Group
    from rich.live import Live

    out = console()

    def draw() -> RenderableType:
        rows, now = listing.read(), listing.database.now()
        fitting = max(1, out.height - 4)
        more = f"   … and more: the newest {fitting} are shown" if len(rows) > fitting else ""
        return Group(
            plain(f"{now:%H:%M:%S} by the database's clock, every {every:g} s; Ctrl-C ends{more}"),
            make_table(listing.columns(rows, now), rows[:fitting], out.width),
        )

    with Live(draw(), console=out, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every)
            live.update(draw(), refresh=True)


def _watch_changes(listing: _Listing, every: float) -> None:
    """For a pipe or a log: the whole answer whenever it has changed, JSON on one line."""
    last = None
    while True:
        rows = listing.read()
        text = listing.text(rows)
        if text != last and listing.form is Form.TABLE:
            listing.print(rows)
        elif text != last:
            typer.echo(text)
        sys.stdout.flush()
        last = text
        time.sleep(every)
        if not _is_read():
            return


def _is_read() -> bool:
    """Return True if the reader of the pipe is still there. Without this check we would only notice
    at the next write.
    """
    import select

    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return True
    return not poll.poll(0)
