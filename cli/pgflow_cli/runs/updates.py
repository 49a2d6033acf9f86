"""``pgflow update`` and ``pgflow query``: asks a running workflow, and shows what it has
published.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Annotated, Any

import typer

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.failures import FAILED, TIME_LIMIT, Ended, Mistake
from pgflow_cli.look.options import Answer, Arguments, Db, Timeout, operator
from pgflow_cli.look.output import dump, note
from pgflow_cli.look.parsing import parse_duration, parse_json, refuse_empty
from pgflow_cli.look.selection import Key, find_run

LONGEST_LOOK_SECONDS = 0.5


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
    until = None if limit is None else time.monotonic() + limit
    delay = 0.01
    while True:
        reply = db.ask(inspect.read_reply(key, update_id))
        if reply.status != "waiting" or (until is not None and time.monotonic() >= until):
            return reply
        time.sleep(delay)
        delay = min(LONGEST_LOOK_SECONDS, delay * 1.5)


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
