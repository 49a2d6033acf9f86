"""``pgflow owed``, ``settle``, ``discharge``, ``transfer`` and ``waive``: open effects and
obligations, and a person's verdict on one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.output import duration, either, table
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, LedgerWhy, Rows, operator
from pgflow_cli.look.parsing import parse_json, refuse_empty

STATES = ("intended", "unknown", "absent", "accepted", "uncompensated", "open", "breached")
_NAMES = (
    "key", "kind", "name", "state", "reason", "opened_at", "due_at", "owed_to", "effect", "ref",
    "status", "paged_at", "holder", "outlives", "detail",
)  # fmt: skip


def owed(db: Rows, *, state: str | None = None) -> None:
    """Lists what is owed: effects and obligations.

    unknown: the outcome is unknown; pgflow asks the other side again at the time shown, or waits
    for a person. accepted: the counterparty will confirm it. uncompensated: it was done, and its
    run was forced to end before it could be compensated; WHY is forced, or parent_forced if that
    happened to the run's parent. open: the obligation is neither discharged nor waived. breached:
    it was due at the time shown. WHY is failed or cancelled if its run ended so. PAGED shows how
    long ago the app's pager was called, if it has one.

    Args:
        state: Only effects that are intended, unknown, absent, accepted or uncompensated, or
            obligations that are open or breached.
    """
    if state is not None and state not in STATES:
        raise Mistake(f"what is owed is {either(STATES)}, not {state!r}")
    debts = db.ask(inspect.list_obligations(state=state, limit=None)).items
    columns = table(
        "RUN=key name state SINCE=opened_at NEXT TO=owed_to holder WHY=reason "
        "PAGED=paged_at KEY=effect*120",
        db.now,
        NEXT=lambda debt: _until(debt, db.now),
    )
    optional = {"TO": "owed_to", "HOLDER": "holder", "WHY": "reason", "PAGED": "paged_at"}
    shown = [
        column
        for column in columns
        if (name := optional.get(column.title)) is None or any(getattr(d, name) for d in debts)
    ]
    db.print(debts, shown, "Nothing is owed.", _NAMES)


def _until(debt: inspect.ObligationRow, now: datetime) -> str:
    """Return the time until something happens to a debt by itself."""
    if debt.state != "unknown" and debt.kind != "obligation":
        return ""
    if debt.due_at is None:
        return "a person" if debt.state == "unknown" else ""
    seconds = (debt.due_at - now).total_seconds()
    if debt.kind == "obligation" and seconds < 0:
        return duration(-seconds) + " late"
    return "in " + duration(seconds)


def settle(
    effect: Annotated[str, arg(metavar="EFFECT")],
    db: Answer,
    *,
    confirmed: Annotated[str | None, opt(metavar="JSON")] = None,
    failed: bool = False,
    absent: bool = False,
    taken_back: bool = False,
    stands: bool = False,
    why: str | None = None,
) -> None:
    """Records the outcome of an effect that is unknown.

    Also of one that was accepted. The run continues with the result, with the error EffectFailed,
    or with another attempt under the same key. For an effect that is uncompensated, because its run
    was forced to end, pass --taken-back or --stands.

    Args:
        effect: Key of the effect, as `pgflow owed` shows it, or of a run that has one open.
        confirmed: It was done; its result in JSON, @FILE, or - for standard input.
        failed: It was not done and will not be.
        absent: It was not done: it may be tried again.
        taken_back: It is uncompensated: it was taken back by other means.
        stands: It is uncompensated: it need not be taken back.
        why: Evidence for it, kept in the ledger.
    """
    flags = {"failed": failed, "absent": absent, "taken_back": taken_back, "stands": stands}
    given = {"confirmed": confirmed is not None, **flags}
    verdicts = [name for name, is_given in given.items() if is_given]
    if len(verdicts) != 1:
        options = "--confirmed JSON, --failed, --absent, --taken-back and --stands"
        raise Mistake(f"name the outcome: pass one of {options}")
    verdict: Any = verdicts[0]
    value = parse_json(confirmed, "the result") if confirmed is not None else None
    effect, debt = _find(db, effect, "effect")
    db.client.settle_effect(effect, verdict, value, why=why or "", by=operator())
    row = {"effect": effect, "verdict": verdict, "value": value}
    _print_closed(db, debt, row, f"Settled {effect} as {verdict}")


ObligationKey = Annotated[
    str,
    arg(
        "Key of the obligation, as `pgflow owed` shows it, or of a run that has one open.",
        metavar="KEY",
    ),
]
By = Annotated[str | None, opt("Who decides so; you by default.", callback=refuse_empty)]


def discharge(
    key: ObligationKey,
    db: Answer,
    *,
    evidence: Annotated[str | None, opt(metavar="JSON")] = None,
    by: By = None,
) -> None:
    """Closes an obligation: it was done.

    Also closes the debt of an uncompensated effect that was taken back by other means.

    Args:
        evidence: Evidence that it was done: JSON, @FILE, or - for standard input.
    """
    value = parse_json(evidence, "the evidence") if evidence is not None else None
    _decide(db, "discharged", db.client.discharge, key, value, by=by)


def transfer(
    key: ObligationKey,
    to: Annotated[str, arg(metavar="HOLDER")],
    db: Answer,
    *,
    why: LedgerWhy = None,
    by: By = None,
) -> None:
    """Hands an obligation to an outside party.

    It stays owed. Its run need not wait for it any more.

    Args:
        to: Name of the holder from now on.
    """
    send = db.client.transfer
    _decide(db, "transferred", send, key, to, why=why or "", by=by)


def waive(key: ObligationKey, db: Answer, *, why: str, by: By = None) -> None:
    """Waives an obligation.

    Args:
        why: Reason; kept in the ledger.
    """
    _decide(db, "waived", db.client.waive, key, why=why, by=by)


def _decide(
    db: Database,
    verdict: str,
    send: Callable[..., None],
    key: str,
    *given: Any,
    by: str | None,
    **options: Any,
) -> None:
    """Record the verdict on an obligation, and print the status of its run."""
    key, debt = _find(db, key, "obligation")
    send(key, *given, by=by or operator(), **options)
    row = {"obligation": key, "verdict": verdict}
    _print_closed(db, debt, row, f"{verdict.capitalize()} {key}")


def _find(db: Database, named: str, kind: str) -> tuple[str, inspect.ObligationRow | None]:
    """Return the debt under a key, or the only open one of this kind of the run with that key,
    behind its own key. None if there is none, or if it is of another tenant.

    Raises:
        Mistake: The run has several.
    """
    from pgflow.errors import RunNotFound

    if (debt := db.ask(inspect.find_obligation(named))) is not None:
        return named, debt
    try:
        run = db.ask(inspect.find_run(named))
    except RunNotFound:
        return named, None
    debts = [one for one in db.ask(inspect.list_debts(run.run_id)) if one.kind == kind]
    if len(debts) > 1:
        listed = ", ".join(f"{one.name} ({one.effect})" for one in debts)
        raise Mistake(f"run {named!r} has several open {kind}s, name one by its key: {listed}")
    return (debts[0].effect or named, debts[0]) if debts else (named, None)


def _print_closed(
    db: Database, debt: inspect.ObligationRow | None, row: dict[str, Any], text: str
) -> None:
    """Print a verdict on a debt with the status of its run."""
    if debt is not None:
        run = db.ask(inspect.find_run(debt.key))
        row |= {"key": run.key, "status": run.status}
        text += f": run {run.key} is {run.status}"
    db.answer(row, f"{text}.")
