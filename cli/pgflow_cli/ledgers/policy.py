"""``pgflow policy check``: what the policy in force would say of an act."""

from __future__ import annotations

from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.output import note, table
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import make_group, opt
from pgflow_cli.look.failures import NEEDS_A_PERSON, Ended, Mistake
from pgflow_cli.look.options import Arguments, ExitCode, Rows, check_word, operator
from pgflow_cli.look.parsing import parse_json, refuse_empty

RISKS = ("reversible", "compensable", "irreversible")

policy = make_group("policy", "Shows what the policy requires of an effect.", no_args_is_help=True)

_NAMES = ("version", "rule", "needs", "fits", "counts", "says", "terms")


@policy.command()
def check(
    name: str,
    db: Rows,
    args: Arguments = "{}",
    *,
    risk: str,
    by_model: Annotated[bool, opt("--model")] = False,
    role: Annotated[str | None, opt(metavar="ROLE", callback=refuse_empty)] = None,
    rules: Annotated[str | None, opt(metavar="JSON")] = None,
    wanted: ExitCode = False,
) -> None:
    """Shows which rules fit an act, and whether it needs approval.

    Nothing is done, and nothing is changed. With --rules those are tried which are not in force
    yet.

    Args:
        name: Name of the effect.
        risk: reversible, compensable or irreversible.
        by_model: A model chose it.
        role: Database role of the worker; else yours.
        rules: Rules in place of those in force, in JSON, @FILE, or -.
    """
    check_word("--risk", risk, RISKS)
    request = parse_json(args, "ARGS")
    if not isinstance(request, dict):
        raise Mistake('the arguments of an effect are an object of their names: {"cents": 500}')
    draft = None if rules is None else parse_json(rules, "--rules")
    judged = _judge(db, name, risk, request, draft, by_model=by_model, role=role)
    db.print(judged, _COLUMNS, "No policy is in force.", _NAMES)
    first = next((rule for rule in judged if rule.counts), None)
    if first is None:
        note(f"{name} goes ahead: no rule fits.")
    elif first.needs != "gate":
        note(f"{name} goes ahead: rule {first.rule} counts.")
    else:
        note(f"{name} asks at gate policy/{name}: rule {first.rule} counts.")
        if wanted:
            raise Ended(NEEDS_A_PERSON)


def _judge(
    db: Database,
    name: str,
    risk: Any,
    request: dict[str, Any],
    draft: Any,
    *,
    by_model: bool,
    role: str | None,
) -> list[inspect.JudgedRule]:
    """Ask, perhaps under other rules, which are gone afterwards."""
    import psycopg

    with db.connection.transaction() as transaction:
        if draft is not None:
            db.client.set_policy(draft, why="tried", by=operator())
        judged = db.ask(inspect.judge_act(name, risk, request, by_model=by_model, role=role))
        raise psycopg.Rollback(transaction)
    return judged


def _asks(rule: inspect.JudgedRule) -> str:
    if rule.needs != "gate":
        return ""
    return ", ".join((rule.terms or {}).get("approvers") or ()) or "anybody"


_COLUMNS = table(
    "rule FITS needs ASKS/40 LOOKS_AT=says~*200",
    FITS=lambda rule: "counts" if rule.counts else "yes" if rule.fits else "",
    ASKS=_asks,
)
