"""``sql/ops/loss.sql``: losses of acknowledged work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pgflow._db.query import Query


class Loss(NamedTuple):
    """Loss noticed by a worker: acknowledged work that the new primary lacks.

    Attributes:
        old_timeline: Timeline of the lost server.
        new_timeline: Timeline of the present server.
        acknowledged: Position up to which the log of the lost server was known to be durable.
        kept: Position in that log up to which the present server has it.
        age_seconds: Seconds since the former position was known.
        runs: Key, last acknowledged seq and a mark of an acknowledged end, for each run that lost
            units.
    """

    old_timeline: int
    new_timeline: int
    acknowledged: int
    kept: int
    age_seconds: float
    runs: Sequence[dict[str, Any]]


MAX_RUNS = 1000
"""More are only counted."""


def lost_runs(
    run_ids: Sequence[int], tokens: Sequence[int], seqs: Sequence[int], has_ended: Sequence[bool]
) -> Query[list[int]]:
    """Return the ids of these runs that lack an acknowledged unit or end."""
    sql = "select pgflow.lost_runs(%s::bigint[], %s::bigint[], %s::int[], %s::boolean[])"
    return Query(
        sql,
        (list(run_ids), list(tokens), list(seqs), list(has_ended)),
        lambda rows: [int(row[0]) for row in rows],
    )


def report_loss(worker_id: int, host: str, pid: int, loss: Loss) -> Query[int]:
    """Record a loss."""
    sql = (
        "select pgflow.report_loss(%s::int, %s::text, %s::int, %s::int, %s::int, "
        "%s::bigint, %s::bigint, %s::float8, %s::int, %s::jsonb)"
    )
    params = (
        worker_id,
        host,
        pid,
        loss.old_timeline,
        loss.new_timeline,
        loss.acknowledged,
        loss.kept,
        loss.age_seconds,
        len(loss.runs),
        json.dumps(list(loss.runs[:MAX_RUNS])),
    )
    return Query(sql, params, lambda rows: int(rows[0][0]))
