"""``sql/core/lane.sql``: orders to queues."""

from __future__ import annotations

from pgflow._db.query import Query, Row


def _nothing(_rows: list[Row]) -> None:
    return None


def pause_queue(queue: str, why: str | None, sent_by: str | None) -> Query[None]:
    """Stop claims from a queue."""
    return Query(
        "select pgflow.pause_queue(%s::text, %s::text, %s::text)", (queue, why, sent_by), _nothing
    )


def resume_queue(queue: str, why: str | None, sent_by: str | None) -> Query[None]:
    """Resume claims from a paused queue."""
    return Query(
        "select pgflow.resume_queue(%s::text, %s::text, %s::text)", (queue, why, sent_by), _nothing
    )


def require_known(queue: str, *, required: bool) -> Query[None]:
    """Have a queue refuse starts of unregistered workflows, or accept them again."""
    return Query("select pgflow.require_known(%s::text, %s::boolean)", (queue, required), _nothing)
