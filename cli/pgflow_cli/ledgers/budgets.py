"""``pgflow budgets``: what pools allow and what was spent of it; setting, revoking and granting."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.output import note, table
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, make_group, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, Limit, Rows, operator
from pgflow_cli.look.parsing import parse_amounts, parse_moment

budgets = make_group("budgets", invoke_without_command=True)

Name = Annotated[str, arg("Name of the pool.")]
Amounts = Annotated[list[str], arg("Such as usd=50 tokens=1000000.", metavar="UNIT=AMOUNT...")]
Why = Annotated[str | None, opt("The reason, kept with the change.")]

_OPTIONS = ("name", "parent", "per", "tz", "soft", "hard")
_NAMES = (
    "pool", "unit", "period_at", "per", "tz", "allowed", "charged", "reserved", "remaining",
    "overrun", "parent", "is_hard", "soft_at", "revoked_at", "revoked_why",
)  # fmt: skip


@budgets.callback()
def list_pools(db: Rows, *, limit: Limit = 50) -> None:
    """Shows what pools allow, or sets, revokes and grants."""
    _print(db, None, limit)


@budgets.command("set")
def set_pool(
    pool: Name,
    amounts: Amounts,
    db: Answer,
    *,
    parent: str | None = None,
    per: str | None = None,
    tz: str = "UTC",
    soft: float = 0.8,
    hard: bool = False,
    why: Why = None,
) -> None:
    """Makes a pool, or sets its limits anew.

    Of a pool that exists all limits and options are those given here. What an app declares is set
    again when its declaration changes.

    Args:
        parent: Pool that it draws on.
        per: Refill it each hour, day, week, month, quarter or year.
        tz: Time zone of that calendar.
        soft: Fraction of a limit from which runs get a warning.
        hard: No step of a run under it starts once it is used up.
    """
    from pgflow.authority import Pool

    limits: dict[str, Any] = {**_amounts(amounts)}
    made = Pool(pool, parent=parent, per=per, tz=tz, soft=soft, hard=hard, **limits)
    db.client.set_pool(made, why=why, by=operator())
    _print(db, pool, 0)


@budgets.command("grant")
def grant(pool: Name, amounts: Amounts, db: Answer, *, why: Why = None) -> None:
    """Allows more of a pool in its current period.

    The next period has its limits again. An overrun is covered first.
    """
    db.client.grant_budget(pool, _amounts(amounts), why=why, by=operator())
    _print(db, pool, 0)


@budgets.command("revoke")
def revoke(pool: Name, db: Answer, *, restore: bool = False, why: Why = None) -> None:
    """Has a pool, and all that draw on it, admit nothing.

    What is under way goes on, and is charged.

    Args:
        restore: Let it admit again.
    """
    db.client.revoke_pool(pool, why=why, by=operator(), restore=restore)
    _print(db, pool, 0)


@budgets.command("spent")
def show_spent(
    db: Rows, pool: str | None = None, *, by: str = "day", since: str = "30d", limit: Limit = 50
) -> None:
    """Shows what was spent, by day, run, model or tool.

    A tool of an agent is a step. Days are those of UTC, the newest first; all else is ordered by
    unit, the largest amounts first.

    Args:
        pool: Pool that it was drawn on; all if not given.
        by: Way to add up: day, run, model, step, workflow, pool or decision.
        since: Time, or duration back from now, since which it was spent.
    """
    from typing import get_args

    ways = {str(way): way for way in get_args(inspect.ChargesBy)}
    if by not in ways:
        raise Mistake(f"--by is {', '.join(ways)}, not {by!r}")
    moment = parse_moment(since, "--since")
    found = db.ask(inspect.sum_charges(ways[by], pool=pool, since=moment))
    found.sort(key=lambda row: (row.unit, -row.amount, row.name or ""))
    if by == "day":
        found.sort(key=lambda row: row.name or "", reverse=True)
    spec = f"{by.upper()} unit amount charges#"
    columns = table(spec, None, **{by.upper(): lambda row: row.name or "none named"})
    names, empty = ("name", "unit", "amount", "charges"), "Nothing was spent since then."
    db.print(found[: limit or None], columns, empty, names)
    if limit and len(found) > limit:
        note(f"The first {limit} of {len(found):,}: --limit 0 shows all.")


def _amounts(words: list[str]) -> dict[str, Decimal]:
    amounts = parse_amounts(words)
    for unit in amounts:
        if unit in _OPTIONS:
            raise Mistake(f"{unit} is an option of a pool and cannot be a unit")
    return amounts


def _print(db: Database, pool: str | None, limit: int) -> None:
    page = db.ask(inspect.list_budgets(pool, limit=limit or None))
    empty = f"{pool} has no limits, and nothing was drawn on it in this period."
    empty = "There are no pools yet." if pool is None else empty
    db.print(page.items, _COLUMNS, empty, _NAMES)
    if page.next is not None:
        note(f"The first {limit}; there are more: --limit 0 shows all.")


def _state(row: inspect.BudgetRow) -> str:
    states = {"revoked": row.revoked_at is not None, "overrun": row.overrun, "hard": row.is_hard}
    return ", ".join(state for state, holds in states.items() if holds)


_COLUMNS = table("pool unit allowed charged reserved LEFT=remaining per parent STATE", STATE=_state)
