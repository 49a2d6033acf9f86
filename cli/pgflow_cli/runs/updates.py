"""``pgflow update`` and ``pgflow query``: asks a running workflow, and shows what it has
published.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, opened
from pgflow_cli.look.failures import FAILED, TIME_LIMIT, Ended, Mistake
from pgflow_cli.look.mail import operator, wake
from pgflow_cli.look.output import AsJson, choose_form, dump, note, plain, print_one
from pgflow_cli.look.parsing import parse_duration, parse_json, refuse_empty
from pgflow_cli.look.selection import Key, find_run

if TYPE_CHECKING:
    import psycopg

    from pgflow._db.calls.updates import Reply

LONGEST_LOOK_SECONDS = 0.5


def update(
    key: Key,
    name: Annotated[str, typer.Argument(help="Name of the handler.", show_default=False)],
    args: Annotated[
        str, typer.Argument(help="Arguments by name in JSON, @FILE, or - for standard input.")
    ] = "{}",
    *,
    update_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            callback=refuse_empty,
            help="The same id to the same run is one update, with one answer.",
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Stop waiting after 90s, 10m...: exit code 3.")
    ] = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Sends an update to a run, and waits for the answer.

    Exit code 1 if its handler failed, its validator rejected it, or the run ended before it was
    answered; 3 if the time is over first. The update stays where it is then: ask again with its id.
    """
    value = parse_json(args, "ARGS")
    if not isinstance(value, dict):
        raise Mistake('the arguments of an update are an object of their names: {"sku": "tea"}')
    limit = None if timeout is None else parse_duration(timeout, "--timeout").total_seconds()
    named = update_id or str(uuid.uuid4())
    with opened(dsn) as connection:
        from pgflow._db.calls import updates
        from pgflow._db.query import run

        find_run(connection, key)
        with connection.transaction():
            sent = run(
                connection,
                updates.send_update(key, name, dump(value), named, sent_by=operator()),
            )
        wake(connection, sent.chains)
        reply = _wait(connection, key, named, limit)
    told: dict[str, Any] = {"key": key, "update": name, "id": named, "status": reply.status}
    told["value"] = _parsed(reply.value)
    told["error"] = _parsed(reply.error)
    print_one(choose_form(as_json=as_json), told, lambda: plain(_told(told)))
    if reply.status == "waiting":
        note(f"No answer yet. Ask again with --id {named}.")
        raise Ended(TIME_LIMIT)
    if reply.status != "done":
        raise Ended(FAILED)


def _wait(
    connection: psycopg.Connection[Any], key: str, update_id: str, limit: float | None
) -> Reply:
    """Return the answer, or the reply that there is none yet."""
    from pgflow._db.calls import updates
    from pgflow._db.query import run

    until = None if limit is None else time.monotonic() + limit
    delay = 0.01
    while True:
        reply = run(connection, updates.update_reply(key, update_id))
        if reply.status != "waiting" or (until is not None and time.monotonic() >= until):
            return reply
        time.sleep(delay)
        delay = min(LONGEST_LOOK_SECONDS, delay * 1.5)


def _parsed(text: str | None) -> Any:
    import json

    return None if text is None else json.loads(text)


def _told(told: dict[str, Any]) -> str:
    from pgflow.inspect import describe_error, readable

    if told["status"] == "done":
        return dump(readable(told["value"]))
    why = f": {describe_error(told['error'])}" if told["error"] else ""
    if told["status"] == "refused":
        why = ": the run ended before it was answered"
    return f"Update {told['update']} of {told['key']} is {told['status']}{why}"


def query(
    key: Key,
    name: Annotated[
        str | None, typer.Argument(help="Name of the value; all if not given.", show_default=False)
    ] = None,
    *,
    dsn: Dsn = None,
) -> None:
    """Prints what a run has published.

    It is JSON: values that its code has given to set_state().

    It is read from the database: the run is not woken.
    """
    with opened(dsn) as connection:
        from pgflow._db.calls import result, updates
        from pgflow._db.query import run

        find_run(connection, key)
        if name is None:
            text = dump(run(connection, result.run_state(key)))
        else:
            text = run(connection, updates.query(key, name))
    typer.echo(text)
