"""``pgflow gates``, and a person's answer to one: approve, reject, escalate...."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import NEEDS_A_PERSON, Ended, Mistake
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
from pgflow_cli.look.selection import complete_key

if TYPE_CHECKING:
    from pgflow._db.calls.mail import Sent
    from pgflow._db.query import Query

Gate = Annotated[
    str,
    typer.Argument(
        metavar="GATE", help="Key of the gate, as `pgflow gates` shows it.", show_default=False
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        callback=refuse_empty,
        help="Who answers; else whoever is logged in, and the machine: ann@host.",
    ),
]
As = Annotated[
    list[str] | None,
    typer.Option(
        "--as", metavar="ROLE", help="A role of whoever answers; more than once for more."
    ),
]
Hash = Annotated[
    str | None,
    typer.Option(
        "--hash", metavar="HASH", help="The answer counts only for the request with this hash."
    ),
]
Why = Annotated[str | None, typer.Option(help="The reason, kept with the answer.")]

_NAMES = (
    "gate", "key", "workflow", "name", "asked_at", "expires_at", "approvers", "quorum", "answers",
    "request", "payload_hash", "edited", "needs_value", "on_timeout", "escalate", "decision", "why",
    "evidence", "path",
)  # fmt: skip


def gates(
    key: Annotated[
        str | None,
        typer.Argument(help="Key of a run.", show_default=False, autocompletion=complete_key),
    ] = None,
    *,
    asks: Annotated[
        str | None,
        typer.Option("--for", metavar="NAME", help="Only those that this name or role may answer."),
    ] = None,
    wanted: Annotated[
        bool, typer.Option("--exit-code", help="Exit code 4 if there is one, for scripts.")
    ] = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists the gates that wait for an answer.

    That is who is asked and for what, since when and until when. JSON has all of each gate: the
    exact request and its hash, what was said so far, and the decision that it rests on.
    """
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow.inspect import list_gates, readable

        found = fetch(connection, list_gates(key, asks=asks, limit=None))
        rows = [as_row(gate, _NAMES) for gate in found]
        now = database_now(connection)

    def until(row: Any) -> str:
        if row["expires_at"] is None:
            return ""
        return "in " + duration(max(0.0, (row["expires_at"] - now).total_seconds()))

    columns = [
        Column("RUN", lambda row: plain(" > ".join(row["path"])), most=40),
        Column(
            "ASKED",
            lambda row: plain(duration((now - row["asked_at"]).total_seconds())),
            right=True,
        ),
        Column("ENDS", lambda row: plain(until(row))),
        Column("ASKS", lambda row: plain(", ".join(row["approvers"]) or "anybody"), most=30),
        Column("GATE", lambda row: plain(row["gate"]), most=255),
        Column(
            "REQUEST", lambda row: plain(dump(readable(row["request"]))), takes_rest=True, most=200
        ),
    ]
    if any(row["why"] for row in rows):
        columns.insert(-1, Column("WHY", lambda row: plain(row["why"] or ""), most=60))
    print_rows(form, columns, rows, names=_NAMES, empty="No gate waits for an answer.")
    if wanted and rows:
        raise Ended(NEEDS_A_PERSON)


def approve(
    gate: Gate,
    *,
    edit: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Another request in its place, in JSON, @FILE, or - for standard input.",
        ),
    ] = None,
    payload_hash: Hash = None,
    by: By = None,
    roles: As = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Approves what a gate asks, perhaps with an edit.

    An edit that does not fit what the gate asks for is refused: exit code 2, and the gate stays
    open.
    """
    value = None if edit is None else dump(parse_json(edit, "the edit"))
    _answer("approve", gate, payload_hash, value, why, by, roles, None, as_json, dsn)


def reject(
    gate: Gate,
    *,
    payload_hash: Hash = None,
    by: By = None,
    roles: As = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Rejects what a gate asks.

    One is enough, however many must approve.
    """
    _answer("reject", gate, payload_hash, None, why, by, roles, None, as_json, dsn)


def escalate(
    gate: Gate,
    *,
    to: Annotated[
        str,
        typer.Option(metavar="NAME", help="Who must decide instead; the code is told."),
    ],
    payload_hash: Hash = None,
    by: By = None,
    roles: As = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Says of a gate that somebody else must decide."""
    _answer("escalate", gate, payload_hash, None, why, by, roles, to, as_json, dsn)


def take_over(
    gate: Gate,
    *,
    result: Annotated[
        str, typer.Option(metavar="JSON", help="Result in JSON, @FILE, or - for standard input.")
    ] = "null",
    payload_hash: Hash = None,
    by: By = None,
    roles: As = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Says that you have done what a gate asks about.

    The run does not do it again.
    """
    value = dump(parse_json(result, "the result"))
    _answer("take_over", gate, payload_hash, value, why, by, roles, None, as_json, dsn)


def delegate(
    gate: Gate,
    *,
    to: Annotated[str, typer.Option(metavar="NAME", help="Who may answer instead.")],
    by: By = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Lets another answer a gate.

    In place of one who may.
    """
    with opened(dsn) as connection:
        from pgflow._db.calls import gates as calls
        from pgflow._db.query import run

        run(connection, calls.delegate_gate(gate, by or operator(), to, why or ""))
    said = {"gate": gate, "by": by or operator(), "to": to}
    print_one(
        choose_form(as_json=as_json), said, lambda: plain(f"{to} may answer gate {gate} now.")
    )


def _answer(
    verdict: str,
    gate: str,
    payload_hash: str | None,
    value: str | None,
    why: str | None,
    by: str | None,
    roles: list[str] | None,
    to: str | None,
    as_json: bool | None,
    dsn: str | None,
) -> None:
    who = by or operator()
    with opened(dsn) as connection:
        from pgflow._db.calls import gates as calls
        from pgflow._db.query import run
        from pgflow.inspect import find_gate, find_newest

        query: Query[Sent] = calls.answer_gate(
            gate, verdict, payload_hash, value, why or "", who, roles or None, to
        )
        sent = run(connection, query)
        wake(connection, sent.chains, sent.lanes)
        still = fetch(connection, find_gate(gate))
        newest = fetch(connection, find_newest(sent.chain_id))
        if newest is None:
            raise Mistake(f"the history of the run of gate {gate} was removed meanwhile")
    said = {
        "gate": gate, "verdict": verdict, "by": who, "key": newest.key, "status": newest.status,
        "open": still is not None,
    }  # fmt: skip

    def told() -> Any:
        if still is not None:
            return plain(f"Approved by {len(_approvals(still))} of {still.quorum}: {gate}")
        return plain(f"Answered {gate}: {verdict}. Run {newest.key} is {newest.status}.")

    print_one(choose_form(as_json=as_json), said, told)


def _approvals(gate: Any) -> list[str]:
    """Names of those who have approved what the gate asks now."""
    names: list[str] = []
    for said in gate.answers:
        if said["verdict"] == "approve" and said["refusal"] is None:
            names = [said["by"]] if said["value"] is not None else [*names, said["by"]]
    return names
