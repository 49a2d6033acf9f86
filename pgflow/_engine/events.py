"""Waits for events: the database matches events and delivers the first match as a message.

A wait for an event is a wait for a signal with a unique name. Each question repeats the wanted
event; a question without it ends the wait.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import SignalCall, Waits
from pgflow._engine.flush import Flush
from pgflow._engine.history import NEVER
from pgflow._engine.kind import KindOfCall
from pgflow._engine.parts import Parts
from pgflow._model.codecs import Codec
from pgflow._model.events import EVENT_MESSAGE, Wanted
from pgflow._model.kinds import Kind
from pgflow._model.units import Unit


@dataclass(eq=False)
class EventCall(SignalCall):
    """A wait for an event, optionally with a time-out."""

    wanted: Wanted = field(kw_only=True)

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the event; as an error, the time-out."""
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError(f"no event of topic {self.wanted.topic!r} in time")
        return super().decode(unit)

    def wait(self, waits: Waits) -> None:
        """Add the message, and the event that it delivers."""
        super().wait(waits)
        wanted = self.wanted
        waits["events"].append(
            [self.number, self.name, wanted.topic, wanted.match, wanted.key, wanted.after]
        )


def message_name(number: int, wanted: Wanted) -> str:
    """Return the name of the message: the same for the same call of the same code."""
    text = json.dumps([number, *wanted], sort_keys=True)
    tail = f" {number} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    room = 255 - len(EVENT_MESSAGE) - len(tail)  # a name has at most 255 bytes
    return EVENT_MESSAGE + wanted.topic.encode()[:room].decode(errors="ignore") + tail


@mypyc_attr(allow_interpreted_subclasses=True)
class Events(KindOfCall[EventCall]):
    """Owns nothing: a wait is an open call, and a row in the database."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        parts.in_flushes.append(self)

    def issue(self, wanted: Wanted, codec: Codec[Any], timeout: timedelta | None) -> EventCall:
        """Wait for an event."""
        number = self._history.next_call()
        name = message_name(number, wanted)
        call = EventCall(number, name, self._code.driver.waiter(), codec=codec, wanted=wanted)
        if number != NEVER:
            self._agenda.enter(call)
            if timeout is not None:
                self._limit(call, name, timeout)
            self._agenda.look()
        return call

    def add_to(self, flush: Flush) -> None:
        """End the waits that are not listed any more; with the end of the run, all of them."""
        question = flush.question
        if flush.ending is not None:
            flush.has_events = True
        elif question is not None and "continue" in question:
            question["awaited"] = True
        elif question is not None and "hold" not in question:
            question.setdefault("events", [])
