"""``pgflow budgets``: what pools allow and what was spent of it; setting, revoking and granting."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.mail import operator
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    Limit,
    amount,
    choose_form,
    note,
    plain,
    print_rows,
)
from pgflow_cli.look.parsing import parse_amounts, parse_moment

if TYPE_CHECKING:
    import psycopg

    from pgflow._db.query import Query

budgets = make_group(
    "budgets",
    "Shows what pools allow, or sets, revokes and grants.",
    invoke_without_command=True,
)

Name = Annotated[str, typer.Argument(help="Name of the pool.", show_default=False)]
Amounts = Annotated[
    list[str],
    typer.Argument(
        metavar="UNIT=AMOUNT...", help="Such as usd=50 tokens=1000000.", show_default=False
    ),
]
Why = Annotated[str | None, typer.Option(help="The reason, kept with the change.")]

_OPTIONS = ("name", "parent", "per", "tz", "soft", "hard")
_COLUMNS = (
    "pool",
    "unit",
    "period_at",
    "per",
    "tz",
    "allowed",
    "charged",
    "reserved",
    "remaining",
    "overrun",
    "parent",
    "is_hard",
    "soft_at",
    "revoked_at",
    "revoked_why",
)


@budgets.callback()
def list_pools(
    context: typer.Context,
    *,
    limit: Limit = 50,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Shows what pools allow, or sets, revokes and grants."""
    if context.invoked_subcommand is None:
        with opened(dsn) as connection:
            _print(connection, None, limit, as_json=as_json, as_csv=as_csv)


