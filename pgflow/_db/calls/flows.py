"""``sql/flows``: workflows in SQL, which the database works on itself."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, LiteralString

from pgflow._db.query import Query

WORK: LiteralString = (
    "call pgflow.work_until(%s::jsonb, seconds => 5, until_idle => true, queues => %s::text[])"
)
"""Works on what is ready, up to a step with a timeout. It commits, so it is no :class:`Query`."""


def limit_statements(seconds: float) -> Query[None]:
    """Have the server cancel statements of this session that take longer; 0 = never."""
    sql = "select set_config('statement_timeout', %s::text, false)"
    return Query(sql, (str(math.ceil(seconds * 1000)),), lambda _: None)


def run_timed(step: dict[str, Any]) -> Query[dict[str, Any]]:
    """Run the step before which `WORK` has ended, and return what it goes on with."""
    sql = "select pgflow.run_timed(%s::jsonb)"
    return Query(sql, (json.dumps(step),), lambda rows: dict(rows[0][0]))


def has_ready_flows(queues: Sequence[str]) -> Query[bool]:
    """Say whether a run of a workflow in SQL may be claimed."""
    sql = "select pgflow.has_ready_flows(%s::text[])"
    return Query(sql, (list(queues),), lambda rows: bool(rows[0][0]))


def reap_sessions() -> Query[int]:
    """Give away what calls held that are broken off, also those of this session."""
    sql = "select pgflow.reap_sessions(true)"
    return Query(sql, (), lambda rows: int(rows[0][0]))
