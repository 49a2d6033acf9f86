"""Events of the outbox, as relays bring them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

EVENT_MESSAGE: Final = "event "
"""Beginning of the names of messages that bring events to runs."""


class Wanted(NamedTuple):
    """Terms of a wait for an event: the topic, what the payload must contain, the key, and the
    number after which it comes.
    """

    topic: str
    match: dict[str, Any] | None
    key: str | None
    after: int | None


@dataclass(frozen=True)
class Event:
    """An event that was published.

    Attributes:
        id: Its number. The same event has the same one, however often it is delivered.
        topic: Its topic.
        key: Events of one key come in their order; None if any order will do.
        payload: Content; anything JSON.
        at: Time of publishing.
    """

    id: int
    topic: str
    key: str | None
    payload: Any
    at: datetime
