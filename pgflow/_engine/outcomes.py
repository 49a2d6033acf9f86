"""Outcomes: the way from the journal or a body to the code, as a value or an error that is raised.

What the code sees on the first run is always the decoded text, which is what a replay will see.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pgflow._engine.calls import Call, ChildCall, EffectCall, SignalCall, StepCall, TimerCall
from pgflow._engine.host import StepResult
from pgflow._model.decisions import Choice, Decision
from pgflow._model.effects import Accepted
from pgflow._model.envelopes import Envelopes, open_text
from pgflow._model.exceptions import encode_error, rebuild_error
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.units import EFFECT_OUTCOMES, Unit
from pgflow.errors import KeyConflict, NotStorable, RunCancelled, RunFailed

_FITTING: dict[type[Call], frozenset[str]] = {
    StepCall: frozenset({Kind.STEP_COMPLETED, Kind.STEP_FAILED}),
    EffectCall: EFFECT_OUTCOMES | {Kind.COMPENSATED},
    TimerCall: frozenset({Kind.TIMER_FIRED}),
    SignalCall: frozenset({Kind.SIGNAL_RECEIVED, Kind.WAIT_TIMED_OUT}),
    ChildCall: frozenset({Kind.CHILD_FINISHED}),
}
_DECIDING = frozenset({Kind.DECISION_RECORDED, Kind.STEP_FAILED})


def fits(unit: Unit, call: Call) -> bool:
    """Return True if a unit can be the outcome of this call."""
    fitting = _DECIDING if isinstance(call, StepCall) and call.spec.effect == StepKind.DECISION else _FITTING[type(call)]
    return unit.kind in fitting and (unit.name is None or call.answers_to(unit.name))


def decode_result(call: StepCall, result: StepResult, envelopes: Envelopes | None = None) -> tuple[Any, Exception | None, str]:
    """Return (value, error, text): decoded so that a replay sees the same, and the text as it is recorded.

    Raises:
        CodecError: The app's codec has failed.
    """
    data = result.error
    if result.text is not None:
        what = f"the result of step {call.name}"
        try:
            if envelopes is None:
                return _step_value(call, result.text, what), None, result.text
            stored = seal_result(call, result.text, envelopes)
            return _step_value(call, open_text(envelopes, stored, what), what), None, stored
        except NotStorable as refused:
            data = encode_error(refused, with_traceback=False)
    assert data is not None
    if envelopes is None:
        text = json.dumps(data)
    else:
        text, data = envelopes.seal_error(data)
    return None, rebuild_error(data, call.spec.errors, call.failed_attempts + 1), text


def seal_result(call: StepCall, text: str, envelopes: Envelopes) -> str:
    """Return the result of a step as it is recorded: of a decision, policy, model and usage stay readable."""
    what = f"the result of step {call.name}"
    if call.spec.effect != StepKind.DECISION:
        return envelopes.seal(text, what)
    chosen = json.loads(text)
    return envelopes.seal(text, what, {name: chosen.get(name) for name in ("policy", "model", "usage")})


def _step_value(call: StepCall, text: str, what: str) -> Any:
    """Return the value of a step as its caller sees it: for a decision, the choice under its key."""
    value = call.spec.result.decode(text, what)
    if call.spec.effect != StepKind.DECISION:
        return value
    return Decision(call.key, **{field.name: getattr(value, field.name) for field in fields(Choice)})


def decode_unit(call: Call, unit: Unit) -> tuple[Any, Exception | None]:
    """Return the (value, error) that a unit hands to the code.

    Raises:
        NotStorable: The recorded result of a step does not fit the step's annotation any more.
    """
    payload = unit.payload if unit.payload is not None else "null"
    if isinstance(call, StepCall):
        if unit.kind in (Kind.STEP_FAILED, Kind.EFFECT_FAILED):
            return None, rebuild_error(json.loads(payload), call.spec.errors, call.failed_attempts + 1)
        if unit.kind == Kind.EFFECT_ACCEPTED:
            return Accepted(json.loads(payload)["ref"]), None
        if unit.kind == Kind.COMPENSATED:
            return None, None
        return _step_value(call, payload, f"the recorded result of step {call.name}"), None
    if isinstance(call, SignalCall):
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError(f"no signal {call.name!r} in time")
        return decode_signal(call, payload)
    assert isinstance(call, ChildCall)
    return decode_child(json.loads(payload), call)


def decode_signal(call: SignalCall, payload: str) -> tuple[Any, NotStorable | None]:
    """The payload of a message as the code sees it, or why it does not fit."""
    try:
        return call.codec.decode(payload, f"the payload of signal {call.name!r}"), None
    except NotStorable as error:
        return None, error


def decode_child(data: dict[str, Any], call: ChildCall) -> tuple[Any, Exception | None]:
    """The result of a child run, or the error that awaiting it raises."""
    status = data["status"]
    if status == "completed":
        try:
            return call.result.decode(json.dumps(data["output"]), f"the result of child {call.name}"), None
        except NotStorable as error:
            return None, error
    if status == "refused":
        return None, KeyConflict(data["error"]["message"])
    if status == "cancelled":
        return None, RunCancelled(f"child {call.name} was cancelled: {data.get('reason')}")
    failed = RunFailed(f"child {call.name} failed: {data['error'].get('message')}")
    failed.__cause__ = rebuild_error(data["error"], call.errors)
    return None, failed
