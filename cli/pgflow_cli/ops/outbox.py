"""``pgflow outbox``: relays, how far each has come, and what operators say to them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.mail import operator
from pgflow_cli.look.options import DryRun, Yes, confirm_removal
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    age,
    choose_form,
    dump,
    duration,
    many,
    plain,
    print_one,
    print_rows,
)
from pgflow_cli.look.parsing import parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    import psycopg

    from pgflow._db.query import Query

outbox = make_group(
    "outbox", "Shows relays and their lag, or replays or repairs one.", invoke_without_command=True
)

Name = Annotated[str, typer.Argument(help="Name of the relay.", show_default=False)]
Why = Annotated[str | None, typer.Option(help="The reason, kept with the order.")]
OlderThan = Annotated[
    str, typer.Option(metavar="DURATION", help="How old they must be, like 7d.", show_default=False)
]

EVENTS_AT_ONCE = 10_000
"""Events that one transaction removes."""

_RELAYS = (
    "name", "state", "topics", "target", "event_id", "horizon", "lag", "oldest_at", "retrying",
    "dead", "delivered", "failures", "error", "open_until", "paused_at", "declared_at",
)  # fmt: skip
_DELIVERIES = (
    "event_id", "state", "topic", "key", "attempts", "due_at", "error", "at", "payload",
)  # fmt: skip


@outbox.callback()
def list_relays(
    context: typer.Context, *, as_json: AsJson = None, as_csv: AsCsv = False, dsn: Dsn = None
) -> None:
    """Shows relays and their lag, or replays or repairs one.

    LAG counts the events that a relay has yet to take, up to 10000, and OLDEST is the age of the
    first. RETRYING wait for another try, and DEAD until `pgflow outbox redeliver`.
    """
    if context.invoked_subcommand is not None:
        return
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow import inspect

        rows = [as_row(found) for found in fetch(connection, inspect.list_relays())]
        now = database_now(connection)
    columns = [
        Column("RELAY", lambda row: plain(row["name"])),
        Column("STATE", lambda row: plain(row["state"])),
        Column("TOPICS", lambda row: plain(", ".join(row["topics"])), most=40),
        Column("TARGET", lambda row: plain(row["target"]), most=60),
        Column("CURSOR", lambda row: plain(row["event_id"]), right=True),
        Column("LAG", lambda row: plain(row["lag"]), right=True),
        Column(
            "OLDEST",
            lambda row: plain(age(row["oldest_at"], now) if row["oldest_at"] else ""),
            right=True,
        ),
        Column("RETRYING", lambda row: plain(row["retrying"]), right=True),
        Column("DEAD", lambda row: plain(row["dead"]), right=True),
        Column("ERROR", lambda row: plain(row["error"] or ""), takes_rest=True, most=120),
    ]
    print_rows(form, columns, rows, names=_RELAYS, empty="There are no relays yet.")


@outbox.command("show", cls=Command)
def show_relay(
    relay: Name,
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists the events that a relay could not deliver at once."""
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow import inspect

        if relay not in {row.name for row in fetch(connection, inspect.list_relays())}:
            raise Mistake(f"relay {relay!r} does not exist: `pgflow outbox` lists them")
        question = inspect.list_deliveries(relay, limit=limit)
        rows = [as_row(found) for found in fetch(connection, question)]
        now = database_now(connection)

    def due(row: Mapping[str, Any]) -> str:
        return "" if row["state"] == "dead" else _until(row["due_at"], now)

    columns = [
        Column("EVENT", lambda row: plain(row["event_id"]), right=True),
        Column("STATE", lambda row: plain(row["state"])),
        Column("TOPIC", lambda row: plain(row["topic"]), most=40),
        Column("KEY", lambda row: plain(row["key"] or ""), most=40),
        Column("TRIES", lambda row: plain(row["attempts"]), right=True),
        Column("NEXT", lambda row: plain(due(row))),
        Column("AGE", lambda row: plain(age(row["at"], now)), right=True),
        Column("ERROR", lambda row: plain(row["error"] or ""), most=80),
        Column("PAYLOAD", lambda row: plain(dump(row["payload"])), takes_rest=True, most=120),
    ]
    print_rows(form, columns, rows, names=_DELIVERIES, empty="It has delivered all that it took.")


def _until(at: datetime, now: datetime) -> str:
    left = (at - now).total_seconds()
    return f"in {duration(left)}" if left > 0 else "now"


