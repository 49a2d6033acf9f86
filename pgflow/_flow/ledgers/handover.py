"""Sagas over generations: effects that an earlier generation has done,
and this one takes back if it fails.

A generation has them from the database: name, key, request and result of each
(``sql/ledgers/saga.sql``). The effect itself is found in the code at hand, by where it stood when
it was called and else by its name. Where it is not found nothing is guessed: the run is held for a
worker that has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from pgflow._engine.calls import spec_of_another
from pgflow._engine.effects import EffectCall, EffectStage
from pgflow._flow.ledgers.effect import EffectStep
from pgflow._flow.ledgers.saga import Block, Enlisted, enlist_all
from pgflow._flow.scope import WorkflowScope
from pgflow._model.effects import Accepted
from pgflow._model.protocol import SagaEntry
from pgflow.errors import DefinitionError, NotStorable

_declared: WeakValueDictionary[tuple[str, str], EffectStep[..., Any]] = WeakValueDictionary()
"""The effects of this process, by their place in the code and by name."""


def declare(effect: EffectStep[..., Any]) -> None:
    """Register an effect for later generations that may have to compensate it."""
    _declared[effect.code, effect.name] = effect


def find_effect(name: str, code: str) -> EffectStep[..., Any] | None:
    """Return the effect with a name or alias. Of several, return the one at the same place, else in
    the same module.
    """
    there = _declared.get((code, name))
    if there is not None:
        return there
    found = [
        effect
        for effect in list(_declared.values())
        if name == effect.name or name in effect.aliases
    ]
    at_its_place = [effect for effect in found if effect.code == code]
    in_its_module = [
        effect for effect in found if effect.code.partition(":")[0] == code.partition(":")[0]
    ]
    chosen = at_its_place or in_its_module or found
    return chosen[0] if len(chosen) == 1 else None


def read_result(step: EffectStep[..., Any], scope: WorkflowScope, text: str | None) -> Any:
    """Return the recorded result of an effect. Where it does not fit the type, a person stated it:
    return it as JSON has it.
    """
    text = text if text is not None else "null"
    try:
        return step.spec(scope.app_errors).result.decode(text, f"the result of effect {step.name}")
    except NotStorable:
        return json.loads(text)


class InheritedEffect:
    """An effect of an earlier generation, as a saga sees it."""

    def __init__(self, entry: SagaEntry) -> None:
        self._entry = entry
        self.code = entry.code

    @property
    def has_compensation(self) -> bool:
        """True: what could not be taken back, and need not be, was left behind."""
        return True

    def check_request(self, effect: EffectCall) -> None:
        """It has been carried once, and needs no copy."""

    def entry_of(self, scope: WorkflowScope, effect: EffectCall) -> SagaEntry:
        """As it has come."""
        del scope, effect
        return self._entry

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Issue its compensation, or ask a person if the present code cannot read it."""
        entry = self._entry
        step = find_effect(entry.name, entry.code)
        if step is None:
            scope.execution.hold_for_missing_code(
                f"effect {entry.name} of an earlier generation or a child is to be taken back, "
                "and this worker has no effect of that name, or several: "
                f"import {entry.code.partition(':')[0] or 'its module'} where the worker is set up"
            )
        try:
            effect.args, effect.kwargs = step.read_request(entry.request)
        except (NotStorable, DefinitionError):
            return step.issue_by_hand(scope, effect)
        effect.value = (
            Accepted(entry.ref) if entry.ref is not None else read_result(step, scope, entry.result)
        )
        return step.issue_compensation(scope, effect)


class OfChild(InheritedEffect):
    """An effect of a child that has completed."""

    @property
    def has_compensation(self) -> bool:
        """True if a compensation is declared, or this code does not have the effect: then it is not
        left behind unseen.
        """
        step = find_effect(self._entry.name, self._entry.code)
        return step is None or step.has_compensation


def take_over(
    scope: WorkflowScope, block: Block | None, left: dict[str, Any], of_call: int
) -> None:
    """Make the saga of a child that has completed that of its parent.

    Args:
        scope: The parent.
        block: The innermost block in which the child was started.
        left: Effects of the child, to be taken back.
        of_call: The call that waited for it.
    """
    is_foreign = left["of"] != scope.claim.root
    entries = [SagaEntry(*entry) for entry in left["effects"]]
    effects: list[Enlisted] = [
        (OfChild(e), replace(_call_of(e), is_of_child=True, of_call=of_call, is_foreign=is_foreign))
        for e in entries
    ]
    enlist_all(scope, block, effects)


def _call_of(entry: SagaEntry) -> EffectCall:
    return EffectCall(
        0,
        entry.name,
        None,
        spec=spec_of_another(entry.name),
        key=entry.key,
        request=entry.request,
        stage=EffectStage.CONFIRMED,
        is_foreign=not entry.is_own,
    )


def carried_effects(entries: Iterable[SagaEntry]) -> list[Enlisted]:
    """Return the effects of earlier generations that this run must be able to take back,
    the first one first.
    """
    return [(InheritedEffect(e), _call_of(e)) for e in entries]
