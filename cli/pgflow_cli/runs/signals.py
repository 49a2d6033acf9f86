"""``pgflow signal``: something that a run waits for, sent by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.mail import operator, wake
from pgflow_cli.look.output import AsJson, choose_form, dump, plain, print_one
from pgflow_cli.look.parsing import parse_json, refuse_empty
from pgflow_cli.look.selection import Key, find_detail, find_run, see
from pgflow_cli.runs.stages import check_mail

if TYPE_CHECKING:
    import psycopg

    from pgflow._db.calls.mail import Sent
    from pgflow.inspect import RunRow

AWAITED_SECONDS = 2.0
"""Seconds for which a run that waits for the signal,
and could not be moved at once, is woken again.
"""


def signal(
    key: Key,
    name: Annotated[str, typer.Argument(help="Name of the signal.", show_default=False)],
    payload: Annotated[
        str, typer.Argument(help="Payload in JSON, @FILE, or - for standard input.")
    ] = "null",
    *,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            callback=refuse_empty,
            help="The same key to the same run is one message.",
        ),
    ] = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Sends a signal to a run.

    If the run waits for it, it goes on; else the signal is kept until the run asks for it. To a run
    that has ended nothing is sent: exit code 2.
    """
    value = parse_json(payload, "the payload")
    with opened(dsn) as connection:
        from pgflow._db.calls import mail
        from pgflow._db.query import run

        before = find_detail(connection, key)
        check_mail(before, name, value)
        with connection.transaction():
            sent_to = run(
                connection,
                mail.deliver_signal(
                    key, name, dump(value), sent_by=operator(), idempotency_key=idempotency_key
                ),
            )
            if sent_to.ended_as is not None and sent_to.is_new:
                raise Mistake(
                    f"run {key!r} is {sent_to.ended_as}: it takes no more signals; nothing was "
                    f"sent. {see(key)}"
                )
        after = _wake_run(connection, key, sent_to, before, name)
    sent = {
        "key": key,
        "signal": name,
        "payload": value,
        "message": sent_to.message_id,
        "before": before.status,
        "status": after.status,
    }
    if idempotency_key is not None:
        sent["new"] = sent_to.is_new
    print_one(choose_form(as_json=as_json), sent, lambda: plain(_sent(sent, before.why, after.why)))


def _wake_run(
    connection: psycopg.Connection[Any], key: str, sent: Sent, before: RunRow, name: str
) -> RunRow:
    """Wakes the run and answers where it is: one that waits for this signal was busy elsewhere if
    it still does, and soon is not.
    """
    is_awaited = before.status == "waiting" and f"signal {name}" in (before.why or "")
    patience = time.monotonic() + AWAITED_SECONDS
    while True:
        wake(connection, sent.chains, sent.lanes)
        after = find_run(connection, key)
        if (
            not is_awaited
            or time.monotonic() > patience
            or (after.status, after.why) != (before.status, before.why)
        ):
            return after


def _sent(sent: dict[str, Any], before: str | None, after: str | None) -> str:
    if not sent.get("new", True):
        return (
            f"{sent['signal']!r} was sent to {sent['key']} before, under the same idempotency key: "
            "nothing was sent now."
        )
    if sent["before"] != "waiting" or sent["status"] != "waiting":
        return (
            f"Sent {sent['signal']!r} to {sent['key']}: "
            f"it was {sent['before']} and is {sent['status']}."
        )
    if before != after:
        return (
            f"Sent {sent['signal']!r} to {sent['key']}: it was waiting, "
            f"went on, and waits again ({after})."
        )
    return (
        f"Sent {sent['signal']!r} to {sent['key']}, which waits for something else ({after}): "
        "it is kept until asked for."
    )
