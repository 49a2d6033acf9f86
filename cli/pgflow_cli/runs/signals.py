"""``pgflow signal``: something that a run waits for, sent by hand."""

from __future__ import annotations

import time
from typing import Annotated

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, operator
from pgflow_cli.look.parsing import parse_json, refuse_empty
from pgflow_cli.look.selection import Key, find_detail, find_run, see
from pgflow_cli.runs.stages import check_mail

AWAITED_SECONDS = 2.0
"""Longest time for which a run that waits for the signal is looked at again: it may be busy."""


def signal(
    key: Key,
    name: str,
    db: Answer,
    payload: str = "null",
    *,
    idempotency_key: Annotated[str | None, opt(metavar="KEY", callback=refuse_empty)] = None,
) -> None:
    """Sends a signal to a run.

    If the run waits for it, it goes on; else the signal is kept until the run asks for it. To a run
    that has ended nothing is sent: exit code 2.

    Args:
        name: Name of the signal.
        payload: Payload in JSON, @FILE, or - for standard input.
        idempotency_key: The same key to the same run is one message.
    """
    from pgflow import Signal

    value = parse_json(payload, "the payload")
    before, client = find_detail(db, key), db.client
    check_mail(before, name, value)
    with client.transaction():
        sent = client.send(
            key, Signal(name, object), value, idempotency_key=idempotency_key, by=operator()
        )
        if sent.ended_as is not None and sent.is_new:
            raise Mistake(
                f"run {key!r} is {sent.ended_as}: it takes no more signals; nothing was "
                f"sent. {see(key)}"
            )
    after = _look_again(db, before, name)
    row = {
        "key": key,
        "signal": name,
        "payload": value,
        "message": sent.message,
        "before": before.status,
        "status": after.status,
        **({} if idempotency_key is None else {"new": sent.is_new}),
    }
    if not sent.is_new:
        text = f"{name!r} was sent to {key} before, under the same idempotency key"
        text += ": nothing was sent now."
    else:
        text = f"Sent {name!r} to {key}{_effect(before, after)}"
    db.answer(row, text)


def _look_again(db: Database, before: inspect.RunRow, name: str) -> inspect.RunRow:
    """Return the run as the signal has left it. One that waits for this signal was busy if it still
    does, and soon is not.
    """
    is_awaited = before.status == "waiting" and f"signal {name}" in (before.why or "")
    until = time.monotonic() + AWAITED_SECONDS
    while True:
        after = find_run(db, before.key)
        has_moved = (after.status, after.why) != (before.status, before.why)
        if has_moved or not is_awaited or time.monotonic() > until:
            return after
        time.sleep(0.02)


def _effect(before: inspect.RunRow, after: inspect.RunRow) -> str:
    if before.status != "waiting" or after.status != "waiting":
        return f": it was {before.status} and is {after.status}."
    if before.why != after.why:
        return f": it was waiting, went on, and waits again ({after.why})."
    return f", which waits for something else ({after.why}): it is kept until asked for."
