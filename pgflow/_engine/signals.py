"""Waits for signals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.calls import SignalCall
from pgflow._engine.code import Code
from pgflow._engine.history import NEVER, History
from pgflow._engine.timers import Timers
from pgflow._model.codecs import Codec


@mypyc_attr(allow_interpreted_subclasses=True)
class Signals:
    """Owns nothing: a wait is an open call, and a note if it has a time-out. The database decides
    which message it takes.
    """

    def __init__(self, agenda: Agenda, code: Code, history: History, timers: Timers) -> None:
        self._agenda = agenda
        self._code = code
        self._history = history
        self._timers = timers

    def issue(self, name: str, codec: Codec[Any], timeout: timedelta | None) -> SignalCall:
        """Wait for a signal."""
        call = SignalCall(self._history.next_call(), name, self._code.waiter(), codec=codec)
        if call.number == NEVER:
            return call
        self._agenda.enter(call)
        if timeout is not None:
            call.started_seq, call.due_us = self._timers.note(
                call.number, name, max(0.0, timeout.total_seconds())
            )
        self.bring_on(call)
        return call

    def bring_on(self, call: SignalCall) -> None:  # noqa: ARG002 - the question lists them all
        """Ask the database for mail."""
        self._agenda.look()
