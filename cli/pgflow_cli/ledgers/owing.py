"""``pgflow owed``, ``settle``, ``discharge``, ``transfer`` and ``waive``: what is owed, and a
person's word on it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.mail import operator, wake
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    choose_form,
    dump,
    duration,
    plain,
    print_one,
    print_rows,
)
from pgflow_cli.look.parsing import parse_json, refuse_empty

STATES = ("intended", "unknown", "absent", "accepted", "uncompensated", "open", "breached")


def owed(
    *,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only effects that are intended, unknown, absent, accepted or uncompensated, "
            "or obligations that are open or breached."
        ),
    ] = None,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists what is owed: effects and obligations.

    unknown: the outcome is unknown; pgflow asks the other side again at the time shown, or waits
    for a person. accepted: the counterparty will confirm it. uncompensated: it was done, and its
    run was forced to end before it could be compensated; WHY is forced, or parent_forced if that
    happened to the run's parent. open: the obligation is neither discharged nor waived. breached:
    it was due at the time shown. WHY is failed or cancelled if its run ended so. PAGED shows how
    long ago the app's pager was called, if it has one.
    """
    if state is not None and state not in STATES:
        raise Mistake(f"what is owed is {', '.join(STATES[:-1])} or {STATES[-1]}, not {state!r}")
    form = choose_form(as_json=as_json, as_csv=as_csv)
    names = (
        "key",
        "kind",
        "name",
        "state",
        "reason",
        "opened_at",
        "due_at",
        "owed_to",
        "effect",
        "ref",
        "status",
        "paged_at",
        "holder",
        "outlives",
        "detail",
    )
    with opened(dsn) as connection:
        from pgflow.inspect import list_obligations

        rows = [
            as_row(debt, names)
            for debt in fetch(connection, list_obligations(state=state, limit=None))
        ]
        now = database_now(connection)

    def until(row: Any) -> str:
        if row["due_at"] is None:
            return "a person" if row["state"] == "unknown" else ""
        seconds = (row["due_at"] - now).total_seconds()
        if row["kind"] == "obligation" and seconds < 0:
            return duration(-seconds) + " late"
        return "in " + duration(max(0.0, seconds))

    def ago(at: Any) -> str:
        return "" if at is None else duration((now - at).total_seconds())

    columns = [
        Column("RUN", lambda row: plain(row["key"])),
        Column("NAME", lambda row: plain(row["name"])),
        Column("STATE", lambda row: plain(row["state"] or "")),
        Column(
            "SINCE",
            lambda row: plain(duration((now - row["opened_at"]).total_seconds())),
            right=True,
        ),
        Column(
            "NEXT",
            lambda row: plain(
                until(row) if row["state"] == "unknown" or row["kind"] == "obligation" else ""
            ),
        ),
        Column("KEY", lambda row: plain(row["effect"] or ""), takes_rest=True, most=120),
    ]
    if any(row["owed_to"] for row in rows):
        columns.insert(-1, Column("TO", lambda row: plain(row["owed_to"] or "")))
    if any(row["holder"] for row in rows):
        columns.insert(-1, Column("HOLDER", lambda row: plain(row["holder"] or "")))
    if any(row["reason"] for row in rows):
        columns.insert(-1, Column("WHY", lambda row: plain(row["reason"] or "")))
    if any(row["paged_at"] for row in rows):
        columns.insert(-1, Column("PAGED", lambda row: plain(ago(row["paged_at"])), right=True))
    print_rows(form, columns, rows, names=names, empty="Nothing is owed.")


