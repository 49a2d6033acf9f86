"""Release: pass one outcome at a time to the code.

Outcomes come from the journal on a replay, else from an answer of the database or a body.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable

from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall, TimerCall
from pgflow._engine.clock import Clock
from pgflow._engine.code import Code
from pgflow._engine.effects import EffectCall, Stage
from pgflow._engine.end import End
from pgflow._engine.flush import Misfit, Returned
from pgflow._engine.gates import GateCall
from pgflow._engine.history import History
from pgflow._engine.host import EffectResult, StepResult
from pgflow._engine.ledger import Ledger
from pgflow._engine.renewal import Renewal
from pgflow._engine.values import Values
from pgflow._model.claims import Claim, Offer
from pgflow._model.envelopes import open_text
from pgflow._model.exceptions import clean
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.opening import is_event, open_child, open_event
from pgflow._model.units import ANSWER_RETURNED, EFFECT_MARKS, OBLIGATION_MARKS, RETURNED, Unit
from pgflow.errors import CodecError, NotStorable


class Release:
    """Owns the outcomes that have a seq and are not released yet, the messages that the code cannot
    take, and the renewal of lost results, which is made on first use.
    """

    def __init__(
        self,
        claim: Claim,
        clock: Clock,
        buffer: Buffer,
        agenda: Agenda,
        code: Code,
        history: History,
        values: Values,
        end: End,
        find_ledger: Callable[[], Ledger],
    ) -> None:
        self._claim = claim
        self._clock = clock
        self._buffer = buffer
        self._agenda = agenda
        self._code = code
        self._history = history
        self._values = values
        self._find_ledger: Callable[[], Ledger] | None = find_ledger
        self._renewal: Renewal | None = None
        self._end = end
        self.decided: deque[Unit] = deque()
        self.misfits: dict[int, Misfit] = {}

    @property
    def ledger(self) -> Ledger:
        """The part for effects, made on first use because most runs have no effects."""
        assert self._find_ledger is not None
        return self._find_ledger()

    def close(self) -> None:
        """Release the reference to the execution."""
        self._find_ledger = None

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
        while (result := self._agenda.take_result()) is not None:
            if self._record_result(result):
                return True
        return False

    @property
    def is_renewing(self) -> bool:
        """True while a lost result is recreated, which only a replay does. Nothing else is released
        meanwhile.
        """
        return self._renewal is not None and self._renewal.renewing is not None

    def record_renewed(self) -> None:
        """Record the recreated results after the replay."""
        if self._renewal is not None:
            self._renewal.record()

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
            call = calls.get(unit.call)
            if isinstance(call, ChildCall) and unit.kind == Kind.CHILD_STARTED:
                call.note_start(unit)
            elif call is not None:
                call.state = "decided"
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
            self._release_start(call)
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
            self._renewal = Renewal(
                self._claim, self._buffer, self._agenda, self._code, self._history, self._values
            )
        self._renewal.begin(call, unit)

    def _hand_out(self, call: Call, unit: Unit) -> None:
        try:
            value, error = call.decode(unit)
        except NotStorable as misfit:
            if not (isinstance(call, EffectCall) and call.stage == Stage.STATED):
                self._history.diverge(self._values.told(misfit))
            # A person confirmed it with a value that its annotation cannot read: the code gets the
            # error and can compensate.
            self._code.deliver(call, json.loads(unit.payload or "null"), misfit)
            return
        if isinstance(call, SignalCall) and isinstance(error, NotStorable) and self._is_newest():
            self._return_signal(call, unit, error)
            return
        if isinstance(call, GateCall) and error is not None and self._is_newest():
            self._return_answer(call, unit, error)
            return
        if isinstance(call, StepCall):
            if error is None and call.spec.max_age_seconds is not None:
                self.ledger.note_age(call, unit.seq)
        elif (
            isinstance(call, ChildCall)
            and '"saga"' in (unit.payload or "")
            and (left := json.loads(unit.payload or "{}").get("saga"))
        ):
            call.take_over(left, call.number)
        self._code.deliver(call, value, error)

    def _release_start(self, call: Call | None) -> None:
        """Release the start of a child, unless the code gave the child up meanwhile."""
        if isinstance(call, ChildCall) and call.start is not None:
            call.tell_start()
            self._code.resume()

    def _cancel_run(self, unit: Unit) -> None:
        self._end.request_cancel(json.loads(unit.payload or "{}"), is_late=self._code.has_ended)
        if not self._code.has_ended:
            self._code.driver.cancel()
            self._code.resume()

    # ================================================================ from an answer

    def decide(self, unit: Unit) -> bool:
        """Take a unit that the database has just written; return True if it is about a child."""
        call = self._agenda.open.get(unit.call)
        if unit.kind in EFFECT_MARKS:
            self.ledger.take_mark(unit)
            return False
        if unit.kind in OBLIGATION_MARKS:
            self._agenda.read_obligation(unit)
            return False
        if unit.kind == Kind.BUDGET_ADMITTED:
            assert isinstance(call, StepCall)
            self._begin_admitted(call, unit)
            return False
        if unit.kind == Kind.LOCK_ASKED:
            return False
        if unit.kind == Kind.CHILD_STARTED:
            assert isinstance(call, ChildCall)
            call.note_start(unit)
            if self._history.is_start(unit):
                self.decided.append(unit)
            return True
        if unit.kind == Kind.GATE_ASKED:
            assert isinstance(call, GateCall)
            call.read(unit)
            return False
        if call is not None:
            call.state = "decided"
        self.decided.append(unit)
        return isinstance(call, ChildCall)

    def _begin_admitted(self, call: StepCall, unit: Unit) -> None:
        """Continue an admitted call: its body may start, or an effect asks for leave to act."""
        call.read(unit)
        if isinstance(call, EffectCall):
            self.ledger.bring_on(call)
        else:
            self._agenda.make_startable(call)

    def decide_fenced(self, unit: Unit) -> None:
        """Take the result of a committed transaction."""
        self.decided.append(unit)

    # ================================================================ from a body

    def _record_result(self, result: StepResult) -> bool:
        """Record and release the result of a body; return False if it has no outcome."""
        call = result.call
        if self._agenda.open.get(call.number) is not call:
            return False
        if isinstance(result, EffectResult):
            return self.ledger.record_result(result)
        buffer = self._buffer
        self._agenda.returned(call)
        if call.charges is not None:
            buffer.record_charges(call)
        if result.delay_seconds is not None:
            self._record_attempt(call, result)
            return False
        value, error, text = self._values.decode(call, result)
        carried = None if call.carried is None else call
        if call.emitted and error is None:
            buffer.record_emitted(call)
        if error is not None:
            # A transaction has no licence with its key.
            own = (
                call.key or str(call.ordinal) if call.spec.effect == StepKind.TRANSACTION else None
            )
            row = buffer.record(
                call.number, Kind.STEP_FAILED, call.name, text, key=own, carried=carried
            )
        elif call.spec.effect == StepKind.DECISION:
            row = buffer.record(call.number, Kind.DECISION_RECORDED, call.name, text, key=call.key)
            buffer.flush_soon()
        else:
            row = buffer.record(
                call.number,
                Kind.STEP_COMPLETED,
                call.name,
                text,
                key=call.key or None,
                carried=carried,
            )
        self._clock.stand_at(row.at_us)
        if error is None and call.spec.max_age_seconds is not None:
            self.ledger.note_age(call, row.seq)
        self._code.deliver(call, value, error)
        return True

    def _record_attempt(self, call: StepCall, result: StepResult) -> None:
        assert result.delay_seconds is not None
        text = "null" if result.error is None else self._values.error_text(result.error)
        row = self._buffer.record(
            call.number, Kind.ATTEMPT_FAILED, call.name, text, result.delay_seconds
        )
        call.failed_attempts += 1
        call.retry_seq, call.retry_due_us = row.seq, row.at_us + int(result.delay_seconds * 1e6)
        self._agenda.back_off(call, result.delay_seconds)

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
        if any(c.looked_at_us and c.looked_at_us <= offer.sent_us for c in waits):
            return False
        if offer.call is not None:
            return self._take_result(offer, self._agenda.children.get(offer.call))
        call = next((c for c in waits if isinstance(c, SignalCall) and c.name == offer.name), None)
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
        _, misfit = call.message_of(text)
        if misfit is not None:
            self._stand_by(call, misfit)
            return False
        self._take(offer, call, Kind.SIGNAL_RECEIVED, call.name, text)
        return True

    def _take_result(self, offer: Offer, call: ChildCall | None) -> bool:
        """Take the result of a child."""
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
            Unit(row.seq, row.call, row.kind, row.name, text, None, row.at_us, None)
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
        if self._history.replaying or self._agenda.wants_look:
            return False
        now_us, first_here = self._clock.estimate_us(), self._buffer.seq - len(self._buffer.rows)
        first: TimerCall | None = None
        for call in self._agenda.open.values():
            if not isinstance(call, TimerCall) or call.state != "pending":
                return False
            if self._claim.last_seq < call.started_seq <= first_here:
                return False
            if call.due_us <= now_us and (first is None or call.due_us < first.due_us):
                first = call
        if first is None:
            return False
        row = self._buffer.record(first.number, Kind.TIMER_FIRED, None, None)
        first.state = "decided"
        self.decided.append(Unit(row.seq, row.call, row.kind, None, None, None, row.at_us, None))
        self._buffer.flush_soon()
        return True

    def _is_newest(self) -> bool:
        """Return True if nothing rests on the outcome being released."""
        return not self.decided and (not self._history.replaying or self._history.journal.is_told)

    def _return_signal(self, call: SignalCall, unit: Unit, misfit: Exception) -> None:
        """Return a message that the code cannot take: the commit that records this puts it back
        into the mailbox.
        """
        self._give_back(call, RETURNED, unit, misfit)
        self._stand_by(call, misfit)
        self._buffer.flush_soon()

    def _return_answer(self, call: GateCall, unit: Unit, misfit: Exception) -> None:
        """Return an edit that the code cannot take: the commit that records this opens the gate
        again, and the wait continues.
        """
        self._give_back(call, ANSWER_RETURNED, unit, misfit)
        call.state = "pending"
        self._agenda.look()
        self._buffer.flush_soon()

    def _give_back(self, call: Call, name: str, unit: Unit, misfit: Exception) -> None:
        if self._history.replaying:
            self._history.skip_marks()
            self._history.go_live()
        told = clean(self._values.told(misfit))
        self._buffer.record(
            call.number,
            Kind.OPERATOR,
            name,
            json.dumps({"seq": unit.seq, "name": call.name, "error": told}),
        )
        self._buffer.give_back(Returned(call.number, unit.seq, told))

    def _stand_by(self, call: SignalCall, misfit: Exception) -> None:
        """Wait for a person to repair the message. The rest of the run continues."""
        call.state = "misfit"
        self.misfits[call.number] = Misfit(call.name, clean(self._values.told(misfit)))

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
