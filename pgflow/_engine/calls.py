"""Durable calls that workflow code is waiting for, one class for each kind.

Each kind has four verbs:

- :meth:`Call.ask`: what it needs next, a :class:`Want`;
- :meth:`Call.fits`: whether a unit can be its outcome;
- :meth:`Call.decode`: the value or error of a unit, for the code;
- :meth:`Call.wait`: its entry in the question to the database, when only that can continue it.

A call knows only itself. What a kind does to the rest of the engine is in its part, a
:class:`pgflow._engine.kind.KindOfCall`; :mod:`pgflow._engine.kinds` has the part of each kind.
Effects also have stages: see :mod:`pgflow._engine.effects`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol, cast

from pydantic_core import from_json

from pgflow._model.budgets import Admission, Amounts, Spent, added, parts_of, refusal
from pgflow._model.codecs import ANYTHING, Codec, write_json
from pgflow._model.decisions import Choice, Decision
from pgflow._model.exceptions import ErrorClasses, rebuild_error
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.options import Retries
from pgflow._model.units import RETURNED, Unit
from pgflow.errors import KeyConflict, NotStorable, RunCancelled, RunFailed

Effect = Literal["r", "s", "t", "d", "e"]
"""Effect class of a step: r = read, s = idempotent outside write, t = transactional write, d =
decision, e = effect.
"""

State = Literal[
    "pending",
    "unlicensed",
    "startable",
    "running",
    "backoff",
    "owed",
    "following",
    "decided",
    "misfit",
    "over",
]
"""State of a call. pending = replaying, or waiting for the database; owed = only a person can
report the outcome of the effect; following = it takes back an effect that was accepted and is not
confirmed yet; decided = its unit has a seq and will be released next; misfit = the message that it
waits for does not fit its type.
"""


@dataclass(frozen=True)
class EffectTerms:
    """Terms on which an effect acts, and is settled if its outcome is unknown.

    Attributes:
        risk: Means by which it can be taken back, if at all.
        is_keyed: True if the counterparty deduplicates by key.
        dedup_seconds: Seconds after the first attempt during which the counterparty treats another
            as the same; None = unknown.
        settle_after_seconds: Seconds after an attempt during which it may still be under way, so
            that "absent" does not count.
        settling: Number and intervals of the questions about the outcome.
        can_ask: True if the counterparty can be asked.
        code: Module and name, by which another run finds the effect to take it back.
        has_body: False for an effect that only a person can do.
        is_mandatory: True if a refusal does not end it: a compensation is never given up.
        readable: Arguments that the policy can read when a codec encodes the request.
        notify: Name of the step that notifies the approvers the policy requires; None = none.
    """

    risk: str
    is_keyed: bool
    dedup_seconds: float | None
    settle_after_seconds: float
    settling: Retries
    can_ask: bool
    code: str
    has_body: bool = True
    is_mandatory: bool = False
    readable: tuple[str, ...] = ()
    notify: str | None = None


@dataclass(eq=False)
class StepSpec:
    """Declaration of a step: the part that the engine needs."""

    name: str
    effect: Effect
    result: Codec[Any]
    errors: ErrorClasses
    retries: Retries
    raises: tuple[type[Exception], ...] = ()
    timeout_seconds: float | None = None
    definition: Any = None
    terms: EffectTerms | None = None
    max_age_seconds: float | None = None
    """Maximum age of a read's result when an effect is intended."""
    aliases: tuple[str, ...] = ()
    admit: Admission | None = None
    """Admission to request from a pool before its body starts; None = none."""
    completes_as: str = Kind.STEP_COMPLETED
    """Kind of the unit with the result, for a step without a kind of its own."""
    is_licensed_first: bool = field(init=False)
    """True if its body needs only a durable licence to start."""
    is_plain: bool = field(init=False)
    """True if its body needs only a task or a thread: no time-out, transaction or ledger."""

    def __post_init__(self) -> None:
        """Compute once what each call would otherwise check."""
        self.is_licensed_first = self.effect == StepKind.STEP and self.admit is None
        self.is_plain = self.timeout_seconds is None and self.effect not in (
            StepKind.TRANSACTION,
            StepKind.EFFECT,
        )


