"""The ledgers of a run: decisions, effects and debts, and the audit, which joins them into one
story.

All of them are views over the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, LiteralString, get_args

from pgflow._db.query import Query, Row
from pgflow.errors import InvalidArgument
from pgflow.inspect.listing import (
    COUNTED,
    EXAMPLES,
    After,
    Listing,
    cut,
    one_more,
    page,
    parse_place,
)
from pgflow.inspect.question import (
    Question,
    Steps,
    all_rows,
    first_row,
    once,
    only_row,
    question,
    select,
    statement,
)
from pgflow.inspect.runs import RunDetail, find_detail

DebtState = Literal[
    "intended", "unknown", "absent", "accepted", "uncompensated", "open", "breached"
]
"""State of a debt: the last two are of an obligation, the others of an effect."""

DEBT_STATES: tuple[str, ...] = get_args(DebtState)

# ---------------------------------------------------------------- decisions


@dataclass(frozen=True)
class DecisionRow:
    """A decision of a run. A row of the view ``pgflow.decisions``.

    Attributes:
        decision: Its own key, which the keys of all that rests on it begin with.
        name: Name of the decision.
        value: Value that was chosen.
        why: The reason given.
        evidence: Evidence that it rested on.
        alternatives: Alternatives to it.
        policy: The policy that it followed; None if none is named.
        model: The model that chose; None if none is named.
        usage: Cost of the choice; None if none was recorded.
        decided_at: Time of the choice.
        seq: Its place in the journal.
        call: Number of the call.
    """

    decision: str
    name: str
    value: Any
    why: str | None
    evidence: Any
    alternatives: Any
    policy: str | None
    model: str | None
    usage: Any
    decided_at: datetime
    seq: int
    call: int


def list_decisions(
    run_id: int, *, after: After = None, limit: int | None = 50
) -> Question[Listing[DecisionRow]]:
    """Ask for a page of the decisions of a run, in the order of its code.

    Args:
        run_id: The number of the run.
        after: ``next`` of the previous page, or the number of a call; None for the first page.
        limit: Maximum decisions of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    sql = select(DecisionRow, "from pgflow.decisions where run_id = %s")
    return page(DecisionRow, sql, (run_id,), {"call": int}, after, limit)


# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class EffectRow:
    """An effect of a run. A row of the view ``pgflow.effects``.

    Attributes:
        effect: Its idempotency key: the same in every attempt.
        name: Name of the effect.
        status: ``intended``, ``unknown``, ``accepted``, ``confirmed`` or ``failed``.
        risk: Kind of undo: ``reversible``, ``compensable`` or ``irreversible``.
        request: Its arguments, by name.
        result: Value that it returned, or that came with its confirmation;
            None unless it is confirmed.
        error: Reason why it was not done; None unless it failed.
        ref: The counterparty's reference under which it was accepted; None if it was not.
        attempts: Number of times that it was allowed to act.
        unknowns: Number of times that its outcome was unknown.
        said_by: Source of its outcome: ``settle``, or the name of a person with the role of the
            session in brackets; None if it returned its own outcome.
        decision: Key of the decision that it rests on; None for none.
        compensates: Key of the effect that it takes back; None for none.
        policy_version: The policy in force when it was let through; None if there was none.
        intended_at: Time at which its intent was recorded, before it acted.
        closed_at: Time at which its outcome was known; None if it is open.
        seq: Place of its intent in the journal.
        call: Number of the call.
        owed: Reason why a person must handle it: ``forced`` or ``parent_forced``; None if it needs
            none.
    """

    effect: str
    name: str
    status: str
    risk: str | None
    request: Any
    result: Any
    error: Any
    ref: str | None
    attempts: int
    unknowns: int
    said_by: str | None
    decision: str | None
    compensates: str | None
    policy_version: int | None
    intended_at: datetime
    closed_at: datetime | None
    seq: int
    call: int
    owed: str | None


