"""Events: the outbox, the relays that deliver it, triggers, and waiting for an event."""

from pgflow._flow.events import publish, wait_for_event
from pgflow._flow.relays import Relay, Sink, TryLater, Undeliverable
from pgflow._flow.triggers import Change, on
from pgflow._model.events import Event

__all__ = [
    "Change", "Event", "Relay", "Sink", "TryLater", "Undeliverable", "on", "publish",
    "wait_for_event",
]  # fmt: skip
