"""Budgets: limits of pools, and the charges of runs.

The sums of pools are kept by the database as runs draw; charges are rows beside the journal, and
here they are added up by whatever is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, LiteralString, get_args

from pgflow._db.query import Query, Row
from pgflow.errors import InvalidArgument
from pgflow.inspect.listing import After, Listing, page
from pgflow.inspect.question import Question, Steps, once, select, statement

ChargesBy = Literal["run", "step", "decision", "model", "pool", "workflow", "day"]
"""Names by which charges are added up."""

_BY: dict[str, LiteralString] = {
    "run": "select 'run' as way, c.key as name",
    "step": "select 'step' as way, c.step as name",
    "decision": "select 'decision' as way, c.decision as name",
    "model": "select 'model' as way, c.model as name",
    "pool": "select 'pool' as way, c.pool as name",
    "workflow": "select 'workflow' as way, c.workflow as name",
    "day": "select 'day' as way, to_char(c.charged_at at time zone 'UTC', 'YYYY-MM-DD') as name",
}


@dataclass(frozen=True)
class BudgetRow:
    """A unit of a pool in its current period. A row of the view ``pgflow.budgets``.

    Attributes:
        pool: Name of the pool.
        unit: The unit: ``usd``, ``tokens``, ``calls``, ``seconds`` or another.
        period_at: Beginning of the period; None if nothing was drawn in it, or there are none.
        per: Calendar period after which it is full again; None for never.
        tz: Time zone of that calendar.
        allowed: Most that may be spent in the period; None for any amount.
        charged: Amount that was spent.
        reserved: Amount that open calls have reserved and not spent yet.
        remaining: Amount that can still be admitted; None for any amount.
        overrun: Part of the charges that is beyond the limit.
        parent: The pool that it draws on; None for none.
        is_hard: True if no step of a run under it is licensed once it is used up or revoked.
        soft_at: Time at which it passed its soft threshold; None if it has not.
        revoked_at: Time since which it admits nothing; None if it does.
        revoked_why: The reason given.
    """

    pool: str
    unit: str
    period_at: datetime | None
    per: str | None
    tz: str
    allowed: Decimal | None
    charged: Decimal
    reserved: Decimal
    remaining: Decimal | None
    overrun: Decimal
    parent: str | None
    is_hard: bool
    soft_at: datetime | None
    revoked_at: datetime | None
    revoked_why: str | None


def list_budgets(
    pool: str | None = None, *, after: After = None, limit: int | None = 50
) -> Question[Listing[BudgetRow]]:
    """Ask for a page of the pools, unit by unit.

    Args:
        pool: Name of the only pool to ask for; None for all.
        after: ``next`` of the previous page; None for the first page.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    sql = select(BudgetRow, "from pgflow.budgets where (%s::text is null or pool = %s)")
    return page(BudgetRow, sql, (pool, pool), {"pool": str, "unit": str}, after, limit)


@dataclass(frozen=True)
class ChargeRow:
    """A charge: an amount that a run has spent at one place. A row of the view ``pgflow.charges``.

    Attributes:
        key: Key of the run.
        charged_at: Time of the commit that recorded it.
        step: Name of the step whose body spent it; None if the code of the workflow did.
        call: Number of the call.
        model: The model that was paid; None if none is named.
        decision: Key of the decision that it was spent on, or that its step rests on.
        pool: The pool that it was drawn on; None if the run has none.
        amounts: Amounts spent, by unit.
        seq: Place of its unit in the journal.
        run_id: The number of the generation that spent it.
    """

    key: str
    charged_at: datetime
    step: str | None
    call: int
    model: str | None
    decision: str | None
    pool: str | None
    amounts: dict[str, Decimal]
    seq: int
    run_id: int


