"""``sql/runs/batches.sql``: runs that begin once many others have ended."""

from __future__ import annotations

from pgflow._db.query import Query, Row
from pgflow._model.batches import BatchCount


def fill_batch(batch: str, workflow: str, run_ids: list[int], *, is_whole: bool) -> Query[None]:
    """Add these members to the batch that the run of a key waits for."""
    return Query(
        "select pgflow.fill_batch(%s::text, %s::text, %s::bigint[], %s::boolean)",
        (batch, workflow, run_ids, is_whole),
        _nothing,
    )


def on_batch_failure(batch: str, workflow: str, given: str, queue: str) -> Query[None]:
    """Start a run at the first failure in a batch."""
    return Query(
        "select pgflow.on_batch_failure(%s::text, %s::text, %s::json, %s::text)",
        (batch, workflow, given, queue),
        _nothing,
    )


def count_batch(batch: str) -> Query[BatchCount]:
    """Count the members of a batch by status."""
    return Query(
        "select runs, completed, failed, cancelled, is_whole from pgflow.count_batch(%s::text)",
        (batch,),
        lambda rows: BatchCount(*rows[0]),
    )


def _nothing(_: list[Row]) -> None:
    return None
