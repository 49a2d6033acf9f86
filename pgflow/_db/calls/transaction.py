"""``sql/runs/transaction.sql``: the transaction of a step, its fence, and the outcome after a lost
answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

from pgflow._db.query import JsonTexts, Query


class Recorded(NamedTuple):
    """A unit as it is in the journal."""

    token: int
    call: int
    kind: str
    payload: str | None


def begin_step(
    run_id: int, token: int, call: int, idle_timeout_ms: int, durable_seq: int
) -> Query[str]:
    """Check the lease and the last unit, and mark the transaction; return its number."""
    sql = "select pgflow.begin_step(%s::bigint, %s::bigint, %s::int, %s::int, %s::int)"
    return Query(
        sql, (run_id, token, call, idle_timeout_ms, durable_seq), lambda rows: str(rows[0][0])
    )


def fence_step(
    run_id: int,
    token: int,
    call: int,
    unit_rows: str,
    args_hash: int,
    apart: Sequence[str],
    draws: Sequence[str],
    fences: Sequence[int],
) -> Query[int]:
    """Fence the lease and append units, immediately before COMMIT; return the database's time in
    microseconds. ``apart``: their long values. ``fences``: of the locks around the step.

    None of them is to be booked: see ``Flushing.may_fence``. ``draws``: what it settles of a
    budget, the rows of ``d``.
    """
    sql: LiteralString = (
        "select pgflow.fence_step(%s::bigint, %s::bigint, %s::int, %s::jsonb, %s::bigint"
    )
    params: tuple[object, ...] = (run_id, token, call, f"[{unit_rows}]", args_hash)
    if apart or draws or fences:
        sql += ", %s::json[]"
        params += (JsonTexts(apart) if apart else None,)
    if draws or fences:
        sql += ", %s::jsonb, %s::bigint[]"
        params += (f"[{','.join(draws)}]" if draws else None, list(fences) if fences else None)
    return Query(sql + ")", params, lambda rows: int(rows[0][0]))


def read_unit(run_id: int, seq: int) -> Query[Recorded | None]:
    """The unit at a seq, if any."""
    sql = "select token, call, kind, payload from pgflow.read_unit(%s::bigint, %s::int)"
    return Query(sql, (run_id, seq), lambda rows: Recorded(*rows[0]) if rows else None)


def transaction_status(xid: str) -> Query[str]:
    """committed, aborted or in progress."""
    return Query("select pgflow.transaction_status(%s::text)", (xid,), lambda rows: str(rows[0][0]))


def beat_step(run_id: int, token: int, call: int, attempt: int, details: str) -> Query[bool]:
    """Progress of a long step."""
    sql = "select pgflow.beat_step(%s::bigint, %s::bigint, %s::int, %s::int, %s::json)"
    return Query(sql, (run_id, token, call, attempt, details), lambda rows: bool(rows[0][0]))


def emit_drafts(
    run_id: int,
    token: int,
    call: int,
    try_id: str,
    after_seq: int,
    first: int,
    emitted: list[tuple[str, str, bool]],
) -> Query[bool]:
    """Store values that a running step has emitted; return False if the lease is lost."""
    sql = (
        "select pgflow.emit_drafts("
        "%s::bigint, %s::bigint, %s::int, %s::text, %s::int, %s::int, %s::jsonb)"
    )
    return Query(
        sql,
        (run_id, token, call, try_id, after_seq, first, json.dumps(emitted)),
        lambda rows: bool(rows[0][0]),
    )


def step_details(run_id: int, call: int) -> Query[Any]:
    """Return the progress that the last try of a step reported; None if it reported none."""
    sql = "select pgflow.step_details(%s::bigint, %s::int)"
    return Query(
        sql, (run_id, call), lambda rows: None if rows[0][0] is None else json.loads(rows[0][0])
    )
