"""The outbox: relays, the events that are kept, and those that could not be delivered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from pgflow.inspect.listing import After, Listing, page
from pgflow.inspect.question import Question, listed, select, statement


@dataclass(frozen=True)
class RelayRow:
    """A relay. A row of the view ``pgflow.relays``.

    Attributes:
        name: Its name.
        state: ``working``, ``idle``, ``paused``, or ``open`` after repeated failures of its target.
        topics: Topics that it listens to.
        target: Target of its events, in words.
        event_id: Its cursor: every event up to this number was delivered, or is a delivery.
        horizon: No further event up to this number can appear; slow transactions hold it.
        lag: Events behind the cursor; 10000 for so many or more.
        oldest_at: Time of the oldest of them; None if there is none.
        retrying: Events that wait for another attempt, or behind an event that does.
        dead: Events that are not retried until you redeliver them.
        delivered: Number of events that it has delivered.
        failures: Deliveries that failed since one last succeeded.
        error: The last failure; None if there was none since the last success.
        open_until: The circuit is open until then; None if it has not opened since the last
            success.
        paused_at: Time at which an operator paused it.
        declared_at: Time at which it was declared first.
    """

    name: str
    state: str
    topics: list[str]
    target: str
    event_id: int
    horizon: int
    lag: int
    oldest_at: datetime | None
    retrying: int
    dead: int
    delivered: int
    failures: int
    error: str | None
    open_until: datetime | None
    paused_at: datetime | None
    declared_at: datetime

    @property
    def is_failing(self) -> bool:
        """True if its circuit has opened, and no delivery has succeeded since."""
        return self.open_until is not None and self.paused_at is None


@dataclass(frozen=True)
class EventRow:
    """An event that is kept. A row of the view ``pgflow.events``.

    Attributes:
        event_id: The number of the event.
        at: Time of publishing.
        topic: Its topic.
        key: Events of one key are delivered in order; None for any order.
        payload: Content, as it is stored.
        run_id: Number of the run that published it; None if no run did.
    """

    event_id: int
    at: datetime
    topic: str
    key: str | None
    payload: Any
    run_id: int | None


@dataclass(frozen=True)
class DeliveryRow:
    """An event that a relay could not deliver at once. A row of the view ``pgflow.deliveries``.

    Attributes:
        event_id: The number of the event.
        state: ``waiting`` for the next attempt, or ``dead`` until you redeliver it.
        topic: Topic of the event.
        key: Key of the event.
        attempts: Number of attempts so far; 0 if it waits behind another event of its key.
        due_at: Time of the next attempt, or of the last one if it is dead.
        error: Failure of the last attempt.
        at: Time of publishing.
        payload: Content, as it is stored.
    """

    event_id: int
    state: str
    topic: str
    key: str | None
    attempts: int
    due_at: datetime
    error: str | None
    at: datetime
    payload: Any


@dataclass(frozen=True)
class TriggerRow:
    """A trigger by which changes of a table start runs. A row of the view ``pgflow.triggers``.

    Attributes:
        name: Its name.
        target: Table of the trigger; None if it was dropped.
        definition: Hash of its declaration in the code.
        state: ``installed``; ``altered`` by hand; ``disabled``; or ``removed`` while its function
            remains.
    """

    name: str
    target: str | None
    definition: str
    state: str


@dataclass(frozen=True)
class RelayChangeRow:
    """A command to a relay. A row of the view ``pgflow.relay_changes``.

    Attributes:
        changed_at: Time of the command.
        relay: Name of the relay.
        what: ``paused``, ``resumed``, ``replayed`` or ``redelivered``.
        said: The event to replay from; or the event to redeliver, and the number of events.
        why: The reason given; None if there is none.
        changed_by: Author of the command, with the role of the session in brackets.
    """

    changed_at: datetime
    relay: str
    what: str
    said: dict[str, int]
    why: str | None
    changed_by: str


_EVENTS: LiteralString = select(EventRow, "from pgflow.events where topic = %s")
_DELIVERIES: LiteralString = select(DeliveryRow, "from pgflow.deliveries where relay = %s")


def list_triggers() -> Question[list[TriggerRow]]:
    """Ask for the triggers by which changes of tables start runs, by their names."""
    return listed(TriggerRow, "from pgflow.triggers order by name")


def list_relays() -> Question[list[RelayRow]]:
    """Ask for all relays, by their names."""
    return listed(RelayRow, "from pgflow.relays order by name")


def list_relay_changes(name: str, *, limit: int = 20) -> Question[list[RelayChangeRow]]:
    """Ask for the newest orders to a relay.

    Args:
        name: Name of the relay.
        limit: Most rows.
    """
    return listed(
        RelayChangeRow,
        "from pgflow.relay_changes where relay = %s order by changed_at desc limit %s",
        name,
        limit,
    )


def list_events(
    topic: str, *, after: After = None, limit: int | None = 50
) -> Question[Listing[EventRow]]:
    """Ask for a page of the kept events of a topic, the oldest first.

    Args:
        topic: The topic.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    return page(EventRow, _EVENTS, (topic,), {"event_id": int}, after, limit)


def list_deliveries(
    relay: str, *, state: str | None = None, after: After = None, limit: int | None = 50
) -> Question[Listing[DeliveryRow]]:
    """Ask for a page of the events that a relay could not deliver at once, the oldest first.

    Args:
        relay: Name of the relay.
        state: Only those in this state; None for all.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    given = () if state is None else (state,)
    sql = statement(_DELIVERIES, "and state = %s" if given else "")
    return page(DeliveryRow, sql, (relay, *given), {"event_id": int}, after, limit)
