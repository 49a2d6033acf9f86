"""Decisions of many runs, each with its consequences: what an evaluation of a model or a policy
reads.

The outcome of a decision is elsewhere in the ledgers: in the acts that rest on it, in the gates
that asked a person, in the charges, and in how its run ended. A page joins them for a hundred
decisions at once, so the cost of an export is that of reading its journals. Of runs and acts it has
names and codes, never a request or a result: only what was recorded of the decision itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, LiteralString

from pgflow._db.query import Query, Row
from pgflow._model.kinds import Status
from pgflow.inspect.listing import After, Listing, cut, one_more, parse_place
from pgflow.inspect.question import Question, once, statement


@dataclass(frozen=True)
class DecidedRow:
    """A decision and its consequences.

    Attributes:
        key: Key of the run.
        workflow: Name of its workflow.
        labels: Labels of the run; None for none.
        tenant: Tenant of the run; empty where there is only one.
        run_id: The number of the generation that decided.
        generation: That generation.
        newest_generation: The newest generation of the run, which ``status`` is about.
        status: Status of the run now.
        reason_code: Code of the reason for that status; None for none.
        run_error: Class of the error that the run failed with; None unless it did.
        finished_at: Time at which the run ended; None if it is open.
        decision: Key of the decision.
        name: Name of the decision.
        value: Value that was chosen.
        why: The reason given.
        evidence: Evidence that it rested on.
        alternatives: Alternatives to it.
        policy: The policy that it followed; None if none is named.
        model: The model that chose; None if none is named.
        usage: Cost of the choice, as it was recorded; None if none was.
        hidden: ``encoded`` by a codec or ``redacted``, so that value, reason, evidence and
            alternatives are None; None if they can be read.
        decided_at: Time of the choice.
        seq: Its place in the journal.
        is_inherited: True if the run was forked or rewound, and began with it.
        charged: Amounts that were charged for it and for what rests on it, by unit.
        gates: Gates that asked a person about it: ``name``, ``asked_at``, ``verdict``, ``by``,
            ``reason`` and ``answered_at``, None until it was answered; ``by`` lists the approvers.
        acts: Effects and steps that rest on it: ``kind``, ``name``, ``key``, ``status``,
            ``attempts``, ``error`` (a class), ``risk`` and ``said_by`` of an effect, and
            ``taken_back``, the status of its compensation.
    """

    key: str
    workflow: str
    labels: dict[str, str] | None
    tenant: str
    run_id: int
    generation: int
    newest_generation: int
    status: Status
    reason_code: str | None
    run_error: str | None
    finished_at: datetime | None
    decision: str
    name: str
    value: Any
    why: str | None
    evidence: Any
    alternatives: Any
    policy: str | None
    model: str | None
    usage: Any
    hidden: Literal["encoded", "redacted"] | None
    decided_at: datetime
    seq: int
    is_inherited: bool
    charged: dict[str, Decimal]
    gates: list[dict[str, Any]]
    acts: list[dict[str, Any]]


_PAGE: LiteralString = """
with page as materialized (
  select x.key, x.workflow, x.labels, x.tenant, d.run_id, d.generation,
    x.generation as newest_generation, x.status, x.reason_code, x.error->>'type' as run_error,
    x.finished_at, d.decision, d.name, d.value, d.why, d.evidence, d.alternatives,
    d.policy, d.model, d.usage, d.decided_at, d.seq
  from pgflow.runs x join pgflow.decisions d on d.key = x.key and d.tenant = x.tenant
  where x.run_id = any(%s::bigint[])
"""

_OUTCOMES: LiteralString = """
  order by d.run_id, d.seq limit %s
), effect as materialized (
  select e.key, e.tenant, e.run_id, e.seq, e.call, e.effect, e.name, e.status, e.risk, e.attempts,
    e.error->>'type' as error, e.said_by, e.decision, e.compensates
  from pgflow.effects e where e.key = any(array(select p.key from page p))
), undo as (
  select distinct on (e.key, e.tenant, e.compensates) e.key, e.tenant, e.compensates, e.status
  from effect e where e.compensates is not null
  order by e.key, e.tenant, e.compensates, e.run_id desc, e.seq desc
), act as (
  select e.run_id, e.decision, e.call as place, jsonb_build_object('kind', 'effect', 'name', e.name,
    'key', e.effect, 'status', e.status, 'attempts', e.attempts, 'error', e.error, 'risk', e.risk,
    'said_by', e.said_by, 'taken_back', u.status) as act
  from effect e
  left join undo u on u.key = e.key and u.tenant = e.tenant and u.compensates = e.effect
  where e.decision is not null
  union all
  select s.run_id, p.decision, s.call, jsonb_build_object('kind', 'step', 'name', s.step,
    'key', s.idempotency_key, 'status', s.status, 'attempts', s.attempts,
    'error', s.error->>'type', 'risk', null, 'said_by', null, 'taken_back', null)
  from pgflow.steps s join page p on p.run_id = s.run_id and starts_with(s.idempotency_key,
    p.decision || '/' || case when length(s.step) > 64 then left(s.step, 31) || '~'
      else s.step || '/' end)
  where s.run_id = any(array(select p.run_id from page p))
), acts as (
  select a.run_id, a.decision, jsonb_agg(a.act order by a.place) as acts
  from act a group by a.run_id, a.decision
), unit as materialized (
  select t.run_id, t.seq, t.call, t.event, t.name, t.at, t.payload, t.is_inherited
  from pgflow.timeline t where t.run_id = any(array(select p.run_id from page p))
    and t.event in ('decision_recorded', 'gate_asked', 'gate_answered')
), gates as (
  select g.run_id, g.payload->>'decision' as decision, jsonb_agg(jsonb_build_object(
    'name', g.name, 'asked_at', g.at, 'verdict', a.payload->>'verdict', 'by', a.payload->'by',
    'reason', a.payload->>'reason', 'answered_at', a.at) order by g.seq) as gates
  from unit g left join lateral (
    select n.payload, n.at from unit n
    where n.run_id = g.run_id and n.call = g.call and n.event = 'gate_answered'
    order by n.seq desc limit 1
  ) a on true
  where g.event = 'gate_asked' and g.payload->>'decision' is not null
  group by g.run_id, g.payload->>'decision'
), spent as (
  select s.run_id, s.decision, jsonb_object_agg(s.unit, s.amount) as charged from (
    select c.run_id, c.decision, a.key as unit, sum(a.value::numeric)::text as amount
    from pgflow.charges c cross join lateral jsonb_each_text(c.amounts) a
    where c.run_id = any(array(select p.run_id from page p)) and c.decision is not null
    group by c.run_id, c.decision, a.key
  ) s group by s.run_id, s.decision
)
select p.key, p.workflow, p.labels, p.tenant, p.run_id, p.generation, p.newest_generation, p.status,
  p.reason_code, p.run_error, p.finished_at, p.decision, p.name, p.value::json, p.why,
  p.evidence::json, p.alternatives::json, p.policy, p.model, p.usage::json,
  case when u.payload->>'redacted' is not null then 'redacted'
    when u.payload->>'$codec' is not null then 'encoded' end as hidden,
  p.decided_at, p.seq, u.is_inherited, coalesce(s.charged, '{}') as charged,
  coalesce(g.gates, '[]') as gates, coalesce(a.acts, '[]') as acts
