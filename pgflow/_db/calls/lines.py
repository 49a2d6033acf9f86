"""``sql/runs/lines.sql``: queues whose runs take turns."""

from __future__ import annotations

from collections.abc import Sequence

from pgflow._db.query import Query


def next_turn(queues: Sequence[str]) -> Query[float | None]:
    """In how many seconds a rate lets a run of these queues begin; None if none has a rate."""
    return Query(
        "select pgflow.next_turn(%s::text[])",
        (list(queues),),
        lambda rows: None if rows[0][0] is None else float(rows[0][0]),
    )
