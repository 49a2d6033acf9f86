"""Effects as calls: the stages of an effect, and the events that change them.

An effect is at one :class:`Stage`. Units of the journal move it, and so does what the engine learns
before it writes the unit. ``_MOVES`` lists the moves; any other raises. A replay reads the marks
that follow an acceptance before it passes the acceptance to the code, so some stages describe an
effect whose outcome is in the journal but not released yet.

:meth:`EffectCall.ask` returns the next action for a stage. The database decides whether it is time
for it (``sql/ledgers/effects.sql``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from pgflow._engine.calls import EffectTerms, StepCall, Waiter, Waits, Want, spec_of_another
from pgflow._model.budgets import refusal
from pgflow._model.claims import CarriedEffect, Claim
from pgflow._model.effects import Accepted
from pgflow._model.kinds import EFFECT_MARKS, EFFECT_OUTCOMES, Ground, Kind
from pgflow._model.reasons import Unknown, reason_of
from pgflow._model.units import FIRST_ADOPTED, Unit
from pgflow.errors import NotStorable

FORGETFUL = (
    Unknown.KEY_EXPIRED,
    Unknown.PRECONDITION_FAILED,
    Unknown.EXPECTATION_FAILED,
    Unknown.MISFIT,
)
"""After these, the same key is not sent again: the counterparty may have forgotten it, or the
purpose of the effect has changed.
"""


class EffectStage:
    """Stages of an effect."""

    ASKED: Final = "asked"
    """The code requested it. Its intent is not durable."""
    ATTEMPTED: Final = "attempted"
    """Its intent is durable, and an attempt has not returned."""
    REPEATED: Final = "repeated"
    """As attempted, but an earlier attempt may have acted."""
    UNKNOWN: Final = "unknown"
    """An attempt may or may not have acted."""
    HELPLESS: Final = "helpless"
    """As unknown, but a person must report the outcome: it was absent, and without a key another
    attempt is not safe.
    """
    REPEATABLE: Final = "repeatable"
    """It may be attempted again on a ground, if the database gives leave."""
    HUSHED: Final = "hushed"
    """As silent, but the acceptance is not released yet."""
    SETTLED: Final = "settled"
    """The counterparty confirmed it. The outcome is not released yet."""
    STATED: Final = "stated"
    """A person confirmed it. The outcome is not released yet."""
    REFUTED: Final = "refuted"
    """It was not done. The outcome is not released yet."""
    CONFIRMED: Final = "confirmed"
    """It was done, and the code has its result."""
    FAILED: Final = "failed"
    """It was not done, and the code has the error."""
    ACCEPTED: Final = "accepted"
    """The counterparty accepted it, which is the code's outcome. Everything later concerns the
    ledger alone.
    """
    SILENT: Final = "silent"
    """It was accepted, but the counterparty missed a sign of life."""
    KEPT: Final = "kept"
    """It was accepted and is confirmed."""
    BROKEN: Final = "broken"
    """It was accepted and has failed."""


class EffectEvent:
    """Events that move an effect from one stage to another."""

    ATTEMPT: Final = "attempt"
    """``effect_intended``, or ``effect_attempted`` on any ground except that of a repeat."""
    REPEAT: Final = "repeat"
    """``effect_attempted``, because the counterparty still remembers the key."""
    GROUND: Final = "ground"
    """``effect_settled`` as absent, or an unknown effect whose key is sent again: it may be
    attempted, given leave.
    """
    DOUBT: Final = "doubt"
    """``effect_unknown``."""
    DESPAIR: Final = "despair"
    """``effect_unknown``, because it was absent and has no key."""
    BUDGET: Final = "budget"
    """An operator retried the run."""
    SILENCE: Final = "silence"
    """``effect_unknown``, because heartbeats were missed."""
    SIGN: Final = "sign"
    """``effect_unknown`` with the reason that the counterparty still has it."""
    SETTLEMENT: Final = "settlement"
    """``effect_settled`` as confirmed, by the counterparty."""
    STATEMENT: Final = "statement"
    """``effect_settled`` as confirmed, by a person."""
    REFUTATION: Final = "refutation"
    """``effect_settled`` as failed."""
    CONFIRMATION: Final = "confirmation"
    """``effect_confirmed``, or ``compensated``."""
    FAILURE: Final = "failure"
    """``effect_failed``."""
    ACCEPTANCE: Final = "acceptance"
    """``effect_accepted``."""


ACCEPTED = frozenset(
    {EffectStage.ACCEPTED, EffectStage.SILENT, EffectStage.KEPT, EffectStage.BROKEN}
)
"""The code has its acceptance."""
CLOSED = ACCEPTED | {EffectStage.CONFIRMED, EffectStage.FAILED}
"""The code has its outcome."""
DONE = ACCEPTED | {EffectStage.CONFIRMED}
"""The code has or will get the outcome that it was done."""
OWED = frozenset({EffectStage.ACCEPTED, EffectStage.SILENT})
"""The code has its acceptance, and the final outcome is not known."""
_ACTING = frozenset({EffectStage.ATTEMPTED, EffectStage.REPEATED})
_IN_DOUBT = frozenset(
    {
        EffectStage.UNKNOWN,
        EffectStage.HELPLESS,
        EffectStage.REPEATABLE,
        EffectStage.HUSHED,
        EffectStage.SILENT,
    }
)
_OPEN = frozenset(
    {
        EffectStage.ASKED,
        EffectStage.ATTEMPTED,
        EffectStage.REPEATED,
        EffectStage.UNKNOWN,
        EffectStage.HELPLESS,
        EffectStage.REPEATABLE,
    }
)
"""The journal has no outcome for it."""


def _each(stages: frozenset[str], to: str) -> dict[str, str]:
    return dict.fromkeys(stages, to)


_MOVES: dict[str, dict[str, str]] = {
    EffectEvent.ATTEMPT: _each(
        frozenset({EffectStage.ASKED, EffectStage.UNKNOWN, EffectStage.REPEATABLE}),
        EffectStage.ATTEMPTED,
    ),
    EffectEvent.REPEAT: _each(
        frozenset({EffectStage.UNKNOWN, EffectStage.REPEATABLE}), EffectStage.REPEATED
    ),
    EffectEvent.GROUND: _each(_OPEN - {EffectStage.ASKED}, EffectStage.REPEATABLE),
    EffectEvent.DOUBT: {
        **_each(_OPEN, EffectStage.UNKNOWN),
        EffectStage.HUSHED: EffectStage.HUSHED,
        EffectStage.SILENT: EffectStage.SILENT,
    },
    EffectEvent.DESPAIR: _each(_OPEN - {EffectStage.ASKED}, EffectStage.HELPLESS),
    EffectEvent.BUDGET: {EffectStage.HELPLESS: EffectStage.UNKNOWN},
    EffectEvent.SILENCE: {
        **_each(_OPEN - {EffectStage.ASKED}, EffectStage.HUSHED),
        EffectStage.HUSHED: EffectStage.HUSHED,
        EffectStage.ACCEPTED: EffectStage.SILENT,
        EffectStage.SILENT: EffectStage.SILENT,
    },
    EffectEvent.SIGN: {
        EffectStage.HUSHED: EffectStage.ATTEMPTED,
        EffectStage.SILENT: EffectStage.ACCEPTED,
        EffectStage.ACCEPTED: EffectStage.ACCEPTED,
    },
    EffectEvent.SETTLEMENT: {
        **_each(_OPEN | {EffectStage.HUSHED}, EffectStage.SETTLED),
        **_each(OWED, EffectStage.KEPT),
    },
    EffectEvent.STATEMENT: {
        **_each(_OPEN - {EffectStage.ASKED} | {EffectStage.HUSHED}, EffectStage.STATED),
        **_each(OWED, EffectStage.KEPT),
    },
    EffectEvent.REFUTATION: {
        **_each(_OPEN - {EffectStage.ASKED} | {EffectStage.HUSHED}, EffectStage.REFUTED),
        **_each(OWED, EffectStage.BROKEN),
    },
    EffectEvent.CONFIRMATION: _each(
        _OPEN | {EffectStage.SETTLED, EffectStage.STATED}, EffectStage.CONFIRMED
    ),
    EffectEvent.FAILURE: _each(_OPEN | {EffectStage.REFUTED}, EffectStage.FAILED),
    EffectEvent.ACCEPTANCE: {
        **_each(_OPEN, EffectStage.ACCEPTED),
        EffectStage.HUSHED: EffectStage.SILENT,
        EffectStage.SETTLED: EffectStage.KEPT,
        EffectStage.STATED: EffectStage.KEPT,
        EffectStage.REFUTED: EffectStage.BROKEN,
    },
}
"""Table of moves: by event, the stages in which it may occur and the stage that each leads to."""


class ImpossibleMove(Exception):
    """Raised when an event does not belong to the stage: this engine and its database did not write
    such a journal.
    """


@dataclass(eq=False)
class EffectCall(StepCall):
    """A call of an effect. The journal determines its stage and counts of attempts and questions.

    Only the events below write ``stage``, ``ground``, ``attempts``, ``attempted_us``, ``asks`` and
    ``may_be_forgotten``.
    """

    request: str = "null"
    decision: str | None = None
    compensates: str | None = None
    expected: str | None = None
    """Fingerprint that must be observed immediately before the act."""
    expects: str | None = None
    """That fingerprint as recorded."""
    notice: dict[str, Any] | None = None
    """Notice for the person who closes it: why only a person can take the effect back, and the
    failed plan.
    """
    reads: list[tuple[str, int, float]] = field(default_factory=list)
    """Ageing reads that it rests on: name, seq of the newest result, allowed age in seconds."""
    stage: str = EffectStage.ASKED
    ground: Literal["w", "a", "p"] | None = None
    """Ground of a repeatable effect: the key is still remembered (w), it is absent (a), a person
    decided (p).
    """
    attempts: int = 0
    attempted_us: int = 0
    asks: int = 0
    """Number of unknown outcomes since the last attempt on new ground, or since it fell silent."""
    may_be_forgotten: bool = False
    """True if the counterparty may have forgotten the key. It stays True."""
    turn: int = 0
    """Number of abandoned bodies and questions. Late results of an earlier turn are ignored."""
    value: Any = None
    known: CarriedEffect | None = None
    """Its outcome in a dropped part of the journal."""
    takes_back: EffectCall | None = None
    """The accepted effect that this one takes back: it acts once that is confirmed, and does
    nothing if that failed.
    """
    is_undo: bool = False
    """True if it is a step of a plan that takes another effect back."""
    is_dropped: bool = False
    """True if it belongs to a dropped part of the journal: its outcome is settled, but it is not
    done if it was not.
    """
    is_foreign: bool = False
    """True if another run takes it back."""
    is_of_child: bool = False
    """True if a child of this run did it."""
    of_call: int = 0
    """The call that started that child."""
    is_bound: bool = False
    """True if it must be taken back even without a compensation: its saga block continues in the
    next generation.
    """
    leave: str | None = None
    """Key of the gate at which leave was given, if the policy requires it."""
    was_taken_over: bool = False
    """True if the approver did it by hand, so that it draws on no pool."""
    watchers: list[Waiter] = field(default_factory=list)
    """Waiters for its closing, in addition to the calling code."""
    is_in_ledger = True

    # ================================================================ properties of the stage

    @property
    def is_acting(self) -> bool:
        """True while its body runs, as opposed to a question to the counterparty."""
        return self.stage in _ACTING

    @property
    def decision_key(self) -> str | None:
        """Key of the decision that it rests on; None if there is none."""
        return self.decision

    @property
    def may_be_unreadable(self) -> bool:
        """True if a person confirmed it: the code gets the error, and can compensate."""
        return self.stage == EffectStage.STATED

    @property
    def may_have_acted(self) -> bool:
        """True if an earlier attempt than the current one may have acted."""
        return self.stage == EffectStage.REPEATED

    @property
    def was_accepted(self) -> bool:
        """True once the code has its acceptance."""
        return self.stage in ACCEPTED

    @property
    def is_owed(self) -> bool:
        """True if it was accepted and its final outcome is not known."""
        return self.stage in OWED

    @property
    def is_closed(self) -> bool:
        """True once the code has its outcome."""
        return self.stage in CLOSED

    @property
    def was_done(self) -> bool:
        """True once there may be something to take back."""
        return self.stage in DONE

    @property
    def is_in_place(self) -> bool:
        """True if it was done, as far as known once it is closed."""
        return self.stage in DONE and self.stage != EffectStage.BROKEN

    @property
    def has_failed(self) -> bool:
        """True once it is known not to have been done."""
        return self.stage in (EffectStage.FAILED, EffectStage.REFUTED, EffectStage.BROKEN)

    @property
    def is_known(self) -> bool:
        """True once the journal has its final outcome, though the code may not have it yet."""
        return self.stage in (
            EffectStage.KEPT,
            EffectStage.BROKEN,
            EffectStage.SETTLED,
            EffectStage.STATED,
            EffectStage.REFUTED,
        )

    @property
    def agreed(self) -> EffectTerms:
        """Terms of the effect."""
        assert self.spec.terms is not None
        return self.spec.terms

    @property
    def is_by_hand(self) -> bool:
        """True if it takes another effect back and only a person can do that."""
        terms = self.spec.terms
        return self.compensates is not None and terms is not None and not terms.has_body

    @property
    def waits_for_database(self) -> bool:
        """True if its outcome is unknown: a report may have arrived."""
        return self.stage in _IN_DOUBT

    # ================================================================ the four verbs

    def ask(self) -> str:
        """Return the next action for its stage."""
        if self.is_dropped and (self.stage == EffectStage.HELPLESS or self.ground == Ground.PERSON):
            return Want.CLOSE
        if self.attempts == 0:
            return self._ask_first()
        if self.stage == EffectStage.REPEATABLE:
            return Want.LEAVE
        if self.stage not in _IN_DOUBT:
            return Want.LOST
        if self.plan() is None:
            return Want.PERSON
        return self.come_due() if self.retry_due_us is None else Want.LATER

    def _ask_first(self) -> str:
        """Return the first action: wait until the effect that it takes back is confirmed, and do
        nothing if that was not done.
        """
        if self.takes_back is not None:
            if self.takes_back.is_owed:
                return Want.FOLLOW
            return Want.NEEDLESS if self.takes_back.has_failed else Want.LEAVE
        if self.known is not None:
            return Want.RESULT
        return Want.ADMISSION if self.asks_pool and not self.was_taken_over else Want.LEAVE

    def come_due(self) -> str:
        """Return whether to send its key again or to ask the counterparty."""
        self.retry_due_us = None
        if self.plan() != "repeat":
            return Want.BODY
        self.allow(Ground.REMEMBERED)
        return Want.LEAVE

    def fits(self, unit: Unit) -> bool:
        """Return True for the end of an effect."""
        return (
            unit.kind in EFFECT_OUTCOMES or unit.kind in (Kind.COMPENSATED, Kind.BUDGET_REFUSED)
        ) and (unit.name is None or self.answers_to(unit.name))

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return its result, the reference of its acceptance, or the error."""
        payload = unit.payload if unit.payload is not None else "null"
        if unit.kind == Kind.EFFECT_FAILED:
            return None, self.error_of(payload)
        if unit.kind == Kind.EFFECT_ACCEPTED:
            return Accepted(json.loads(payload)["ref"]), None
        if unit.kind == Kind.COMPENSATED:
            return None, None
        if unit.kind == Kind.BUDGET_REFUSED:
            return None, refusal(self.name, json.loads(payload))
        return self.value_of(payload, f"the recorded result of step {self.name}"), None

    def wait(self, waits: Waits) -> None:
        """Add the next question, and the wait for a report on it."""
        super().wait(waits)
        if self.state in ("backoff", "owed"):
            waits["open_effects"].append(self.number)

    # =========================================================== settling an unknown outcome

    def plan(self) -> Literal["repeat", "ask"] | None:
        """Return how to settle an unknown outcome: repeat it, ask the counterparty, or None if only
        a person can.
        """
        if self.spec.terms is None:  # another run's, unknown to this code
            return None
        agreed = self.agreed
        if (
            self.asks > agreed.settling.max_attempts
            or not agreed.has_body
            or self.stage == EffectStage.HELPLESS
        ):
            return None
        may_repeat = not self.was_accepted  # or its key would return the acceptance again
        if self.is_dropped and agreed.can_ask:
            may_repeat = False
        if (
            may_repeat
            and agreed.is_keyed
            and agreed.dedup_seconds is not None
            and not self.may_be_forgotten
        ):
            return "repeat"
        return "ask" if agreed.can_ask else None

    def delay_seconds(self) -> float | None:
        """Return the seconds until the next action; None if only a person can settle it."""
        plan = self.plan()
        if plan is None:
            return None
        if plan == "ask" and self.asks == 1:
            return 0.0
        return self.agreed.settling.delay_seconds(
            max(1, self.asks if plan == "repeat" else self.asks - 1)
        )

    # ================================================================ events

    def _move(self, event: str) -> None:
        to = _MOVES[event].get(self.stage)
        if to is None:
            raise ImpossibleMove(f"{self}: {event} comes when it is {self.stage}")
        self.stage = to

    def read(self, unit: Unit) -> bool:
        """Apply a mark."""
        if unit.kind not in EFFECT_MARKS:
            return super().read(unit)
        if not self.answers_to(unit.name):
            return False
        payload = json.loads(unit.payload or "{}")
        if unit.kind in (Kind.EFFECT_INTENDED, Kind.EFFECT_ATTEMPTED):
            self._begin(payload.get("ground"), unit)
        elif unit.kind == Kind.EFFECT_UNKNOWN:
            self._read_doubt(reason_of(payload), payload, unit)
        elif payload["verdict"] == "absent":
            self.allow(Ground.ABSENT if payload["by"] == "settle" else Ground.PERSON)
        else:
            self.settle(payload["verdict"], by_word=bool(payload.get("word")))
        return True

    def _begin(self, ground: str | None, unit: Unit) -> None:
        """Begin an attempt."""
        self._move(EffectEvent.REPEAT if ground == Ground.REMEMBERED else EffectEvent.ATTEMPT)
        self.attempts += 1
        self.ground, self.retry_due_us = None, None
        self.attempted_us = unit.at_us
        if ground != Ground.REMEMBERED:
            self.asks = 0

    def _read_doubt(self, reason: str, payload: dict[str, Any], unit: Unit) -> None:
        if reason == Unknown.ACCEPTED:
            self.note_sign()
            return
        if reason == Unknown.SILENT:
            self._move(EffectEvent.SILENCE)
            self.asks, self.details = 0, json.dumps(payload["details"])
        else:
            self._move(
                EffectEvent.DESPAIR if reason == Unknown.ABSENT_WITHOUT_KEY else EffectEvent.DOUBT
            )
        self.ground = None
        self.asks += reason != Unknown.ABSENT_TOO_EARLY
        self.retry_seq, self.retry_due_us = unit.seq, unit.due_us
        self._forget(reason)

    def doubt(self, reason: str) -> None:
        """Mark the outcome as unknown, before that is recorded with this reason."""
        self._move(EffectEvent.DOUBT)
        self.ground = None
        self.asks += 1
        self._forget(reason)

    def _forget(self, reason: str) -> None:
        self.may_be_forgotten = self.may_be_forgotten or reason in FORGETFUL

    def note_sign(self) -> None:
        """Record that the counterparty still has it."""
        self._move(EffectEvent.SIGN)
        self.retry_due_us = None

    def allow(self, ground: Literal["w", "a", "p"]) -> None:
        """Allow another attempt on this ground."""
        self._move(EffectEvent.GROUND)
        self.ground = ground

    def settle(self, verdict: str, *, by_word: bool = False) -> None:
        """Settle it as confirmed or failed."""
        if verdict == "failed":
            self._move(EffectEvent.REFUTATION)
        else:
            self._move(EffectEvent.STATEMENT if by_word else EffectEvent.SETTLEMENT)

    def close(self, value: Any, error: Exception | None) -> None:
        """Close it with the outcome that the code will get."""
        self.value = value
        if isinstance(value, Accepted):
            self._move(EffectEvent.ACCEPTANCE)
        else:
            self._move(
                EffectEvent.CONFIRMATION
                if error is None or self.is_misfit_word(error)
                else EffectEvent.FAILURE
            )
        for waiter in self.watchers:
            if not waiter.done():
                waiter.set_result(None)

    def is_misfit_word(self, error: Exception) -> bool:
        """Return True if a person confirmed it with a result that cannot be read."""
        return self.stage == EffectStage.STATED and isinstance(error, NotStorable)

    def grant_fresh_budget(self) -> None:
        """Allow the full number of questions again."""
        self.asks = min(self.asks, 1)
        if self.stage == EffectStage.HELPLESS:
            self._move(EffectEvent.BUDGET)


class Leave(NamedTuple):
    """Leave given to an effect.

    Attributes:
        gate: Key of the gate.
        refused: The call that was refused without leave, whose idempotency key it uses; None if
            leave was requested before any call.
        request: The exact request, which the database compares with the approved one.
        is_done: True if the approver did it by hand.
    """

    gate: str
    refused: EffectCall | None
    request: str
    is_done: bool


def still_accepted(claim: Claim) -> dict[int, EffectCall]:
    """Return the effects of a dropped part that the counterparty accepted but did not settle. The
    run cannot end before they are settled.
    """
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
            taken[unit.call] = EffectCall(
                unit.call,
                name,
                None,
                spec=spec,
                key=keys[unit.call],
                attempts=1,
                stage=EffectStage.ACCEPTED,
            )
        elif (
            unit.call in taken
            and unit.kind == Kind.EFFECT_SETTLED
            and json.loads(unit.payload or "{}")["verdict"] != "absent"
        ):
            del taken[unit.call]
        elif unit.call in taken and unit.kind == Kind.EFFECT_UNKNOWN:
            taken[unit.call].read(unit)
    return taken
