"""``pgflow policy check``: what the policy in force would say of an act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, fetch, opened
from pgflow_cli.look.failures import NEEDS_A_PERSON, Ended, Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.mail import operator
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    choose_form,
    dump,
    note,
    plain,
    print_rows,
)
from pgflow_cli.look.parsing import parse_json, refuse_empty

if TYPE_CHECKING:
    import psycopg

    from pgflow.inspect import JudgedRule

RISKS = ("reversible", "compensable", "irreversible")

policy = make_group("policy", "Shows what the policy requires of an effect.", no_args_is_help=True)

_NAMES = ("version", "rule", "needs", "fits", "counts", "says", "terms")


@policy.command(cls=Command)
def check(
    name: Annotated[str, typer.Argument(help="Name of the effect.", show_default=False)],
    args: Annotated[
        str, typer.Argument(help="Arguments by name in JSON, @FILE, or - for standard input.")
    ] = "{}",
    *,
    risk: Annotated[
        str, typer.Option(help="reversible, compensable or irreversible.", show_default=False)
    ],
    by_model: Annotated[bool, typer.Option("--model", help="A model chose it.")] = False,
    role: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE", callback=refuse_empty, help="Database role of the worker; else yours."
        ),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Rules in place of those in force, in JSON, @FILE, or -."
        ),
    ] = None,
    wanted: Annotated[
        bool, typer.Option("--exit-code", help="Exit code 4 if it needs leave, for scripts.")
    ] = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Says which rules would fit an act, and whether it needs leave.

    Nothing is done, and nothing is changed. With --rules those are tried which are not in force
    yet.
    """
    if risk not in RISKS:
        raise Mistake(f"--risk is {', '.join(RISKS[:-1])} or {RISKS[-1]}, not {risk!r}")
    request = parse_json(args, "ARGS")
    if not isinstance(request, dict):
        raise Mistake('the arguments of an effect are an object of their names: {"cents": 500}')
    draft = None if rules is None else dump(parse_json(rules, "--rules"))
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        judged = _judge(connection, name, risk, request, draft, by_model=by_model, role=role)
    columns = [
        Column("RULE", lambda row: plain(str(row["rule"])), right=True),
        Column("FITS", lambda row: plain("counts" if row["counts"] else _word(row["fits"]))),
        Column("NEEDS", lambda row: plain(row["needs"])),
        Column("ASKS", lambda row: plain(_asks(row)), most=40),
        Column("LOOKS AT", lambda row: plain(dump(row["says"])), takes_rest=True, most=200),
    ]
    rows = [as_row(rule, _NAMES) for rule in judged]
    print_rows(form, columns, rows, names=_NAMES, empty="No policy is in force.")
    first = next((rule for rule in judged if rule.counts), None)
    needs_leave = first is not None and first.needs == "gate"
    note(
        f"{name} asks at gate policy/{name}: rule {first.rule} counts."
        if first is not None and needs_leave
        else f"{name} goes ahead: no rule fits."
        if first is None
        else f"{name} goes ahead: rule {first.rule} counts."
    )
    if wanted and needs_leave:
        raise Ended(NEEDS_A_PERSON)


def _judge(
    connection: psycopg.Connection[Any],
    name: str,
    risk: Any,
    request: dict[str, Any],
    draft: str | None,
    *,
    by_model: bool,
    role: str | None,
) -> list[JudgedRule]:
    """Asks, perhaps under other rules, which are gone afterwards."""
    import psycopg

    from pgflow._db.calls import policy as calls
    from pgflow._db.query import run
    from pgflow.inspect import judge_act

    with connection.transaction() as transaction:
        if draft is not None:
            run(connection, calls.set_policy(draft, "tried", operator()))
        judged = fetch(connection, judge_act(name, risk, request, by_model=by_model, role=role))
        raise psycopg.Rollback(transaction)
    return judged


def _word(fits: bool) -> str:
    return "yes" if fits else ""


def _asks(row: Any) -> str:
    if row["needs"] != "gate":
        return ""
    return ", ".join((row["terms"] or {}).get("approvers") or ()) or "anybody"