@outbox.command("replay", cls=Command)
def replay_relay(
    relay: Name,
    *,
    from_event: Annotated[
        int,
        typer.Option("--from", min=1, help="Number of the first event.", show_default=False),
    ],
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Has a relay go on from an event, which and all later ones come again.

    They come under their numbers: a run that was started for one is not started again.
    """
    from pgflow._db.calls import outbox as calls

    count = _say(dsn, calls.replay_relay(relay, from_event, why, operator()))
    print_one(
        choose_form(as_json=as_json),
        {"relay": relay, "events": count},
        lambda: plain(f"Relay {relay} goes on from event {from_event}: {count} to come."),
    )


@outbox.command("redeliver", cls=Command)
def redeliver(
    relay: Name,
    event: Annotated[
        int | None, typer.Argument(help="Number of the event; all if left out.", show_default=False)
    ] = None,
    *,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Has a relay try its dead events again, or one of them."""
    from pgflow._db.calls import outbox as calls

    count = _say(dsn, calls.redeliver_events(relay, event, why, operator()))
    if event is not None and not count:
        raise Mistake(f"event {event} of relay {relay} is not dead: see `pgflow outbox show`")
    print_one(
        choose_form(as_json=as_json),
        {"relay": relay, "events": count},
        lambda: plain(f"Relay {relay} tries {count} event{'s' * (count != 1)} again."),
    )


@outbox.command("pause", cls=Command)
def pause_relay(relay: Name, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Has a relay take no more events; those under way are delivered."""
    from pgflow._db.calls import outbox as calls

    _say(dsn, calls.pause_relay(relay, why, operator()))
    _done(relay, "paused", as_json=as_json)


@outbox.command("resume", cls=Command)
def resume_relay(relay: Name, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Lets a relay go on that is paused, or whose target had failed too often."""
    from pgflow._db.calls import outbox as calls

    _say(dsn, calls.resume_relay(relay, why, operator()))
    _done(relay, "resumed", as_json=as_json)


@outbox.command("drop", cls=Command)
def drop_relay(
    relay: Name,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Forget its place and its dead events.")
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Removes a relay that no code declares any more, so that it keeps no events."""
    if not yes:
        raise Mistake(f"relay {relay} would forget its place: pass --yes")
    from pgflow._db.calls import outbox as calls

    _say(dsn, calls.drop_relay(relay))
    _done(relay, "dropped", as_json=as_json)


@outbox.command("publish", cls=Command)
def publish(
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    payload: Annotated[str, typer.Argument(help="The payload, as JSON.")] = "null",
    *,
    key: Annotated[str | None, typer.Option(help="Events of one key come in their order.")] = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Publishes an event."""
    from pgflow._db.calls import outbox as calls

    try:
        json.loads(payload)
    except ValueError as error:
        raise Mistake(f"the payload is not JSON: {error}") from error
    number = _say(dsn, calls.publish(topic, payload, key))
    print_one(
        choose_form(as_json=as_json),
        {"event": number},
        lambda: plain(f"Published event {number}."),
    )


@outbox.command("prune", cls=Command)
def prune_events(
    *,
    older_than: OlderThan,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Removes events that are older and that every relay has taken.

    A dry run counts up to 10000 events beside the whole partitions that would go.
    """
    form, age = choose_form(as_json=as_json), parse_duration(older_than, "--older-than")
    with opened(dsn) as connection:
        if dry_run or not yes:
            with connection.transaction(force_rollback=True):
                events, partitions = _drop_events(connection, age)
            if not dry_run and (events or partitions):
                _ask(events, partitions, older_than)
        if not dry_run:
            events, partitions = 0, 0
            while True:
                gone, dropped = _drop_events(connection, age)
                events, partitions = events + gone, partitions + dropped
                if gone < EVENTS_AT_ONCE:
                    break
    verb = "Would remove" if dry_run else "Removed"
    print_one(
        form,
        {"events": events, "partitions": partitions, "removed": not dry_run},
        lambda: plain(f"{verb} {_events(events, partitions)}."),
    )


def _drop_events(connection: psycopg.Connection[Any], age: timedelta) -> tuple[int, int]:
    from pgflow._db.calls import outbox as calls
    from pgflow._db.query import run

    return run(connection, calls.drop_events(age.total_seconds(), EVENTS_AT_ONCE))


def _events(events: int, partitions: int) -> str:
    return f"{many(events, 'event')}, and {many(partitions, 'whole partition')}"


def _ask(events: int, partitions: int, older_than: str) -> None:
    what = f"{_events(events, partitions)}, older than {older_than}"
    confirm_removal(f"{what},", f"Remove at least {what}?")


def _say(dsn: str | None, query: Query[Any]) -> Any:
    from pgflow._db.query import run
    from pgflow.errors import RunNotFound

    with opened(dsn) as connection:
        try:
            return run(connection, query)
        except RunNotFound as error:
            raise Mistake(str(error)) from error


def _done(relay: str, what: str, *, as_json: bool | None) -> None:
    print_one(
        choose_form(as_json=as_json),
        {"relay": relay, "state": what},
        lambda: plain(f"Relay {relay} is {what}."),
    )
