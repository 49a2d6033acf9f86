"""``pgflow list``: runs, by what they do and what they are called; and ``pgflow batches``: many
runs, and the one that begins once all of them have ended.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.output import (
    Column,
    Form,
    as_object,
    console,
    dump,
    labelled,
    make_table,
    many,
    note,
    plain,
    table,
    value_of,
)
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.nodes import ask_all
from pgflow_cli.look.options import Chosen, Limit, Rows
from pgflow_cli.look.parsing import seconds_option
from pgflow_cli.look.selection import Filters

if TYPE_CHECKING:
    from rich.console import RenderableType


_NAMES = (
    "key", "status", "workflow", "queue", "labels", "priority", "attempt", "worker_id",
    "generation", "created_at", "since", "run_at", "deadline_at", "finished_at", "why",
    "tenant",
)  # fmt: skip


def list_runs(
    filters: Chosen,
    db: Rows,
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
    if all_nodes and watch:
        raise Mistake("--all-nodes asks each node once: leave out --watch")
    listing = _Listing(db, replace(filters, patterns=patterns or []), limit, count)
    if all_nodes:
        _list_all(listing)
    elif watch:
        _watch(listing, every)
    else:
        rows, has_more = listing.read(db)
        listing.print(rows)
        _tell_of_more(has_more, limit)


def _list_all(listing: _Listing) -> None:
    """Print the runs of all nodes, and a line for each node that is silent."""
    db, names, rows, has_more = listing.db, listing.names, [], False
    for asked in ask_all(db, listing.read):
        if asked.silence is not None:
            note(f"Node {asked.node.node} is silent: {asked.silence}")
            continue
        found, more = asked.answer
        rows += [{"node": asked.node.node, **as_object(row, names)} for row in found]
        has_more = has_more or more
    if not listing.counts:
        rows.sort(key=lambda row: row["created_at"], reverse=True)
        has_more = has_more or 0 < listing.limit < len(rows)
        rows = rows[: listing.limit or None]
    columns = [Column("NODE", "node", right=True), *listing.columns(rows, db.now)]
    db.print(rows, columns, "No node has such runs.", ("node", *names))
    if listing.counts:
        total: Counter[str] = Counter()
        for row in rows:
            total[row["status"]] += row["runs"]
        note("In all: " + ", ".join(f"{runs} {status}" for status, runs in total.items()))
    _tell_of_more(has_more, listing.limit)


def _tell_of_more(has_more: bool, limit: int) -> None:
    if has_more:
        note(f"The newest {limit}; there are more: --limit 0 shows all.")


@dataclass(frozen=True)
class _Listing:
    """Runs, or their number by status, as often as they are asked for."""

    db: Database
    filters: Filters
    limit: int
    counts: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Values of a row for machines."""
        return ("status", "runs") if self.counts else _NAMES

    def read(self, there: Database) -> tuple[Sequence[Any], bool]:
        """Return the newest runs of a database up to the limit, and True if there are more; or a
        count for each status.
        """
        chosen = self.filters.chosen()
        if self.counts:
            found = there.ask(inspect.count_runs(chosen))
            return [{"status": status, "runs": runs} for status, runs in found.items()], False
        page = there.ask(inspect.list_runs(chosen, limit=self.limit or None))
        return page.items, page.next is not None

    def columns(self, rows: Sequence[Any], now: datetime) -> list[Column]:
        """Return the columns of a table of these."""
        return table("status runs#") if self.counts else run_columns(rows, now)

    def print(self, rows: Sequence[Any]) -> None:
        """Print them."""
        empty = "" if rows else self._nothing()
        now = self.db.ask(inspect.database_now())
        self.db.print(rows, self.columns(rows, now), empty, self.names)

    def _nothing(self) -> str:
        if not self.filters:
            return "There are no runs yet: start one with `pgflow start` or `pgflow run`."
        unknown = self.db.ask(inspect.unknown_queues(self.filters.queue or []))
        return (
            f"No runs match: queue {unknown[0]!r} does not exist." if unknown else "No runs match."
        )


def run_columns(rows: Sequence[Any], now: datetime) -> list[Column]:
    """Columns of a table of runs."""
    columns = table(
        "key!/96 status since workflow/24 queue/20@110 TRIES>@130 why*200",
        now=now,
        TRIES=lambda row: value_of(row, "attempt") or "",
    )
    if any(value_of(row, "labels") for row in rows):
        columns[-1:-1] = table(
            "LABELS/30@110", LABELS=lambda row: labelled(value_of(row, "labels"))
        )
    if any(value_of(row, "tenant") for row in rows):
        columns[1:1] = table("tenant/20")
    return columns


# ---------------------------------------------------------------- watching


def _watch(listing: _Listing, every: float) -> None:
    is_drawn = listing.db.form is Form.TABLE and sys.stdout.isatty()
    with suppress(KeyboardInterrupt):
        (_watch_table if is_drawn else _watch_changes)(listing, every)


def _watch_table(listing: _Listing, every: float) -> None:
    from rich.console import Group
    from rich.live import Live

    out, db = console(), listing.db

    def draw() -> RenderableType:
        rows, now = listing.read(db)[0], db.ask(inspect.database_now())
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
        rows, _ = listing.read(listing.db)
        text = dump([as_object(row, listing.names) for row in rows])
        if text != last and listing.db.form is Form.TABLE:
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


_BATCH = (
    "key", "workflow", "opened_at", "begun_at", "is_whole", "runs", "passed",
    "on_failure", "failed_at", "first_failed", "failure_key", "failure_trouble",
)  # fmt: skip


def batches(db: Rows, key: str | None = None, *, limit: Limit = 50) -> None:
    """Lists batches, or counts the runs of one.

    PASSED are those before the first that is open, in the order in which they were started.

    Args:
        key: Key of a batch, to count its runs by their ends.
    """
    if key is not None:
        found = db.client.count_batch(key)
        text = (
            f"{key} has {many(found.runs, 'run')}: {found.open:,} open, "
            f"{found.completed:,} completed, {found.failed:,} failed, {found.cancelled:,} cancelled"
            f"{'' if found.is_whole else '; more are to come'}."
        )
        db.answer({"key": key, **as_object(found), "open": found.open}, text)
        return
    rows = db.ask(inspect.list_batches(limit=limit or None))
    columns = (
        "BATCH=key*128 workflow AGE=opened_at runs# passed# STATE FIRST_FAILED=first_failed/60"
    )
    db.print(rows, columns, "There are no batches.", _BATCH, STATE=_state)


def _state(batch: inspect.BatchRow) -> str:
    if batch.begun_at is not None:
        return "over"
    return "open" if batch.is_whole else "more to come"
