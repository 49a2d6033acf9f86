"""Release: one outcome at a time is handed to the code, and its end is judged.

From the journal on a replay, else from what the database decided or a body brought back.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall
from pgflow._engine.effects import EffectCall, Stage
from pgflow._engine.flush import Ending, Misfit, Returned
from pgflow._engine.host import ContinueAsNew, EffectResult, Host, StepResult
from pgflow._engine.loop import Unwind
from pgflow._engine.questions import stuck
from pgflow._engine.renewal import Renewals
from pgflow._model.claims import Claim, Offer
from pgflow._model.codecs import Codec
from pgflow._model.envelopes import open_text
from pgflow._model.exceptions import clean, encode_error
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.units import RETURNED, Unit
from pgflow.errors import CodecError, NotStorable


@mypyc_attr(allow_interpreted_subclasses=True)
class Releases(Renewals):
    """The upper layer of an :class:`~pgflow._engine.execution.Execution`; see the module."""

    def __init__(self, claim: Claim, host: Host[Any], result: Codec[Any], code_hash: str) -> None:
        super().__init__(claim, host)
        self.over = False
        self.locked = False
        self.cancel_request: dict[str, Any] | None = None
        self._result = result
        self._code_hash = code_hash
        self._decided: deque[Unit] = deque()
        self._taken: list[Offer] = []
        self._returned: list[Returned] = []
        self._misfits: dict[int, Misfit] = {}
        self._ending: Ending | None = None
        self._has_ended = False
        self._late_cancel: dict[str, Any] | None = None
        self._continue_input: str | None = None
        self._handed_on: list[tuple[int, str]] = []
        self._of_children: list[str] = []
        self._hold: list[Any] | None = None

    @abstractmethod
    def _go_idle(self) -> None:
        """Nothing is left to release."""

    def start(self) -> None:
        """Runs the code for the first time in this activation, and then as far as it goes."""
        self._guarded(self._driver.start)
        self.advance()

    def advance(self) -> None:
        """Releases outcomes while there are any, then goes idle."""
        while self._decided or self._inbox or self.replaying or self.renewing is not None:
            if self._driver.busy or self.locked or self.over or self.divergence or self._is_finished():
                break
            if not self._guarded(self._release_one):
                break
        if self._driver.busy or self.locked or self.over:
            return
        if self.divergence is not None or self._is_finished():
            self._conclude()
        else:
            self._go_idle()

    def _is_finished(self) -> bool:
        """Return True if the code has ended and no effect of it is open."""
        if not self._driver.done:
            return False
        if self.replaying and not self._has_ended:
            self._guarded(self._skip_marks)  # which say what was intended
        if not self.owes:
            return True
        if not self._has_ended:
            self._has_ended = True
            self._drop_all_but_effects()
        return False

    def _guarded(self, move: Callable[[], Any]) -> Any:
        """A move that may find the code diverged, in which case it goes no further."""
        try:
            return move()
        except Unwind:
            if self.divergence is None:
                raise
            return None

    def _release_one(self) -> bool:
        if self.renewing is not None:
            return self._take_renewal()
        if self.replaying and not self._decided:
            self._read_group()
        if self._decided:
            self._release(self._decided.popleft())
            return True
        while self._inbox:
            if self._record_result(self._inbox.popleft()):
                return True
        return False

    def _read_group(self) -> None:
        """Takes the next outcome of the journal, with those that the same answer may have decided; or goes live."""
        self._skip_marks()
        unit = self.journal.peek()
        if unit is None:
            self._go_live()
            return
        if not (unit.is_outcome or self._is_start(unit)):
            self.diverge(f"the journal has {unit} here, which the code no longer does; {self._standing()}", unit=unit)
        while True:
            self._seq = unit.seq
            self._decided.append(self.journal.take())
            call = self._calls.get(unit.call)
            if isinstance(call, ChildCall) and unit.kind == Kind.CHILD_STARTED:
                call.note_start(unit)
            elif call is not None:
                call.state = "decided"
            if not (unit.is_answer or unit.kind == Kind.CHILD_STARTED):
                return
            self._skip_marks(only_of_known=True)
            unit = self.journal.peek()
            if unit is None or not (unit.is_answer or self._is_start(unit)) or (unit.call not in self._calls and unit.call != 0):
                return

    def _standing(self) -> str:
        pending = ", ".join(str(call) for call in self._calls.values()) or "nothing"
        return f"it waits for {pending}"

    def _take_offer(self) -> bool:
        """Takes the signal that came with the claim, if the code waits for it and no timer was due before it was sent.

        That needs no commit of its own: nobody else can take it while this worker holds the run, and nothing that rests on it
        leaves the process before the flush that records it.
        """
        offer = self.claim.offer
        if offer is None or self.replaying or self.renewing is not None:
            return False
        waits = [c for c in self._calls.values() if c.state == "pending"]
        if any(c.looked_at_us and c.looked_at_us <= offer.sent_us for c in waits):
            return False
        call = next((c for c in waits if isinstance(c, SignalCall) and c.name == offer.name), None)
        if call is None:
            return False
        self.claim.offer = None
        try:
            text = open_text(self.claim.envelopes, offer.payload, f"the payload of signal {call.name!r}")
        except CodecError:  # the database will hand it out, and then the run is held
            return False
        _, misfit = call.message_of(text)
        if misfit is not None:
            self._stand_by(call, misfit)
            return False
        self._taken.append(offer)
        row = self._record(call.number, Kind.SIGNAL_RECEIVED, call.name, offer.payload)
        call.state = "decided"
        self._decided.append(Unit(row.seq, row.call, row.kind, row.name, text, None, row.at_us, None))
        self._want_flush()
        return True

    def _record_result(self, result: StepResult) -> bool:
        """Gives a body's result its place in the journal and releases it; False if nobody waits for it."""
        call = result.call
        if self._calls.get(call.number) is not call:
            return False
        if isinstance(result, EffectResult):
            return self._record_effect(result)
        self._running.discard(call.number)
        if result.delay_seconds is not None:
            self._record_attempt(call, result)
            return False
        value, error, text = self._decode(call, result)
        carried = None if call.carried is None else call
        if error is None:
            self._record_emitted(call)
        if error is not None:
            # A transaction has no licence that names it.
            own = call.key or str(call.ordinal) if call.spec.effect == StepKind.TRANSACTION else None
            row = self._record(call.number, Kind.STEP_FAILED, call.name, text, key=own, carried=carried)
        elif call.spec.effect == StepKind.DECISION:
            row = self._record(call.number, Kind.DECISION_RECORDED, call.name, text, key=call.key)
            self._want_flush()
        else:
            row = self._record(call.number, Kind.STEP_COMPLETED, call.name, text, key=call.key or None, carried=carried)
        self._now_us = row.at_us
        if error is None:
            self._note_age(call, row.seq)
        self._deliver(call, value, error)
        return True

    def _record_attempt(self, call: StepCall, result: StepResult) -> None:
        assert result.delay_seconds is not None
        text = "null" if result.error is None else self._error_text(result.error)
        row = self._record(call.number, Kind.ATTEMPT_FAILED, call.name, text, result.delay_seconds)
        call.failed_attempts += 1
        call.retry_seq, call.retry_due_us = row.seq, row.at_us + int(result.delay_seconds * 1e6)
        self._back_off(call, result.delay_seconds)

    def _release(self, unit: Unit) -> None:
        """Hands an outcome that is in the journal to whoever asked for it."""
        self._now_us = max(unit.at_us, self._now_us or 0)
        if unit.call == 0:
            self._cancel_run(unit)
            return
        call = self._calls.get(unit.call)
        if unit.kind == Kind.CHILD_STARTED:
            self._release_start(call)
        elif call is None:
            self.diverge(f"the journal has {unit}, which the code never asked for; {self._standing()}", unit=unit)
        elif not call.fits(unit):
            self.diverge(f"the journal has {unit}", code=f"the code asks for {call}", unit=unit)
        elif call.number in self.claim.lost and isinstance(call, StepCall) and self.replaying:
            self._renew(call, unit)
        else:
            try:
                value, error = call.decode(self._as_renewed(unit))
            except NotStorable as misfit:
                if isinstance(call, EffectCall) and call.stage == Stage.STATED:
                    self._release_misfit(call, unit, misfit)
                    return
                self.diverge(self._told(misfit))
            if isinstance(call, SignalCall) and isinstance(error, NotStorable) and self._is_newest():
                self._return_signal(call, unit, error)
                return
            if error is None:
                self._note_age(call, unit.seq)
            if isinstance(call, ChildCall) and '"saga"' in (unit.payload or "") and (left := json.loads(unit.payload or "{}").get("saga")):
                call.take_over(left, call.number)
            self._deliver(call, value, error)

    def _release_start(self, call: Call | None) -> None:
        """A child has started; what was released before may have had the code give it up."""
        if isinstance(call, ChildCall) and call.start is not None:
            call.tell_start()
            self._driver.resume()

    def _is_newest(self) -> bool:
        """Return True if nothing rests on the outcome that is being released."""
        return not self._decided and (not self.replaying or self.journal.is_told)

    def _return_signal(self, call: SignalCall, unit: Unit, misfit: Exception) -> None:
        """Gives a message back that the code cannot take: the commit that says so puts it into the mailbox again."""
        if self.replaying:
            self._skip_marks()
            self._go_live()
        told = clean(self._told(misfit))
        self._record(call.number, Kind.OPERATOR, RETURNED, json.dumps({"seq": unit.seq, "name": call.name, "error": told}))
        self._returned.append(Returned(call.number, unit.seq, told))
        self._stand_by(call, misfit)
        self._want_flush()

    def _stand_by(self, call: SignalCall, misfit: Exception) -> None:
        """The call waits for a person who mends the message; the rest of the run goes on as far as it can."""
        call.state = "misfit"
        self._misfits[call.number] = Misfit(call.name, clean(self._told(misfit)))

    def _hold_misfit(self) -> None:
        """Holds the run for a message that it cannot take, unless the code waits for it no longer."""
        for number, misfit in self._misfits.items():
            call = self._calls.get(number)
            if call is not None and call.state == "misfit":
                message = f"{misfit.error}. Mend it: pgflow messages {self.claim.key}"
                self._hold = stuck("signal", {"message": message, "signal": misfit.name, "error": misfit.error}, self._code_hash)
                return
        self._misfits.clear()

    def _deliver(self, call: Call, value: Any, error: Exception | None) -> None:
        self._drop(call)
        if isinstance(call, EffectCall):
            self._close_effect(call, value, error)
        call.deliver(value, error)
        if not self._has_ended:  # what the code left running when it ended does not go on for the sake of an open effect
            self._driver.resume()

    def _cancel_run(self, unit: Unit) -> None:
        self.cancel_request = json.loads(unit.payload or "{}")
        if self._has_ended:
            self._late_cancel = self.cancel_request
        else:
            self._driver.cancel()
            self._driver.resume()

    # ================================================================ the end

    def _conclude(self) -> None:
        """The code has ended, or can no longer be trusted: one last flush. What else was decided is released to nobody."""
        self._decided.clear()
        if self._ending is None and self._hold is None and self._continue_input is None:
            if self.divergence is None:
                self._guarded(self._judge_end)
            if self.divergence is not None:
                detail = {"message": clean(str(self.divergence)), "where": [] if self._parting is None else self._parting.where}
                self._hold = stuck(self._held_as, detail, self._code_hash if self._held_as == "nondeterminism" else None)
        self._want_flush()

    def _judge_end(self) -> None:
        value, error = self._driver.outcome()
        if self.replaying:
            self._skip_marks()
            unit = self.journal.peek()
            if unit is not None and not (unit.kind == Kind.CONTINUED and isinstance(error, ContinueAsNew)):
                self.diverge(f"the code ends where the journal goes on with {unit}", unit=unit)
            self._check_starts()
            self.replaying = False
            self._record_renewals()
        self._unlicensed.clear()
        self._startable.clear()
        self._new_children.clear()
        self._new_effects.clear()
        if isinstance(error, ContinueAsNew):
            self._continue_input = error.input_text
            self._handed_on = [(call.number, code) for call, code in error.saga if call.is_in_place]
            self._of_children = error.of_children
        elif isinstance(error, asyncio.CancelledError):
            why = (self.cancel_request or {}).get("why") or "the workflow cancelled itself"
            self._ending = Ending("cancelled", clean(str(why), 4096), None, None)
        elif error is not None:
            self._ending = Ending("failed", None, None, self._error_text(encode_error(error)))
        else:
            self._ending = self._encode_end(value)

    def check_result(self, value: Any) -> str:
        """A result as it is recorded; refuses one that could not be stored, while there is code that can still take back what was done.

        Raises:
            NotStorable: It cannot be stored, or not be read back.
        """
        what = f"the result of workflow {self.claim.workflow}"
        text = self._result.encode(value, what)
        self._result.decode(text, what)
        return self.sealed(text, what)

    def _encode_end(self, value: Any) -> Ending:
        try:
            text = self.check_result(value)
        except NotStorable as error:
            return Ending("failed", None, None, self._error_text(encode_error(error, with_traceback=False)))
        return Ending("completed", None, text, None)
