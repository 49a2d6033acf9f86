"""The marks of an effect: what the units beside it, save its outcome, say of it."""

from __future__ import annotations

import json

from pgflow._engine.calls import EffectCall, spec_of_another
from pgflow._model.claims import Claim
from pgflow._model.kinds import Ground, Kind
from pgflow._model.reasons import Unknown, reason_of
from pgflow._model.units import FIRST_ADOPTED, Unit

FORGETFUL = (Unknown.KEY_EXPIRED, Unknown.PRECONDITION_FAILED, Unknown.EXPECTATION_FAILED)
"""After these the same key is not sent again: the counterparty may have forgotten it, or what it was for has changed."""


def read_mark(call: EffectCall, unit: Unit) -> None:
    """Takes down what a unit beside an effect says of it."""
    if unit.kind in (Kind.EFFECT_INTENDED, Kind.EFFECT_ATTEMPTED):
        call.attempts += 1
        call.phase, call.ground, call.is_unknown, call.retry_due_us = "act", None, False, None
        call.attempted_us, call.needs_person = unit.at_us, False
        said = json.loads(unit.payload or "{}")
        ground = said.get("ground")
        call.may_have_acted = ground == Ground.REMEMBERED
        if ground != Ground.REMEMBERED:
            call.asks = 0
    elif unit.kind == Kind.EFFECT_UNKNOWN:
        said = json.loads(unit.payload or "{}")
        reason = reason_of(said)
        if reason == Unknown.ACCEPTED:
            call.is_silent, call.is_unknown, call.retry_due_us = False, False, None
            return
        if reason == Unknown.SILENT:
            call.is_silent, call.asks, call.details = True, 0, json.dumps(said["details"])
        call.is_unknown, call.ground = True, None
        call.asks += reason != Unknown.ABSENT_TOO_EARLY
        call.retry_seq, call.retry_due_us = unit.seq, unit.due_us
        call.may_be_forgotten = call.may_be_forgotten or reason in FORGETFUL
        call.needs_person = reason == Unknown.ABSENT_WITHOUT_KEY
    else:
        said = json.loads(unit.payload or "{}")
        if said["verdict"] == "absent":
            call.ground = Ground.ABSENT if said["by"] == "settle" else Ground.PERSON
        else:  # which a replay may read before it releases the acceptance
            call.is_settled = True
            call.is_by_word = bool(said.get("word"))
            call.settled_as = said["verdict"]


def still_accepted(claim: Claim) -> dict[int, EffectCall]:
    """Effects of a dropped part that the counterparty took on and has not confirmed: the run does not end before it has."""
    taken: dict[int, EffectCall] = {}
    keys: dict[int, str] = {}
    for unit in () if claim.heritage is None else claim.units:
        if unit.call < FIRST_ADOPTED:
            continue
        if unit.kind == Kind.EFFECT_INTENDED:
            keys[unit.call] = str(unit.starts[0][3]) if unit.starts else ""
        elif unit.kind == Kind.EFFECT_ACCEPTED:
            name = unit.name or "effect"
            spec = spec_of_another(name)
            taken[unit.call] = EffectCall(unit.call, name, None, spec=spec, key=keys[unit.call], attempts=1, closed_as="accepted")
        elif unit.call in taken and unit.kind == Kind.EFFECT_SETTLED and json.loads(unit.payload or "{}")["verdict"] != "absent":
            del taken[unit.call]
        elif unit.call in taken and unit.kind == Kind.EFFECT_UNKNOWN:
            read_mark(taken[unit.call], unit)
    return taken
