"""Planned compensation: ask the planner, judge its plan, and run the steps in turn.

Choice, verdict and each step are units of the journal, so after a crash the plan continues without
asking the planner again. The verdict comes from a transaction (``pgflow.review``), so other code
never judges it again. If the policy requires approval for a step, a gate asks for it before any
step runs. The key of each step contains the decision. The effect counts as taken back only when
every step is confirmed. In any other case - the planner fails or returns an invalid plan, or a step
is refused or fails - the effect stays owed, with the plan beside it, until a person has undone it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from pgflow._engine.calls import Call, StepCall
from pgflow._engine.drivers import ThreadWaiter
from pgflow._engine.effects import EffectCall, EffectStage, Leave
from pgflow._engine.keys import Resting
from pgflow._engine.steps import Steps
from pgflow._flow.authority.gate import Asked
from pgflow._flow.authority.gate import issue as issue_gate
from pgflow._flow.authority.leave import gate_name, leave_given, terms_of
from pgflow._flow.ledgers.undo_plan.propose import (
    REVIEW,
    Judged,
    Planning,
    Review,
    UndoRequest,
    arguments_of,
    describe,
)
from pgflow._flow.scope import WorkflowScope
from pgflow._model.codecs import Codec
from pgflow._model.decisions import Decision
from pgflow._model.effects import Risk
from pgflow._model.kinds import StepKind
from pgflow._model.protocol import SagaEntry
from pgflow.errors import GateRejected, PgflowError


class Reversible(Protocol):
    """An effect, as a saga sees it."""

    @property
    def has_compensation(self) -> bool:
        """True if a compensation is declared."""

    @property
    def code(self) -> str:
        """Place in the code, for the generation that has to find it there."""

    def check_request(self, effect: EffectCall) -> None:
        """Refuse an effect whose arguments could not be read back from its request."""

    def entry_of(self, scope: WorkflowScope, effect: EffectCall) -> SagaEntry:
        """Return the saga entry of a completed effect, from which it is compensated."""

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Issue the compensation of one of these effects, or ask a person if none is declared."""


class Undoable(Reversible, Protocol):
    """An effect, as a plan sees it."""

    name: str

    @property
    def risk(self) -> Risk:
        """Kind of undo: ``reversible``, ``compensable`` or ``irreversible``."""

    def issue_taken_back(
        self, scope: WorkflowScope, effect: EffectCall, plan: str, steps: list[Any]
    ) -> EffectCall:
        """Record that a plan has compensated one of these effects."""

    def issue_by_hand(
        self, scope: WorkflowScope, effect: EffectCall, *, notice: dict[str, Any] | None = None
    ) -> EffectCall:
        """Ask a person to compensate one of these effects."""


