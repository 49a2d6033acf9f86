"""``pgflow prune``: removing the history of runs that ended long ago."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, database_now, fetch, opened
from pgflow_cli.look.options import DryRun, Yes, confirm_removal
from pgflow_cli.look.output import AsJson, choose_form, many, note, plain, print_one, when
from pgflow_cli.look.parsing import parse_duration

if TYPE_CHECKING:
    from datetime import datetime

    import psycopg

OlderThan = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="How long ago they must have ended, like 90d.", show_default=False
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="So many runs in one transaction.")]
MoveAtMost = Annotated[
    int,
    typer.Option(min=1, help="Shrink partitions of the journal that so many rows keep, or fewer."),
]


def prune(
    *,
    older_than: OlderThan,
    yes: Yes = False,
    dry_run: DryRun = False,
    batch: Batch = 1000,
    move_at_most: MoveAtMost = 10_000,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Removes runs that ended long ago.

    A run goes with all its data, and together with the runs that it started and continued as, once
    all of these have ended. pgflow.dropped_history records what was removed. A partition of the
    journal that only a few rows keep is shrunk to them, after the next vacuum.
    """
    age = parse_duration(older_than, "--older-than")
    with opened(dsn) as connection:
        from pgflow._db.calls.sparse import shrink_journal
        from pgflow._db.query import run
        from pgflow.inspect import count_ended

        ended_before = database_now(connection) - age
        if dry_run or not yes:
            runs = fetch(connection, count_ended(ended_before))
            if dry_run:
                _tell(
                    {
                        "runs": runs,
                        "partitions": 0,
                        "shrunk": 0,
                        "ended_before": ended_before,
                        "removed": False,
                    },
                    as_json=as_json,
                )
                return
            _ask(runs, ended_before)
        gone = _drop_all(connection, ended_before, batch)
        shrunk = run(connection, shrink_journal(move_at_most))
        told = {**gone, "shrunk": len(shrunk), "ended_before": ended_before, "removed": True}
        _tell(told, as_json=as_json)


def _ask(runs: int, ended_before: datetime) -> None:
    """Asks, unless there is nothing to ask about."""
    if runs == 0:
        return
    what = many(runs, "run")
    confirm_removal(what, f"Remove {what} that ended before {when(ended_before)}?")


def _drop_all(
    connection: psycopg.Connection[Any], ended_before: datetime, batch: int
) -> dict[str, int]:
    from pgflow._db.calls.retention import drop_history
    from pgflow._db.query import run

    gone = {"runs": 0, "partitions": 0}
    last_root: int | None = 0
    while last_root is not None:
        dropped = run(connection, drop_history(ended_before, batch, last_root))
        last_root = dropped.last_root
        gone = {
            "runs": gone["runs"] + dropped.runs,
            "partitions": gone["partitions"] + dropped.partitions,
        }
        if last_root is not None and sys.stderr.isatty():
            note(f"{many(gone['runs'], 'run')} removed so far")
    return gone


def _tell(told: dict[str, Any], *, as_json: bool | None) -> None:
    runs = many(told["runs"], "run")
    text = (
        f"{runs} removed"
        if told["removed"]
        else f"{runs} ended before {when(told['ended_before'])}; nothing was removed"
    )
    if told["partitions"]:
        text += f", and {many(told['partitions'], 'partition')} of the journal dropped"
    if told["shrunk"]:
        text += f", and {many(told['shrunk'], 'partition')} of the journal shrunk"
    print_one(choose_form(as_json=as_json), told, lambda: plain(text))