@budgets.command("set", cls=Command)
def set_pool(
    pool: Name,
    amounts: Amounts,
    *,
    parent: Annotated[
        str | None, typer.Option(help="Pool that it draws on.", show_default=False)
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(
            help="Refill it each hour, day, week, month, quarter or year.",
            show_default=False,
        ),
    ] = None,
    tz: Annotated[str, typer.Option(help="Time zone of that calendar.")] = "UTC",
    soft: Annotated[
        float, typer.Option(help="Fraction of a limit from which runs get a warning.")
    ] = 0.8,
    hard: Annotated[
        bool, typer.Option("--hard", help="No step of a run under it starts once it is used up.")
    ] = False,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Makes a pool, or sets its limits anew.

    Of a pool that exists all limits and options are those given here. What an app declares is set
    again when its declaration changes.
    """
    from pgflow._db.calls import budgets as calls
    from pgflow.authority import Pool

    try:
        made = Pool(
            pool,
            parent=parent,
            per=per,
            tz=tz,
            soft=soft,
            hard=hard,
            **_amounts(amounts),  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise Mistake(str(error)) from None
    _change(dsn, pool, calls.set_pool(made, why, operator()), as_json=as_json)


@budgets.command("grant", cls=Command)
def grant(
    pool: Name, amounts: Amounts, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None
) -> None:
    """Allows more of a pool in its current period.

    The next period has its limits again. An overrun is covered first.
    """
    from pgflow._db.calls import budgets as calls
    from pgflow._model.budgets import amounts_of

    try:
        given = amounts_of(_amounts(amounts), "a grant")
    except ValueError as error:
        raise Mistake(str(error)) from None
    _change(dsn, pool, calls.grant_budget(pool, given, why, operator()), as_json=as_json)


@budgets.command("revoke", cls=Command)
def revoke(
    pool: Name,
    *,
    restore: Annotated[bool, typer.Option("--restore", help="Let it admit again.")] = False,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Has a pool, and all that draw on it, admit nothing.

    What is under way goes on, and is charged.
    """
    from pgflow._db.calls import budgets as calls

    call = calls.revoke_pool(pool, why, operator(), restore=restore)
    _change(dsn, pool, call, as_json=as_json)


@budgets.command("spent", cls=Command)
def show_spent(
    pool: Annotated[
        str | None,
        typer.Argument(help="Pool that it was drawn on; all if not given.", show_default=False),
    ] = None,
    *,
    by: Annotated[
        str, typer.Option(help="Way to add up: day, run, model, step, workflow, pool or decision.")
    ] = "day",
    since: Annotated[
        str, typer.Option(help="Time, or duration back from now, since which it was spent.")
    ] = "30d",
    limit: Limit = 50,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Shows what was spent, by day, run, model or tool.

    A tool of an agent is a step. Days are those of UTC, the newest first; all else is ordered by
    unit, the largest amounts first.
    """
    from typing import get_args

    from pgflow.inspect import ChargesBy, sum_charges

    ways = {str(way): way for way in get_args(ChargesBy)}
    if by not in ways:
        raise Mistake(f"--by is {', '.join(ways)}, not {by!r}")
    moment = parse_moment(since, "--since")
    with opened(dsn) as connection:
        found = fetch(connection, sum_charges(ways[by], pool=pool, since=moment))
    found.sort(key=lambda row: (row.unit, -row.amount, row.name or ""))
    if by == "day":
        found.sort(key=lambda row: row.name or "", reverse=True)
    print_rows(
        choose_form(as_json=as_json, as_csv=as_csv),
        _columns_of_spent(by),
        [as_row(row) for row in (found[:limit] if limit else found)],
        names=("name", "unit", "amount", "charges"),
        empty="Nothing was spent since then.",
    )
    if limit and len(found) > limit:
        note(f"The first {limit} of {len(found):,}: --limit 0 shows all.")


def _columns_of_spent(by: str) -> list[Column]:
    return [
        Column(by.upper(), lambda row: plain(row["name"] or "none named")),
        Column("UNIT", lambda row: plain(row["unit"])),
        Column("AMOUNT", lambda row: plain(amount(row["amount"])), right=True),
        Column("CHARGES", lambda row: plain(f"{row['charges']:,}"), right=True),
    ]


def _amounts(words: list[str]) -> dict[str, Decimal]:
    amounts = parse_amounts(words)
    for unit in amounts:
        if unit in _OPTIONS:
            raise Mistake(f"{unit} is a word for an option of a pool, and no unit")
    return amounts


def _change(dsn: str | None, pool: str, call: Query[None], *, as_json: bool | None) -> None:
    from pgflow._db.query import run

    with opened(dsn) as connection:
        run(connection, call)
        _print(connection, pool, 0, as_json=as_json, as_csv=False)


def _print(
    connection: psycopg.Connection[Any],
    pool: str | None,
    limit: int,
    *,
    as_json: bool | None,
    as_csv: bool,
) -> None:
    from pgflow.inspect import list_budgets

    page = fetch(connection, list_budgets(pool, limit=limit or None))
    print_rows(
        choose_form(as_json=as_json, as_csv=as_csv),
        _columns(),
        [as_row(found) for found in page],
        names=_COLUMNS,
        empty="There are no pools yet."
        if pool is None
        else f"{pool} has no limits, and nothing was drawn on it in this period.",
    )
    if page.next is not None:
        note(f"The first {limit}; there are more: --limit 0 shows all.")


def _columns() -> list[Column]:
    def number(title: str, name: str) -> Column:
        return Column(title, lambda row: plain(amount(row[name])), right=True)

    def state(row: Any) -> str:
        told = ["revoked"] * (row["revoked_at"] is not None)
        told += ["overrun"] * bool(row["overrun"]) + ["hard"] * row["is_hard"]
        return ", ".join(told)

    return [
        Column("POOL", lambda row: plain(row["pool"])),
        Column("UNIT", lambda row: plain(row["unit"])),
        number("ALLOWED", "allowed"),
        number("CHARGED", "charged"),
        number("RESERVED", "reserved"),
        number("LEFT", "remaining"),
        Column("PER", lambda row: plain(row["per"] or "")),
        Column("PARENT", lambda row: plain(row["parent"] or "")),
        Column("STATE", lambda row: plain(state(row))),
    ]
