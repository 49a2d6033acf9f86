"""``sql/core/queues.sql`` and ``sql/runs/purge.sql``: rules of queues, and their backlogs."""

from __future__ import annotations

from typing import Any, NamedTuple

from pgflow._db.query import Query


def set_queue(
    queue: str, rules: str, why: str | None, sent_by: str | None
) -> Query[dict[str, Any]]:
    """Set the rules of a queue that this JSON names; return all its rules."""
    return Query(
        "select pgflow.set_queue(%s::text, %s::jsonb, %s::text, %s::text)",
        (queue, rules, why, sent_by),
        lambda rows: dict(rows[0][0]),
    )


class Purged(NamedTuple):
    """Runs that were counted or cancelled."""

    runs: int
    newest: int | None
    chains: list[int]
    """Chains to wake."""
    lanes: tuple[int, ...] = ()
    """Always empty: no run is made ready."""


def purge_queue(
    queue: str, upto: int | None, why: str | None, sent_by: str | None
) -> Query[Purged]:
    """Cancel some of the runs that have not begun, up to that number; without one, only count."""
    return Query(
        "select runs, newest, chains from pgflow.purge_queue(%s::text, %s::bigint, why => %s::text,"
        " sent_by => %s::text)",
        (queue, upto, why, sent_by),
        lambda rows: Purged(*rows[0]),
    )
