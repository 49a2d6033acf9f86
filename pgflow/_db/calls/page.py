"""``sql/ops/page.sql``: pages about work that only a person can do."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from pgflow._db.query import Query, Row


class ClaimedPage(NamedTuple):
    """A page to send now."""

    page_id: str
    run_id: int
    call: int
    kind: str
    opened_at: datetime
    key: str
    workflow: str
    generation: int
    tenant: str
    name: str
    why: str | None
    effect: str | None
    tries: int
    leased_until: datetime
    reason: str | None
    detail: dict[str, Any] | None


def _nothing(_rows: list[Row]) -> None:
    return None


def claim_pages(count: int, lease_seconds: float) -> Query[list[ClaimedPage]]:
    """Claim up to `count` pages that are due, exclusively for the lease."""
    sql = """
      select page_id, run_id, call, kind, opened_at, key, workflow, generation, tenant, name, why,
        effect, tries, leased_until, reason, detail
      from pgflow.claim_pages(%s::int, %s::float8)
    """
    return Query(sql, (count, lease_seconds), lambda rows: [ClaimedPage(*row) for row in rows])


def page_sent(page: ClaimedPage, again_seconds: float | None) -> Query[None]:
    """Record a sent page, if the claim still holds."""
    sql = "select pgflow.page_sent(%s::bigint, %s::int, %s::text, %s::timestamptz, %s::float8)"
    return Query(
        sql, (page.run_id, page.call, page.kind, page.leased_until, again_seconds), _nothing
    )


def page_failed(page: ClaimedPage, error: str) -> Query[None]:
    """Record a failed page, if the claim still holds."""
    sql = "select pgflow.page_failed(%s::bigint, %s::int, %s::text, %s::timestamptz, %s::text)"
    return Query(sql, (page.run_id, page.call, page.kind, page.leased_until, error), _nothing)