def spec_of_another(name: str) -> StepSpec:
    """Return a spec for an effect that only another run or an earlier generation left. It is not
    called here.
    """
    return StepSpec(name, StepKind.EFFECT, ANYTHING, ErrorClasses(), Retries())


class Waiter(Protocol):
    """Receiver of a call's outcome: an asyncio future, or its counterpart for a thread."""

    def done(self) -> bool:
        """Return True if it has an outcome or was cancelled."""

    def set_result(self, value: Any, /) -> None:
        """Set the value of the call."""

    def set_exception(self, error: BaseException, /) -> None:
        """Set the error of the call."""


class Want:
    """Answers of :meth:`Call.ask`."""

    LOOK: Final = "look"
    """Ask the database with the next flush."""
    CHILD: Final = "child"
    """Start the child with the next flush."""
    ADMISSION: Final = "admission"
    """Ask a pool for admission with the next flush."""
    LICENCE: Final = "licence"
    """Write its licence with the next flush; then its body may start."""
    BODY: Final = "body"
    """Start its body."""
    LATER: Final = "later"
    """Wait until ``retry_due_us``, then do as :meth:`StepCall.come_due` returns."""
    RESULT: Final = "result"
    """Record the result from a dropped part of the journal as its own."""
    LEAVE: Final = "leave"
    """Ask for leave to act with the next flush."""
    LOST: Final = "lost"
    """Record its outcome as unknown: its worker was lost while it acted."""
    FOLLOW: Final = "follow"
    """Wait for the effect that it takes back."""
    NEEDLESS: Final = "needless"
    """Close it: the effect that it takes back was not done."""
    PERSON: Final = "person"
    """Wait for a person to report the outcome."""
    CLOSE: Final = "close"
    """Close it as not done: it is not wanted any more."""


Waits = defaultdict[str, list[Any]]
"""Open waits that only the database can end, by sort, as a question lists them."""


def ranges_of(numbers: list[int]) -> str:
    """Return numbers as a Postgres multirange, since a parent asks about thousands of children
    again and again.
    """
    ranges = []
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1 or number < last:
            ranges.append(f"[{first},{last}]")
            first = number
        last = number
    return f"{{{','.join(ranges)}{',' if ranges else ''}[{first},{last}]}}"


