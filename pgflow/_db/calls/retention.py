"""``sql/ops/retention.sql``: removing history."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pgflow._db.query import Query


class DroppedHistory(NamedTuple):
    """A batch of history that was removed; the place to go on from, None at the end."""

    runs: int
    partitions: int
    last_root: int | None


def drop_history(ended_before: datetime, most: int, after: int) -> Query[DroppedHistory]:
    """Remove runs that ended before a time, up to this number, from a place on."""
    sql = (
        "select runs, partitions, last_root "
        "from pgflow.drop_history(%s::timestamptz, %s::int, %s::bigint)"
    )
    return Query(sql, (ended_before, most, after), lambda rows: DroppedHistory(*rows[0]))
