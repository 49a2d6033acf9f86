"""``sql/ledgers/policy.sql``: the effects that need approval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pgflow._db.query import Query


def set_policy(rules: str, why: str, set_by: str | None) -> Query[int]:
    """Put a new version of the policy in force; return its number."""
    sql = "select pgflow.set_policy(%s::jsonb, %s::text, %s::text)"
    return Query(sql, (rules, why, set_by), lambda rows: int(rows[0][0]))


def judge_plan(acts: Sequence[tuple[str, str, Any]]) -> Query[list[dict[str, Any] | None]]:
    """Return the policy's judgement of planned acts (name, risk, request): for each the ``version``
    that wants a gate and its ``terms``, or None.
    """
    return Query(
        "select pgflow.judge_plan(%s::jsonb)", (json.dumps(acts),), lambda rows: list(rows[0][0])
    )