def settle(
    effect: Annotated[
        str,
        typer.Argument(
            metavar="EFFECT",
            help="Key of the effect, as `pgflow owed` shows it.",
            show_default=False,
        ),
    ],
    *,
    confirmed: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="It was done; its result in JSON, @FILE, or - for standard input."
        ),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="It was not done and will not be.")
    ] = False,
    absent: Annotated[
        bool, typer.Option("--absent", help="It was not done: it may be tried again.")
    ] = False,
    taken_back: Annotated[
        bool,
        typer.Option("--taken-back", help="It is uncompensated: it was taken back by other means."),
    ] = False,
    stands: Annotated[
        bool, typer.Option("--stands", help="It is uncompensated: it need not be taken back.")
    ] = False,
    why: Annotated[str | None, typer.Option(help="How this is known; kept in the ledger.")] = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Records the outcome of an effect that is unknown.

    Also of one that was accepted. The run continues with the result, with the error EffectFailed,
    or with another attempt under the same key. For an effect that is uncompensated, because its run
    was forced to end, pass --taken-back or --stands.
    """
    said = {
        "confirmed": confirmed is not None,
        "failed": failed,
        "absent": absent,
        "taken_back": taken_back,
        "stands": stands,
    }
    verdicts = [name for name, is_said in said.items() if is_said]
    if len(verdicts) != 1:
        raise Mistake(
            "name the outcome: pass one of --confirmed JSON, --failed, "
            "--absent, --taken-back and --stands"
        )
    (verdict,) = verdicts
    value = parse_json(confirmed, "the result") if confirmed is not None else None
    with opened(dsn) as connection:
        from pgflow._db.calls import effects
        from pgflow._db.query import run
        from pgflow.inspect import find_newest

        sent = run(
            connection, effects.settle_effect(effect, verdict, dump(value), why or "", operator())
        )
        wake(connection, sent.chains, sent.lanes)
        run_now = fetch(connection, find_newest(sent.chain_id))
        assert run_now is not None
    answer = {
        "effect": effect,
        "verdict": verdict,
        "value": value,
        "key": run_now.key,
        "status": run_now.status,
    }
    print_one(
        choose_form(as_json=as_json),
        answer,
        lambda: plain(f"Settled {effect} as {verdict}: run {run_now.key} is {run_now.status}."),
    )


ObligationKey = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="Key of the obligation, as `pgflow owed` shows it.",
        show_default=False,
    ),
]
By = Annotated[
    str | None,
    typer.Option(callback=refuse_empty, help="Who decides so; you by default."),
]


def discharge(
    key: ObligationKey,
    *,
    evidence: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="What shows that it was done: JSON, @FILE, or - for standard input.",
        ),
    ] = None,
    by: By = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Closes an obligation: it was done.

    Also closes the debt of an uncompensated effect that was taken back by other means.
    """
    from pgflow._db.calls import obligations

    value = parse_json(evidence, "the evidence") if evidence is not None else None
    text = None if evidence is None else dump(value)
    _say(key, "discharged", obligations.discharge(key, text, by or operator()), as_json, dsn)


def transfer(
    key: ObligationKey,
    to: Annotated[
        str, typer.Argument(metavar="HOLDER", help="Who holds it now.", show_default=False)
    ],
    *,
    why: Annotated[str | None, typer.Option(help="Reason; kept in the ledger.")] = None,
    by: By = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Hands an obligation to an outside party.

    It stays owed. Its run need not wait for it any more.
    """
    from pgflow._db.calls import obligations

    query = obligations.transfer_obligation(key, to, why, by or operator())
    _say(key, "transferred", query, as_json, dsn)


def waive(
    key: ObligationKey,
    *,
    why: Annotated[str, typer.Option(help="Reason; kept in the ledger.", show_default=False)],
    by: By = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Waives an obligation."""
    from pgflow._db.calls import obligations

    query = obligations.waive_obligation(key, why, by or operator())
    _say(key, "waived", query, as_json, dsn)


def _say(key: str, verdict: str, query: Any, as_json: bool | None, dsn: str | None) -> None:
    """Record the verdict on an obligation, wake its run, and print the run's status."""
    with opened(dsn) as connection:
        from pgflow._db.query import run
        from pgflow.inspect import find_newest

        sent = run(connection, query)
        wake(connection, sent.chains, sent.lanes)
        run_now = fetch(connection, find_newest(sent.chain_id))
        assert run_now is not None
    answer = {"obligation": key, "verdict": verdict, "key": run_now.key, "status": run_now.status}
    print_one(
        choose_form(as_json=as_json),
        answer,
        lambda: plain(f"{verdict.capitalize()} {key}: run {run_now.key} is {run_now.status}."),
    )
