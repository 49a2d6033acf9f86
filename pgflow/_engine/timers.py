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

    def start(self, delay_seconds: float, fire: Callable[[], None]) -> TimerCall:
        """Start a durable timer for the event loop."""
        call = TimerCall(self._history.next_call(), "timer", None, fire=fire)
        if call.number != NEVER:
            self._agenda.enter_timer(call)
            call.started_seq, call.due_us = self._note_timer(call.number, None, delay_seconds)
        return call

    def issue(self, delay_seconds: float) -> TimerCall:
        """Start a timer that a thread waits for."""
        waiter = self._code.driver.waiter()
        call = self.start(delay_seconds, lambda: waiter.set_result(None))
        call.waiter = waiter
        return call

    def bring_on(self, call: TimerCall) -> None:
        """Do nothing: time alone continues it."""
