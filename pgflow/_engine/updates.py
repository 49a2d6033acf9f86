"""Updates: how the code takes what somebody asks the run to do, and answers it.

The database shows the updates that wait, and takes none by that. While the code stands still, the
validator of each is called, in their order. One that it rejects is answered and leaves no unit; the
first one that it lets through is recorded and handed to the code. That is safe without a question,
since nobody else can take the mail of a run that this worker holds, and what rests on it leaves no
earlier than the commit that takes it out of the mailbox.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
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
    """An update that the code has taken: its id, its handler, and its arguments as recorded."""

    update_id: str
    name: str
    args: Any


class Shown(NamedTuple):
    """An update that waits in the mailbox; ``is_again``: it was taken before a rewind."""

    message: int
    name: str
    payload: str
    is_again: bool

    @property
    def taken(self) -> Taken:
        """The update, for the code."""
        return taken_of(self.name, self.payload)


def taken_of(name: str | None, payload: str | None) -> Taken:
    """Return an update as the journal and the mailbox have it."""
    said = json.loads(payload or "{}")
    return Taken(said.get("id") or "", name or "", said.get("args"))


Judge = Callable[[Taken, bool], Exception | None]
"""Says why an update is rejected, or None; told whether it has been let through before."""


@dataclass(eq=False)
class UpdateCall(Call):
    """A wait for the next update, perhaps with a time-out."""

    judge: Judge = field(kw_only=True)
    started_seq: int = 0
    due_us: int | None = None

    def fits(self, unit: Unit) -> bool:
        """Return True for an update, and for the end of the wait."""
        return unit.kind == Kind.UPDATE_TAKEN or (
            unit.kind == Kind.WAIT_TIMED_OUT and (unit.name is None or self.answers_to(unit.name))
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the update; as an error, a time-out."""
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError("what updates were served for has not come in time")
        return taken_of(unit.name, unit.payload), None

    def wait(self, waits: Waits) -> None:
        """Names itself, and its time-out."""
        waits.add("updates", [self.number])
        if self.started_seq:
            waits.add("timers", [self.number, self.started_seq, Kind.WAIT_TIMED_OUT])

    @property
    def looked_at_us(self) -> int | None:
        """Time at which it times out."""
        return self.due_us


@mypyc_attr(allow_interpreted_subclasses=True)
class Updates:
    """Owns the updates that were shown, as far as they are not judged, and those that were taken
    and have no answer yet.
    """

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

    # ================================================================ what the code asks for

    def issue(self, judge: Judge, timeout: timedelta | None) -> UpdateCall:
        """Waits for the next update that its judge lets through."""
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
        """One may wait already; or its time is over, which the database knows."""
        if not self._shown or call.due_us is not None:
            self._agenda.look()

    def begin(self, taken: Taken) -> None:
        """The code has an update: it owes an answer."""
        self._unanswered[taken.update_id] = None

    def reply(self, taken: Taken, value: str) -> None:
        """Answers with what the handler returned, as JSON text."""
        stored = self._values.sealed_note(value, f"the answer to update {taken.name!r}")
        self._answer(taken, UpdateStatus.DONE, "value", stored)

    def fail(self, taken: Taken, error: Exception) -> None:
        """Answers with what the handler raised."""
        text = self._values.error_text(encode_error(error))
        self._answer(taken, UpdateStatus.FAILED, "error", text)

    def give_up(self, taken: Taken) -> None:
        """Answers that the run does not go on with it."""
        self._answer(taken, UpdateStatus.REFUSED, "error", "null")

    def _answer(self, taken: Taken, status: str, part: str, text: str) -> None:
        said = f'{{"id":{json.dumps(taken.update_id)},"status":"{status}","{part}":{text}}}'
        number = self._history.next_call()
        if self._history.note(number, Kind.UPDATE_REPLIED, taken.name, said) is None:
            self._buffer.say(Word(taken.update_id, seq=self._buffer.seq, status=status))
        self._unanswered.pop(taken.update_id, None)

    # ================================================================ what the database shows

    def forget(self) -> None:
        """The database is asked: its answer shows what waits then."""
        self._shown.clear()

    def show(self, offers: list[list[Any]]) -> None:
        """These wait."""
        self._shown.extend(Shown(*offer) for offer in offers)

    def take(self) -> Unit | None:
        """Judges what was shown, up to the first update that the code takes, and records that.

        Only while the code stands still, and the next sequence number is known.
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
        # There may be more than were shown.
        self._agenda.look()
        return None

    def _record(self, call: UpdateCall, shown: Shown) -> Unit:
        row = self._buffer.record(call.number, Kind.UPDATE_TAKEN, shown.name, shown.payload)
        self._buffer.say(Word(shown.taken.update_id, shown.message))
        return Unit(row.seq, row.call, row.kind, row.name, row.payload, None, row.at_us, None)

    # ================================================================ the end

    def close_with(self, flush: Flush) -> None:
        """The run ends or goes on as another: what has no answer gets none from it."""
        if self._unanswered:
            refused = [Word(i, status=UpdateStatus.REFUSED) for i in self._unanswered]
            flush.words = [*flush.words, *refused]