def list_charges(
    run_id: int, *, after: After = None, limit: int | None = 50
) -> Question[Listing[ChargeRow]]:
    """Ask for a page of the charges of a run, in the order of its journal.

    Args:
        run_id: The number of the run.
        after: ``next`` of the previous page, or a place in the journal; None for the first page.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    sql: LiteralString = (
        "select key, charged_at, step, call, model, decision, pool, amounts::text, seq, run_id"
        " from pgflow.charges where run_id = %s"
    )
    return page(_read_charge, sql, (run_id,), {"seq": int}, after, limit)


@dataclass(frozen=True)
class SpentRow:
    """A sum of charges in one unit.

    Attributes:
        name: The run, step, decision, model, pool, workflow or day; None where none is named.
        unit: The unit.
        amount: The sum.
        charges: Number of charges.
    """

    name: str | None
    unit: str
    amount: Decimal
    charges: int


def sum_charges(
    by: ChargesBy = "run",
    *,
    run_id: int | None = None,
    pool: str | None = None,
    since: datetime | timedelta | None = None,
    newest: int | None = None,
) -> Question[list[SpentRow]]:
    """Ask for sums of charges by run, step, decision, model, pool, workflow or day.

    Args:
        by: Name to add up by.
        run_id: Number of the only run to ask for; None for all.
        pool: Only charges to this pool or a pool below it.
        since: Only charges since this time, or since this long ago by the database's clock.
        newest: Only among so many charges, the newest of all; None for all. There may be millions.

    Raises:
        InvalidArgument: Charges cannot be added up by one of the names.
    """
    asked = sum_charges_by([by], run_id=run_id, pool=pool, since=since, newest=newest)

    def steps() -> Steps[list[SpentRow]]:
        found = yield from asked
        return found[by]

    return Question(steps)


def sum_charges_by(
    names: Sequence[ChargesBy],
    *,
    run_id: int | None = None,
    pool: str | None = None,
    since: datetime | timedelta | None = None,
    newest: int | None = None,
    tenant: str | None = None,
) -> Question[dict[ChargesBy, list[SpentRow]]]:
    """Ask for several sums of charges at once: each charge is read once.

    Args:
        names: Names to add up by, as for :func:`sum_charges`.
        run_id: Number of the only run to ask for; None for all.
        pool: Only charges to this pool or a pool below it.
        since: Only charges since this time, or since this long ago by the database's clock.
        newest: Only among so many charges, the newest of all; None for all. There may be millions.
        tenant: Only what runs of this tenant spent; None for all.

    Returns:
        The sums by each name, in the order of their names; those without one at the end.

    Raises:
        InvalidArgument: Charges cannot be added up by one of the names.
    """
    for by in names:
        if by not in _BY:
            raise InvalidArgument(
                f"charges are added up by {', '.join(get_args(ChargesBy))}, not {by!r}"
            )
    ways: list[LiteralString] = [_BY[by] for by in names]
    is_age = isinstance(since, timedelta)
    sql = statement(
        "select n.way, n.name, a.key as unit, sum(a.value::numeric) as amount,",
        "count(*) as charges from",
        "pgflow.charges"
        if newest is None
        else "(select * from pgflow.charges order by charged_at desc limit %s)",
        "c cross join lateral jsonb_each_text(c.amounts) a",
        "cross join lateral (",
        " union all ".join(ways),
        ") n",
        "where (%s::bigint is null or c.run_id = %s) and (%s::text is null or %s = any(c.pools))",
        "and (%s::text is null or c.tenant = %s)",
        "and (%s::interval is null or c.charged_at >= clock_timestamp() - %s::interval)"
        if is_age
        else "and (%s::timestamptz is null or c.charged_at >= %s::timestamptz)",
        "group by 1, 2, 3 order by 1, 2 nulls last, 3",
    )
    limit = () if newest is None else (newest,)

    def read(rows: list[Row]) -> dict[ChargesBy, list[SpentRow]]:
        return {by: [SpentRow(*row[1:]) for row in rows if row[0] == by] for by in names}

    params = (*limit, run_id, run_id, pool, pool, tenant, tenant, since, since)
    return once(Query(sql, params, read))


def sum_taken(chains: Sequence[int], since: datetime) -> Question[dict[str, Decimal]]:
    """Ask for what some chains were charged since a time, by unit.

    Args:
        chains: Numbers of the chains.
        since: The time, on the database's clock.
    """
    sql = """
      select a.key, sum(a.value::numeric)
      from pgflow.runs r join pgflow.charges c on c.run_id = r.run_id
      cross join lateral jsonb_each_text(c.amounts) a
      where r.chain_id = any(%s::bigint[]) and c.charged_at >= %s
      group by 1
    """

    def read(rows: list[Row]) -> dict[str, Decimal]:
        return {row[0]: row[1] for row in rows}

    return once(Query(sql, (list(chains), since), read))


def _read_charge(*row: Any) -> ChargeRow:
    key, charged_at, step, call, model, decision, pool, text, seq, run_id = row
    amounts = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    return ChargeRow(key, charged_at, step, call, model, decision, pool, amounts, seq, run_id)
