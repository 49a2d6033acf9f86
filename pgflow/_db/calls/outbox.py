"""``sql/events/``: the outbox, and the relays that read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from pgflow._db.query import Query
from pgflow._model.protocol import DeliveryRow


class TakenEvent(NamedTuple):
    """An event that a relay is to deliver."""

    event_id: int
    topic: str
    key: str | None
    payload: str
    """JSON text, as it is stored."""
    at_us: int
    run_id: int | None
    attempts: int
    """Number of tries so far."""
    is_fresh: bool
    """True if the cursor has yet to pass it."""
    is_behind: bool
    """True if another event of its key has to be delivered first."""


class Taken(NamedTuple):
    """Answer of a relay that is asked for events."""

    state: str
    wait_seconds: float | None
    events: list[TakenEvent]


class RelayNews(NamedTuple):
    """Relays that have something to deliver, and when the next of the others has."""

    names: list[str]
    wait_seconds: float | None


def publish(topic: str, payload: str, key: str | None, run_id: int | None = None) -> Query[int]:
    """Publish an event in the transaction; return its number."""
    sql = "select pgflow.publish(%s::text, %s::json, %s::text, %s::bigint)"
    return Query(sql, (topic, payload, key, run_id), lambda rows: int(rows[0][0]))


def add_event_partitions() -> Query[int]:
    """Create partitions of the outbox."""
    return Query("select pgflow.add_event_partitions()", (), lambda rows: int(rows[0][0]))


class DroppedEvents(NamedTuple):
    """Events and whole partitions that were removed."""

    events: int
    partitions: int


def drop_events(older_than_seconds: float, most: int) -> Query[DroppedEvents]:
    """Remove old events."""
    sql = (
        "select events, partitions"
        " from pgflow.drop_events(%s::float8 * interval '1 second', %s::int)"
    )
    return Query(sql, (older_than_seconds, most), lambda rows: DroppedEvents(*rows[0]))


def declare_relay(name: str, topics: Sequence[str], target: str, start: str) -> Query[bool]:
    """Create a relay, unless it exists; True if it is new."""
    sql = "select pgflow.declare_relay(%s::text, %s::text[], %s::text, %s::text)"
    return Query(sql, (name, list(topics), target, start), lambda rows: bool(rows[0][0]))


def relay_news(names: list[str], token: int) -> Query[RelayNews]:
    """Ask for the relays that have something to deliver."""
    sql = "select news, wait_seconds from pgflow.relay_news(%s::text[], %s::bigint)"
    return Query(sql, (names, token), lambda rows: RelayNews(*rows[0]))


def take_events(
    name: str, token: int, lease_seconds: float, most: int, threshold: int
) -> Query[Taken]:
    """Leases a relay, and takes the next events."""
    sql = (
        "select state, wait_seconds, events::text from"
        " pgflow.take_events(%s::text, %s::bigint, %s::float8, %s::int, %s::int)"
    )

    def read(rows: list[tuple[object, ...]]) -> Taken:
        state, wait, events = rows[0]
        found = [] if events is None else json.loads(str(events))
        return Taken(str(state), wait, [TakenEvent(*event) for event in found])  # type: ignore[arg-type]

    return Query(sql, (name, token, lease_seconds, most, threshold), read)


def hold_relay(name: str, token: int, lease_seconds: float) -> Query[bool]:
    """Extend a lease; False if another worker has it."""
    sql = "select pgflow.hold_relay(%s::text, %s::bigint, %s::float8)"
    return Query(sql, (name, token, lease_seconds), lambda rows: bool(rows[0][0]))


def release_relay(name: str, token: int) -> Query[None]:
    """Release a lease."""
    sql = "select pgflow.release_relay(%s::text, %s::bigint)"
    return Query(sql, (name, token), lambda _: None)


def settle_events(
    name: str,
    token: int,
    upto: int | None,
    results: Sequence[DeliveryRow],
    lease_seconds: float,
    threshold: int,
    cooldown_seconds: float,
) -> Query[bool]:
    """Record the outcomes of events; False if another worker has the relay."""
    sql = (
        "select pgflow.settle_events(%s::text, %s::bigint, %s::bigint, %s::json, %s::float8,"
        " %s::int, %s::float8)"
    )
    values = (
        name,
        token,
        upto,
        json.dumps(results),
        lease_seconds,
        threshold,
        cooldown_seconds,
    )
    return Query(sql, values, lambda rows: bool(rows[0][0]))


def replay_relay(name: str, from_event: int, why: str | None, sent_by: str | None) -> Query[int]:
    """Replay a relay from an event; return the number of events."""
    sql = "select pgflow.replay_relay(%s::text, %s::bigint, %s::text, %s::text)"
    return Query(sql, (name, from_event, why, sent_by), lambda rows: int(rows[0][0]))


def redeliver_events(
    name: str, event: int | None, why: str | None, sent_by: str | None
) -> Query[int]:
    """Retry dead events; return their number."""
    sql = "select pgflow.redeliver_events(%s::text, %s::bigint, %s::text, %s::text)"
    return Query(sql, (name, event, why, sent_by), lambda rows: int(rows[0][0]))


def pause_relay(name: str, why: str | None, sent_by: str | None) -> Query[None]:
    """Pause a relay."""
    sql = "select pgflow.pause_relay(%s::text, %s::text, %s::text)"
    return Query(sql, (name, why, sent_by), lambda _: None)


def resume_relay(name: str, why: str | None, sent_by: str | None) -> Query[None]:
    """Resume a relay."""
    sql = "select pgflow.resume_relay(%s::text, %s::text, %s::text)"
    return Query(sql, (name, why, sent_by), lambda _: None)


def drop_relay(name: str) -> Query[None]:
    """Remove a relay."""
    return Query("select pgflow.drop_relay(%s::text)", (name,), lambda _: None)
