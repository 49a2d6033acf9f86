"""Timers: sleeps, time-outs, and other delays of the event loop."""

from __future__ import annotations

from collections.abc import Callable

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import TimerCall
from pgflow._engine.history import NEVER
from pgflow._engine.kind import KindOfCall


@mypyc_attr(allow_interpreted_subclasses=True)
class Timers(KindOfCall[TimerCall]):
    """Owns nothing: a timer is a note and an open call."""

    def start(
        self, delay_seconds: float, fire: Callable[[], None], name: str | None = None
    ) -> TimerCall:
        """Start a durable timer for the event loop."""
        call = TimerCall(self._history.next_call(), name or "timer", None, fire=fire)
        if call.number != NEVER:
            self._agenda.enter_timer(call)
            call.started_seq, call.due_us = self._note_timer(
                call.number, name and self._recorded(name), delay_seconds
            )
        return call

    def _recorded(self, name: str) -> str | None:
        """Return the name for the note: none if the journal has the timer from before that."""
        unit = self._history.next_noted()
        return None if unit is not None and unit.name is None else name

    def issue(self, delay_seconds: float, name: str | None = None) -> TimerCall:
        """Start a timer that the code waits for by itself: in a thread, or under a name."""
        waiter = self._code.driver.waiter()

        def fire() -> None:
            if not waiter.done():
                waiter.set_result(None)

        call = self.start(delay_seconds, fire, name)
        call.waiter = waiter
        return call

    def bring_on(self, call: TimerCall) -> None:
        """Do nothing: time alone continues it."""
