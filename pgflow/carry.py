"""Sagas over generations: effects that an earlier generation has done, and this one takes back if it fails.

A generation has them from the database: name, key, request and result of each (``sql/saga.sql``). The effect
itself is found in the code at hand, by where it stood when it was called and else by its name. Where it is not
found nothing is guessed: the run is held for a worker that has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

from pgflow._engine.calls import EffectCall
from pgflow._scope import WorkflowScope
from pgflow.effect import EffectStep
from pgflow.errors import DefinitionError, NotStorable
from pgflow.model import Accepted
from pgflow.saga import Enlisted
from pgflow.units import SagaEntry

_declared: WeakValueDictionary[tuple[str, str], EffectStep[..., Any]] = WeakValueDictionary()
"""The effects of this process, by where they stand in the code and by name."""


def declare(effect: EffectStep[..., Any]) -> None:
    """Makes an effect known to the generations that may have to take it back."""
    _declared[effect.code, effect.name] = effect


def find_effect(name: str, code: str) -> EffectStep[..., Any] | None:
    """The effect of a name, or that had it before; where several have it, the one that stands where it stood."""
    there = _declared.get((code, name))
    if there is not None:
        return there
    found = [effect for effect in list(_declared.values()) if name == effect.name or name in effect.aliases]
    at_its_place = [effect for effect in found if effect.code == code]
    chosen = at_its_place or found
    return chosen[0] if len(chosen) == 1 else None


class Carried:
    """An effect of an earlier generation, as a saga sees it."""

    has_compensation = True  # what could not be taken back, and need not be, was left behind

    def __init__(self, entry: SagaEntry) -> None:
        self._entry = entry
        self.code = entry.code

    def check_request(self, effect: EffectCall) -> None:
        """It has been carried once, and needs no copy."""

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Asks for it to be taken back; if it cannot be read by the code at hand, by a person."""
        entry = self._entry
        step = find_effect(entry.name, entry.code)
        if step is None:
            scope.execution.lacks_code(
                f"effect {entry.name} of an earlier generation is to be taken back, "
                "and this worker has no effect of that name, or several: "
                f"import {entry.code.partition(':')[0]} where the worker is set up"
            )
        try:
            effect.args, effect.kwargs = step.read_request(entry.request)
        except (NotStorable, DefinitionError):
            return step.issue_by_hand(scope, effect)
        effect.value = self._result(step, scope)
        return step.issue_compensation(scope, effect)

    def _result(self, step: EffectStep[..., Any], scope: WorkflowScope) -> Any:
        entry = self._entry
        if entry.ref is not None:
            return Accepted(entry.ref)
        text = entry.result if entry.result is not None else "null"
        try:
            return step.spec(scope.app_errors).result.decode(text, f"the result of effect {entry.name}")
        except NotStorable:  # what a person said of it
            return json.loads(text)


def carried_effects(entries: Iterable[SagaEntry]) -> list[Enlisted]:
    """What a run has to take back of the generations before it, the first one first."""
    return [(Carried(e), EffectCall(0, e.name, None, key=e.key, request=e.request, closed_as="confirmed")) for e in entries]
