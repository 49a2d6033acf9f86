"""The effect ledger of a run: what was intended, what is known of it, and what may be done about what is not.

An effect is never repeated blindly. Its intent is durable before it acts; if it then does not come back with
an answer - an exception, a time-out, a worker that died - its outcome is *unknown*, and three things can
bring it on: the same key again, as long as the counterparty remembers keys; asking the counterparty; and a
person. Which of them, and when, is said by :meth:`Ledgers._plan`; whether the time for it has come is the
database's to say (``sql/ledgers/effects.sql``).

The units of an effect, save its outcome, are marks: they stand beside the code, which a replay does not
expect to produce them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any, Literal

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, EffectCall, StepCall, StepSpec
from pgflow._engine.history import NEVER
from pgflow._engine.host import EffectResult, Host
from pgflow._engine.marks import FORGETFUL, read_mark, still_accepted
from pgflow._engine.requests import Requests, Resting, name_in_key
from pgflow._model.claims import CarriedEffect, Claim, place_of
from pgflow._model.codecs import hash_arguments
from pgflow._model.effects import Accepted
from pgflow._model.exceptions import ErrorData, encode_error
from pgflow._model.kinds import Ground, Kind, StepKind
from pgflow._model.reasons import Unknown
from pgflow._model.units import EFFECT_MARKS, Unit
from pgflow.errors import NeedsGate, NotStorable, PgflowError, Stale


@mypyc_attr(allow_interpreted_subclasses=True)
class Ledgers(Requests):
    """The layer of an :class:`~pgflow._engine.execution.Execution` that knows effects; see the module."""

    def __init__(self, claim: Claim, host: Host[Any]) -> None:
        super().__init__(claim, host)
        self._accepted = still_accepted(claim)
        self._handed_over: dict[int, CarriedEffect] = {}
        self._ageing: dict[str, tuple[str, int, float]] = {}

    @abstractmethod
    def _deliver(self, call: Call, value: Any, error: Exception | None) -> None:
        """Hands an outcome to whoever asked for it."""

    # ================================================================ asking for an effect

    def issue_effect(
        self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], request: str, rests_on: Resting | None,
        compensates: str | None = None, *, takes_back: EffectCall | None = None, expected: str | None = None,
        notice: dict[str, Any] | None = None, is_undo: bool = False,
    ) -> EffectCall:
        """Asks for an effect to be done, or to have been done.

        Args:
            spec: The effect.
            args: Arguments by position.
            kwargs: Arguments by name.
            request: The arguments as JSON, for whoever reads the ledger.
            rests_on: The decision it rests on.
            compensates: Key of the effect that this one takes back.
            takes_back: That effect, if it was accepted: what takes it back waits until it is confirmed.
            expected: Fingerprint of what must be observed immediately before the act.
            notice: Notice for whoever closes it.
            is_undo: True if it helps to take something back, which does not rest on what the run has read before.
        """
        number = self._next_call()
        call = EffectCall(
            number, spec.name, self._driver.waiter(), spec=spec, args=args, kwargs=kwargs, request=request,
            decision=rests_on[0] if rests_on else None, compensates=compensates, expected=expected, expects=expected,
            notice=notice, takes_back=takes_back, is_undo=is_undo,
            reads=[] if compensates or is_undo else list(self._ageing.values()), aliases=spec.aliases,
        )
        if number == NEVER:
            return call
        if compensates is None:
            self._name_key(call, rests_on)
        else:
            self._name_compensation(call, compensates)
        if number not in self.journal.ended:
            call.args_hash = hash_arguments(args, kwargs, f"effect {spec.name}", self._hash_key())
            self._seal_intent(call)
        self._enter(call)
        return call

    def _seal_intent(self, call: EffectCall) -> None:
        """Encodes what is recorded of a request: the policy reads what the effect says is readable, and nothing else."""
        envelopes = self.claim.envelopes
        if envelopes is None:
            return
        what = f"the request of effect {call.name}"
        readable = call.agreed.readable
        arguments = json.loads(call.request) if readable else {}
        shown = {name: arguments[name] for name in readable if name in arguments}
        call.stored = self._by_codec(lambda: envelopes.seal(call.request, what, {"shown": shown} if shown else None))
        if call.notice is not None and call.notice.get("steps"):
            steps = self.sealed(json.dumps(call.notice["steps"]), f"the plan for effect {call.name}")
            call.notice = {**call.notice, "steps": json.loads(steps)}
        if call.expected is not None:
            call.expects = envelopes.hashed(call.expected)

    def may_take_back(self, effect: EffectCall, planner: str | None = None) -> bool:
        """Return True if this run may take it back. What a fork repeats of its origin is not, save where the copied part did it there.

        Args:
            effect: Effect to be taken back.
            planner: The decision that a plan begins with, if it is taken back by one.
        """
        if not self.is_foreign(effect):
            return True
        number = self._last_call + 1
        if planner is not None:
            return self.journal.names.get(number) == planner
        started = self.journal.starts.get(number)
        if started is not None and started.effect == StepKind.EFFECT:
            return isinstance(started.ordinal, str) and started.ordinal.startswith(f"{effect.key}/")
        return self.journal.needless.get(number) == effect.key

    def is_foreign(self, effect: EffectCall) -> bool:
        """Return True if a run beside this one did it: a fork repeats the journal of its origin."""
        return effect.is_foreign if effect.number == 0 else not effect.key.startswith(self.claim.root)

    def watch(self, call: EffectCall) -> Any:
        """A place that gets its outcome once the effect is closed or accepted; None if it is."""
        if call.was_accepted or self._calls.get(call.number) is not call:
            return None
        waiter = self._driver.waiter()
        call.watchers.append(waiter)
        return waiter

    def _knows(self, number: int) -> bool:
        return super()._knows(number) or number in self._accepted

    @property
    def owes(self) -> bool:
        """True while an effect is open: intended and not closed. Until none is, the run does not end."""
        if self._accepted:
            return True
        return any(isinstance(c, EffectCall) and c.attempts > 0 for c in self._calls.values())

    def _dispatch_step(self, call: StepCall) -> None:
        if not isinstance(call, EffectCall):
            super()._dispatch_step(call)
        elif call.attempts == 0 and call.takes_back is not None:
            self._follow(call, call.takes_back)
        elif call.attempts == 0 and (known := self._known_result(call)) is not None:
            self._hand_over(call, known)
        elif call.attempts == 0 or call.ground is not None:
            self._ask_leave(call)
        elif not call.is_unknown:
            self._record_unknown(call, Unknown.WORKER_LOST, None)
        elif self._plan(call) is None:
            call.state = "owed"
        elif call.retry_due_us is not None and call.retry_due_us > self.estimate_us():
            self._back_off(call, (call.retry_due_us - self.estimate_us()) / 1e6)
        else:
            self._bring_on(call)

    def _follow(self, call: EffectCall, accepted: EffectCall) -> None:
        """It takes back what was accepted: not before that is confirmed, and not if it was not done."""
        if accepted.number in self._accepted or self._calls.get(accepted.number) is accepted:
            call.state = "following"
        elif accepted.settled_as == "failed":
            self._inbox.append(EffectResult(call, "needless"))
        else:
            self._ask_leave(call)

    def _ask_leave(self, call: EffectCall) -> None:
        """The next flush asks whether it may act, for the first time or again."""
        call.state = "unlicensed"
        self._new_effects.append(call)

    # ================================================================ what a dropped part has done

    def _known_result(self, call: EffectCall) -> CarriedEffect | None:
        """Return the outcome of the same effect (same place, same arguments) in a dropped part of the journal; None if it has none."""
        heritage = self.claim.heritage
        if heritage is None or call.compensates is not None or call.is_undo:
            return None
        place, _, item = place_of(call.key).rpartition("/")
        place = place.removesuffix(name_in_key(call.name))
        for args_hash in (call.args_hash, *self._other_hashes(call)):
            for name in (call.name, *call.aliases):
                known = heritage.effects.get((f"{place}{name_in_key(name)}/{item}", args_hash))
                if known is not None:
                    return known
        return None

    def _hand_over(self, call: EffectCall, known: CarriedEffect) -> None:
        """It was done: its result is recorded as this run's, under the key with which it was done."""
        call.key = call.ordinal = known.key
        call.state = "running"
        self._handed_over[call.number] = known
        self._inbox.append(EffectResult(call, "carried", text=known.result))

    def _record_carried(self, call: EffectCall, result: EffectResult) -> None:
        known = self._handed_over.pop(call.number)
        text = known.result
        value: Any = Accepted(json.loads(text)["ref"]) if known.note["is_accepted"] else None
        if value is None:
            value, misfit, text = self._decode(call, result)
            if misfit is not None:
                self.diverge(self._told(misfit))
        intent = {
            "request": json.loads(call.stored or call.request), "risk": call.agreed.risk, "code": call.agreed.code,
            "decision": call.decision, "origin": known.note["origin"],
        }
        self._record(call.number, Kind.EFFECT_INTENDED, call.name, json.dumps(intent), key=call.key, carried=call)
        kind = Kind.EFFECT_ACCEPTED if known.note["is_accepted"] else Kind.EFFECT_CONFIRMED
        self._now_us = self._record(call.number, kind, call.name, text).at_us
        if known.note["is_accepted"]:
            self._record(call.number, Kind.EFFECT_SETTLED, call.name, '{"verdict":"confirmed","by":"pgflow"}')
            call.is_settled = True
        self._deliver(call, value, None)

    # ================================================================ what is not known

    def _plan(self, call: EffectCall) -> Literal["repeat", "ask"] | None:
        """Return how to settle an effect of unknown outcome: repeat it, ask the counterparty, or None if only a person can."""
        if call.spec.terms is None:  # another's, of which the code at hand knows nothing
            return None
        agreed = call.agreed
        if call.asks > agreed.settling.max_attempts or not agreed.has_body or call.needs_person:
            return None
        may_repeat = not call.was_accepted  # else its key would be answered by the acceptance again
        if may_repeat and agreed.is_keyed and agreed.dedup_seconds is not None and not call.may_be_forgotten:
            return "repeat"
        return "ask" if agreed.can_ask else None

    def _delay(self, call: EffectCall) -> float | None:
        plan = self._plan(call)
        if plan is None:
            return None
        if plan == "ask" and call.asks == 1:
            return 0.0
        return call.agreed.settling.delay_seconds(max(1, call.asks if plan == "repeat" else call.asks - 1))

    def _bring_on(self, call: EffectCall) -> None:
        call.retry_due_us = None
        if self._plan(call) == "repeat":
            call.ground = Ground.REMEMBERED
            self._ask_leave(call)
        else:
            call.phase = "ask"
            call.state = "startable"
            self._startable.append(call)

    def _record_unknown(self, call: EffectCall, reason: str, error: ErrorData | None) -> None:
        call.is_unknown = True
        call.asks += 1
        call.may_be_forgotten = call.may_be_forgotten or reason in FORGETFUL
        delay = self._delay(call)
        payload: dict[str, Any] = {"reason": reason}
        if reason == Unknown.NO_COMPENSATION and call.notice is not None:
            payload["why"] = call.notice["why"]
        if error is not None:
            payload["error"] = json.loads(self._error_text(error))
        row = self._record_effect_unit(call, Kind.EFFECT_UNKNOWN, json.dumps(payload), delay)
        if delay is None:
            call.state, call.retry_due_us = "owed", None
        else:
            call.retry_seq, call.retry_due_us = row.seq, row.at_us + int(delay * 1e6)
            self._wait_for_turn(call, delay)

    def _wait_for_turn(self, call: EffectCall, delay_seconds: float) -> None:
        if delay_seconds > 0:
            self._back_off(call, delay_seconds)
        else:
            self._bring_on(call)

    def _record_effect_unit(self, call: EffectCall, kind: str, payload: str, delay_seconds: float | None = None) -> Any:
        self._has_ledger_rows = True
        row = self._record(call.number, kind, call.name, payload, delay_seconds)
        self._want_flush()
        return row

    # ================================================================ what came back

    def _record_effect(self, result: EffectResult) -> bool:
        """Gives what a body or an answer of the counterparty says its place in the journal; True if that was released."""
        call = result.call
        assert isinstance(call, EffectCall)
        if result.turn != call.turn:  # a thread that could not be stopped answers a question that was closed meanwhile
            return False
        self._running.discard(call.number)
        if call.was_accepted:
            self._take_answer_of_silent(call, result)
            return False
        if result.verdict == "carried":
            self._record_carried(call, result)
        elif result.verdict == "confirmed":
            value, misfit, text = self._decode(call, result)
            if misfit is not None:  # it was done, but what it returned cannot be read: the counterparty must be asked
                self._record_unknown(call, Unknown.MISFIT, encode_error(misfit))
                return False
            if call.phase == "ask":
                self._record_effect_unit(call, Kind.EFFECT_SETTLED, '{"verdict":"confirmed","by":"settle"}')
            self._record_emitted(call)
            self._now_us = self._record_effect_unit(call, Kind.EFFECT_CONFIRMED, text).at_us
            self._deliver(call, value, None)
        elif result.verdict == "accepted":
            assert result.text is not None
            said: dict[str, Any] = {"ref": result.text}
            if result.beats_within_seconds is not None:
                said |= {"heartbeat_timeout": result.beats_within_seconds, "can_ask": call.agreed.can_ask}
            self._now_us = self._record_effect_unit(call, Kind.EFFECT_ACCEPTED, json.dumps(said)).at_us
            self._deliver(call, Accepted(result.text), None)
        elif result.verdict == "needless":
            self._now_us = self._record_effect_unit(call, Kind.COMPENSATED, json.dumps({"compensates": call.compensates})).at_us
            self._deliver(call, None, None)
        elif result.verdict == "failed" and not call.agreed.must_be_done:
            _, error, text = self._decode(call, result)
            self._now_us = self._record_effect_unit(call, Kind.EFFECT_FAILED, text).at_us
            self._deliver(call, None, error)
        else:
            self._take_no_outcome(call, result)
            return False
        return True

    def _take_answer_of_silent(self, call: EffectCall, result: EffectResult) -> None:
        """Record the counterparty's word on an accepted effect that was silent. The code has had its outcome."""
        if result.verdict == "accepted" and result.text == call.value.ref:
            said: dict[str, Any] = {"reason": Unknown.ACCEPTED}
            if result.beats_within_seconds is not None:
                said["heartbeat_timeout"] = result.beats_within_seconds
            self._record_effect_unit(call, Kind.EFFECT_UNKNOWN, json.dumps(said))
            self._drop(call)
            call.is_silent, call.is_unknown, call.retry_due_us = False, False, None
            self._accepted[call.number] = call
        elif result.verdict == "confirmed":
            _, misfit, text = self._decode(call, result)
            if misfit is not None:
                self._record_unknown(call, Unknown.MISFIT, encode_error(misfit))
            else:
                self._settle_silent(call, "confirmed", f'{{"verdict":"confirmed","by":"settle","value":{text}}}')
        elif result.verdict == "absent":  # it was taken on, and is lost: the code is not given another acceptance
            self._settle_silent(call, "failed", '{"verdict":"failed","by":"settle"}')
        else:
            self._record_unknown(call, result.reason or Unknown.ACCEPTED_ANEW, result.error)

    def _settle_silent(self, call: EffectCall, verdict: str, payload: str) -> None:
        self._record_effect_unit(call, Kind.EFFECT_SETTLED, payload)
        call.is_settled, call.settled_as = True, verdict
        self._drop(call)
        self._call_followers(call)

    def _take_no_outcome(self, call: EffectCall, result: EffectResult) -> None:
        """Nothing is known that closes it. Whether what is said to be absent may be tried again is the database's to say."""
        if result.verdict == "absent":
            took_seconds = round(result.took_seconds, 6)
            self._record_effect_unit(call, Kind.EFFECT_SETTLED, json.dumps({"verdict": "absent", "by": "settle", "took": took_seconds}))
            call.ground = Ground.ABSENT
            self._ask_leave(call)
        elif result.verdict == "not begun":
            said = {"verdict": "absent", "by": "pgflow", "reason": result.reason}
            self._record_effect_unit(call, Kind.EFFECT_SETTLED, json.dumps(said))
            call.ground = Ground.PERSON
            self._ask_leave(call)
        else:
            self._record_unknown(call, result.reason or Unknown.REFUSED, result.error)

    def _note_age(self, call: Call, seq: int) -> None:
        """A result has come: of a read that ages, effects rest on the newest one."""
        if isinstance(call, StepCall) and call.spec.max_age_seconds is not None:
            self._ageing[call.name] = (call.name, seq, call.spec.max_age_seconds)

    def _refuse_effect(self, number: int, policy_version: int | None, stale: str | None) -> None:
        """The database does not let it through: it rests on a read too old, or needs somebody's leave, which cannot be asked for yet."""
        call = self._calls[number]
        assert isinstance(call, EffectCall)
        error: PgflowError = NeedsGate(f"effect {call.name} needs a gate, says version {policy_version} of the policy; nothing was done")
        if stale is not None:
            error = Stale(f"effect {call.name} rests on what {stale} read, which is too old by now; nothing was done")
        self._inbox.append(EffectResult(call, "failed", error=encode_error(error, with_traceback=False)))

    # ================================================================ marks

    def _take_mark(self, unit: Unit) -> None:
        if unit.kind not in EFFECT_MARKS:
            super()._take_mark(unit)
            if (unit.kind, unit.name) == (Kind.OPERATOR, "retry"):
                self._grant_fresh_budgets()
            return
        call = self._calls.get(unit.call) or self._accepted.get(unit.call)
        if not isinstance(call, EffectCall) or not call.answers_to(unit.name):
            self.diverge(f"the journal has {unit}", code=f"the code has {call or 'no such call'}", unit=unit)
        self._read_mark(call, unit)

    def _grant_fresh_budgets(self) -> None:
        """Somebody has let a stuck run try again: what could be asked may be asked again."""
        for call in (*self._calls.values(), *self._accepted.values()):
            if isinstance(call, EffectCall):
                call.asks = min(call.asks, 1)
                call.needs_person = False

    def _read_mark(self, call: EffectCall, unit: Unit) -> None:
        read_mark(call, unit)
        if call.is_settled:
            self._accepted.pop(call.number, None)
            if call.was_accepted and self._calls.get(call.number) is call:
                self._stop_asking(call)
                self._drop(call)

    def _go_live(self) -> None:
        super()._go_live()
        for call in [c for c in self._accepted.values() if c.is_silent]:
            self._ask_after(call)

    def _ask_after(self, call: EffectCall) -> None:
        """It is silent: it is open again, for the ledger alone, until it is known what has become of it."""
        del self._accepted[call.number]
        self._calls[call.number] = call
        self._dispatch_step(call)

    def _call_followers(self, call: EffectCall) -> None:
        """Tell the calls that take an accepted effect back that more is known of it."""
        for follower in [c for c in self._calls.values() if c.state == "following" and isinstance(c, EffectCall) and c.takes_back is call]:
            self._dispatch_step(follower)

    def _take_live_mark(self, unit: Unit) -> None:
        """Apply a mark that the database has just written beside an effect."""
        call = self._calls.get(unit.call) or self._accepted.get(unit.call)
        assert isinstance(call, EffectCall)
        self._read_mark(call, unit)
        self._call_followers(call)
        if call.was_accepted:
            if call.is_silent and call.number in self._accepted:
                self._ask_after(call)
        elif unit.kind in (Kind.EFFECT_INTENDED, Kind.EFFECT_ATTEMPTED):
            if call in self._new_effects:  # a word that came with this answer has asked for it once more
                self._new_effects.remove(call)
            call.state = "startable"
            self._startable.append(call)
        elif unit.kind == Kind.EFFECT_UNKNOWN:
            if self._plan(call) is None:
                call.state, call.retry_due_us = "owed", None
            else:
                self._wait_for_turn(call, ((unit.due_us or 0) - self.estimate_us()) / 1e6)
        elif call.ground == Ground.PERSON:
            self._stop_asking(call)
            self._ask_leave(call)

    def _stop_asking(self, call: EffectCall) -> None:
        if call in self._startable:
            self._startable.remove(call)
        if call in self._new_effects:
            self._new_effects.remove(call)
        if call.number in self._running:
            call.turn += 1
            self._running.discard(call.number)
            self._stop_body(call)

    # ================================================================ closing

    def _close_effect(self, call: EffectCall, value: Any, error: Exception | None) -> None:
        """It has an outcome: nobody need ask any more."""
        self._stop_asking(call)
        call.value = value
        call.closed_as = "confirmed" if error is None or is_misfit_word(call, error) else "failed"
        if isinstance(value, Accepted):
            call.closed_as = "accepted"
            if not call.is_settled:
                self._accepted[call.number] = call
        for waiter in call.watchers:
            if not waiter.done():
                waiter.set_result(None)

    def _release_misfit(self, call: EffectCall, unit: Unit, misfit: NotStorable) -> None:
        """Somebody said that it was done, with a value that its annotation cannot read: the code is told, and it can be taken back."""
        self._deliver(call, json.loads(unit.payload or "null"), misfit)

    def _give_up_effect(self, call: EffectCall) -> None:
        """The code waits for it no longer. What was intended goes on: it must be known what became of it."""
        self._note(call.number, Kind.STEP_ABANDONED, call.name, None)
        call.waiter = None

    def _drop_all_but_effects(self) -> None:
        """The code has ended: of what it asked for, only the effects that were intended go on."""
        for call in list(self._calls.values()):
            if isinstance(call, EffectCall) and call.attempts > 0:
                continue
            self._drop(call)
            self._left_behind.add(call.number)
            if isinstance(call, StepCall) and call.number in self._running:
                self._running.discard(call.number)
                self._stop_body(call)


def is_misfit_word(call: EffectCall, error: Exception) -> bool:
    """Return True if somebody has said that an effect was done, with a result that cannot be read."""
    return call.is_by_word and isinstance(error, NotStorable)
