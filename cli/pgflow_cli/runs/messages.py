"""``pgflow signal``, ``update``, ``query`` and ``messages``: what is sent to a run and asked of it,
and signals that no run has taken.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.output import dump, note
from pgflow_cli.look.database import Database, look_until
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.failures import FAILED, TIME_LIMIT, Ended, Mistake
from pgflow_cli.look.options import Answer, Arguments, Db, OptionalKey, Rows, Timeout, operator
from pgflow_cli.look.parsing import parse_duration, parse_json, refuse_empty
from pgflow_cli.look.selection import Key, find_detail, find_run, see
from pgflow_cli.runs.stages import check_mail

_NAMES = ("key", "message", "signal", "state", "payload", "sent_at", "sent_by", "why")


@dataclass(frozen=True)
class Repair:
    """Treatment of a message, as it is given.

    Args:
        drop: Take this message out of the mailbox.
        replace: Give this message another payload.
        payload: That payload in JSON, @FILE, or - for standard input.
        requeue: Send this message again, behind the others of its name.
        to: With --requeue: the run that is to have it.
    """

    drop: Annotated[int | None, opt(metavar="MESSAGE")] = None
    replace: Annotated[int | None, opt(metavar="MESSAGE")] = None
    payload: Annotated[str | None, opt("--with", metavar="JSON")] = None
    requeue: Annotated[int | None, opt(metavar="MESSAGE")] = None
    to: Annotated[str | None, opt(metavar="KEY")] = None

    def chosen(self) -> tuple[str, int] | None:
        """Return what is to be done, and the number of the message; None for nothing.

        Raises:
            Mistake: The options do not fit together.
        """
        given = {"dropped": self.drop, "replaced": self.replace, "requeued": self.requeue}
        chosen = [(past, number) for past, number in given.items() if number is not None]
        if len(chosen) > 1:
            raise Mistake("pass one of --drop, --replace and --requeue")
        if (self.replace is None) != (self.payload is None):
            raise Mistake("--replace MESSAGE and --with JSON go together")
        if self.to is not None and self.requeue is None:
            raise Mistake("--to requires --requeue MESSAGE: it names the run that is to have it")
        return chosen[0] if chosen else None


def messages(
    db: Rows,
    repair: Annotated[Repair, Made(Repair)],
    key: OptionalKey = None,
    *,
    why: str | None = None,
) -> None:
    """Lists undelivered signals, or repairs one.

    With a key: signals that wait in the run's mailbox, and those put aside. Without: only those
    that need attention, in all runs. refused: the code could not take the payload, and the run is
    stuck until you drop, replace or requeue the message. ended: the run had ended. dropped,
    replaced: an operator took it out. You can send any of these again with --requeue.

    Args:
        why: The reason, kept with the message or in the run's history.
    """
    chosen = repair.chosen()
    if chosen is None:
        _list(db, key)
        return
    if key is None:
        raise Mistake("name the run that the message is for: `pgflow messages` lists both")
    value = None if repair.payload is None else parse_json(repair.payload, "the payload")
    past, number = chosen
    client, message, by, reason = db.client, number, operator(), why or past
    if past == "dropped":
        client.drop_message(key, number, why=reason, by=by)
    elif past == "replaced":
        client.replace_message(key, number, value, why=reason, by=by)
    else:
        message = client.requeue_message(key, number, to=repair.to, why=reason, by=by)
    run = find_run(db, repair.to or key)
    row = {"key": run.key, "message": message, "done": past, "status": run.status}
    db.answer(row, f"Message {number} was {past}: run {run.key} is {run.status}.")


def _list(db: Database, key: str | None) -> None:
    empty = "Every message was taken, or waits to be."
    if key is not None:
        find_run(db, key)
        empty = "No signals wait, and none was put aside."
    found = db.ask(inspect.list_messages(key, limit=None)).items
    columns = "RUN=key message signal state SENT=sent_at payload~/60 why*200"
    db.print(found, columns, empty, _NAMES)


def update(
    key: Key,
    name: str,
    db: Answer,
    args: Arguments = "{}",
    *,
    update_id: Annotated[str | None, opt("--id", metavar="ID", callback=refuse_empty)] = None,
    timeout: Timeout = None,
) -> None:
    """Sends an update to a run, and waits for the answer.

    Exit code 1 if its handler failed, its validator rejected it, or the run ended before it was
    answered; 3 if the time is over first. The update stays where it is then: ask again with its id.

    Args:
        name: Name of the handler.
        update_id: The same id to the same run is one update, with one answer.
    """
    value = parse_json(args, "ARGS")
    if not isinstance(value, dict):
        raise Mistake('the arguments of an update are an object of their names: {"sku": "tea"}')
    limit = None if timeout is None else parse_duration(timeout, "--timeout").total_seconds()
    named = update_id or str(uuid.uuid4())
    find_run(db, key)
    db.client.send_update(key, name, value, update_id=named, by=operator())
    reply = _wait(db, key, named, limit)
    answer, error = _parsed(reply.value), _parsed(reply.error)
    row = {"key": key, "update": name, "id": named, "status": reply.status}
    text = _describe(f"Update {name} of {key}", reply.status, answer, error)
    db.answer({**row, "value": answer, "error": error}, text)
    if reply.status == "waiting":
        note(f"No answer yet. Ask again with --id {named}.")
        raise Ended(TIME_LIMIT)
    if reply.status != "done":
        raise Ended(FAILED)


def _wait(db: Database, key: str, update_id: str, limit: float | None) -> inspect.Reply:
    """Return the answer, or the reply that there is none yet."""
    return look_until(
        lambda: db.ask(inspect.read_reply(key, update_id)),
        lambda reply: reply.status != "waiting",
        limit,
    )


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _describe(update: str, status: str, value: Any, error: Any) -> str:
    if status == "done":
        return dump(inspect.readable(value))
    why = f": {inspect.describe_error(error)}" if error else ""
    if status == "refused":
        why = ": the run ended before it was answered"
    return f"{update} is {status}{why}"


def query(key: Key, db: Db, name: str | None = None) -> None:
    """Prints what a run has published.

    It is JSON: values that its code has given to set_state().

    It is read from the database: the run is not woken.

    Args:
        name: Name of the value; all if not given.
    """
    find_run(db, key)
    if name is None:
        typer.echo(dump(db.ask(inspect.read_state(key))))
    else:
        typer.echo(db.ask(inspect.read_published(key, name)))


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
    return look_until(
        lambda: find_run(db, before.key),
        lambda after: (after.status, after.why) != (before.status, before.why),
        AWAITED_SECONDS if is_awaited else 0,
    )


def _effect(before: inspect.RunRow, after: inspect.RunRow) -> str:
    if before.status != "waiting" or after.status != "waiting":
        return f": it was {before.status} and is {after.status}."
    if before.why != after.why:
        return f": it was waiting, went on, and waits again ({after.why})."
    return f", which waits for something else ({after.why}): it is kept until asked for."
