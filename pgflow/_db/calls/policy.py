"""``sql/ledgers/policy.sql``: the effects that need approval."""

from __future__ import annotations

from pgflow._db.query import Query


def set_policy(rules: str, why: str, set_by: str | None) -> Query[int]:
    """Put a new version of the policy in force; return its number."""
    sql = "select pgflow.set_policy(%s::jsonb, %s::text, %s::text)"
    return Query(sql, (rules, why, set_by), lambda rows: int(rows[0][0]))
