"""``pgflow prune``: removing the history of runs that ended long ago."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

from pgflow import inspect
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.options import Answer, DryRun, Yes, confirm
from pgflow_cli.look.output import many, note, when
from pgflow_cli.look.parsing import parse_duration


def prune(
    *,
    older_than: Annotated[str, opt(metavar="DURATION")],
    yes: Yes = False,
    dry_run: DryRun = False,
    batch: Annotated[int, opt(min=1, max=100_000)] = 1000,
    move_at_most: Annotated[int, opt(min=1)] = 10_000,
    db: Answer,
) -> None:
    """Removes runs that ended long ago.

    A run goes with all its data, and together with the runs that it started and continued as, once
    all of these have ended. pgflow.dropped_history records what was removed. A partition of the
    journal that only a few rows keep is shrunk to them, after the next vacuum.

    Args:
        older_than: How long ago they must have ended, like 90d.
        batch: So many runs in one transaction.
        move_at_most: Shrink partitions of the journal that so many rows keep, or fewer.
    """
    ended_before = db.now - parse_duration(older_than, "--older-than")
    runs = db.ask(inspect.count_ended(ended_before)) if dry_run or not yes else 0
    partitions = shrunk = 0
    if not dry_run:
        if runs:
            confirm(f"Remove {many(runs, 'run')} that ended before {when(ended_before)}?")
        gone = db.client.drop_history(ended_before, batch=batch, progress=_tell_progress)
        runs, partitions = gone.runs, gone.partitions
        shrunk = len(db.client.shrink_journal(move_at_most))
    pruned = {"runs": runs, "partitions": partitions, "shrunk": shrunk}
    text = _in_words(runs, partitions, shrunk, ended_before if dry_run else None)
    db.answer({**pruned, "ended_before": ended_before, "removed": not dry_run}, text)


def _tell_progress(runs: int) -> None:
    if sys.stderr.isatty():
        note(f"{many(runs, 'run')} removed so far")


def _in_words(runs: int, partitions: int, shrunk: int, only_counted_before: datetime | None) -> str:
    if only_counted_before is not None:
        return f"{many(runs, 'run')} ended before {when(only_counted_before)}; nothing was removed"
    text = f"{many(runs, 'run')} removed"
    for number, verb in ((partitions, "dropped"), (shrunk, "shrunk")):
        text += f", and {many(number, 'partition')} of the journal {verb}" if number else ""
    return text
