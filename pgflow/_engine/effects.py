"""Effects as calls: what is known of each, and how that changes.

What is known of an effect is one :class:`Stage`. Units of the journal move it, and so does what the
engine learns before it writes the unit; ``_MOVES`` is the table, and any other move is refused. A
replay reads the marks that follow an acceptance before it hands the acceptance to the code, so some
stages are those of an effect whose outcome is in the journal and not yet released.

What may be done about a stage is said by :meth:`EffectCall.ask`; whether the time for it has come
is the database's to say (``sql/ledgers/effects.sql``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from pgflow._engine.calls import EffectTerms, StepCall, Waiter, Waits, Want, spec_of_another
from pgflow._model.budgets import refusal
from pgflow._model.claims import CarriedEffect, Claim
from pgflow._model.effects import Accepted
from pgflow._model.kinds import Ground, Kind
from pgflow._model.reasons import Unknown, reason_of
from pgflow._model.units import EFFECT_MARKS, EFFECT_OUTCOMES, FIRST_ADOPTED, Unit
from pgflow.errors import NotStorable

FORGETFUL = (
    Unknown.KEY_EXPIRED,
    Unknown.PRECONDITION_FAILED,
    Unknown.EXPECTATION_FAILED,
    Unknown.MISFIT,
)
"""After these the same key is not sent again: the counterparty may have forgotten it, or what it
was for has changed.
"""


class Stage:
    """All that can be known of an effect."""

    ASKED: Final = "asked"
    """The code wants it. Its intent is not durable."""
    ATTEMPTED: Final = "attempted"
    """Its intent is durable, and an attempt has not come back."""
    REPEATED: Final = "repeated"
    """As attempted, and an earlier attempt may have acted."""
    UNKNOWN: Final = "unknown"
    """Nobody knows whether an attempt has acted."""
    HELPLESS: Final = "helpless"
    """As unknown, and it was absent where nothing but a key could make another attempt safe: a
    person must say.
    """
    REPEATABLE: Final = "repeatable"
    """There is a ground on which it may be attempted again, if the database gives leave."""
    HUSHED: Final = "hushed"
    """As silent, and the acceptance is not released yet."""
    SETTLED: Final = "settled"
    """The counterparty has confirmed it. The outcome is not released yet."""
    STATED: Final = "stated"
    """Somebody has confirmed it. The outcome is not released yet."""
    REFUTED: Final = "refuted"
    """It is known not to have been done. The outcome is not released yet."""
    CONFIRMED: Final = "confirmed"
    """It was done, and the code has its result."""
    FAILED: Final = "failed"
    """It was not done, and the code has the error."""
    ACCEPTED: Final = "accepted"
    """The counterparty has taken it on, which is what the code has. All that is still to come is
    for the ledger alone.
    """
    SILENT: Final = "silent"
    """It was accepted, and the counterparty has given no sign of life in time."""
    KEPT: Final = "kept"
    """It was accepted, and is confirmed."""
    BROKEN: Final = "broken"
    """It was accepted, and has failed."""


class Event:
    """Whatever moves an effect from one stage to another."""

    ATTEMPT: Final = "attempt"
    """``effect_intended``, or ``effect_attempted`` on another ground than the one that follows."""
    REPEAT: Final = "repeat"
    """``effect_attempted``, since the counterparty still remembers the key."""
    GROUND: Final = "ground"
    """``effect_settled`` as absent, or an unknown effect whose key is sent again: it may be
    attempted, if there is leave.
    """
    DOUBT: Final = "doubt"
    """``effect_unknown``."""
    DESPAIR: Final = "despair"
    """``effect_unknown``, since it was absent without a key."""
    BUDGET: Final = "budget"
    """Somebody has let the run try again."""
    SILENCE: Final = "silence"
    """``effect_unknown``, since beats were missed."""
    SIGN: Final = "sign"
    """``effect_unknown``, which says that the counterparty still has it."""
    SETTLEMENT: Final = "settlement"
    """``effect_settled`` as confirmed, by the counterparty."""
    STATEMENT: Final = "statement"
    """``effect_settled`` as confirmed, by somebody's word."""
    REFUTATION: Final = "refutation"
    """``effect_settled`` as failed."""
    CONFIRMATION: Final = "confirmation"
    """``effect_confirmed``, or ``compensated``."""
    FAILURE: Final = "failure"
    """``effect_failed``."""
    ACCEPTANCE: Final = "acceptance"
    """``effect_accepted``."""


