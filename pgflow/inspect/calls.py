"""Calls of a run: its steps, decisions and effects in the order of the code,
many of one name as one group.

A run may have made the same call a thousand times. Where there are more calls than are wanted,
those of one name are a group, which counts them by status: "fetch x 500: 475 done, 25 failed".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, TypeAlias

from pgflow._db.query import Query, Row
from pgflow.inspect.question import Steps, question, select, statement

FOLDED_FROM = 4
"""Number of calls of one name from which they are grouped, if a run exceeds the limit."""


@dataclass(frozen=True)
class CallRow:
    """A step, a decision or an effect of a run.

    Attributes:
        call: Number of the call, in the order in which the code made them.
        kind: ``step``, ``decision`` or ``effect``.
        name: Name of the step, decision or effect.
        status: Its status, in the words of ``pgflow.steps`` and ``pgflow.effects``; a decision is
            ``completed``.
        attempts: Number of times that it started, or was allowed to act.
        started_at: Time at which it was first allowed to start, or was intended;
            None where that is not recorded.
        ended_at: Time at which its outcome was known; None if it is open.
        idempotency_key: Its idempotency key, or the key of the decision; None for a read.
        output: Its result; None unless it completed.
        error: Its error; None unless it failed.
    """

    call: int
    kind: str
    name: str
    status: str
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    idempotency_key: str | None
    output: Any
    error: Any


@dataclass(frozen=True)
class CallGroup:
    """All calls of a run that have one name.

    Attributes:
        call: Number of the first of them.
        kind: ``step``, ``decision`` or ``effect``.
        name: Their name.
        counts: Number of calls of each status, the most frequent first.
        attempts: Number of times that they were begun, together.
        ended_at: Time at which the last outcome was known; None if all are open.
    """

    call: int
    kind: str
    name: str
    counts: dict[str, int]
    attempts: int
    ended_at: datetime | None


Call: TypeAlias = CallRow | CallGroup


@dataclass(frozen=True)
class Calls:
    """Calls of a run.

    Attributes:
        calls: Calls and groups of calls, in the order of the code.
        more: Number of calls and groups that the limit left out.
    """

    calls: list[Call]
    more: int


@dataclass(frozen=True)
class _Count:
    kind: str
    name: str
    status: str
    calls: int
    attempts: int
    first_call: int
    ended_at: datetime | None


def _all(
    output: LiteralString,
    error: LiteralString,
    value: LiteralString,
    outcome: LiteralString,
    trouble: LiteralString,
) -> LiteralString:
    """Every call, with these expressions for the values of steps, decisions and effects."""
    steps = statement(
        "select s.call, 'step' as kind, s.step as name, s.status, s.attempts, s.started_at, "
        "s.ended_at, s.idempotency_key,",
        output,
        "as output,",
        error,
        "as error from pgflow.steps s where s.run_id = %s",
    )
    decisions = statement(
        "select d.call, 'decision', d.name, 'completed', 1, null, d.decided_at, d.decision,",
        value,
        ", null from pgflow.decisions d where d.run_id = %s",
    )
    effects = statement(
        "select e.call, 'effect', e.name, e.status, e.attempts, e.intended_at, e.closed_at, "
        "e.effect,",
        outcome,
        ",",
        trouble,
        "from pgflow.effects e where e.run_id = %s",
    )
    return statement("(", steps, "union all", decisions, "union all", effects, ") c")


_WITH_VALUES = _all(
    "s.output::json", "s.error::json", "d.value::json", "e.result::json", "e.error::json"
)
_WITHOUT = _all("null::json", "null::json", "null::json", "null::json", "null::json")

_COUNT = statement(
    "select kind, name, status, count(*) as calls, sum(attempts)::bigint as attempts, min(call) as "
    "first_call, max(ended_at) as ended_at",
    "from",
    _WITHOUT,
    "group by kind, name, status order by first_call",
)
_SOME = statement(
    select(CallRow, "from"),
    _WITH_VALUES,
    "where (kind, name) in (select * from unnest(%s::text[], %s::text[])) order by call limit %s",
)


@question
def read_calls(run_id: int, limit: int | None = None) -> Steps[Calls]:
    """Ask for the calls of a run, in the order of its code.

    Of a run with more calls than the limit, those of one name are folded into a group where there
    are four or more.

    Args:
        run_id: The number of the run.
        limit: Most calls and groups; None for each call, unfolded.
    """
    counted: list[_Count] = yield Query(_COUNT, (run_id, run_id, run_id), _read_counts)
    total = sum(count.calls for count in counted)
    names: dict[tuple[str, str], list[_Count]] = {}
    for count in counted:
        names.setdefault((count.kind, count.name), []).append(count)
    is_long = limit is not None and total > limit
    folded = {
        name: counts
        for name, counts in names.items()
        if is_long and sum(count.calls for count in counts) >= FOLDED_FROM
    }
    single = [name for name in names if name not in folded]
    kinds, titles = [kind for kind, _ in single], [name for _, name in single]
    rows: list[Call] = yield Query(
        _SOME, (run_id, run_id, run_id, kinds, titles, limit), _read_calls
    )
    rows += [_fold(*name, counts) for name, counts in folded.items()]
    rows.sort(key=lambda row: row.call)
    lines = len(folded) + sum(count.calls for name in single for count in names[name])
    return Calls(rows[:limit], max(0, lines - len(rows[:limit])))


def _read_counts(rows: list[Row]) -> list[_Count]:
    return [_Count(*row) for row in rows]


def _read_calls(rows: list[Row]) -> list[Call]:
    return [CallRow(*row) for row in rows]


def _fold(kind: str, name: str, counts: list[_Count]) -> CallGroup:
    return CallGroup(
        call=min(count.first_call for count in counts),
        kind=kind,
        name=name,
        counts={
            count.status: count.calls for count in sorted(counts, key=lambda count: -count.calls)
        },
        attempts=sum(count.attempts for count in counts),
        ended_at=max(
            (count.ended_at for count in counts if count.ended_at is not None), default=None
        ),
    )
