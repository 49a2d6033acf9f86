"""The effect ledger of a run: its intents, their outcomes, and how to settle the unknown ones.

An effect is never repeated blindly. Its intent is durable before it acts. If it then returns no
answer - an exception, a time-out, a lost worker - its outcome is *unknown*, and one of three things
settles it: the same key again, while the counterparty remembers keys; a question to the
counterparty; or a person. :meth:`EffectCall.plan` chooses; the database decides whether it is time
(``sql/ledgers/effects.sql``).

The compensation of an accepted effect waits here until the effect is settled. If the effect is
confirmed, the compensation asks for leave to act. If it failed, a unit ``compensated`` closes the
compensation.

The units of an effect, except its outcome, are marks: a replay does not expect the code to produce
them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import StepSpec, Want
from pgflow._engine.clock import Clock
from pgflow._engine.effects import EffectCall, EffectStage, Leave
from pgflow._engine.flush import Row
from pgflow._engine.history import NEVER
from pgflow._engine.host import EffectResult, StepResult
from pgflow._engine.keys import Keys, Resting, name_in_key
from pgflow._engine.kind import KindOfCall
from pgflow._engine.parts import Parts
from pgflow._engine.steps import Steps
from pgflow._engine.values import Values
from pgflow._model.claims import CarriedEffect, place_of
from pgflow._model.codecs import hash_arguments
from pgflow._model.effects import Accepted
from pgflow._model.exceptions import ErrorData, encode_error
from pgflow._model.kinds import Ground, Kind, StepKind
from pgflow._model.reasons import Unknown
from pgflow._model.units import Unit
from pgflow.errors import EffectFailed, NeedsGate, PgflowError, Stale

EARLY_US = 20_000
"""Microseconds by which a timer of the worker may fire early."""


@dataclass(eq=False)
class EffectRequest:
    """A requested effect.

    Attributes:
        spec: The effect.
        args: Arguments by position.
        kwargs: Arguments by name.
        request: The arguments as JSON, for readers of the ledger.
        rests_on: The decision it rests on.
        compensates: Key of the effect that this one takes back.
        takes_back: That effect, if it was accepted: this one waits until it is confirmed.
        expected: Fingerprint that must be observed immediately before the act.
        notice: Notice for the person who closes it.
        is_undo: True for a step that takes something back: it does not rest on earlier reads.
        leave: Leave that the policy required.
    """

    spec: StepSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    request: str
    rests_on: Resting | None = None
    compensates: str | None = None
    takes_back: EffectCall | None = None
    expected: str | None = None
    notice: dict[str, Any] | None = None
    is_undo: bool = False
    leave: Leave | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Ledger(KindOfCall[EffectCall]):
    """Owns nothing: each call has the state of its effect."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._claim = parts.claim
        self._is_undoing = parts.is_undoing
        self._clock = parts[Clock]
        self._values = parts[Values]
        self._keys = parts[Keys]
        self._steps = parts[Steps]

    # ================================================================ asking for an effect

    def issue(self, asked: EffectRequest) -> EffectCall:
        """Request an effect, or take it from the journal."""
        spec, rests_on, compensates, leave = (
            asked.spec,
            asked.rests_on,
            asked.compensates,
            asked.leave,
        )
        takes_something_back = compensates is not None or asked.is_undo
        call = EffectCall(
            self._history.next_call(),
            spec.name,
            self._code.driver.waiter(),
            spec=spec,
            args=asked.args,
            kwargs=asked.kwargs,
            request=asked.request,
            decision=rests_on[0] if rests_on else None,
            compensates=compensates,
            expected=asked.expected,
            expects=asked.expected,
            notice=asked.notice,
            takes_back=asked.takes_back,
            is_undo=asked.is_undo,
            is_dropped=self._is_undoing and compensates is None,
            reads=[] if takes_something_back else self._agenda.ageing(),
            aliases=spec.aliases,
        )
        if call.number == NEVER:
            return call
        if leave is not None:
            call.leave, call.was_taken_over = leave.gate, leave.is_done
        if leave is not None and leave.refused is not None:
            call.key, call.ordinal = leave.refused.key, leave.refused.ordinal
        elif compensates is None:
            self._keys.name(call, rests_on)
        else:
            self._keys.name_compensation(call, compensates)
        if call.number not in self._history.journal.ended:
            call.args_hash = hash_arguments(
                call.args, call.kwargs, f"effect {spec.name}", self._values.hash_key
            )
            self._seal_intent(call)
            call.known = self._known_result(call)
        self._agenda.enter_effect(call)
        self._steps.check(call, may_be_refused=not takes_something_back)
        if not self._history.replaying:
            self.bring_on(call)
        return call

    def _seal_intent(self, call: EffectCall) -> None:
        """Encode the recorded request. The policy can read only what is declared readable."""
        if not self._values.are_sealed:
            return
        readable = call.agreed.readable
        arguments = json.loads(call.request) if readable else {}
        shown = {name: arguments[name] for name in readable if name in arguments}
        call.stored = self._values.seal_request(
            call.request, f"the request of effect {call.name}", shown or None
        )
        if call.notice is not None and call.notice.get("steps"):
            steps = self._values.sealed(
                json.dumps(call.notice["steps"]), f"the plan for effect {call.name}"
            )
            call.notice = {**call.notice, "steps": json.loads(steps)}
        if call.expected is not None:
            call.expects = self._values.hashed(call.expected)

    def may_take_back(self, effect: EffectCall, planner: str | None = None) -> bool:
        """Return True if this run may take an effect back. A fork may not take back what its origin
        did, unless the copied part of the journal already does.

        Args:
            effect: Effect to be taken back.
            planner: Decision that the undo plan begins with, if there is a plan.
        """
        if not self.is_foreign(effect):
            return True
        number, journal = self._history.last_call + 1, self._history.journal
        if planner is not None:
            return journal.names.get(number) == planner
        started = journal.starts.get(number)
        if started is not None and started.effect == StepKind.EFFECT:
            return isinstance(started.ordinal, str) and started.ordinal.startswith(f"{effect.key}/")
        return journal.needless.get(number) == effect.key

    def is_foreign(self, effect: EffectCall) -> bool:
        """Return True if another run did it: a fork repeats the journal of its origin."""
        return (
            effect.is_foreign if effect.number == 0 else not effect.key.startswith(self._claim.root)
        )

    def watch(self, call: EffectCall) -> Any:
        """Return a waiter for an effect to be closed or accepted; None if it already is."""
        if call.was_accepted or not self._agenda.is_open(call):
            return None
        waiter = self._code.driver.waiter()
        call.watchers.append(waiter)
        return waiter

    def give_up(self, call: EffectCall) -> None:
        """Record that the code does not wait for an effect any more. An intended effect continues,
        because its outcome must become known.
        """
        self._history.next_noted()  # reads the marks that record an intent
        if call.attempts > 0:
            self._history.note(call.number, Kind.STEP_ABANDONED, call.name, None)
            call.waiter = None
        else:
            self._steps.give_up(call)

    # ================================================================ bringing on

    def bring_on(self, call: EffectCall) -> None:
        """Do what an effect needs next."""
        self.do(call, call.ask())

    def retry(self, call: EffectCall) -> bool:
        """Send its key again or ask the counterparty, if it is time: a timer may be of an earlier
        wait.
        """
        if (call.retry_due_us or 0) > self._clock.estimate_us() + EARLY_US:
            return False
        self.do(call, call.come_due())
        return True

    def do(self, call: EffectCall, want: str) -> None:
        """Act on a :class:`Want`."""
        if want == Want.LEAVE:
            self._agenda.ask_leave(call)
        elif want == Want.ADMISSION:
            self._agenda.ask_pool(call)
        elif want == Want.RESULT:
            self._hand_over(call)
        elif want == Want.LOST:
            self._record_unknown(call, Unknown.WORKER_LOST, None)
        elif want == Want.PERSON:
            call.state = "owed"
        elif want == Want.FOLLOW:
            call.state = "following"
        elif want == Want.NEEDLESS:
            self._agenda.receive(EffectResult(call, "needless"))
        elif want == Want.CLOSE:
            self._close_as_absent(call)
        elif want == Want.LATER:
            self._wait_until(call, call.retry_due_us or 0)
        else:
            assert want == Want.BODY, want
            self._agenda.make_startable(call)

    def _wait_until(self, call: EffectCall, due_us: int) -> None:
        self._wait_for_turn(call, (due_us - self._clock.estimate_us()) / 1e6)

    def _wait_for_turn(self, call: EffectCall, delay_seconds: float) -> None:
        if delay_seconds > 0:
            self._agenda.back_off(call, delay_seconds)
        else:
            self.do(call, call.come_due())

    def go_live(self) -> None:
        """Ask about silent effects after the replay."""
        for call in [c for c in self._agenda.accepted.values() if c.stage == EffectStage.SILENT]:
            self._ask_after(call)

    def _ask_after(self, call: EffectCall) -> None:
        self._agenda.reopen(call)
        self.bring_on(call)

    def _call_followers(self, call: EffectCall) -> None:
        """Continue the calls that wait to take an accepted effect back."""
        for follower in self._agenda.followers(call):
            self.bring_on(follower)

    # ================================================================ effects of a dropped part

    def _known_result(self, call: EffectCall) -> CarriedEffect | None:
        """Return the outcome of the same effect (same place, same arguments) in a dropped part of
        the journal, or None.
        """
        heritage = self._claim.heritage
        if heritage is None or call.compensates is not None or call.is_undo:
            return None
        place, _, item = place_of(call.key).rpartition("/")
        place = place.removesuffix(name_in_key(call.name))
        for args_hash in (call.args_hash, *self._values.other_hashes(call)):
            for name in (call.name, *call.aliases):
                known = heritage.effects.get((f"{place}{name_in_key(name)}/{item}", args_hash))
                if known is not None:
                    return known
        return None

    def _hand_over(self, call: EffectCall) -> None:
        """Record the effect's known result as this run's, under the key that it was done with."""
        assert call.known is not None
        call.key = call.ordinal = call.known.key
        call.state = "running"
        self._agenda.receive(EffectResult(call, "carried", text=call.known.result))

    def _record_carried(self, call: EffectCall, result: EffectResult) -> None:
        known = call.known
        assert known is not None
        text = known.result
        value: Any = Accepted(json.loads(text)["ref"]) if known.note["is_accepted"] else None
        if value is None:
            value, misfit, text = self._values.decode(call, result)
            if misfit is not None:
                self._history.diverge(self._values.describe(misfit))
        intent = {
            "request": json.loads(call.stored or call.request),
            "risk": call.agreed.risk,
            "code": call.agreed.code,
            "decision": call.decision,
            "origin": known.note["origin"],
        }
        self._buffer.record(
            call.number,
            Kind.EFFECT_INTENDED,
            call.name,
            json.dumps(intent),
            key=call.key,
            carried=call,
        )
        kind = Kind.EFFECT_ACCEPTED if known.note["is_accepted"] else Kind.EFFECT_CONFIRMED
        self._clock.stand_at(self._buffer.record(call.number, kind, call.name, text).at_us)
        if known.note["is_accepted"]:
            self._buffer.record(
                call.number, Kind.EFFECT_SETTLED, call.name, '{"verdict":"confirmed","by":"pgflow"}'
            )
            call.settle("confirmed")
        self._code.deliver(call, value, None)

    # ================================================================ unknown outcomes

    def _record_unknown(self, call: EffectCall, reason: str, error: ErrorData | None) -> None:
        call.doubt(reason)
        delay = call.delay_seconds()
        payload: dict[str, Any] = {"reason": reason}
        if reason == Unknown.NO_COMPENSATION and call.notice is not None:
            payload["why"] = call.notice["why"]
        if error is not None:
            payload["error"] = json.loads(self._values.error_text(error))
        row = self._record(call, Kind.EFFECT_UNKNOWN, json.dumps(payload), delay)
        if delay is None:
            call.state, call.retry_due_us = "owed", None
        else:
            call.retry_seq, call.retry_due_us = row.seq, row.at_us + int(delay * 1e6)
            self._wait_for_turn(call, delay)

    def _record(
        self, call: EffectCall, kind: str, payload: str, delay_seconds: float | None = None
    ) -> Row:
        row = self._buffer.record(call.number, kind, call.name, payload, delay_seconds)
        self._buffer.book()
        return row

    def _record_outcome(self, call: EffectCall, kind: str, payload: str) -> None:
        self._clock.stand_at(self._record(call, kind, payload).at_us)

    # ================================================================ results

    def record(self, call: EffectCall, result: StepResult) -> bool:
        """Record the result of a body or of a question; return True if an outcome was released."""
        assert isinstance(result, EffectResult)
        if result.turn != call.turn:
            # A thread that could not be stopped returned after its turn.
            return False
        self._agenda.returned(call)
        if call.charges is not None:
            self._buffer.record_charges(call)
        if call.was_accepted:
            self._take_answer_of_silent(call, result)
            return False
        if result.verdict == "carried":
            self._record_carried(call, result)
        elif result.verdict == "confirmed":
            value, misfit, text = self._values.decode(call, result)
            if misfit is not None:
                # It was done, but its result cannot be read: the counterparty must be asked.
                self._record_unknown(call, Unknown.MISFIT, encode_error(misfit))
                return False
            if not call.is_acting:
                self._record(call, Kind.EFFECT_SETTLED, '{"verdict":"confirmed","by":"settle"}')
            self._buffer.record_emitted(call)
            self._record_outcome(call, Kind.EFFECT_CONFIRMED, text)
            self._code.deliver(call, value, None)
        elif result.verdict == "accepted":
            assert result.text is not None
            payload: dict[str, Any] = {"ref": result.text}
            if result.beats_within_seconds is not None:
                payload |= {
                    "heartbeat_timeout": result.beats_within_seconds,
                    "can_ask": call.agreed.can_ask,
                }
            self._record_outcome(call, Kind.EFFECT_ACCEPTED, json.dumps(payload))
            self._code.deliver(call, Accepted(result.text), None)
        elif result.verdict == "needless":
            self._record_outcome(
                call, Kind.COMPENSATED, json.dumps({"compensates": call.compensates})
            )
            self._code.deliver(call, None, None)
        elif result.verdict == "failed" and not call.agreed.is_mandatory:
            _, error, text = self._values.decode(call, result)
            self._record_outcome(call, Kind.EFFECT_FAILED, text)
            self._code.deliver(call, None, error)
        else:
            self._take_no_outcome(call, result)
            return False
        return True

    def _take_answer_of_silent(self, call: EffectCall, result: EffectResult) -> None:
        """Record an answer about a silent effect. The code already has its outcome."""
        if result.verdict == "accepted" and result.text == call.value.ref:
            payload: dict[str, Any] = {"reason": Unknown.ACCEPTED}
            if result.beats_within_seconds is not None:
                payload["heartbeat_timeout"] = result.beats_within_seconds
            self._record(call, Kind.EFFECT_UNKNOWN, json.dumps(payload))
            call.note_sign()
            self._agenda.rest(call)
        elif result.verdict == "confirmed":
            _, misfit, text = self._values.decode(call, result)
            if misfit is not None:
                self._record_unknown(call, Unknown.MISFIT, encode_error(misfit))
            else:
                self._settle_silent(
                    call, "confirmed", f'{{"verdict":"confirmed","by":"settle","value":{text}}}'
                )
        elif result.verdict == "absent":
            # It was accepted, and is lost: the code gets no second acceptance.
            self._settle_silent(call, "failed", '{"verdict":"failed","by":"settle"}')
        else:
            self._record_unknown(call, result.reason or Unknown.ACCEPTED_ANEW, result.error)

    def _settle_silent(self, call: EffectCall, verdict: str, payload: str) -> None:
        self._record(call, Kind.EFFECT_SETTLED, payload)
        call.settle(verdict)
        self._agenda.drop(call)
        self._call_followers(call)

    def _take_no_outcome(self, call: EffectCall, result: EffectResult) -> None:
        """Record a finding that does not close the effect. The database decides whether an absent
        one may be attempted again.
        """
        if result.verdict == "absent":
            took_seconds = round(result.took_seconds, 6)
            self._record(
                call,
                Kind.EFFECT_SETTLED,
                json.dumps({"verdict": "absent", "by": "settle", "took": took_seconds}),
            )
            call.allow(Ground.ABSENT)
            self.bring_on(call)
        elif result.verdict == "not begun":
            payload = {"verdict": "absent", "by": "pgflow", "reason": result.reason}
            self._record(call, Kind.EFFECT_SETTLED, json.dumps(payload))
            call.allow(Ground.PERSON)
            self.bring_on(call)
        else:
            self._record_unknown(call, result.reason or Unknown.REFUSED, result.error)

    def _close_as_absent(self, call: EffectCall) -> None:
        """Close an effect that was not done and is not wanted any more."""
        error = EffectFailed(f"effect {call.name} was not done, and is not wanted any more")
        self._record(
            call, Kind.EFFECT_FAILED, json.dumps(encode_error(error, with_traceback=False))
        )
        self._code.deliver(call, None, error)

    # ================================================================ answers

    def refuse(
        self,
        number: int,
        policy_version: int | None,
        stale: str | None,
        terms: dict[str, Any] | None,
    ) -> None:
        """Fail an effect that the database refused: a read that it rests on is too old, or the
        policy requires leave, to be requested on these terms.
        """
        call = self._agenda.effects[number]
        error: PgflowError
        if stale is not None:
            error = Stale(
                f"effect {call.name} rests on a result of {stale} that is too old; nothing was done"
            )
        else:
            error = needs = NeedsGate(
                f"effect {call.name} needs a gate under version {policy_version} of the policy; "
                "nothing was done"
            )
            needs.policy_version = policy_version
            needs.terms = terms
            needs.notify = call.agreed.notify
        self._agenda.receive(
            EffectResult(call, "failed", error=encode_error(error, with_traceback=False))
        )

    def take_mark(self, call: EffectCall, unit: Unit) -> None:
        """Apply a mark that the database has just written. An admitted effect asks for leave to
        act.
        """
        if unit.kind == Kind.BUDGET_ADMITTED:
            call.read(unit)
            self._agenda.admit(call)
            self.bring_on(call)
            return
        self._agenda.read_mark(call, unit)
        self._call_followers(call)
        if call.was_accepted:
            if call.stage == EffectStage.SILENT and call.number in self._agenda.accepted:
                self._ask_after(call)
        elif unit.kind in (Kind.EFFECT_INTENDED, Kind.EFFECT_ATTEMPTED):
            # A report in the same answer may have requested leave again.
            self._agenda.ask_no_more(call)
            self._agenda.make_startable(call)
        elif unit.kind == Kind.EFFECT_UNKNOWN:
            self._agenda.ask_no_more(call)
            if call.plan() is None:
                call.retry_due_us = None
                self.bring_on(call)
            else:
                self._wait_until(call, unit.due_us or 0)
        elif call.stage == EffectStage.REPEATABLE and call.ground == Ground.PERSON:
            self._agenda.stop_asking(call)
            self.bring_on(call)
