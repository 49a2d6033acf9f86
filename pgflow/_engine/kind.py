"""Base of the parts for kinds of calls: the verbs as most waits have them.

The part for a kind takes the requests of the code, and does what its calls do to the other parts:
it continues them after a replay, records results, applies marks of an answer, and gives them up.
:mod:`pgflow._engine.kinds` lists the part of each kind.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, TypeVar

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import Call, TimedCall
from pgflow._engine.code import Code
from pgflow._engine.flush import Flush
from pgflow._engine.history import History
from pgflow._engine.host import StepResult
from pgflow._engine.parts import Parts
from pgflow._model.kinds import Kind
from pgflow._model.protocol import Answer
from pgflow._model.units import Unit

C = TypeVar("C", bound=Call)


@mypyc_attr(allow_interpreted_subclasses=True)
class KindOfCall(Generic[C]):
    """Part for a kind of calls. Here are the verbs as most waits have them."""

    def __init__(self, parts: Parts) -> None:
        self._buffer = parts[Buffer]
        self._agenda = parts[Agenda]
        self._code = parts[Code]
        self._history = parts[History]

    # ================================================================ one call

    def bring_on(self, call: C) -> None:  # noqa: ARG002 - the question lists them all
        """Continue a call after the replay: ask the database with the next flush."""
        self._agenda.look()

    def take_mark(self, call: C, unit: Unit) -> None:
        """Apply a mark that the database has just written."""
        call.read(unit)

    def record(self, call: C, result: StepResult) -> bool:
        """Record the result of a body; return True if an outcome was released."""
        raise NotImplementedError

    def retry(self, call: C) -> bool:
        """Start the next try after its wait; return False if it is not due."""
        raise NotImplementedError

    def give_up(self, call: C) -> None:
        """Give up a call of the code. That is recorded; its late result is not."""
        self._withdraw(call, Kind.CALL_CANCELLED)

    def _withdraw(self, call: Call, kind: str) -> Unit | None:
        """Drop a call with a note of this kind, and return the note if the journal has it."""
        unit = self._history.next_noted() if call.aliases else None
        is_renamed = unit is not None and unit.call == call.number and unit.name in call.aliases
        name = unit.name if unit is not None and is_renamed else call.name
        noted = self._history.note(call.number, kind, name, None)
        self._agenda.drop(call)
        return noted

    def _limit(self, call: TimedCall, name: str, timeout: timedelta) -> None:
        """Start the time-out of a call."""
        call.started_seq, call.due_us = self._note_timer(
            call.number, name, max(0.0, timeout.total_seconds())
        )

    def _note_timer(self, number: int, name: str | None, delay_seconds: float) -> tuple[int, int]:
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

    # ================================================================ flushes

    def add_to(self, flush: Flush) -> None:
        """Add to a flush what it must contain for this kind; called for ``parts.in_flushes``."""

    def read_answer(self, answer: Answer) -> None:
        """Read what an answer has for this kind; called for ``parts.in_flushes``."""
