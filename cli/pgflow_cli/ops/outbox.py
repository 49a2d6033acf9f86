"""``pgflow outbox``: relays, how far each has come, and what operators say to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pgflow import inspect
from pgflow.console.output import many, until
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, make_group, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, DryRun, Rows, Yes, confirm, operator
from pgflow_cli.look.parsing import parse_duration, parse_json
from pgflow_cli.ops.options import ChangeWhy

outbox = make_group("outbox", invoke_without_command=True)

Name = Annotated[str, arg("Name of the relay.")]

SAMPLE = 10_000
"""Events that a dry run counts beside whole partitions."""


@outbox.callback()
def list_relays(*, db: Rows) -> None:
    """Shows relays and their lag, or replays or repairs one.

    LAG counts the events that a relay has yet to take, up to 10000, and OLDEST is the age of the
    first. RETRYING wait for another try, and DEAD until `pgflow outbox redeliver`.
    """
    columns = (
        "RELAY=name state topics/40 target CURSOR=event_id lag OLDEST=oldest_at retrying dead "
        "error*120"
    )
    rows = db.ask(inspect.list_relays())
    db.print(rows, columns, "There are no relays yet.", inspect.RelayRow)


@outbox.command("show")
def show_relay(relay: Name, *, limit: Annotated[int, opt(min=1)] = 50, db: Rows) -> None:
    """Lists the events that a relay could not deliver at once.

    Args:
        limit: Most events to list.
    """
    if relay not in {row.name for row in db.ask(inspect.list_relays())}:
        raise Mistake(f"relay {relay!r} does not exist: `pgflow outbox` lists them")
    columns = (
        "EVENT=event_id state topic/40 key/40 TRIES=attempts NEXT AGE=at error/80 payload~*120"
    )
    rows, names = db.ask(inspect.list_deliveries(relay, limit=limit)).items, inspect.DeliveryRow
    empty = "It has delivered all that it took."
    db.print(rows, columns, empty, names, NEXT=lambda row: _next_try(row, db.now))


def _next_try(row: inspect.DeliveryRow, now: datetime) -> str:
    return "" if row.state == "dead" else until(row.due_at, now, "now")


@outbox.command("replay")
def replay_relay(
    relay: Name,
    *,
    from_event: Annotated[int, opt("--from", min=1)],
    why: ChangeWhy = None,
    db: Answer,
) -> None:
    """Has a relay go on from an event, which and all later ones come again.

    They come under their numbers: a run that was started for one is not started again.

    Args:
        from_event: Number of the first event.
    """
    count = db.client.replay_relay(relay, from_event, why=why, by=operator())
    text = f"Relay {relay} goes on from event {from_event}: {count} to come."
    db.answer({"relay": relay, "events": count}, text)


@outbox.command("redeliver")
def redeliver(relay: Name, event: int | None = None, *, why: ChangeWhy = None, db: Answer) -> None:
    """Has a relay try its dead events again, or one of them.

    Args:
        event: Number of the event; all if left out.
    """
    count = db.client.redeliver_events(relay, event, why=why, by=operator())
    if event is not None and not count:
        raise Mistake(f"event {event} of relay {relay} is not dead: see `pgflow outbox show`")
    text = f"Relay {relay} tries {many(count, 'event')} again."
    db.answer({"relay": relay, "events": count}, text)


@outbox.command("pause")
def pause_relay(relay: Name, *, why: ChangeWhy = None, db: Answer) -> None:
    """Has a relay take no more events; those under way are delivered."""
    db.client.pause_relay(relay, why=why, by=operator())
    _print_state(db, relay, "paused")


@outbox.command("resume")
def resume_relay(relay: Name, *, why: ChangeWhy = None, db: Answer) -> None:
    """Lets a relay go on that is paused, or whose target had failed too often."""
    db.client.resume_relay(relay, why=why, by=operator())
    _print_state(db, relay, "resumed")


@outbox.command("drop")
def drop_relay(relay: Name, *, yes: bool = False, db: Answer) -> None:
    """Removes a relay that no code declares any more, so that it keeps no events.

    Args:
        yes: Forget its place and its dead events.
    """
    if not yes:
        raise Mistake(f"relay {relay} would forget its place: pass --yes")
    db.client.drop_relay(relay)
    _print_state(db, relay, "dropped")


def _print_state(db: Database, relay: str, state: str) -> None:
    db.answer({"relay": relay, "state": state}, f"Relay {relay} is {state}.")


@outbox.command("publish")
def publish(topic: str, payload: str = "null", *, key: str | None = None, db: Answer) -> None:
    """Publishes an event.

    Args:
        topic: The topic.
        payload: The payload, as JSON.
        key: Events of one key come in their order.
    """
    number = db.client.publish(topic, parse_json(payload, "the payload"), key=key)
    db.answer({"event": number}, f"Published event {number}.")


@outbox.command("prune")
def prune_events(
    *,
    older_than: Annotated[str, opt(metavar="DURATION")],
    yes: Yes = False,
    dry_run: DryRun = False,
    db: Answer,
) -> None:
    """Removes events that are older and that every relay has taken.

    A dry run counts up to 10000 events beside the whole partitions that would go.

    Args:
        older_than: Least age of the events, like 7d.
    """
    age = parse_duration(older_than, "--older-than")
    found: tuple[int, int] = (0, 0)
    if dry_run or not yes:
        with db.connection.transaction(force_rollback=True):
            found = db.client.drop_events(age, at_most=SAMPLE)
        if any(found) and not dry_run:
            confirm(f"Remove at least {_events(*found)}, older than {older_than}?")
    events, partitions = found if dry_run else db.client.drop_events(age)
    verb = "Would remove" if dry_run else "Removed"
    row = {"events": events, "partitions": partitions, "removed": not dry_run}
    db.answer(row, f"{verb} {_events(events, partitions)}.")


def _events(events: int, partitions: int) -> str:
    return f"{many(events, 'event')}, and {many(partitions, 'whole partition')}"
