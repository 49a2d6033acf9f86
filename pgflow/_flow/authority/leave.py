"""Approval by policy: ask for it if the policy lets an effect through only with approval.

The effect is refused first, and the refusal is recorded as its outcome. Then the run asks at a gate
named ``policy/<effect>``, whose request is the arguments, and calls the effect again under the same
idempotency key. The database lets it through if that gate was approved with exactly these arguments
(``sql/ledgers/effects.sql``). If a person did the work instead, the effect records their result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pgflow._engine.effects import EffectCall, Leave
from pgflow._engine.gates import GateCall, GateTerms
from pgflow._flow.authority.gate import POLICY, Asked
from pgflow._model.codecs import Codec
from pgflow._model.gates import Approved, Escalated, Rejected, Said, TakenOver
from pgflow.errors import GateRejected, NeedsGate

Bind = Callable[[dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]

MAX_NAME_BYTES = 255


class Granted(NamedTuple):
    """Leave to act, and with which arguments."""

    leave: Leave
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def can_ask(refused: BaseException) -> bool:
    """Return True if a refusal leads to a gate. False for those recorded before gates existed."""
    return (
        isinstance(refused, NeedsGate)
        and not isinstance(refused, GateRejected)
        and refused.policy_version is not None
    )


def gate_of(call: EffectCall, codec: Codec[Any], refused: NeedsGate) -> Asked:
    """Return the gate at which leave is asked for a call that was refused.

    Args:
        call: The call.
        codec: Type of its arguments, by name.
        refused: Its refusal, which has the terms that the rule of the policy says.
    """
    return Asked(
        gate_name(call.name), call.request, None, codec, terms_of(refused.terms, call.decision)
    )


def gate_name(step: str) -> str:
    """Return the name of the gate at which the policy has leave asked for a step."""
    return f"{POLICY}{step}".encode()[:MAX_NAME_BYTES].decode(errors="ignore")


def terms_of(required: dict[str, Any] | None, decision: str | None) -> GateTerms:
    """Return the terms of a gate that a rule of the policy asks; without any, anybody may answer,
    and it never expires.
    """
    if not required:
        return GateTerms(decision=decision)
    return GateTerms(
        approvers=tuple(required["approvers"]),
        quorum=required["quorum"],
        timeout_seconds=required["timeout"],
        on_timeout=required["on_timeout"],
        escalate=tuple(required["escalate"]),
        decision=decision,
    )


def granted(call: EffectCall, gate: GateCall, verdict: Any, bind: Bind) -> Granted:
    """Return the leave that a verdict gives.

    Args:
        call: The call that was refused.
        gate: The gate that was asked.
        verdict: Its verdict.
        bind: Makes arguments by position and by name of all of them by name.

    Raises:
        GateRejected: It gives none.
    """
    is_done = leave_given(call.name, verdict)
    leave = Leave(gate.key, call, gate.edit or call.request, is_done)
    if isinstance(verdict, Approved) and verdict.edited:
        return Granted(leave, *bind(verdict.value))
    return Granted(leave, call.args, call.kwargs)


def leave_given(name: str, verdict: Any) -> bool:
    """Return True if the approver of a step did its work themselves.

    Args:
        name: Name of the step.
        verdict: The verdict of its gate.

    Raises:
        GateRejected: The verdict does not approve the step.
    """
    if isinstance(verdict, (Approved, TakenOver)):
        return isinstance(verdict, TakenOver)
    reason: str = ""
    by: tuple[str, ...] = ()
    if isinstance(verdict, Rejected):
        verdict_code, reason, by = Said.REJECT, verdict.reason, verdict.by
        who = ", ".join(by)
        why = f"{who} rejected it" if who else "no answer in time"
        why += f": {reason}" if reason and who else ""
    elif isinstance(verdict, Escalated):
        verdict_code, why = Said.ESCALATE, f"{verdict.to} must decide"
    else:
        verdict_code, why = Said.EXPIRE, "no answer in time"
    refusal = GateRejected(f"effect {name} was not approved: {why}; it did not run")
    refusal.verdict, refusal.reason, refusal.by = verdict_code, reason, by
    raise refusal