@dataclass(eq=False)
class Call:
    """A durable call."""

    number: int
    name: str
    waiter: Waiter | None
    state: State = "pending"
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    """Former names: a journal that uses one of them still fits."""
    due_us: int | None = field(default=None, kw_only=True)
    """Time when the database should be asked, because the call's time is over; None if it has no
    limit.
    """
    retry_due_us: int | None = field(default=None, kw_only=True)
    """Time of its next try; None if none is due."""
    # Attributes of the class have no annotation: compiled, a dataclass would take them for fields.
    is_in_ledger = False
    """True if it is an effect: its intent and its outcome must become known."""
    returned_as = cast("str | None", None)
    """Name of the operator's unit that returns an outcome which does not fit its type; None if its
    outcome is never returned.
    """

    # ================================================================ the four verbs

    def ask(self) -> str:
        """Return what it needs next, a :class:`Want`."""
        return Want.LOOK

    def fits(self, unit: Unit) -> bool:
        """Return True if a unit can be its outcome."""
        return unit.kind == Kind.CHILD_STARTED

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:  # noqa: ARG002 - many outcomes have no value
        """Return the (value, error) of a unit, for the code.

        Raises:
            NotStorable: The recorded result does not fit the step's annotation any more.
        """
        return None, None

    def wait(self, waits: Waits) -> None:
        """Add the waits that only the database can end."""

    # ================================================================ what is known about it

    def read(self, unit: Unit) -> bool:  # noqa: ARG002 - most kinds have no marks
        """Apply a mark; return False if it cannot be about this call."""
        return False

    @property
    def may_be_unreadable(self) -> bool:
        """True if its outcome counts although the annotation cannot read its value."""
        return False

    def deliver(self, value: Any, error: Exception | None) -> None:
        """Pass the outcome to the code."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            if error is None:
                waiter.set_result(value)
            else:
                waiter.set_exception(error)

    @property
    def waits_for_database(self) -> bool:
        """True if only the database can continue it."""
        return True

    def answers_to(self, name: str | None) -> bool:
        """Return True if a unit with this name can belong to this call."""
        return name == self.name or name in self.aliases

    @property
    def kind(self) -> str:
        """Kind of call in lower case, as shown in a diff: "step", "timer", ..."""
        return type(self).__name__.removesuffix("Call").lower()

    def __str__(self) -> str:
        """Return number, kind and name, as shown in a diff."""
        return f"call {self.number}: {self.kind} {self.name!r}"


@dataclass(eq=False)
class StepCall(Call):
    """A call of a step's body."""

    spec: StepSpec = field(kw_only=True)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    ordinal: int | str = 0
    args_hash: int = 0
    failed_attempts: int = 0
    retry_seq: int = 0
    fencing: bool = False
    details: str | None = None
    carried: str | None = None
    max_attempts: int | None = None
    variables: tuple[tuple[Any, Any], ...] = ()
    """Context variables of the calling code, with their values."""
    fences: tuple[int, ...] = ()
    """Fences of the locks in whose blocks it was called."""
    emitted: tuple[tuple[str, str | None], ...] = ()
    """Values that the successful try emitted, as (stream, value); the value is None if it is not
    kept.
    """
    try_id: str = ""
    """Identifier of that try."""
    stored: str = ""
    """Recorded form of a transaction's result or an effect's request; empty if the app has no
    codec.
    """
    key: str = ""
    """Idempotency key of calls that are in a ledger or rest on a decision. Others make theirs on
    request.
    """
    is_licensed: bool = False
    """True if the journal has its licence."""
    is_under_hard_pool: bool = False
    """True if it must ask the run's pool, whatever it declares."""
    admitted: Amounts | None = None
    """Amounts reserved for it; None if it was not admitted."""
    charges: list[Spent] | None = None
    """Charges of its body that are not recorded yet; None if it cannot have any."""
    began_us: int = 0
    """Time on the host's clock when its body started, if it was admitted."""

    def ask(self) -> str:
        """Return what it needs next: a carried result, admission, licence, body or time."""
        if self.carried is not None:
            return Want.RESULT
        if (self.spec.admit is not None or self.is_under_hard_pool) and self.asks_pool:
            return Want.ADMISSION
        if self.spec.effect == StepKind.STEP and not self.is_licensed:
            return Want.LICENCE
        return Want.BODY if self.retry_due_us is None else Want.LATER

    def come_due(self) -> str:
        """Return what it needs after the wait before its next try."""
        return Want.BODY

    @property
    def is_acting(self) -> bool:
        """True while its body runs, as opposed to a question to the counterparty of an effect."""
        return True

    @property
    def decision_key(self) -> str | None:
        """Key of the decision that it is or rests on; None if there is none."""
        if self.spec.effect == StepKind.DECISION:
            return self.key or None
        return self.key.rsplit("/", 2)[0] if self.key else None

    @property
    def asks_pool(self) -> bool:
        """True if a pool must admit it before it begins. The first admission covers retries."""
        if self.admitted is not None:
            return False
        return self.spec.admit is not None or (
            self.is_under_hard_pool and not self.is_licensed and self.failed_attempts == 0
        )

    def take_charges(self, now_us: int) -> list[Spent]:
        """Return the spending of a try, by model, and clear it. An admitted try also counts as one
        call and its duration, unless the body charged those itself.
        """
        charges, self.charges = self.charges or [], None
        reserved, began_us, self.began_us = self.admitted or {}, self.began_us, 0
        sums: dict[str | None, Amounts] = {}
        for spent in charges:
            sums[spent.model] = added(sums.get(spent.model, {}), spent.amounts)
        named = {unit for amounts in sums.values() for unit in amounts}
        own: Amounts = {}
        if began_us and "calls" in reserved and "calls" not in named:
            own["calls"] = "1"
        if began_us and "seconds" in reserved and "seconds" not in named:
            own["seconds"] = f"{(now_us - began_us) / 1e6:.6f}"
        if own:
            model = next(iter(sums), None)
            sums[model] = added(sums.get(model, {}), own)
        return [Spent(part, model) for model, amounts in sums.items() for part in parts_of(amounts)]

    def fits(self, unit: Unit) -> bool:
        """Return True for the end of a step of its class."""
        kind = unit.kind
        completed = (
            Kind.DECISION_RECORDED
            if self.spec.effect == StepKind.DECISION
            else self.spec.completes_as
        )
        # A result taken over from a dropped part of the journal is always a step's result.
        reused = Kind.STEP_COMPLETED if completed == Kind.ENTITY_UPDATED else completed
        return kind in (completed, reused, Kind.STEP_FAILED, Kind.BUDGET_REFUSED) and (
            unit.name is None or self.answers_to(unit.name)
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the value that its body returned, or the error it raised."""
        payload = unit.payload if unit.payload is not None else "null"
        if unit.kind == Kind.STEP_FAILED:
            return None, self.error_of(payload)
        if unit.kind == Kind.BUDGET_REFUSED:
            return None, refusal(self.name, json.loads(payload))
        return self.value_of(payload, f"the recorded result of step {self.name}"), None

    def error_of(self, text: str) -> Exception:
        """Return a recorded error as the caller sees it."""
        return rebuild_error(json.loads(text), self.spec.errors, self.failed_attempts + 1)

    def value_of(self, text: str, what: str) -> Any:
        """Return a value as the caller sees it: for a decision, the choice with its key."""
        value = self.spec.result.decode(text, what)
        if self.spec.effect != StepKind.DECISION:
            return value
        return Decision(
            self.key, **{field.name: getattr(value, field.name) for field in fields(Choice)}
        )

    def wait(self, waits: Waits) -> None:
        """Add the next try."""
        if self.state == "backoff":
            waits["retries"].append([self.number, self.retry_seq])

    def read(self, unit: Unit) -> bool:
        """Count a failed attempt, or record an admission."""
        if not self.answers_to(unit.name):
            return False
        if unit.kind == Kind.BUDGET_ADMITTED:
            self.admitted = json.loads(unit.payload or "{}").get("amounts") or {}
            self.is_licensed = self.is_licensed or self.spec.effect == StepKind.STEP
            return True
        if unit.kind != Kind.ATTEMPT_FAILED:
            return False
        self.failed_attempts += 1
        self.retry_seq, self.retry_due_us = unit.seq, unit.due_us
        return True

    @property
    def waits_for_database(self) -> bool:
        """False: its body continues it."""
        return False


def _nothing() -> None:
    """Do nothing."""


@dataclass(eq=False)
class TimedCall(Call):
    """A call that may end because its time is over: a timer, or a wait with a time-out."""

    started_seq: int = 0
    """Seq of the note that started the time; 0 if there is no limit."""

    def add_time_out(self, waits: Waits) -> None:
        """Add the time-out, which it has."""
        waits["timers"].append([self.number, self.started_seq, Kind.WAIT_TIMED_OUT])


@dataclass(eq=False)
class TimerCall(TimedCall):
    """A sleep or a time-out of the code."""

    fire: Callable[[], None] = _nothing

    def fits(self, unit: Unit) -> bool:
        """Return True for a timer that fired."""
        return unit.kind == Kind.TIMER_FIRED and (unit.name is None or self.answers_to(unit.name))

    def wait(self, waits: Waits) -> None:
        """Add the timer."""
        waits["timers"].append([self.number, self.started_seq, Kind.TIMER_FIRED])

    def deliver(self, value: Any, error: Exception | None) -> None:  # noqa: ARG002 - it has neither
        """Fire."""
        self.fire()

    def let_go(self) -> None:
        """Release the callback, which refers to the code."""
        self.fire = _nothing


@dataclass(eq=False)
class SignalCall(TimedCall):
    """A wait for a signal, optionally with a time-out."""

    codec: Codec[Any] = field(kw_only=True)
    returned_as = cast("str | None", RETURNED)

    def fits(self, unit: Unit) -> bool:
        """Return True for a message or a time-out."""
        return unit.kind in (Kind.SIGNAL_RECEIVED, Kind.WAIT_TIMED_OUT) and (
            unit.name is None or self.answers_to(unit.name)
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the message; as an error, the time-out or the misfit of the message."""
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError(f"no signal {self.name!r} in time")
        payload = unit.payload if unit.payload is not None else "null"
        try:
            return self.codec.decode(payload, f"the payload of signal {self.name!r}"), None
        except NotStorable as error:
            return None, error

    def wait(self, waits: Waits) -> None:
        """Add the signal and its time-out."""
        waits["signals"].append([self.number, self.name])
        if self.started_seq:
            self.add_time_out(waits)


@dataclass(eq=False)
class ChildRequest:
    """A requested child run."""

    workflow: str
    queue: str
    input: str
    key: str | None
    priority: int
    run_at_us: int | None
    timeout_seconds: float | None
    labels: dict[str, str] | None
    metadata: dict[str, Any] | None
    close_policy: Literal["c", "a"]
    version: str = ""
    aliases: tuple[str, ...] = ()
    stored: str = ""
    """Its input as recorded, if the app has a codec."""
    stored_metadata: dict[str, Any] | None = None
    pool: str | None = None
    """Pool that it draws on; None for its parent's."""
    budget: Amounts | None = None
    """Limits of a pool of its own."""


@dataclass(eq=False)
class ChildCall(Call):
    """A child run, and the wait for its result."""

    request: ChildRequest = field(kw_only=True)
    result: Codec[Any] = field(kw_only=True)
    errors: ErrorClasses = field(kw_only=True)
    chain_id: int = 0
    """The child's chain, once it has started."""
    key: str = ""
    """The child's key, once it has started, if its start is awaited."""
    start: Call | None = None
    """The wait for its start alone, which makes the start an outcome for the code; None if not
    awaited.
    """
    has_started: bool = False
    """True once the code knows of the start."""
    is_unwanted: bool = False
    """True if it was asked to end and the code waits for that."""
    take_over: Callable[[dict[str, Any], int], None] = lambda _left, _call: None
    """Called on completion with the effects that the child leaves to be taken back, and the call.
    """

    def ask(self) -> str:
        """Return whether to start it or to look for its result."""
        return Want.LOOK if self.chain_id else Want.CHILD

    def fits(self, unit: Unit) -> bool:
        """Return True for the end of a child."""
        return unit.kind == Kind.CHILD_FINISHED and (
            unit.name is None or self.answers_to(unit.name)
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return its result, or the error that awaiting it raises."""
        data = from_json(unit.payload if unit.payload is not None else "null")
        if data.get("saga"):
            self.take_over(data["saga"], self.number)
        status = data["status"]
        if status == "completed":
            try:
                return self.result.decode(
                    write_json(data["output"]).decode(), f"the result of child {self.name}"
                ), None
            except NotStorable as error:
                return None, error
        if status == "refused":
            return None, KeyConflict(data["error"]["message"])
        if status == "cancelled":
            return None, RunCancelled(f"child {self.name} was cancelled: {data.get('reason')}")
        failed = RunFailed(f"child {self.name} failed: {data['error'].get('message')}")
        failed.__cause__ = rebuild_error(data["error"], self.errors)
        return None, failed

    def wait(self, waits: Waits) -> None:
        """Add nothing: children are listed together, as ranges."""

    def read(self, unit: Unit) -> bool:
        """Record the chain and key from its start."""
        if unit.kind != Kind.CHILD_STARTED or not self.answers_to(unit.name):
            return False
        self.note_start(unit)
        return True

    def note_start(self, unit: Unit) -> None:
        """Record its chain and key."""
        started = from_json(unit.payload or "{}")
        self.chain_id, self.key = started["run_id"], started.get("key") or ""

    def tell_start(self) -> None:
        """Deliver the start to the code."""
        assert self.start is not None
        self.has_started = True
        self.start.deliver(None, None)

    def deliver(self, value: Any, error: Exception | None) -> None:
        """Pass the outcome to the code: to the wait for the start if the start was refused."""
        if self.start is not None and not self.has_started:
            self.has_started = True
            self.start.deliver(value, error)
        else:
            super().deliver(value, error)
