"""``pgflow messages``: signals that no run has taken, and what to do about one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import OptionalKey, Rows, operator
from pgflow_cli.look.parsing import parse_json
from pgflow_cli.look.selection import find_run

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