from page p
join unit u on u.run_id = p.run_id and u.seq = p.seq
left join acts a on a.run_id = p.run_id and a.decision = p.decision
left join gates g on g.run_id = p.run_id and g.decision = p.decision
left join spent s on s.run_id = p.run_id and s.decision = p.decision
order by p.run_id, p.seq
"""


def list_decided(
    run_ids: Sequence[int], *, after: After = None, limit: int | None = 100
) -> Question[Listing[DecidedRow]]:
    """Ask for a page of the decisions of some runs, in all their generations, each with its
    consequences.

    For an export of many runs, pass those of a page of :func:`list_runs` at a time, in a
    transaction at REPEATABLE READ.

    Args:
        run_ids: Numbers of the runs: those of their newest generations.
        after: ``next`` of the previous page; None for the first page.
        limit: Maximum decisions of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    place = parse_place(after, int, int)
    behind: LiteralString = "and (d.run_id, d.seq) > (%s, %s)" if place else ""
    read = lambda rows: cut(  # noqa: E731
        [_read(row) for row in rows], limit, lambda decided: (decided.run_id, decided.seq)
    )
    sql = statement(_PAGE, behind, _OUTCOMES)
    return once(Query(sql, (list(run_ids), *place, one_more(limit)), read))


def _read(row: Row) -> DecidedRow:
    found = DecidedRow(*row)
    amounts = {unit: Decimal(amount) for unit, amount in found.charged.items()}
    return DecidedRow(**{**vars(found), "charged": amounts})