def list_effects(
    run_id: int, *, after: After = None, limit: int | None = 50
) -> Question[Listing[EffectRow]]:
    """Ask for a page of the effects of a run, in the order of its code.

    Args:
        run_id: The number of the run.
        after: ``next`` of the previous page, or the number of a call; None for the first page.
        limit: Maximum effects of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    sql = select(EffectRow, "from pgflow.effects where run_id = %s")
    return page(EffectRow, sql, (run_id,), {"call": int}, after, limit)


# ---------------------------------------------------------------- obligations


@dataclass(frozen=True)
class ObligationRow:
    """A debt: an effect that is not closed, an open gate or an obligation. A row of the view
    ``pgflow.obligations``.

    Attributes:
        key: Key of the run.
        kind: ``effect``, ``gate`` or ``obligation``.
        name: Of the effect, gate or obligation.
        state: Of an effect: ``intended``, ``unknown``, ``absent`` or ``accepted``; or
            ``uncompensated``: it was done and nothing will undo it. Of an obligation: ``open``, or
            ``breached`` once it was due.
        reason: Reason why a person must handle it: ``forced``, ``parent_forced``, ``failed`` or
            ``cancelled``; None if its run does.
        opened_at: Time since which it is owed.
        due_at: Time of the engine's next action, or by which it should be closed; None if not set.
        owed_to: Name of the creditor; None if not given.
        effect: Key of the effect, gate or obligation, for ``settle``, ``answer`` or ``discharge``.
        ref: The counterparty's reference, for ``confirm``.
        status: Status of the run; None if that generation is not the newest.
        paged_at: Time of the last page about it; None if there was none.
        run_id: The number of the generation that owes it.
        call: Number of the call.
        beat_at: Time of the last beat of an accepted effect, or of its acceptance; None if it sends
            no beats.
        silent_at: Time at which its outcome becomes unknown without a further beat; None if it
            sends no beats.
        beat_details: Details of the last beat that had any; None if none did.
        holder: Holder outside the run that it was transferred to; None if the run holds it.
        outlives: True if its run need not wait until it is closed.
        detail: Facts recorded by its code, or a notice for the person who closes it; None for none.
    """

    key: str
    kind: str
    name: str
    state: str | None
    reason: str | None
    opened_at: datetime
    due_at: datetime | None
    owed_to: str | None
    effect: str | None
    ref: str | None
    status: str | None
    paged_at: datetime | None
    run_id: int
    call: int
    beat_at: datetime | None
    silent_at: datetime | None
    beat_details: Any
    holder: str | None
    outlives: bool
    detail: Any


_OBLIGATION: LiteralString = (
    "select o.key, o.kind, o.name, o.state, o.reason, o.opened_at, o.due_at, o.owed_to, o.effect, "
    "o.ref, r.status, o.paged_at,"
    " o.run_id, o.call, o.beat_at, o.silent_at, o.beat_details, o.holder, o.outlives, o.detail from"
)
_AND_RUN: LiteralString = "left join pgflow.runs r on r.run_id = o.run_id"
_OBLIGATIONS: LiteralString = statement(_OBLIGATION, "pgflow.obligations o", _AND_RUN)


def list_obligations(
    *,
    state: str | None = None,
    kind: str | None = None,
    tenant: str = "",
    after: After = None,
    limit: int | None = 50,
) -> Question[Listing[ObligationRow]]:
    """Ask for a page of the debts, the oldest first.

    Args:
        state: Only debts in this state; None for all.
        kind: Only debts of this kind: ``effect``, ``gate`` or ``obligation``; None for all.
        tenant: Tenant of the runs.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: The state does not exist, ``limit`` is less than 1, or ``after`` is not a
            place in the list.
    """
    if state is not None and state not in DEBT_STATES:
        raise InvalidArgument(
            f"state: what is owed is {', '.join(DEBT_STATES[:-1])} or {DEBT_STATES[-1]}, not "
            f"{state!r}"
        )
    place = parse_place(after, datetime.fromisoformat, int, int)
    behind: LiteralString = "and (o.opened_at, o.run_id, o.call) > (%s, %s, %s)" if place else ""
    chosen: LiteralString = "where o.tenant = %s and (%s::text is null or o.state = %s)"
    of: LiteralString = "and o.kind = %s" if kind is not None else ""
    given = (state, state) if kind is None else (state, state, kind)
    # Only runs of the page are looked for: each is in one of many places.
    order: LiteralString = "order by o.opened_at, o.run_id, o.call"
    sql = statement(
        _OBLIGATION,
        "(select o.* from pgflow.obligations o",
        chosen,
        of,
        behind,
        order,
        "limit %s) o",
        _AND_RUN,
        order,
    )
    read = lambda rows: cut(  # noqa: E731
        [ObligationRow(*row) for row in rows],
        limit,
        lambda debt: (debt.opened_at, debt.run_id, debt.call),
    )
    return once(Query(sql, (tenant, *given, *place, one_more(limit)), read))


def find_obligation(key: str, *, tenant: str = "") -> Question[ObligationRow | None]:
    """Ask for the debt under a key; None if nothing is.

    Args:
        key: Key of the effect, gate or obligation.
        tenant: Tenant of its run.
    """
    sql = statement(
        _OBLIGATIONS, "where o.effect = %s and o.tenant = %s order by o.run_id desc limit 1"
    )
    return first_row(ObligationRow, sql, key, tenant)


@dataclass(frozen=True)
class DebtExample:
    """A debt, as its group shows it.

    Attributes:
        key: Key of the run.
        effect: Key of the effect or obligation.
        opened_at: Time since which it is owed.
        owed_to: Name of the creditor; None if not given.
        facts: Request of an effect, or the facts recorded with an obligation; None for none.
    """

    key: str
    effect: str
    opened_at: datetime
    owed_to: str | None
    facts: Any


@dataclass(frozen=True)
class DebtGroup:
    """The debts of one name in one state.

    Attributes:
        kind: ``effect`` or ``obligation``.
        name: Name of the effects or obligations.
        state: Their state.
        is_watched: True if the engine looks after them at a time that is set.
        debts: Number of them.
        oldest: The oldest five.
    """

    kind: str
    name: str
    state: str
    is_watched: bool
    debts: int
    oldest: list[DebtExample]


_DEBT_GROUPS: LiteralString = """
select g.kind, g.name, g.state, g.is_watched, g.debts, g.key, g.effect, g.opened_at, g.owed_to,
  case g.kind when 'effect' then to_jsonb(e.request) else g.detail end as facts
