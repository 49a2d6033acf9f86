"""Steps: request their bodies, or reuse results from a dropped part of the journal."""

from __future__ import annotations

from collections import deque
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.calls import StepCall, StepSpec, Want
from pgflow._engine.clock import Clock
from pgflow._engine.code import Code
from pgflow._engine.history import NEVER, History
from pgflow._engine.host import StepResult
from pgflow._engine.keys import Keys, Resting
from pgflow._engine.values import Values, hash_of
from pgflow._model.claims import Claim, ReusedStep
from pgflow._model.kinds import StepKind
from pgflow._model.units import Start, ended_by


@mypyc_attr(allow_interpreted_subclasses=True)
class Steps:
    """Owns the results of steps in a dropped part of the journal. Each is reused once."""

    def __init__(
        self,
        claim: Claim,
        clock: Clock,
        agenda: Agenda,
        code: Code,
        history: History,
        values: Values,
        keys: Keys,
        *,
        is_undoing: bool,
    ) -> None:
        self._claim = claim
        self._clock = clock
        self._agenda = agenda
        self._code = code
        self._history = history
        self._values = values
        self._keys = keys
        self._is_undoing = is_undoing
        self._is_plain = not (
            claim.units or claim.heritage is not None or claim.is_pool_hard or is_undoing
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
            call.args_hash = hash_of(call, self._values.hash_key)
        if self._is_plain and spec.is_licensed_first:
            self._agenda.enter_step(call)
            return call
        if self._claim.heritage is not None:
            call.max_attempts = self._claim.heritage.attempts
            if not is_undo:
                self._inherit(call)
        self.enter(call, may_be_refused=not is_undo)
        if not self._history.replaying:
            self.do(call, call.ask())
        return call

    def enter(self, call: StepCall, *, may_be_refused: bool) -> None:
        """Add a call to the open ones, and check that it matches its licence if it has one. A call
        that takes something back is never refused for lack of budget.
        """
        self._agenda.enter(call)
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
            licensed = f"the journal has licensed call {call.number} as step {started.name!r}"
            history.diverge(licensed, code=f"the code asks for {call}")
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
