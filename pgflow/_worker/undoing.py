"""Undoing: compensates the effects of a dropped part of the journal, the last one first
(``effects="compensate"``).

Only the record describes them: their arguments are decoded with the annotations of the effect that
has the name now. If no such effect exists, or the arguments cannot be decoded, a person must
compensate it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from typing import Any

from pgflow._engine.drivers import CoroutineDriver, Driver
from pgflow._engine.effects import EffectCall, EffectStage
from pgflow._engine.execution import Execution, Program
from pgflow._engine.undo import Undoing
from pgflow._flow.ledgers.effect import EffectOptions, EffectStep, SyncEffect
from pgflow._flow.ledgers.handover import find_effect, read_result
from pgflow._flow.ledgers.saga import is_done, take_back
from pgflow._flow.scope import WorkflowScope, current
from pgflow._flow.workflow import Workflow
from pgflow._model.claims import Claim, Dropped
from pgflow._model.effects import Accepted
from pgflow._model.protocol import SagaEntry
from pgflow.errors import DefinitionError, NotStorable


def make_undoing(
    claim: Claim, host: Any, workflow: Workflow[..., Any], errors: tuple[type[Exception], ...]
) -> Undoing:
    """Return the execution that compensates the dropped effects, before the workflow's own code
    runs.

    Args:
        claim: A run whose heritage has something to undo.
        host: The worker.
        workflow: The workflow, whose module is searched first for effects.
        errors: The app's ``errors=``.
    """

    def driver(execution: Execution) -> Driver:
        scope = WorkflowScope(execution, errors, workflow)
        context = contextvars.Context()
        context.run(current.set, scope)
        return CoroutineDriver(execution, lambda: _undo(scope, workflow), context)

    return Undoing(claim, host, Program(driver, code_hash=workflow.code_hash))


async def _undo(scope: WorkflowScope, workflow: Workflow[..., Any]) -> None:
    execution = scope.execution
    assert isinstance(execution, Undoing)
    done = [d for d in execution.dropped if d.note["compensates"] is None]
    for recalled in [EffectToUndo(scope, execution, _effect(workflow, d), d) for d in done]:
        while recalled.is_owed:
            with contextlib.suppress(asyncio.CancelledError):
                # The cancel is in the journal, and reaches the code when that resumes.
                await take_back(scope, [(recalled, recalled.call)], all_of_them=True)


class EffectToUndo:
    """An effect of the dropped part, as a saga compensates it. Open ones resume at once, so that
    all of them are settled in parallel.
    """

    has_compensation = True

    def __init__(
        self,
        scope: WorkflowScope,
        execution: Undoing,
        effect: EffectStep[..., Any],
        dropped: Dropped,
    ) -> None:
        args, kwargs, is_readable = _arguments(effect, dropped)
        spec = effect.spec(scope.app_errors)
        self.code = effect.code
        self._effect = effect
        self._by_hand = not is_readable
        self._is_undone = dropped.note["is_undone"]
        self._issued: EffectCall | None = None
        if dropped.call:
            self.call = execution.adopt(spec, args, kwargs, dropped)
        else:
            self.call = EffectCall(
                0,
                dropped.name,
                None,
                spec=spec,
                args=args,
                kwargs=kwargs,
                request=dropped.request,
                key=dropped.key,
                stage=EffectStage.CONFIRMED,
                value=_result(effect, scope, dropped),
            )
        if execution.has_begun(dropped.key):
            self._issue(scope)

    @property
    def is_owed(self) -> bool:
        """True if the effect must still be compensated, as far as is known."""
        if self._is_undone or self.call.has_failed:
            return False
        return self._issued is None or not is_done(self._issued)

    def check_request(self, effect: EffectCall) -> None:
        """Accept any request: the effect is compensated before the code can continue as new."""

    def entry_of(self, scope: WorkflowScope, effect: EffectCall) -> SagaEntry:
        """Return the entry of the saga, as for an effect of the run that continues."""
        return self._effect.entry_of(scope, effect)

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Issue the compensation. A person must do it if it cannot be called, or if it was settled
        as failed.
        """
        assert effect is self.call
        if self._issued is None or self._issued.is_closed:
            self._by_hand = self._by_hand or self._issued is not None
            self._issue(scope)
        assert self._issued is not None
        return self._issued

    def _issue(self, scope: WorkflowScope) -> None:
        if self._by_hand:
            self._issued = self._effect.issue_by_hand(scope, self.call)
        else:
            self._issued = self._effect.issue_compensation(scope, self.call)


def _arguments(
    effect: EffectStep[..., Any], dropped: Dropped
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    try:
        return *effect.read_request(dropped.request), True
    except (NotStorable, DefinitionError, TypeError):
        return (), {}, False


def _result(effect: EffectStep[..., Any], scope: WorkflowScope, dropped: Dropped) -> Any:
    if dropped.note["is_accepted"]:
        return Accepted(json.loads(dropped.result or "null")["ref"])
    return read_result(effect, scope, dropped.result)


def _effect(workflow: Workflow[..., Any], dropped: Dropped) -> EffectStep[..., Any]:
    """Return the effect that was recorded, or a stand-in if the current code has none or several of
    its name.
    """
    found = find_effect(dropped.name, dropped.note.get("code") or f"{workflow.fn.__module__}:")
    if found is not None:
        return found

    def unknown() -> None:
        """Stand in for an effect that this code can neither call, settle nor compensate."""

    return SyncEffect(
        unknown,
        EffectOptions(dropped.note["risk"] or "irreversible", has_body=False),
        dropped.name,
        None,
        (),
    )