from (
  select o.*, count(*) over (partition by o.kind, o.name, o.state, o.is_watched) as debts,
    row_number() over (
      partition by o.kind, o.name, o.state, o.is_watched order by o.opened_at, o.effect
    ) as place
  from (
    select kind, name, state, due_at is not null as is_watched, key, effect, opened_at, owed_to,
      detail, run_id, call
    from pgflow.obligations
    where kind <> 'gate' and state = any(%s) and case when tenant = %s then true end
    order by opened_at limit %s
  ) o
) g
left join lateral (
  select x.request from pgflow.effects x
  where g.kind = 'effect' and x.run_id = g.run_id and x.call = g.call limit 1
) e on true
where g.place <= %s
order by min(g.opened_at) over (partition by g.kind, g.name, g.state, g.is_watched),
  g.kind, g.name, g.state, g.is_watched, g.place
"""


def count_debts(
    states: Sequence[str], *, tenant: str = "", most: int = COUNTED
) -> Question[list[DebtGroup]]:
    """Ask for the number of debts by kind, name and state, the oldest group first.

    Args:
        states: Only debts in these states.
        tenant: Tenant of the runs.
        most: Number of the oldest debts that are counted: one more than that says that there are
            further ones.
    """
    params = (list(states), tenant, most + 1, EXAMPLES)
    return once(Query(_DEBT_GROUPS, params, _read_groups))


def _read_groups(rows: list[Row]) -> list[DebtGroup]:
    return [
        DebtGroup(kind, name, state, is_watched, debts, [DebtExample(*row[5:]) for row in members])
        for (kind, name, state, is_watched, debts), members in groupby(rows, lambda row: row[:5])
    ]


def list_debts(run_id: int) -> Question[list[ObligationRow]]:
    """Ask for all that one run owes, in the order of its code.

    Args:
        run_id: The number of the run.
    """
    sql = statement(_OBLIGATIONS, "where o.run_id = %s order by o.call")
    return all_rows(ObligationRow, sql, run_id)


def count_left(keys: Sequence[str], *, tenant: str = "") -> Question[int]:
    """Ask for the number of effects that runs ended by force have left to people.

    Args:
        keys: Keys of the runs.
        tenant: Their tenant.
    """
    sql = (
        "select count(*) as debts from pgflow.obligations where key = any(%s::text[])"
        " and tenant = %s and reason is not null and kind = 'effect'"
    )
    return only_row(int, sql, list(keys), tenant)


# ---------------------------------------------------------------- the audit


@dataclass(frozen=True)
class LedgerEvent:
    """A unit of a journal that a ledger is made of.

    Attributes:
        generation: Generation of the run in which it happened.
        seq: Its place in the journal of that generation.
        call: Number of the call.
        event: ``decision_recorded``, ``operator``, ``redacted``, ``continued`` or a kind that
            begins with ``effect_`` or ``obligation_``.
        name: Name of the decision, effect or obligation; None where there is none.
        at: Time of the event.
        payload: Its payload, as it is stored.
        own_key: Key of the decision, effect or obligation; None where there is none.
    """

    generation: int
    seq: int
    call: int
    event: str
    name: str | None
    at: datetime
    payload: Any
    own_key: str | None


@dataclass(frozen=True)
class Audit:
    """Story of a run: what it decided and did, why, and what it owes.

    Attributes:
        run: The run as it is now.
        events: Units of all its generations that a ledger is made of, in their order.
        owed: All that it owes.
    """

    run: RunDetail
    events: list[LedgerEvent]
    owed: list[ObligationRow]


_EVENTS: LiteralString = """
select t.generation, t.seq, t.call, t.event, t.name, t.at, t.payload, u.key as own_key
from pgflow.timeline t
join (select key as run_key, tenant as of_tenant from pgflow.runs where run_id = %s) r
  on r.run_key = t.key and r.of_tenant = t.tenant
left join lateral (
  select e.effect as key from pgflow.effects e where e.run_id = t.run_id and e.call = t.call
  union all select d.decision from pgflow.decisions d where d.run_id = t.run_id and d.call = t.call
  union all select t.payload->>'key' where starts_with(t.event, 'obligation_')
) u on true
where t.event in ('decision_recorded', 'operator', 'continued', 'redacted')
  or starts_with(t.event, 'effect_') or starts_with(t.event, 'obligation_')
order by t.generation, t.seq
"""


@question
def read_audit(key: str, *, tenant: str = "") -> Steps[Audit]:
    """Ask for the story of a run: what it decided and did, why, and what it owes.

    Args:
        key: Key of the run.
        tenant: Its tenant.

    Raises:
        RunNotFound: No run has the key.
    """
    run = yield from find_detail(key, tenant=tenant)
    events: list[LedgerEvent] = yield Query(
        _EVENTS, (run.run_id,), lambda rows: [LedgerEvent(*row) for row in rows]
    )
    owed = yield from list_debts(run.run_id)
    return Audit(run, events, owed)
