"""One attempt at an effect: its precondition, its body, and the questions to the counterparty
afterwards.

Every outcome here, errors included, is evidence about the effect, so none of it is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pgflow._db.failures import is_infrastructure
from pgflow._engine.effects import EffectCall
from pgflow._engine.execution import Execution
from pgflow._engine.host import EffectResult
from pgflow._flow.ledgers.effect import EffectStep
from pgflow._model.effects import Absent, Accepted, Confirmed, StillUnknown
from pgflow._model.envelopes import is_hiding
from pgflow._model.exceptions import encode_error
from pgflow._model.fingerprints import fingerprint
from pgflow._model.names import is_name
from pgflow._model.reasons import NOT_BEGUN, Unknown
from pgflow._worker.body_calls import BodyCalls
from pgflow._worker.options import Definitions
from pgflow.errors import Diverged, NotStorable, Stale

BEGIN_WITHIN = 0.5
"""Longest delay between the licence and the start of an act, as a share of the time between the end
of an attempt and when "absent" is believed.

The rest allows for a process that is frozen between its last look at the clock and the act.
"""

ASKED_BEFORE_ACT = 5
"""Attempts at a precondition or an observer whose database is in trouble; then the last error
counts.
"""


class EffectAttempts:
    """Attempts at effects, and questions to their counterparties.

    Args:
        calls: Calls the functions.
        definitions: The app's, with its codec and the functions that tests call in place of a body.
    """

    def __init__(self, calls: BodyCalls, definitions: Definitions) -> None:
        self._calls = calls
        self._replacements = definitions.replacements
        self._is_hidden = is_hiding(definitions.envelopes)

    async def act(self, execution: Execution, call: EffectCall) -> EffectResult:
        """Make one attempt, and return what is known of its outcome."""
        step: EffectStep[..., Any] = call.spec.definition.declared
        if not call.agreed.has_body:
            return unknown(call, Unknown.NO_COMPENSATION)
        slack_seconds = call.agreed.settle_after_seconds - (call.spec.timeout_seconds or 0)
        if (execution.clock.estimate_us() - call.attempted_us) / 1e6 > BEGIN_WITHIN * slack_seconds:
            return EffectResult(call, "not begun", reason=NOT_BEGUN)
        is_before_act = True
        try:
            async with asyncio.timeout(call.spec.timeout_seconds):
                if (refusal := await self._refused_before_act(execution, call, step)) is not None:
                    return refusal
                is_before_act = False
                return await self._act_and_verify(call, step)
        except TimeoutError as error:
            if is_before_act:
                return _not_done(call, error)
            raise

    async def _refused_before_act(
        self, execution: Execution, call: EffectCall, step: EffectStep[..., Any]
    ) -> EffectResult | None:
        """Check the precondition, then whether the observed state is as expected, and return the
        refusal if either fails.

        The observation comes last, so that nothing happens between it and the act.
        """
        try:
            if step.guard is not None and not await self._ask_before_act(
                execution, call, step.guard
            ):
                return _not_done(
                    call,
                    Stale(
                        f"the precondition of effect {call.name} does not hold; nothing was done"
                    ),
                )
            if call.expected is not None and step.observer is not None:
                observed = fingerprint(await self._ask_before_act(execution, call, step.observer))
                if observed != call.expected:
                    return _not_done(call, _diverged(call, observed), Unknown.EXPECTATION_FAILED)
        except Exception as error:  # noqa: BLE001 - before the act
            return _not_done(call, error)
        return None

    async def _ask_before_act(
        self, execution: Execution, call: EffectCall, fn: Callable[..., Any]
    ) -> Any:
        """Call a function before the act and return its answer. Retry trouble with its database a
        few times: the act has not begun.
        """
        tries = 0
        while True:
            try:
                return await self._calls.call_untimed(call, fn, ())
            except Exception as error:
                tries += 1
                if not is_infrastructure(error) or tries >= ASKED_BEFORE_ACT:
                    raise
                await self._calls.wait_out(execution, call, error, tries)

    async def _act_and_verify(self, call: EffectCall, step: EffectStep[..., Any]) -> EffectResult:
        fn: Callable[..., Any] = self._replacements.get(step) or step.fn
        try:
            value = await self._calls.call_untimed(call, fn, ())
        except call.spec.raises as refusal:
            return EffectResult(call, "failed", error=encode_error(refusal))
        if isinstance(value, Accepted):
            return accepted(call, value)
        if step.verifier is not None and not await self._calls.call_untimed(
            call, step.verifier, (value,)
        ):
            return unknown(call, Unknown.NOT_VERIFIED)
        what = f"the result of effect {call.name}"
        return _confirmed(call, value, what, is_hidden=self._is_hidden)

    async def inquire(self, call: EffectCall) -> EffectResult:
        """Ask the counterparty about the outcome of the attempts so far."""
        step: EffectStep[..., Any] = call.spec.definition.declared
        assert step.settler is not None
        answer = await self._calls.call(call, step.settler, ())
        if isinstance(answer, Confirmed) and isinstance(answer.value, Accepted):
            # The counterparty has accepted it and confirms it later.
            return accepted(call, answer.value)
        if isinstance(answer, Confirmed):
            what = f"what settling effect {call.name} brought"
            return _confirmed(call, answer.value, what, is_hidden=self._is_hidden)
        if isinstance(answer, Absent):
            return EffectResult(call, "absent")
        if isinstance(answer, StillUnknown):
            return unknown(call, Unknown.STILL_UNKNOWN)
        raise TypeError(
            f"settle of effect {call.name} must return Confirmed, Absent or StillUnknown, not "
            f"{type(answer).__name__}"
        )


def _confirmed(call: EffectCall, value: Any, what: str, *, is_hidden: bool) -> EffectResult:
    try:
        text = call.spec.result.encode(value, what, is_hidden=is_hidden)
        return EffectResult(call, "confirmed", text)
    except NotStorable as error:  # it was done, and a retry would return the same kind of value
        return unknown(call, Unknown.MISFIT, error)


def accepted(call: EffectCall, value: Accepted) -> EffectResult:
    """Return the result of an effect that the counterparty has accepted and will confirm."""
    return EffectResult(
        call, "accepted", checked_ref(value.ref), beats_within_seconds=value.beats_within_seconds
    )


def unknown(call: EffectCall, reason: str, error: BaseException | None = None) -> EffectResult:
    """Return the result of an attempt that may or may not have acted, for one of the reasons in
    `pgflow._model.reasons`.
    """
    return EffectResult(
        call, "unknown", error=None if error is None else encode_error(error), reason=reason
    )


def _diverged(call: EffectCall, observed: str) -> Diverged:
    assert call.expected is not None
    return Diverged(
        f"effect {call.name}: the observed state is not the expected one; nothing was done",
        call.expected,
        observed,
    )


def _not_done(
    call: EffectCall, error: BaseException, reason: str = Unknown.PRECONDITION_FAILED
) -> EffectResult:
    """Return the result of an attempt that did not act. It is unknown if an earlier attempt may
    have acted.
    """
    if call.may_have_acted:
        return unknown(call, reason, error)
    return EffectResult(call, "failed", error=encode_error(error))


def checked_ref(ref: object) -> str:
    """Return the counterparty's reference, or raise TypeError if it is not a usable text."""
    if not is_name(ref):
        raise TypeError(
            f"the reference of Accepted must be a text of 1 to 255 bytes without NUL, not {ref!r}"
        )
    return ref
