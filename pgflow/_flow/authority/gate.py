"""Gates: the code asks for approval, and waits for the verdict.

The database decides on approvers, the order of answers and the timeout (``sql/ledgers/gates.sql``);
this module only asks. A step (``notify``) notifies the approvers, licensed by the commit that opens
the gate. So approvers hear only of gates that exist, and each gate is announced under one
idempotency key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from pgflow._engine.gates import GateCall, Gates, GateTerms
from pgflow._flow.scope import WorkflowScope, async_scope, resting
from pgflow._flow.step import Calls, Step, follow
from pgflow._model.codecs import ANYTHING, Codec, codec_for
from pgflow._model.durations import Duration, duration
from pgflow._model.gates import (
    Approved,
    Escalated,
    Expired,
    GateRequest,
    OnTimeout,
    Rejected,
    TakenOver,
)
from pgflow._model.names import is_name
from pgflow.errors import DefinitionError, InvalidArgument, Stale

T = TypeVar("T")
A = TypeVar("A")

Verdict = Approved[T] | Rejected | Escalated | Expired | TakenOver
"""Verdict of a gate."""

POLICY = "policy/"
"""Names of gates that the policy asks begin so, and none of the code's."""

MAX_NAMES_BYTES = 8192
MAX_QUORUM = 100
VERDICTS_OF_TIME = ("expire", "reject", "escalate", "approve")


class Asked(NamedTuple):
    """A gate as the code asks it, checked."""

    name: str
    text: str
    value: Any
    codec: Codec[Any]
    terms: GateTerms


@overload
def gate(
    name: str,
    request: T,
    *,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "expire",
    escalate: Sequence[str] = (),
    notify: Step[[GateRequest], Any] | None = None,
    verify: Step[[T], bool] | None = None,
) -> Coroutine[Any, Any, Verdict[T]]: ...
@overload
def gate(
    name: str,
    request: Any,
    *,
    answer: type[A],
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "expire",
    escalate: Sequence[str] = (),
    notify: Step[[GateRequest], Any] | None = None,
    verify: Step[[A], bool] | None = None,
) -> Coroutine[Any, Any, Verdict[A]]: ...
def gate(
    name: str,
    request: Any,
    *,
    answer: Any = None,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "expire",
    escalate: Sequence[str] = (),
    notify: Step[[GateRequest], Any] | None = None,
    verify: Step[[Any], bool] | None = None,
) -> Coroutine[Any, Any, Any]:
    """Ask for approval and wait for an authorised answer: for weeks, across crashes and deploys.

    Args:
        name: Name of the gate.
        request: Exact value to approve. An edit has the same class.
        answer: Class of the value that an approval must bring, if it is not the request's.
        approvers: Names or roles that may answer; empty for anybody.
        quorum: Number of people who must approve. One rejection is enough to reject.
        timeout: Time to answer, for the first approvers and for each escalation.
        on_timeout: Verdict after the timeout: ``expire``, ``reject``, ``escalate`` or ``approve``.
        escalate: Names or roles to ask next, one after the other.
        notify: Step or effect that notifies the approvers, once for each gate.
        verify: Step that checks, after an approval, that it still holds.

    Returns:
        :class:`Approved`, :class:`Rejected`, :class:`Escalated`, :class:`Expired`, or
        :class:`TakenOver` if a person did the work themselves.

    Raises:
        Stale: The gate was approved, but ``verify`` found that the approval no longer holds.
        InvalidArgument: The arguments do not make a valid gate.

    Example::

        match await pgflow.authority.gate("approve", order, approvers=["ops"], timeout=8 * 3600):
            case pgflow.authority.Approved(value=approved):
                await place(approved)
    """
    scope = async_scope("pgflow.authority.gate()", "pgflow.sync.gate()")
    asked = ask(name, request, answer, approvers, quorum, timeout, on_timeout, escalate)
    return follow(scope, gate_calls(scope, asked, notify, verify))


def gate_calls(
    scope: WorkflowScope,
    asked: Asked,
    notify: Step[[GateRequest], Any] | None,
    verify: Step[[Any], bool] | None,
) -> Calls:
    """Yield the calls of a gate: the notice of it, the gate, and the check after an approval."""
    call = issue(scope, asked)
    try:
        if notify is not None:
            yield from notify.calls(scope, (notice_of(scope, call, asked),), {})
        verdict = yield call
    except BaseException as error:
        give_up(scope, call, error)
        raise
    if verify is not None and isinstance(verdict, Approved):
        require(asked.name, (yield from verify.calls(scope, (verdict.value,), {})))
    return verdict


