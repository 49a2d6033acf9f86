"""The marks of an effect: what the units beside it, save its outcome, say of it."""

from __future__ import annotations

import json

from pgflow._engine.calls import EffectCall, spec_of_another
from pgflow.model import Kind
from pgflow.units import FIRST_ADOPTED, Claim, Unit

FORGOTTEN = "the counterparty may have forgotten the key"
"""As `sql/effects.sql` gives the reason."""

UNREPEATABLE = "absent, and without a key it cannot be tried again"
EARLY = "absent, and asked too early to believe it"
"""As `sql/effects.sql` gives these reasons too."""

GUARDED = "its precondition does not hold any more, and an earlier attempt may have been done"
"""Reason why the same key is not sent again."""

CHANGED = "what it expects has changed, and an earlier attempt may have been done"
"""Perhaps by itself: nor then is the key sent again."""


SILENT = "silent"
"""No beat of an accepted effect has come in time, says `sql/beats.sql`."""

ACCEPTED = "accepted"
"""The counterparty says of an effect that was silent that it still has it: beats count again."""


def read_mark(call: EffectCall, unit: Unit) -> None:
    """Takes down what a unit beside an effect says of it."""
    if unit.kind in (Kind.EFFECT_INTENDED, Kind.EFFECT_ATTEMPTED):
        call.attempts += 1
        call.phase, call.ground, call.is_unknown, call.retry_due_us = "act", None, False, None
        call.attempted_us, call.needs_person = unit.at_us, False
        said = json.loads(unit.payload or "{}")
        ground = said.get("ground")
        call.may_have_acted = ground == "w"
        if ground != "w":
            call.asks = 0
    elif unit.kind == Kind.EFFECT_UNKNOWN:
        said = json.loads(unit.payload or "{}")
        why = said.get("why")
        if why == ACCEPTED:
            call.is_silent, call.is_unknown, call.retry_due_us = False, False, None
            return
        if why == SILENT:
            call.is_silent, call.asks, call.details = True, 0, json.dumps(said["details"])
        call.is_unknown, call.ground = True, None
        call.asks += why != EARLY
        call.retry_seq, call.retry_due_us = unit.seq, unit.due_us
        call.may_be_forgotten = call.may_be_forgotten or why in (FORGOTTEN, GUARDED, CHANGED)
        call.needs_person = why == UNREPEATABLE
    else:
        said = json.loads(unit.payload or "{}")
        if said["verdict"] == "absent":
            call.ground = "a" if said["by"] == "settle" else "p"
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