class Planned:
    """An effect without an inverse, in a saga that has a planner."""

    has_compensation = True

    def __init__(self, effect: Undoable, planning: Planning) -> None:
        self._effect = effect
        self._planning = planning
        self.code = effect.code
        self.planner = planning.planner.name

    def check_request(self, effect: EffectCall) -> None:
        """Refuse an effect whose arguments could not be read back from its request."""
        self._effect.check_request(effect)

    def entry_of(self, scope: WorkflowScope, effect: EffectCall) -> SagaEntry:
        """Return the entry of an effect that was done."""
        return self._effect.entry_of(scope, effect)

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Ask a person to take back an accepted effect that is not confirmed: a plan needs its
        result.
        """
        return self._effect.issue_compensation(scope, effect)

    def undo(self, scope: WorkflowScope, done: EffectCall) -> Iterator[Call]:
        """Take an effect back by a plan, or ask a person to.

        Yields:
            Each issued call. The driver resumes once it has an outcome.
        """
        attempt = Attempt(scope, self._effect, self._planning, done)
        try:
            yield from attempt.plan()
            yield from attempt.ask_leave()
            yield from attempt.run()
            closing = attempt.close()
        except _Failed as failure:
            why = str(failure) if scope.claim.envelopes is None else failure.outline
            notice = {
                "why": why,
                "plan": attempt.decision and attempt.decision.id,
                "steps": attempt.recorded_steps(),
            }
            closing = self._effect.issue_by_hand(scope, done, notice=notice)
        yield closing


class _Failed(Exception):
    """An effect is not taken back.

    Args:
        what: Trouble, in words.
        error: Error that was raised, if any.
    """

    def __init__(self, what: str, error: Exception | None = None) -> None:
        super().__init__(what if error is None else f"{what}: {error}")
        self.outline = what if error is None else f"{what} with {type(error).__name__}"
        """The same without what may quote a value."""


class Attempt:
    """One effect that is taken back by a plan."""

    def __init__(
        self, scope: WorkflowScope, effect: Undoable, planning: Planning, done: EffectCall
    ) -> None:
        self._scope = scope
        self._effect = effect
        self._planning = planning
        self._done = done
        self.decision: Decision[Any] | None = None
        self._steps: list[Judged] = []
        self._leave: dict[int, Leave] = {}
        """Leave that was given for steps, by their numbers from 1."""
        self._confirmed = 0

    def recorded_steps(self) -> list[dict[str, Any]]:
        """The steps as a person reads them: what was proposed, what was refused, what is done."""
        return [
            {
                **one.step,
                **({"refused": one.refused} if one.refused else {}),
                **({"done": True} if number < self._confirmed else {}),
            }
            for number, one in enumerate(self._steps)
        ]

    def plan(self) -> Iterator[Call]:
        """Ask the planner, and have its plan judged."""
        execution, planning = self._scope.execution, self._planning
        try:
            proposal = execution.parts[Steps].issue(
                planning.planner.spec(self._scope.app_errors), (self._request(),), {}
            )
        except Exception as error:  # noqa: BLE001 - such as an annotation that cannot be read
            raise _Failed(
                f"the planner {planning.planner.name} could not be called", error
            ) from None
        yield proposal
        try:
            self.decision = outcome_of(proposal)
        except Exception as error:  # noqa: BLE001 - whatever it raised, nothing is taken back
            raise _Failed(f"the planner {planning.planner.name} failed", error) from None
        assert self.decision is not None
        yield from self._review(self.decision.value)

    def _review(self, plan: Any) -> Iterator[Call]:
        verdict = self._scope.execution.parts[Steps].issue(
            REVIEW.spec(()), (plan, self._planning.steps), {}
        )
        yield verdict
        try:
            review: Review = outcome_of(verdict)
        except Exception as error:  # noqa: BLE001 - a plan that cannot be judged is not run
            raise _Failed("the plan could not be reviewed", error) from None
        self._steps = review.steps
        if review.refused is not None:
            refused = _Failed(review.refused)
            refused.outline = review.refused.partition(":")[0]
            raise refused

    def _request(self) -> UndoRequest:
        done = self._done
        return UndoRequest(
            self._effect.name,
            done.key,
            json.loads(done.request),
            done.value,
            self._effect.risk,
            self._scope.decisions.get(done.decision or ""),
            self._planning.goal,
            {name: describe(step) for name, step in self._planning.steps.items()},
        )

    def ask_leave(self) -> Iterator[Call]:
        """Ask for the approvals that the policy requires, one step after the other."""
        assert self.decision is not None
        edited = False
        for number, one in enumerate(self._steps, 1):
            if one.needs is None:
                continue
            name = one.step["call"]
            what = f"step {number} of the plan, {name},"
            try:
                terms = terms_of(one.needs["terms"], self.decision.id)
                asked = Asked(gate_name(name), *self._asked_of(one.step), terms)
                gate = issue_gate(self._scope, asked)
            except Exception as error:  # noqa: BLE001 - it cannot even be asked for
                raise _Failed(f"{what} could not be asked for", error) from None
            yield gate
            try:
                verdict = leave_given(name, outcome_of(gate))
            except GateRejected as error:
                raise _Failed(f"{what} was not approved", error) from None
            self._leave[number] = Leave(gate.key, None, gate.edit or gate.request, verdict)
            if gate.edit:
                step = {**one.step, "arguments": json.loads(gate.edit)}
                self._steps[number - 1] = replace(one, step=step)
                edited = True
        if edited:
            # An edited step has not been reviewed yet.
            yield from self._review([one.step for one in self._steps])

    def _asked_of(self, step: dict[str, Any]) -> tuple[str, Any, Codec[Any]]:
        """Return the request of the gate of a step, as JSON and as a value, and the type of an
        edit.
        """
        known: Any = self._planning.steps.get(step["call"])
        if known is None:
            raise LookupError("the saga does not allow it any more")
        codec = arguments_of(known.origin)
        text = json.dumps(step["arguments"], ensure_ascii=False)
        if known.effect == StepKind.EFFECT:
            # To the letter as the ledger has it, which the database compares.
            text = known.request_of(codec.decode(text, f"what {known.name} is called with"))
        return text, None, codec

    def run(self) -> Iterator[Call]:
        """Run the steps, one after the other, until one is not confirmed."""
        assert self.decision is not None
        for number, one in enumerate(self._steps, 1):
            what = f"step {number} of the plan, {one.step['call']},"
            leave = self._leave.get(number)
            try:
                if leave is not None and leave.is_done and not self._is_effect(one.step):
                    self._confirmed = number
                    continue
                call = self._issue(one.step, (self.decision.id, number), leave)
            except Exception as error:  # noqa: BLE001 - it cannot even be asked for
                raise _Failed(f"{what} could not be called", error) from None
            yield call
            try:
                outcome_of(call)
            except Exception as error:  # noqa: BLE001 - a step that failed took nothing back
                raise _Failed(f"{what} failed", error) from None
            if isinstance(call, EffectCall) and call.stage != EffectStage.CONFIRMED:
                raise _Failed(f"{what} was accepted, which is not yet done")
            self._confirmed = number

    def close(self) -> EffectCall:
        """Record that the effect is compensated."""
        assert self.decision is not None
        try:
            return self._effect.issue_taken_back(
                self._scope, self._done, self.decision.id, self.recorded_steps()
            )
        except PgflowError as error:
            raise _Failed("every step is done, which could not be recorded", error) from None

    def _is_effect(self, step: dict[str, Any]) -> bool:
        known = self._planning.steps.get(step["call"])
        return known is not None and known.effect == StepKind.EFFECT

    def _issue(self, step: dict[str, Any], rests_on: Resting, leave: Leave | None) -> StepCall:
        execution = self._scope.execution
        known: Any = self._planning.steps.get(step["call"])
        if known is None:
            raise LookupError("the saga does not allow it any more")
        arguments = arguments_of(known.origin).decode(
            json.dumps(step["arguments"]), f"what {known.name} is called with"
        )
        if known.effect == StepKind.EFFECT:
            return known.issue_in_plan(self._scope, arguments, rests_on, leave)  # type: ignore[no-any-return]
        return execution.parts[Steps].issue(
            known.spec(self._scope.app_errors), (), arguments, rests_on, is_undo=True
        )


def outcome_of(call: Call) -> Any:
    """Return the value of a call that is over, or raise its error."""
    waiter: Any = call.waiter
    return waiter.take() if isinstance(waiter, ThreadWaiter) else waiter.result()