def issue(scope: WorkflowScope, asked: Asked) -> GateCall:
    """Issue the call of a gate."""
    rests_on = resting.get()
    if rests_on is not None and asked.terms.decision is None:
        asked.terms.decision = rests_on[0]
    return scope.execution.parts[Gates].issue(
        asked.name, asked.text, asked.value, asked.codec, asked.terms
    )


def give_up(scope: WorkflowScope, call: GateCall, error: BaseException) -> None:
    """The code waits no longer: the gate closes, unless the run is only being put aside."""
    if isinstance(error, (Exception, asyncio.CancelledError)):
        scope.execution.cancel_call(call)


def notice_of(scope: WorkflowScope, call: GateCall, asked: Asked) -> GateRequest:
    """Return the request that the approvers get."""
    return GateRequest(call.key, asked.name, scope.claim.key, asked.value, call.payload_hash)


def require(name: str, holds: Any) -> None:
    """Refuse an approval that no longer holds."""
    if not holds:
        raise Stale(f"gate {name!r} was approved, and what it rests on does not hold any more")


def ask(
    name: str,
    request: Any,
    answer: Any,
    approvers: Sequence[str],
    quorum: int,
    timeout: Duration | None,
    on_timeout: str,
    escalate: Sequence[str],
) -> Asked:
    """Check the arguments of a gate.

    Raises:
        InvalidArgument: It can never be asked like this.
    """
    if not is_name(name):
        raise InvalidArgument(
            f"the name of a gate must be a text of 1 to 255 bytes without NUL, not {name!r}"
        )
    if name.startswith(POLICY):
        raise InvalidArgument(f"gate {name!r}: names that begin with {POLICY!r} are the policy's")
    what = f"the request of gate {name!r}"
    limit = duration(timeout, f"timeout of gate {name!r}")
    if limit is not None and limit.total_seconds() <= 0:
        raise InvalidArgument(f"timeout of gate {name!r} must be longer than nothing")
    if type(quorum) is not int or not 1 <= quorum <= MAX_QUORUM:
        raise InvalidArgument(
            f"quorum of gate {name!r} must be from 1 to {MAX_QUORUM}, not {quorum!r}"
        )
    if on_timeout not in VERDICTS_OF_TIME:
        raise InvalidArgument(
            f"on_timeout of gate {name!r} must be one of {', '.join(VERDICTS_OF_TIME)}, not "
            f"{on_timeout!r}"
        )
    chain = _people(escalate, f"escalate of gate {name!r}")
    if limit is None and (chain or on_timeout != "expire"):
        raise InvalidArgument(
            f"gate {name!r} says what becomes of it in time, and no timeout: pass timeout="
        )
    if answer is not None and on_timeout == "approve":
        raise InvalidArgument(
            f"gate {name!r} asks for a value that the time cannot bring: on_timeout must not be "
            "'approve'"
        )
    codec = _codec_of(request)
    text = codec.encode(request, what)
    value = codec.decode(text, what)
    terms = GateTerms(
        approvers=_people(approvers, f"approvers of gate {name!r}"),
        quorum=quorum,
        timeout_seconds=None if limit is None else limit.total_seconds(),
        on_timeout=on_timeout,
        escalate=chain,
        needs_value=answer is not None,
    )
    return Asked(
        name, text, value, codec if answer is None else codec_for(answer, "an answer"), terms
    )


def _people(names: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(names, str) or not all(map(is_name, names)):
        raise InvalidArgument(
            f"{what} must be a sequence of names of 1 to 255 bytes without NUL, not {names!r}"
        )
    if sum(len(name.encode()) for name in names) > MAX_NAMES_BYTES:
        raise InvalidArgument(f"{what} must be at most {MAX_NAMES_BYTES} bytes: say a role")
    return tuple(dict.fromkeys(names))


def _codec_of(request: Any) -> Codec[Any]:
    """Return the codec of a request's class; of any JSON where the class says nothing of it."""
    try:
        return codec_for(type(request), "a request")
    except DefinitionError:
        return ANYTHING
