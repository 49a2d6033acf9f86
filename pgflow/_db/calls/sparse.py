"""``sql/core/sparse.sql``: the room that removed history leaves in the journal."""

from __future__ import annotations

from pgflow._db.query import Query


def shrink_journal(max_units: int) -> Query[list[str]]:
    """Shrink partitions of the journal that keep this many rows or fewer; return their names."""
    sql = (
        "select partition, bytes_before - bytes_after as freed "
        "from pgflow.shrink_journal(max_units => %s::int)"
    )
    return Query(sql, (max_units,), lambda rows: [str(row[0]) for row in rows])