ACCEPTED = frozenset({Stage.ACCEPTED, Stage.SILENT, Stage.KEPT, Stage.BROKEN})
"""The code has its acceptance."""
CLOSED = ACCEPTED | {Stage.CONFIRMED, Stage.FAILED}
"""The code has its outcome."""
DONE = ACCEPTED | {Stage.CONFIRMED}
"""The code has been told that it was done, or will be."""
OWED = frozenset({Stage.ACCEPTED, Stage.SILENT})
"""The code has its acceptance, and it is not known what became of it."""
_ACTING = frozenset({Stage.ATTEMPTED, Stage.REPEATED})
_IN_DOUBT = frozenset({Stage.UNKNOWN, Stage.HELPLESS, Stage.REPEATABLE, Stage.HUSHED, Stage.SILENT})
_OPEN = frozenset(
    {Stage.ASKED, Stage.ATTEMPTED, Stage.REPEATED, Stage.UNKNOWN, Stage.HELPLESS, Stage.REPEATABLE}
)
"""Nothing of its outcome is in the journal."""


def _each(stages: frozenset[str], to: str) -> dict[str, str]:
    return dict.fromkeys(stages, to)


_MOVES: dict[str, dict[str, str]] = {
    Event.ATTEMPT: _each(
        frozenset({Stage.ASKED, Stage.UNKNOWN, Stage.REPEATABLE}), Stage.ATTEMPTED
    ),
    Event.REPEAT: _each(frozenset({Stage.UNKNOWN, Stage.REPEATABLE}), Stage.REPEATED),
    Event.GROUND: _each(_OPEN - {Stage.ASKED}, Stage.REPEATABLE),
    Event.DOUBT: {
        **_each(_OPEN, Stage.UNKNOWN),
        Stage.HUSHED: Stage.HUSHED,
        Stage.SILENT: Stage.SILENT,
    },
    Event.DESPAIR: _each(_OPEN - {Stage.ASKED}, Stage.HELPLESS),
    Event.BUDGET: {Stage.HELPLESS: Stage.UNKNOWN},
    Event.SILENCE: {
        **_each(_OPEN - {Stage.ASKED}, Stage.HUSHED),
        Stage.HUSHED: Stage.HUSHED,
        Stage.ACCEPTED: Stage.SILENT,
        Stage.SILENT: Stage.SILENT,
    },
    Event.SIGN: {
        Stage.HUSHED: Stage.ATTEMPTED,
        Stage.SILENT: Stage.ACCEPTED,
        Stage.ACCEPTED: Stage.ACCEPTED,
    },
    Event.SETTLEMENT: {**_each(_OPEN | {Stage.HUSHED}, Stage.SETTLED), **_each(OWED, Stage.KEPT)},
    Event.STATEMENT: {
        **_each(_OPEN - {Stage.ASKED} | {Stage.HUSHED}, Stage.STATED),
        **_each(OWED, Stage.KEPT),
    },
    Event.REFUTATION: {
        **_each(_OPEN - {Stage.ASKED} | {Stage.HUSHED}, Stage.REFUTED),
        **_each(OWED, Stage.BROKEN),
    },
    Event.CONFIRMATION: _each(_OPEN | {Stage.SETTLED, Stage.STATED}, Stage.CONFIRMED),
    Event.FAILURE: _each(_OPEN | {Stage.REFUTED}, Stage.FAILED),
    Event.ACCEPTANCE: {
        **_each(_OPEN, Stage.ACCEPTED),
        Stage.HUSHED: Stage.SILENT,
        Stage.SETTLED: Stage.KEPT,
        Stage.STATED: Stage.KEPT,
        Stage.REFUTED: Stage.BROKEN,
    },
}
"""By event, the stages in which it can come, each with the stage that it leads to."""


class ImpossibleMove(Exception):
    """An event has come in a stage in which it cannot: the journal is not one that this engine and
    its database have written.
    """


