"""``pgflow messages``: signals that no run has taken, and what to do about one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
from pgflow_cli.look.parsing import parse_json
from pgflow_cli.look.selection import complete_key, find_run

if TYPE_CHECKING:
    from pgflow._db.calls.mail import Sent
    from pgflow._db.query import Query


def messages(
    key: Annotated[
        str | None,
        typer.Argument(help="Key of a run.", show_default=False, autocompletion=complete_key),
    ] = None,
    *,
    drop: Annotated[
        int | None,
        typer.Option("--drop", metavar="MESSAGE", help="Take this message out of the mailbox."),
    ] = None,
    replace: Annotated[
        int | None,
        typer.Option("--replace", metavar="MESSAGE", help="Give this message another payload."),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="JSON", help="That payload in JSON, @FILE, or - for standard input."
        ),
    ] = None,
    requeue: Annotated[
        int | None,
        typer.Option(
            "--requeue",
            metavar="MESSAGE",
            help="Send this message again, behind the others of its name.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="KEY", help="With --requeue: the run that is to have it."),
    ] = None,
    why: Annotated[
        str | None, typer.Option(help="The reason, kept with the message or in the run's history.")
    ] = None,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists undelivered signals, or repairs one.

    With a key: signals that wait in the run's mailbox, and those put aside. Without: only those
    that need attention, in all runs. refused: the code could not take the payload, and the run is
    stuck until you drop, replace or requeue the message. ended: the run had ended. dropped,
    replaced: an operator took it out. You can send any of these again with --requeue.
    """
    chosen = [number for number in (drop, replace, requeue) if number is not None]
    if len(chosen) > 1:
        raise Mistake("pass one of --drop, --replace and --requeue")
    if (replace is None) != (payload is None):
        raise Mistake("--replace MESSAGE and --with JSON go together")
    if to is not None and requeue is None:
        raise Mistake(
            "--to says which run is to have a message that is requeued: say --requeue MESSAGE too"
        )
    if not chosen:
        _list(key, dsn, as_json=as_json, as_csv=as_csv)
        return
    if key is None:
        raise Mistake("name the run that the message is for: `pgflow messages` lists both")
    value = parse_json(payload, "the payload") if payload is not None else None
    with opened(dsn) as connection:
        from pgflow._db.calls import messages as calls
        from pgflow._db.query import run

        query: Query[Sent]
        if drop is not None:
            query = calls.drop_message(key, drop, why or "dropped", sent_by=operator())
        elif replace is not None:
            query = calls.replace_message(
                key, replace, dump(value), why or "replaced", sent_by=operator()
            )
        else:
            query = calls.requeue_message(key, chosen[0], to, why or "requeued", sent_by=operator())
        sent = run(connection, query)
        wake(connection, [sent.chain_id], sent.lanes)
        status = find_run(connection, to or key).status
    past = "dropped" if drop is not None else "replaced" if replace is not None else "requeued"
    said: dict[str, Any] = {
        "key": to or key,
        "message": sent.message_id,
        "done": past,
        "status": status,
    }
    print_one(
        choose_form(as_json=as_json),
        said,
        lambda: plain(f"Message {chosen[0]} was {past}: run {said['key']} is {status}."),
    )


def _list(key: str | None, dsn: str | None, *, as_json: bool | None, as_csv: bool) -> None:
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow.inspect import list_messages, readable

        if key is not None:
            find_run(connection, key)
        rows = [as_row(message) for message in fetch(connection, list_messages(key, limit=None))]
        now = database_now(connection)
    columns = [
        Column("RUN", lambda row: plain(row["key"])),
        Column("MESSAGE", lambda row: plain(str(row["message"])), right=True),
        Column("SIGNAL", lambda row: plain(row["signal"])),
        Column("STATE", lambda row: plain(row["state"])),
        Column(
            "SENT", lambda row: plain(duration((now - row["sent_at"]).total_seconds())), right=True
        ),
        Column("PAYLOAD", lambda row: plain(dump(readable(row["payload"]))), most=60),
        Column("WHY", lambda row: plain(row["why"] or ""), takes_rest=True, most=200),
    ]
    empty = (
        "No signals wait, and none was put aside."
        if key is not None
        else "Every message was taken, or waits to be."
    )
    print_rows(
        form,
        columns,
        rows,
        names=("key", "message", "signal", "state", "payload", "sent_at", "sent_by", "why"),
        empty=empty,
    )
