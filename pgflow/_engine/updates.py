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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import Call, Waits
from pgflow._engine.code import Code
from pgflow._engine.flush import Flush, Word
from pgflow._engine.history import NEVER, History
from pgflow._engine.timers import Timers
from pgflow._engine.values import Values
from pgflow._model.exceptions import encode_error
from pgflow._model.kinds import Kind
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
    said = json.loads(payload or "{}")
    return Taken(said.get("id") or "", name or "", said.get("args"))


Judge = Callable[[Taken, bool], Exception | None]
"""Returns the reason to reject an update, or None. The second argument is True if the update was
let through before.
"""


@dataclass(eq=False)
class UpdateCall(Call):
    """A wait for the next update, optionally with a time-out."""

    judge: Judge = field(kw_only=True)
    started_seq: int = 0
    due_us: int | None = None

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
        waits.add("updates", [self.number])
        if self.started_seq:
            waits.add("timers", [self.number, self.started_seq, Kind.WAIT_TIMED_OUT])

    @property
    def looked_at_us(self) -> int | None:
        """Time when it times out, in microseconds."""
        return self.due_us


@mypyc_attr(allow_interpreted_subclasses=True)
class Updates:
    """Owns the listed updates that are not validated yet, and the taken but unanswered ones."""

    def __init__(
        self,
        buffer: Buffer,
        agenda: Agenda,
        code: Code,
        history: History,
        values: Values,
        timers: Timers,
    ) -> None:
        self._buffer = buffer
        self._agenda = agenda
        self._code = code
        self._history = history
        self._values = values
        self._timers = timers
        self._shown: deque[Shown] = deque()
        self._unanswered: dict[str, None] = {}

    # ================================================================ calls by the code

    def issue(self, judge: Judge, timeout: timedelta | None) -> UpdateCall:
        """Wait for the next update that passes validation."""
        call = UpdateCall(self._history.next_call(), "update", self._code.waiter(), judge=judge)
        if call.number == NEVER:
            return call
        self._agenda.enter(call)
        if timeout is not None:
            call.started_seq, call.due_us = self._timers.note(
                call.number, "update", max(0.0, timeout.total_seconds())
            )
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

    def give_up(self, taken: Taken) -> None:
        """Answer that the run does not continue the update."""
        self._answer(taken, UpdateStatus.REFUSED, "error", "null")

    def _answer(self, taken: Taken, status: str, part: str, text: str) -> None:
        said = f'{{"id":{json.dumps(taken.update_id)},"status":"{status}","{part}":{text}}}'
        number = self._history.next_call()
        if self._history.note(number, Kind.UPDATE_REPLIED, taken.name, said) is None:
            self._buffer.say(Word(taken.update_id, seq=self._buffer.seq, status=status))
        self._unanswered.pop(taken.update_id, None)

    # ================================================================ listed updates

    def forget(self) -> None:
        """Forget the listed updates before a question: its answer lists them anew."""
        self._shown.clear()

    def show(self, offers: Iterable[tuple[int, str, str, bool]]) -> None:
        """Add listed updates."""
        self._shown.extend(Shown(*offer) for offer in offers)

    def take(self) -> Unit | None:
        """Validate the listed updates up to the first valid one, and record that.

        Call it only while the code waits and the next sequence number is known.
        """
        if not self._shown or self._agenda.wants_look:
            return None
        call = next((c for c in self._agenda.open.values() if isinstance(c, UpdateCall)), None)
        if call is None or call.state != "pending":
            return None
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

    # ================================================================ the end

    def close_with(self, flush: Flush) -> None:
        """Refuse the unanswered updates when the run ends or continues as a new generation."""
        if self._unanswered:
            refused = [Word(i, status=UpdateStatus.REFUSED) for i in self._unanswered]
            flush.words = [*flush.words, *refused]
