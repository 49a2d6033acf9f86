"""Release: pass one outcome at a time to the code.

Outcomes come from the journal on a replay, else from an answer of the database or a body.
"""

from __future__ import annotations

import json
from collections import deque

from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import Call, StepCall, TimerCall
from pgflow._engine.clock import Clock
from pgflow._engine.code import Code
from pgflow._engine.end import End
from pgflow._engine.flush import Misfit, Returned
from pgflow._engine.history import History
from pgflow._engine.host import Line
from pgflow._engine.kinds import KINDS
from pgflow._engine.parts import Parts
from pgflow._engine.renewal import Renewal
from pgflow._engine.values import Values
from pgflow._model.claims import Offer
from pgflow._model.envelopes import open_text
from pgflow._model.exceptions import clean
from pgflow._model.kinds import CALL_MARKS, OBLIGATION_MARKS, Kind
from pgflow._model.opening import is_event, open_child, open_event
from pgflow._model.units import RETURNED, Unit, new_unit
from pgflow.errors import CodecError, NotStorable


class Release:
    """Owns the outcomes that have a seq and are not released yet, and the messages that the code
    cannot take.
    """

    def __init__(self, parts: Parts) -> None:
        self._claim = parts.claim
        self._line = parts[Line]
        self._clock = parts[Clock]
        self._buffer = parts[Buffer]
        self._agenda = parts[Agenda]
        self._code = parts[Code]
        self._history = parts[History]
        self._values = parts[Values]
        self._end = parts[End]
        self._renewal: Renewal | None = None
        self.decided: deque[Unit] = deque()
        self.misfits: dict[int, Misfit] = {}

    def release_one(self) -> bool:
        """Release the next outcome; return False if there is none."""
        if self._history.replaying:
            if self._renewal is not None and self._renewal.renewing is not None:
                return self._renewal.take()
            if not self.decided:
                self._read_group()
        if self.decided:
            self._release(self.decided.popleft())
            return True
        agenda = self._agenda
        while agenda.inbox:
            result = agenda.take_result()
            call = result.call
            if agenda.open.get(call.number) is call and (
                self._line.execution.parts[KINDS[type(call)]].record(call, result)
            ):
                return True
        return False

    @property
    def is_renewing(self) -> bool:
        """True while a lost result is recreated, which only a replay does. Nothing else is released
        meanwhile.
        """
        return self._renewal is not None and self._renewal.renewing is not None

    def forget(self) -> None:
        """Drop the other decided outcomes."""
        self.decided.clear()

    # ================================================================ from the journal

    def _read_group(self) -> None:
        """Take the next outcome of the journal, with those that the same answer may have decided;
        go live at the end.
        """
        history = self._history
        history.skip_marks()
        unit = history.journal.peek()
        if unit is None:
            history.go_live()
            return
        if not (unit.is_outcome or history.is_start(unit)):
            history.diverge(
                f"the journal has {unit} here, which the code no longer does; {history.standing()}",
                unit=unit,
            )
        calls = self._agenda.open
        while True:
            self.decided.append(history.take())
            child = self._agenda.children.get(unit.call)
            if child is not None and unit.kind == Kind.CHILD_STARTED:
                child.note_start(unit)
            elif unit.call in calls:
                calls[unit.call].state = "decided"
            if not (unit.is_answer or unit.kind == Kind.CHILD_STARTED):
                return
            history.skip_marks(only_of_known=True)
            unit = history.journal.peek()
            if (
                unit is None
                or not (unit.is_answer or history.is_start(unit))
                or (unit.call not in calls and unit.call != 0)
            ):
                return

    def _release(self, unit: Unit) -> None:
        """Release a recorded outcome to its call."""
        history = self._history
        self._clock.stand_from(unit.at_us)
        if unit.call == 0:
            self._cancel_run(unit)
            return
        call = self._agenda.open.get(unit.call)
        if unit.kind == Kind.CHILD_STARTED:
            self._release_start(unit.call)
        elif call is None:
            history.diverge(
                f"the journal has {unit}, which the code never asked for; {history.standing()}",
                unit=unit,
            )
        elif not call.fits(unit):
            history.diverge(f"the journal has {unit}", code=f"the code asks for {call}", unit=unit)
        elif call.number in self._claim.lost and isinstance(call, StepCall) and history.replaying:
            self._renew(call, unit)
        else:
            self._hand_out(call, history.journal.newest(unit) if history.journal.renewed else unit)

    def _renew(self, call: StepCall, unit: Unit) -> None:
        """Recreate a lost result."""
        if self._renewal is None:
            self._renewal = self._line.execution.parts[Renewal]
        assert self._renewal is not None
        self._renewal.begin(call, unit)

    def _hand_out(self, call: Call, unit: Unit) -> None:
        try:
            value, error = call.decode(unit)
        except NotStorable as misfit:
            if not call.may_be_unreadable:
                self._history.diverge(self._values.describe(misfit))
            self._code.deliver(call, json.loads(unit.payload or "null"), misfit)
            return
        if error is not None:
            if call.returned_as and isinstance(error, NotStorable) and self._is_newest():
                self._give_back(call, call.returned_as, unit, error)
                return
        elif isinstance(call, StepCall):
            self._agenda.note_age(call, unit.seq)
        self._code.deliver(call, value, error)

    def _release_start(self, number: int) -> None:
        """Release the start of a child, unless the code gave the child up meanwhile."""
        call = self._agenda.children.get(number)
        if call is not None and call.start is not None:
            call.tell_start()
            self._code.driver.resume()

    def _cancel_run(self, unit: Unit) -> None:
        self._end.request_cancel(json.loads(unit.payload or "{}"), is_late=self._code.has_ended)
        if not self._code.has_ended:
            self._code.driver.cancel()
            self._code.driver.resume()

    # ================================================================ from an answer

    def decide(self, unit: Unit) -> None:
        """Take a unit that the database has just written."""
        agenda = self._agenda
        if unit.kind in OBLIGATION_MARKS:
            agenda.read_obligation(unit)
            return
        call = agenda.open.get(unit.call)
        if unit.kind in CALL_MARKS:
            marked = call or agenda.accepted[unit.call]
            self._line.execution.parts[KINDS[type(marked)]].take_mark(marked, unit)
            if not self._history.is_start(unit):
                return
        elif call is not None:
            call.state = "decided"
        self.decided.append(unit)

    def decide_fenced(self, unit: Unit) -> None:
        """Take the result of a committed transaction."""
        self.decided.append(unit)

    # ================================================================ messages

    def take_offer(self) -> bool:
        """Take the message that came with the claim or with the end of a child, if the code waits
        for it and no timer was due before it was sent. Return True if it did.

        This needs no commit of its own: only the worker that holds the run can take its mail, and
        nothing that rests on the message leaves the process before the flush that records it,
        usually with the next step's licence. That commit deletes the message, so a worker that dies
        earlier leaves it in place. A question to the database in between voids the offer.
        """
        offer = self._claim.offer
        if offer is None or self._history.replaying:
            return False
        waits = [c for c in self._agenda.beside_children() if c.state == "pending"]
        if any(c.due_us and c.due_us <= offer.sent_us for c in waits):
            return False
        if offer.call is not None:
            return self._take_result(offer, offer.call)
        call = next((c for c in waits if c.returned_as == RETURNED and c.name == offer.name), None)
        if call is None:
            return False
        self._claim.offer = None
        try:
            envelopes, what = self._claim.envelopes, f"the payload of signal {call.name!r}"
            text = (
                open_event(offer.payload, envelopes, what)
                if is_event(call.name)
                else open_text(envelopes, offer.payload, what)
            )
        except CodecError:  # the database will deliver it, and then hold the run
            return False
        kind = Kind.SIGNAL_RECEIVED
        _, misfit = call.decode(Unit(0, call.number, kind, call.name, text, None, 0, None))
        if misfit is not None:
            self._await_repair(call, misfit)
            return False
        self._take(offer, call, kind, call.name, text)
        return True

    def _take_result(self, offer: Offer, number: int) -> bool:
        """Take the result of a child."""
        call = self._agenda.children.get(number)
        if call is None or call.state != "pending" or not call.chain_id:
            return False
        self._claim.offer = None
        try:
            text = open_child(
                self._claim.envelopes, offer.payload, f"the result of child {call.name!r}"
            )
        except CodecError:  # the database will deliver it, and then hold the run
            return False
        self._take(offer, call, Kind.CHILD_FINISHED, offer.workflow, text)
        return True

    def _take(self, offer: Offer, call: Call, kind: str, name: str | None, text: str) -> None:
        self._buffer.take_message(offer)
        row = self._buffer.record(call.number, kind, name, offer.payload)
        call.state = "decided"
        self.decided.append(
            new_unit((row.seq, row.call, row.kind, row.name, text, None, row.at_us, None))
        )
        self._buffer.flush_soon()

    # ================================================================ timers

    def take_timer(self) -> bool:
        """Fire the timer that was due first, if the code waits for timers alone. Return True if it
        did.

        This needs no question, because nothing that only the database knows could have come before
        it. The next flush records it, as with an offered message; a worker that dies earlier leaves
        the timer unchanged.

        A timer that was sent since the claim is due at the time stamped by the database, later than
        here by the duration of that commit, so the database is asked.
        """
        timers = self._agenda.timers
        if (
            self._history.replaying
            or self._agenda.wants_look
            or len(timers) < len(self._agenda.open)
        ):
            return False
        first_here = self._buffer.seq - len(self._buffer.rows)
        first: TimerCall | None = None
        first_due_us = 0
        for call in timers.values():
            if call.state != "pending":
                return False
            if self._claim.last_seq < call.started_seq <= first_here:
                return False
            due_us = call.due_us or 0
            if first is None or due_us < first_due_us:
                first, first_due_us = call, due_us
        if first is None or first_due_us > self._clock.estimate_us():
            return False
        row = self._buffer.record(first.number, Kind.TIMER_FIRED, None, None)
        first.state = "decided"
        self.decided.append(
            new_unit((row.seq, row.call, row.kind, None, None, None, row.at_us, None))
        )
        self._buffer.flush_soon()
        return True

    def _is_newest(self) -> bool:
        """Return True if nothing rests on the outcome being released."""
        return not self.decided and (
            not self._history.replaying or self._history.journal.is_finished
        )

    def _give_back(self, call: Call, name: str, unit: Unit, misfit: Exception) -> None:
        """Return a message or an edit that the code cannot take. The commit that records this puts
        the message back into the mailbox, or opens the gate again.
        """
        if self._history.replaying:
            self._history.skip_marks()
            self._history.go_live()
        text = clean(self._values.describe(misfit))
        self._buffer.record(
            call.number,
            Kind.OPERATOR,
            name,
            json.dumps({"seq": unit.seq, "name": call.name, "error": text}),
        )
        self._buffer.give_back(Returned(call.number, unit.seq, text))
        if name == RETURNED:
            self._await_repair(call, misfit)
        else:
            call.state = "pending"
            self._agenda.look()
        self._buffer.flush_soon()

    def _await_repair(self, call: Call, misfit: Exception) -> None:
        """Wait for a person to repair the message. The rest of the run continues."""
        call.state = "misfit"
        self.misfits[call.number] = Misfit(call.name, clean(self._values.describe(misfit)))

    def hold_misfit(self) -> None:
        """Hold the run for a message that it cannot take, unless the code gave up that wait."""
        for number, misfit in self.misfits.items():
            call = self._agenda.open.get(number)
            if call is not None and call.state == "misfit":
                message = f"{misfit.error}. Repair it: pgflow messages {self._claim.key}"
                self._end.hold_for(
                    "signal",
                    {"message": message, "signal": misfit.name, "error": misfit.error},
                    self._end.code_hash,
                )
                return
        self.misfits.clear()
