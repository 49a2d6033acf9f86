"""Timers: sleeps, time-outs, and other delays of the event loop."""

from __future__ import annotations

from collections.abc import Callable

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import TimerCall
from pgflow._engine.code import Code
from pgflow._engine.history import NEVER, History
from pgflow._model.kinds import Kind


@mypyc_attr(allow_interpreted_subclasses=True)
class Timers:
    """Owns nothing: a timer is a note and an open call."""

    def __init__(self, buffer: Buffer, agenda: Agenda, code: Code, history: History) -> None:
        self._buffer = buffer
        self._agenda = agenda
        self._code = code
        self._history = history

    def start(self, delay_seconds: float, fire: Callable[[], None]) -> TimerCall:
        """Start a durable timer for the event loop."""
        return self._start(
            TimerCall(self._history.next_call(), "timer", None, fire=fire), delay_seconds
        )

    def issue(self, delay_seconds: float) -> TimerCall:
        """Start a timer that a thread waits for."""
        waiter = self._code.waiter()
        return self._start(
            TimerCall(
                self._history.next_call(), "timer", waiter, fire=lambda: waiter.set_result(None)
            ),
            delay_seconds,
        )

    def _start(self, call: TimerCall, delay_seconds: float) -> TimerCall:
        if call.number != NEVER:
            self._agenda.enter(call)
            call.started_seq, call.due_us = self.note(call.number, None, delay_seconds)
        return call

    def note(self, number: int, name: str | None, delay_seconds: float) -> tuple[int, int]:
        """Repeat or record the start of a timer; return its seq, and the time when it is due in
        microseconds.
        """
        unit = self._history.note(
            number, Kind.TIMER_STARTED, name, repr(delay_seconds), delay_seconds
        )
        if unit is not None:
            return unit.seq, unit.due_us or 0
        row = self._buffer.rows[-1]
        return row.seq, row.at_us + int(delay_seconds * 1e6)