@dataclass(eq=False)
class EffectCall(StepCall):
    """A call of an effect. Its stage is the journal's: what is known, how often it was attempted
    and asked after.

    Only the events below write ``stage``, ``ground``, ``attempts``, ``attempted_us``, ``asks`` and
    ``may_be_forgotten``.
    """

    request: str = "null"
    decision: str | None = None
    compensates: str | None = None
    expected: str | None = None
    """Fingerprint of what must be observed immediately before the act."""
    expects: str | None = None
    """That fingerprint as it is recorded."""
    notice: dict[str, Any] | None = None
    """Notice for the person who closes it: why only a person can take an effect back,
    and the plan there was.
    """
    reads: list[tuple[str, int, float]] = field(default_factory=list)
    """Reads it rests on that age: name, seq of the newest result, allowed age in seconds."""
    stage: str = Stage.ASKED
    ground: Literal["w", "a", "p"] | None = None
    """While it is repeatable, the reason why: the key is still remembered (w), it is absent (a), a
    person said so (p).
    """
    attempts: int = 0
    attempted_us: int = 0
    asks: int = 0
    """Times that nobody knew, since it was last attempted on new ground or fell silent."""
    may_be_forgotten: bool = False
    """True if the counterparty may have forgotten the key: that does not end."""
    turn: int = 0
    """Counts the bodies and questions that were given up: what they still say is not heard."""
    value: Any = None
    known: CarriedEffect | None = None
    """Its outcome in a dropped part of the journal."""
    takes_back: EffectCall | None = None
    """The effect that this one takes back, if that was accepted: it acts once that is confirmed,
    and has nothing to do if that failed.
    """
    is_undo: bool = False
    """True if it helps to take another effect back: a step of a plan."""
    is_dropped: bool = False
    """True if it is of a dropped part of the journal:
    it is asked after, and not done if it was not.
    """
    is_foreign: bool = False
    """True if another run takes it back."""
    is_of_child: bool = False
    """True if a child of this run did it."""
    of_call: int = 0
    """The call by which that child was started."""
    is_bound: bool = False
    """True if it must be taken back though nothing says how: it was done in a saga block that goes
    on in the next generation.
    """
    leave: str | None = None
    """Key of the gate at which somebody gave leave, since the policy wants it."""
    was_taken_over: bool = False
    """True if whoever was asked has done it, so that it costs nothing."""
    watchers: list[Waiter] = field(default_factory=list)
    """Waiters for it to be closed, beside the code that called it."""

    # ================================================================ what the stage says

    @property
    def is_acting(self) -> bool:
        """True while its body is what brings it on, and not a question to the counterparty."""
        return self.stage in _ACTING

    @property
    def may_have_acted(self) -> bool:
        """True if an attempt before the one under way may have acted."""
        return self.stage == Stage.REPEATED

    @property
    def was_accepted(self) -> bool:
        """True once the code has its acceptance."""
        return self.stage in ACCEPTED

    @property
    def is_owed(self) -> bool:
        """True if it was accepted, and is not known to have been done or not."""
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
        """True if it was done, as far as is known once nothing of it is open."""
        return self.stage in DONE and self.stage != Stage.BROKEN

    @property
    def has_failed(self) -> bool:
        """True once it is known not to have been done."""
        return self.stage in (Stage.FAILED, Stage.REFUTED, Stage.BROKEN)

    @property
    def is_known(self) -> bool:
        """True once the journal says what became of it, though the code may not have been told."""
        return self.stage in (Stage.KEPT, Stage.BROKEN, Stage.SETTLED, Stage.STATED, Stage.REFUTED)

    @property
    def agreed(self) -> EffectTerms:
        """The terms of the effect."""
        assert self.spec.terms is not None
        return self.spec.terms

    @property
    def is_by_hand(self) -> bool:
        """True if it takes another effect back, and only a person can."""
        terms = self.spec.terms
        return self.compensates is not None and terms is not None and not terms.has_body

    @property
    def waits_for_database(self) -> bool:
        """True if nobody knows what became of it: a word on it may have come."""
        return self.stage in _IN_DOUBT

    # ================================================================ the four verbs

    def ask(self) -> str:
        """Return what it wants next, by all that is known of it."""
        if self.is_dropped and (self.stage == Stage.HELPLESS or self.ground == Ground.PERSON):
            return Want.CLOSE
        if self.attempts == 0:
            return self._ask_first()
        if self.stage == Stage.REPEATABLE:
            return Want.LEAVE
        if self.stage not in _IN_DOUBT:
            return Want.LOST
        if self.plan() is None:
            return Want.PERSON
        return self.come_due() if self.retry_due_us is None else Want.LATER

    def _ask_first(self) -> str:
        """Not before what it takes back is confirmed, and not if that was not done."""
        if self.takes_back is not None:
            if self.takes_back.is_owed:
                return Want.FOLLOW
            return Want.NEEDLESS if self.takes_back.has_failed else Want.LEAVE
        if self.known is not None:
            return Want.RESULT
        return Want.ADMISSION if self.asks_pool and not self.was_taken_over else Want.LEAVE

    def come_due(self) -> str:
        """Return whether its key is sent again, or the counterparty is asked."""
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
        """Return its result, the reference under which it was accepted, or the error."""
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
        """Names the next question, and that a word on it would bring it on."""
        super().wait(waits)
        if self.state in ("backoff", "owed"):
            waits.add("open_effects", self.number)

    # =========================================================== what to do about what is not known

    def plan(self) -> Literal["repeat", "ask"] | None:
        """Return how to settle an unknown outcome: repeat it, ask the counterparty,
        or None if only a person can.
        """
        if self.spec.terms is None:  # another's, of which the code at hand knows nothing
            return None
        agreed = self.agreed
        if (
            self.asks > agreed.settling.max_attempts
            or not agreed.has_body
            or self.stage == Stage.HELPLESS
        ):
            return None
        may_repeat = not self.was_accepted  # else its key would be answered by the acceptance again
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
        """Return the seconds until it is brought on; None if only a person can."""
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
        """Takes down what a unit beside it says."""
        if unit.kind not in EFFECT_MARKS:
            return super().read(unit)
        if not self.answers_to(unit.name):
            return False
        said = json.loads(unit.payload or "{}")
        if unit.kind in (Kind.EFFECT_INTENDED, Kind.EFFECT_ATTEMPTED):
            self._begin(said.get("ground"), unit)
        elif unit.kind == Kind.EFFECT_UNKNOWN:
            self._read_doubt(reason_of(said), said, unit)
        elif said["verdict"] == "absent":
            self.allow(Ground.ABSENT if said["by"] == "settle" else Ground.PERSON)
        else:
            self.settle(said["verdict"], by_word=bool(said.get("word")))
        return True

    def _begin(self, ground: str | None, unit: Unit) -> None:
        """An attempt begins."""
        self._move(Event.REPEAT if ground == Ground.REMEMBERED else Event.ATTEMPT)
        self.attempts += 1
        self.ground, self.retry_due_us = None, None
        self.attempted_us = unit.at_us
        if ground != Ground.REMEMBERED:
            self.asks = 0

    def _read_doubt(self, reason: str, said: dict[str, Any], unit: Unit) -> None:
        if reason == Unknown.ACCEPTED:
            self.hear()
            return
        if reason == Unknown.SILENT:
            self._move(Event.SILENCE)
            self.asks, self.details = 0, json.dumps(said["details"])
        else:
            self._move(Event.DESPAIR if reason == Unknown.ABSENT_WITHOUT_KEY else Event.DOUBT)
        self.ground = None
        self.asks += reason != Unknown.ABSENT_TOO_EARLY
        self.retry_seq, self.retry_due_us = unit.seq, unit.due_us
        self._forget(reason)

    def doubt(self, reason: str) -> None:
        """Nobody knows what became of it, which is about to be recorded with this reason."""
        self._move(Event.DOUBT)
        self.ground = None
        self.asks += 1
        self._forget(reason)

    def _forget(self, reason: str) -> None:
        self.may_be_forgotten = self.may_be_forgotten or reason in FORGETFUL

    def hear(self) -> None:
        """The counterparty still has it."""
        self._move(Event.SIGN)
        self.retry_due_us = None

    def allow(self, ground: Literal["w", "a", "p"]) -> None:
        """It may be attempted again on this ground."""
        self._move(Event.GROUND)
        self.ground = ground

    def settle(self, verdict: str, *, by_word: bool = False) -> None:
        """It is known what became of it: confirmed or failed."""
        if verdict == "failed":
            self._move(Event.REFUTATION)
        else:
            self._move(Event.STATEMENT if by_word else Event.SETTLEMENT)

    def close(self, value: Any, error: Exception | None) -> None:
        """It has an outcome, which the code is about to get."""
        self.value = value
        if isinstance(value, Accepted):
            self._move(Event.ACCEPTANCE)
        else:
            self._move(
                Event.CONFIRMATION if error is None or self.is_misfit_word(error) else Event.FAILURE
            )
        for waiter in self.watchers:
            if not waiter.done():
                waiter.set_result(None)

    def is_misfit_word(self, error: Exception) -> bool:
        """Return True if somebody has said that it was done, with a result that cannot be read."""
        return self.stage == Stage.STATED and isinstance(error, NotStorable)

    def grant_fresh_budget(self) -> None:
        """Questions that could be asked may be asked again."""
        self.asks = min(self.asks, 1)
        if self.stage == Stage.HELPLESS:
            self._move(Event.BUDGET)


class Leave(NamedTuple):
    """Leave that somebody gave to an effect: the key of the gate, the call that was refused without
    it, under whose idempotency key it acts (None if leave was asked for before any call), the
    request to the letter, which the database compares with what was approved, and whether whoever
    was asked has done it.
    """

    gate: str
    refused: EffectCall | None
    request: str
    is_done: bool


def still_accepted(claim: Claim) -> dict[int, EffectCall]:
    """Effects of a dropped part that the counterparty took on and has not confirmed: the run does
    not end before it has.
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
                stage=Stage.ACCEPTED,
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
