"""Updates: the code takes requests to the run and answers them.

The database lists the waiting updates without taking them. While the code waits, the validator of
each is called, in order. A rejected update is answered and leaves no unit; the first valid one is
recorded and passed to the code. This is safe without a question: only the worker that holds the run
can take its mail, and nothing that rests on an update leaves before the commit that takes it out of
the mailbox.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import TimedCall, Waits
from pgflow._engine.end import End
from pgflow._engine.flush import Flush, Word
from pgflow._engine.history import NEVER
from pgflow._engine.kind import KindOfCall
from pgflow._engine.parts import Parts
from pgflow._engine.values import Values
from pgflow._model.exceptions import encode_error
from pgflow._model.kinds import Kind
from pgflow._model.protocol import Answer
from pgflow._model.units import Unit
from pgflow._model.updates import UpdateStatus


class Taken(NamedTuple):
    """An update that the code has taken: id, handler, and arguments as recorded."""

    update_id: str
    name: str
    args: Any


class Shown(NamedTuple):
    """An update that waits in the mailbox. ``is_again`` is True if it was taken before a rewind."""

    message: int
    name: str
    payload: str
    is_again: bool

    @property
    def taken(self) -> Taken:
        """The update, for the code."""
        return taken_of(self.name, self.payload)


def taken_of(name: str | None, payload: str | None) -> Taken:
    """Return an update from its name and payload."""
    update = json.loads(payload or "{}")
    return Taken(update.get("id") or "", name or "", update.get("args"))


Judge = Callable[[Taken, bool], Exception | None]
"""Returns the reason to reject an update, or None. The second argument is True if the update was
let through before.
"""


@dataclass(eq=False)
class UpdateCall(TimedCall):
    """A wait for the next update, optionally with a time-out."""

    judge: Judge = field(kw_only=True)

    def fits(self, unit: Unit) -> bool:
        """Return True for an update or a time-out."""
        return unit.kind == Kind.UPDATE_TAKEN or (
            unit.kind == Kind.WAIT_TIMED_OUT and (unit.name is None or self.answers_to(unit.name))
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the update; as an error, the time-out."""
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError("timed out while serving updates")
        return taken_of(unit.name, unit.payload), None

    def wait(self, waits: Waits) -> None:
        """Add the wait for updates and its time-out."""
        waits["updates"].append([self.number])
        if self.started_seq:
            self.add_time_out(waits)


@mypyc_attr(allow_interpreted_subclasses=True)
class Updates(KindOfCall[UpdateCall]):
    """Owns the waits for updates, the listed updates that are not validated yet, and the taken but
    unanswered ones.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._values = parts[Values]
        self._end = parts[End]
        self._waits: list[UpdateCall] = []
        self._shown: deque[Shown] = deque()
        self._unanswered: dict[str, None] = {}
        parts.in_flushes.append(self)

    # ================================================================ calls by the code

    def issue(self, judge: Judge, timeout: timedelta | None) -> UpdateCall:
        """Wait for the next update that passes validation."""
        call = UpdateCall(
            self._history.next_call(), "update", self._code.driver.waiter(), judge=judge
        )
        if call.number != NEVER:
            self._agenda.enter(call)
            self._waits.append(call)
            if timeout is not None:
                self._limit(call, "update", timeout)
            self.bring_on(call)
        return call

    def bring_on(self, call: UpdateCall) -> None:
        """Ask the database, unless updates are listed and no time-out is running."""
        if not self._shown or call.due_us is not None:
            self._agenda.look()

    def begin(self, taken: Taken) -> None:
        """Remember that the code owes an update its answer."""
        self._unanswered[taken.update_id] = None

    def reply(self, taken: Taken, value: str) -> None:
        """Answer with the handler's result, as JSON text."""
        stored = self._values.sealed_note(value, f"the answer to update {taken.name!r}")
        self._answer(taken, UpdateStatus.DONE, "value", stored)

    def fail(self, taken: Taken, error: Exception) -> None:
        """Answer with the handler's error."""
        text = self._values.error_text(encode_error(error))
        self._answer(taken, UpdateStatus.FAILED, "error", text)

    def refuse(self, taken: Taken) -> None:
        """Answer that the run does not continue the update."""
        self._answer(taken, UpdateStatus.REFUSED, "error", "null")

    def _answer(self, taken: Taken, status: str, part: str, text: str) -> None:
        answer = f'{{"id":{json.dumps(taken.update_id)},"status":"{status}","{part}":{text}}}'
        number = self._history.next_call()
        if self._history.note(number, Kind.UPDATE_REPLIED, taken.name, answer) is None:
            self._buffer.say(Word(taken.update_id, seq=self._buffer.seq, status=status))
        self._unanswered.pop(taken.update_id, None)

    # ================================================================ listed updates

    def read_answer(self, answer: Answer) -> None:
        """Add the updates that an answer lists."""
        self._shown.extend(Shown(*offer) for offer in answer.get("offers", ()))

    def take(self) -> Unit | None:
        """Validate the listed updates up to the first valid one, and record that.

        Call it only while the code waits and the next sequence number is known.
        """
        if not self._shown or self._agenda.wants_look:
            return None
        self._waits = [wait for wait in self._waits if self._agenda.is_open(wait)]
        if not self._waits or self._waits[0].state != "pending":
            return None
        call = self._waits[0]
        while self._shown:
            shown = self._shown.popleft()
            reason = call.judge(shown.taken, shown.is_again)
            if reason is None:
                return self._record(call, shown)
            error = self._values.error_text(encode_error(reason, with_traceback=False))
            self._buffer.say(
                Word(
                    shown.taken.update_id, shown.message, status=UpdateStatus.REJECTED, error=error
                )
            )
        # The list may have been incomplete.
        self._agenda.look()
        return None

    def _record(self, call: UpdateCall, shown: Shown) -> Unit:
        row = self._buffer.record(call.number, Kind.UPDATE_TAKEN, shown.name, shown.payload)
        self._buffer.say(Word(shown.taken.update_id, shown.message))
        return Unit(row.seq, row.call, row.kind, row.name, row.payload, None, row.at_us, None)

    # ================================================================ flushes

    def add_to(self, flush: Flush) -> None:
        """Forget the listed updates before a question, whose answer lists them anew; refuse the
        unanswered ones when the run ends or continues as a new generation.
        """
        if flush.question is not None:
            self._shown.clear()
        if flush.ending is None and self._end.continue_input is None:
            return
        if self._unanswered:
            refused = [Word(i, status=UpdateStatus.REFUSED) for i in self._unanswered]
            flush.words = [*flush.words, *refused]
