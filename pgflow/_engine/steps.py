"""Steps: request their bodies and record results, or reuse those of a dropped part of a journal."""

from __future__ import annotations

from collections import deque
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import StepCall, StepSpec, Want
from pgflow._engine.clock import Clock
from pgflow._engine.history import NEVER
from pgflow._engine.host import StepResult
from pgflow._engine.keys import Keys, Resting
from pgflow._engine.kind import KindOfCall
from pgflow._engine.parts import Parts
from pgflow._engine.values import Values, hash_of
from pgflow._model.claims import ReusedStep
from pgflow._model.codecs import hash_arguments
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.units import Start, Unit, ended_by


@mypyc_attr(allow_interpreted_subclasses=True)
class Steps(KindOfCall[StepCall]):
    """Owns the results of steps in a dropped part of the journal. Each is reused once."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._claim = claim = parts.claim
        self._is_undoing = parts.is_undoing
        self._clock = parts[Clock]
        self._values = parts[Values]
        self._keys = parts[Keys]
        self._is_plain = not (
            claim.units or claim.heritage is not None or claim.is_pool_hard or parts.is_undoing
        )
        """True if no journal, heritage or pool affects the steps of this run."""
        self._carried: dict[tuple[str, int], deque[ReusedStep]] = {}
        self._inherited: frozenset[int] = frozenset()
        heritage = claim.heritage
        if heritage is not None and heritage.carried:
            self._carried = {step: deque(known) for step, known in heritage.carried.items()}
            self._inherited = ended_by(claim.units, heritage.cut)

    def issue(
        self,
        spec: StepSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rests_on: Resting | None = None,
        *,
        is_undo: bool = False,
    ) -> StepCall:
        """Request a step. A step of an undo plan never reuses a result."""
        number = self._history.next_call()
        call = StepCall(
            number,
            spec.name,
            self._code.driver.waiter(),
            spec=spec,
            args=args,
            kwargs=kwargs,
            aliases=spec.aliases,
        )
        if number == NEVER:
            return call
        if rests_on is None and spec.effect != StepKind.DECISION:
            self._keys.count(call)
        else:
            self._keys.name(call, rests_on)
        if spec.effect in (StepKind.STEP, StepKind.TRANSACTION) and (
            number not in self._history.journal.ended or self._carried
        ):
            hash_key = self._values.hash_key
            call.args_hash = (
                hash_arguments(args, kwargs, f"step {call.name}", hash_key)
                if spec.effect == StepKind.STEP
                else hash_of(call, hash_key)
            )
        if self._is_plain and spec.is_licensed_first:
            self._agenda.enter_step(call)
            return call
        if self._claim.heritage is not None:
            call.max_attempts = self._claim.heritage.attempts
            if not is_undo:
                self._inherit(call)
        self._agenda.enter(call)
        self.check(call, may_be_refused=not is_undo)
        if not self._history.replaying:
            self.do(call, call.ask())
        return call

    def check(self, call: StepCall, *, may_be_refused: bool) -> None:
        """Check that an open call matches its licence if it has one. A call that takes something
        back is never refused for lack of budget.
        """
        if self._claim.is_pool_hard and not self._is_undoing:
            call.is_under_hard_pool = may_be_refused
        started = self._history.journal.starts.get(call.number)
        if started is not None:
            call.is_licensed = True
            if self._is_undoing:
                call.args_hash = started.args_hash  # its arguments came from the record
            self._check_start(call, started)

    def _inherit(self, call: StepCall) -> None:
        """Reuse the result of the same step with the same arguments from a dropped part of the
        journal.
        """
        if call.number in self._inherited:
            return
        known = self._carried.get((call.name, call.args_hash))
        if not known:
            others = [
                self._carried.get((call.name, args_hash))
                for args_hash in self._values.other_hashes(call)
            ]
            known = next((carried for carried in others if carried), None)
        if known:
            carried = known.popleft()
            call.carried = carried.result
            call.ordinal = carried.key
            call.key = carried.key if call.key else ""

    def _check_start(self, call: StepCall, started: Start) -> None:
        """Check that a body that may have run is requested exactly as before."""
        history = self._history
        if call.aliases and call.answers_to(started.name):
            # It keeps the key that it was started under.
            call.name, call.ordinal = started.name, started.ordinal
            call.key = started.ordinal if isinstance(started.ordinal, str) else call.key
        if (started.name, started.effect) != (call.name, call.spec.effect):
            journal = f"the journal has call {call.number} as step {started.name!r}"
            history.diverge(journal, code=f"the code asks for {call}")
        if call.number in history.journal.ended or call.args_hash == started.args_hash:
            return
        if started.args_hash not in self._values.other_hashes(call):
            history.diverge(
                f"{call} was started with other arguments than the code passes now: "
                "running it again under the same idempotency key could do something else"
            )

    # ================================================================ continuing calls

    def bring_on(self, call: StepCall) -> None:
        """Do what a step needs next."""
        self.do(call, call.ask())

    def retry(self, call: StepCall) -> bool:
        """Start the next try after its wait."""
        self.do(call, call.come_due())
        return True

    def do(self, call: StepCall, want: str) -> None:
        """Act on a :class:`Want`."""
        if want == Want.LICENCE:
            self._agenda.license(call)
        elif want == Want.ADMISSION:
            self._agenda.ask_pool(call)
        elif want == Want.BODY:
            self._agenda.make_startable(call)
        elif want == Want.LATER:
            delay_us = (call.retry_due_us or 0) - self._clock.estimate_us()
            if delay_us > 0:
                self._agenda.back_off(call, delay_us / 1e6)
            else:
                self.do(call, call.come_due())
        else:
            assert want == Want.RESULT, want
            call.state = "running"
            self._agenda.receive(StepResult(call, call.carried, None))

    def take_mark(self, call: StepCall, unit: Unit) -> None:
        """Start the body of an admitted call."""
        call.read(unit)
        self._agenda.admit(call)
        self._agenda.make_startable(call)

    def give_up(self, call: StepCall) -> None:
        """Record what its body has spent, and stop the body."""
        if call.charges is not None:
            self._buffer.record_charges(call)
        is_step = call.spec.effect == StepKind.STEP
        self._withdraw(call, Kind.STEP_ABANDONED if is_step else Kind.CALL_CANCELLED)
        self._agenda.stop(call)

    # ================================================================ results

    def record(self, call: StepCall, result: StepResult) -> bool:
        """Record and release the result of a body; return False if it has no outcome."""
        buffer = self._buffer
        if call.charges is not None:
            buffer.record_charges(call)
        if result.delay_seconds is not None:
            self._record_attempt(call, result, result.delay_seconds)
            return False
        value, error, text = self._values.decode(call, result)
        if call.emitted and error is None:
            buffer.record_emitted(call)
        kind, key = Kind.STEP_COMPLETED, call.key or None
        if error is not None:
            kind = Kind.STEP_FAILED
            # A transaction has no licence with its key.
            is_keyed = call.spec.effect == StepKind.TRANSACTION
            key = call.key or str(call.ordinal) if is_keyed else None
        elif call.spec.effect == StepKind.DECISION:
            kind = Kind.DECISION_RECORDED
        carried = None if call.carried is None or kind == Kind.DECISION_RECORDED else call
        row = buffer.record(call.number, kind, call.name, text, key=key, carried=carried)
        if kind == Kind.DECISION_RECORDED:
            buffer.flush_soon()
        self._clock.stand_at(row.at_us)
        if error is None:
            self._agenda.note_age(call, row.seq)
        self._code.deliver(call, value, error)
        return True

    def _record_attempt(self, call: StepCall, result: StepResult, delay_seconds: float) -> None:
        text = "null" if result.error is None else self._values.error_text(result.error)
        row = self._buffer.record(call.number, Kind.ATTEMPT_FAILED, call.name, text, delay_seconds)
        call.failed_attempts += 1
        call.retry_seq, call.retry_due_us = row.seq, row.at_us + int(delay_seconds * 1e6)
        self._agenda.back_off(call, delay_seconds)
