"""``pgflow batches``: many runs, and the one that begins once all of them have ended."""

from __future__ import annotations

from pgflow import inspect
from pgflow_cli.look.options import Rows
from pgflow_cli.look.output import Limit, as_object, many

_NAMES = (
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
    db.print(rows, columns, "There are no batches.", _NAMES, STATE=_state)


def _state(batch: inspect.BatchRow) -> str:
    if batch.begun_at is not None:
        return "over"
    return "open" if batch.is_whole else "more to come"
