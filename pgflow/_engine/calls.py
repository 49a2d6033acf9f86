"""Durable calls: what workflow code has asked for and not yet got; one class a kind.

Each kind knows four verbs, and the rest of the engine asks nothing else of it:

- :meth:`Call.ask`: what it wants next of the engine, a :class:`Want`;
- :meth:`Call.fits`: whether a unit can be its outcome;
- :meth:`Call.decode`: the value or error that a unit hands to the code;
- :meth:`Call.wait`: what the database is told of it when nothing else can bring it on.

Effects are the kind with a life of its own: :mod:`pgflow._engine.effects`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol

from pgflow._model.budgets import Admission, Amounts, Spent, added, parts_of, refusal
from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.decisions import Choice, Decision
from pgflow._model.exceptions import ErrorClasses, rebuild_error
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.options import Retries
from pgflow._model.units import Unit
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
"""Life of a step's call. pending = replaying, or waiting for the database; owed = only a person can
say what became of the effect; following = it takes back an effect that was accepted and is not
confirmed yet; decided = its unit has a seq, its release is due; misfit = the message that it waits
for does not fit its type.
"""


@dataclass(frozen=True)
class EffectTerms:
    """Terms on which an effect acts, and is settled when its outcome is unknown.

    Attributes:
        risk: Means by which it can be taken back, if at all.
        is_keyed: True if the counterparty deduplicates by key.
        dedup_seconds: Seconds after the first attempt in which another surely counts as the same
            for the counterparty; None = not said.
        settle_after_seconds: So long after an attempt it may still be under way,
            and "absent" is not believed.
        settling: Number and intervals of the questions how it ended.
        can_ask: True if there is a way to ask the counterparty.
        code: Place in the code, module and name: it is found by that when it must be taken back
            from elsewhere.
        has_body: False for an effect that only a person can do.
        must_be_done: True if a refusal is no outcome: a compensation is never given up.
        readable: Arguments that the policy can read where a codec encodes the request.
        notify: Name of the step that tells those whose leave the policy wants; None = none.
    """

    risk: str
    is_keyed: bool
    dedup_seconds: float | None
    settle_after_seconds: float
    settling: Retries
    can_ask: bool
    code: str
    has_body: bool = True
    must_be_done: bool = False
    readable: tuple[str, ...] = ()
    notify: str | None = None


@dataclass(eq=False)
class StepSpec:
    """Declaration of a step, as far as the engine needs it."""

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
    """Greatest age of a read's result when an effect is intended."""
    aliases: tuple[str, ...] = ()
    admit: Admission | None = None
    """Admission that it asks of a pool before its body starts; None = none."""
    completes_as: str = Kind.STEP_COMPLETED
    """Kind of the unit that has the result of a step without a kind of its own."""
    is_licensed_first: bool = field(init=False)
    """True if its body may start once a licence is durable, and asks for nothing before."""
    is_plain: bool = field(init=False)
    """True if its body needs nothing but a task or a thread: no time-out, transaction or ledger."""

    def __post_init__(self) -> None:
        """Decides once what each call would ask."""
        self.is_licensed_first = self.effect == StepKind.STEP and self.admit is None
        self.is_plain = self.timeout_seconds is None and self.effect not in (
            StepKind.TRANSACTION,
            StepKind.EFFECT,
        )


def spec_of_another(name: str) -> StepSpec:
    """Return the spec of an effect that only another run or an earlier generation has left: it is
    not called here.
    """
    return StepSpec(name, StepKind.EFFECT, ANYTHING, ErrorClasses(), Retries())


class Waiter(Protocol):
    """Receiver of a call's outcome: an asyncio future, or its like for a thread."""

    def done(self) -> bool:
        """Return True if it has an outcome, or nobody waits any more."""

    def set_result(self, value: Any, /) -> None:
        """The call returned."""

    def set_exception(self, error: BaseException, /) -> None:
        """The call raised."""


class Want:
    """Answers of :meth:`Call.ask`."""

    LOOK: Final = "look"
    """The database may have it: the next flush asks."""
    CHILD: Final = "child"
    """The next flush starts it."""
    ADMISSION: Final = "admission"
    """The next flush asks a pool whether it may start."""
    LICENCE: Final = "licence"
    """Its body may start once the next flush says so."""
    BODY: Final = "body"
    """Its body may start."""
    LATER: Final = "later"
    """It is due at ``retry_due_us``; what it wants then is told by :meth:`StepCall.come_due`."""
    RESULT: Final = "result"
    """It was done in a dropped part of the journal, whose result is recorded as its own."""
    LEAVE: Final = "leave"
    """The next flush asks whether it may act."""
    LOST: Final = "lost"
    """Its worker was lost while it acted: nobody knows what became of it."""
    FOLLOW: Final = "follow"
    """It waits for the effect that it takes back."""
    NEEDLESS: Final = "needless"
    """The effect that it takes back was not done."""
    PERSON: Final = "person"
    """Only a person can say what became of it."""
    CLOSE: Final = "close"
    """It was not done, and nobody wants it any more."""


class Waits:
    """The open waits that only the database can end, as a question names them."""

    def __init__(self, accepted: Iterable[int]) -> None:
        self._rows: dict[str, list[Any]] = {
            "signals": [],
            "timers": [],
            "retries": [],
            "open_effects": list(accepted),
        }

    def add(self, sort: str, row: object) -> None:
        """Names a wait, in the list of its sort."""
        self._rows.setdefault(sort, []).append(row)

    def in_question(self, children: list[int]) -> dict[str, Any]:
        """Return them by sort, and the numbers of open children as ranges:
        a family may have ten thousand.
        """
        waits: dict[str, Any] = {sort: rows for sort, rows in self._rows.items() if rows}
        if children:
            waits["child_calls"] = ranges_of(children)
        return waits


def ranges_of(numbers: list[int]) -> str:
    """Numbers as Postgres writes a multirange: a parent asks for thousands of children at once,
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
    """One durable call."""

    number: int
    name: str
    waiter: Waiter | None
    state: State = "pending"
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    """Names that it had before: a journal that knows it by one of them fits."""

    # ================================================================ the four verbs

    def ask(self) -> str:
        """Return what it wants next, a :class:`Want`."""
        return Want.LOOK

    def fits(self, unit: Unit) -> bool:
        """Return True if a unit can be its outcome."""
        return unit.kind == Kind.CHILD_STARTED

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:  # noqa: ARG002 - many an outcome has no value
        """Return the (value, error) that a unit hands to the code.

        Raises:
            NotStorable: The recorded result of a step does not fit the step's annotation any more.
        """
        return None, None

    def wait(self, waits: Waits) -> None:
        """Names what only the database can end."""

    # ================================================================ what is known of it

    def read(self, unit: Unit) -> bool:  # noqa: ARG002 - of most kinds there are no marks
        """Take down what a mark says of it; return False if the mark cannot be about this call."""
        return False

    def deliver(self, value: Any, error: Exception | None) -> None:
        """Hands its outcome to the code."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            if error is None:
                waiter.set_result(value)
            else:
                waiter.set_exception(error)

    def let_go(self) -> None:
        """Forgets the code, which is taken apart."""
        self.waiter = None

    @property
    def looked_at_us(self) -> int | None:
        """Time at which the database is worth a look, since it is due then; None if it has none."""
        return None

    def is_tried_before(self, us: int) -> bool:  # noqa: ARG002 - only steps are tried again
        """Return True if its next try is due by itself before this time."""
        return False

    @property
    def waits_for_database(self) -> bool:
        """True if only the database can bring it on."""
        return True

    def answers_to(self, name: str | None) -> bool:
        """Return True if a unit of this name can belong to this call."""
        return name == self.name or name in self.aliases

    @property
    def kind(self) -> str:
        """Sort of call in lower case, as a diff names it: "step", "timer", ..."""
        return type(self).__name__.removesuffix("Call").lower()

    def __str__(self) -> str:
        """As a person reads it in a diff."""
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
    retry_due_us: int | None = None
    fencing: bool = False
    details: str | None = None
    carried: str | None = None
    max_attempts: int | None = None
    variables: tuple[tuple[Any, Any], ...] = ()
    """Context variables of the code that called it, with their values."""
    fences: tuple[int, ...] = ()
    """Of the locks in whose blocks it was called."""
    emitted: tuple[tuple[str, str | None], ...] = ()
    """Values that the successful try emitted, as (stream, value); None in place of one that is not
    to be kept.
    """
    try_id: str = ""
    """Identifier of that try."""
    stored: str = ""
    """Result of a transaction, or request of an effect, as it is recorded;
    empty where the app has no codec.
    """
    key: str = ""
    """Idempotency key, for calls of the ledgers and those that rest on a decision; others make it
    when they are asked for it.
    """
    is_licensed: bool = False
    """True if the journal has its licence."""
    is_under_hard_pool: bool = False
    """True if it asks the pool of its run, whether its declaration says so or not."""
    admitted: Amounts | None = None
    """Amounts that are reserved for it; None if it was not admitted."""
    charges: list[Spent] | None = None
    """Charges of its body that are not recorded yet; None if there can be none."""
    began_us: int = 0
    """Time on the host's clock at which its body has started, if it was admitted."""

    def ask(self) -> str:
        """Return what it wants next: a result that there is, a licence, or its body."""
        if self.carried is not None:
            return Want.RESULT
        if (self.spec.admit is not None or self.is_under_hard_pool) and self.asks_pool:
            return Want.ADMISSION
        if self.spec.effect == StepKind.STEP and not self.is_licensed:
            return Want.LICENCE
        return Want.BODY if self.retry_due_us is None else Want.LATER

    def come_due(self) -> str:
        """Return what it wants now that the wait before its next try is over."""
        return Want.BODY

    @property
    def asks_pool(self) -> bool:
        """True if a pool must let it through before it may begin. Its next tries are let through
        with the first.
        """
        if self.admitted is not None:
            return False
        return self.spec.admit is not None or (
            self.is_under_hard_pool and not self.is_licensed and self.failed_attempts == 0
        )

    def take_charges(self, now_us: int) -> list[Spent]:
        """Return what a try has spent, by model, and forget it. Of an admitted one that is one
        call, and the time it took, unless the body says otherwise.
        """
        said, self.charges = self.charges or [], None
        reserved, began_us, self.began_us = self.admitted or {}, self.began_us, 0
        sums: dict[str | None, Amounts] = {}
        for spent in said:
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
        # What a dropped part of a journal has come to is a step's result, whatever it was there.
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
        """Return a recorded error as its caller sees it."""
        return rebuild_error(json.loads(text), self.spec.errors, self.failed_attempts + 1)

    def value_of(self, text: str, what: str) -> Any:
        """Return a value as its caller sees it: for a decision, the choice under its key."""
        value = self.spec.result.decode(text, what)
        if self.spec.effect != StepKind.DECISION:
            return value
        return Decision(
            self.key, **{field.name: getattr(value, field.name) for field in fields(Choice)}
        )

    def wait(self, waits: Waits) -> None:
        """Names the next try."""
        if self.state == "backoff":
            waits.add("retries", [self.number, self.retry_seq])

    def read(self, unit: Unit) -> bool:
        """Counts an attempt that failed, and takes down that it was admitted."""
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

    def is_tried_before(self, us: int) -> bool:
        """Return True if its next try is due by itself before this time."""
        return (self.retry_due_us or us) < us

    @property
    def waits_for_database(self) -> bool:
        """False: a body brings it on."""
        return False


def _nothing() -> None:
    """A timer that nothing waits for."""


@dataclass(eq=False)
class TimerCall(Call):
    """A sleep or a time-out."""

    fire: Callable[[], None] = _nothing
    started_seq: int = 0
    due_us: int = 0

    def fits(self, unit: Unit) -> bool:
        """Return True for a timer that fired."""
        return unit.kind == Kind.TIMER_FIRED and (unit.name is None or self.answers_to(unit.name))

    def wait(self, waits: Waits) -> None:
        """Names the timer."""
        waits.add("timers", [self.number, self.started_seq, Kind.TIMER_FIRED])

    def deliver(self, value: Any, error: Exception | None) -> None:  # noqa: ARG002 - it has neither
        """Fires."""
        self.fire()

    def let_go(self) -> None:
        """Forgets what it would fire too."""
        super().let_go()
        self.fire = _nothing

    @property
    def looked_at_us(self) -> int | None:
        """Time at which it is due."""
        return self.due_us


@dataclass(eq=False)
class SignalCall(Call):
    """A wait for a signal, perhaps with a time-out."""

    codec: Codec[Any] = field(kw_only=True)
    started_seq: int = 0
    due_us: int | None = None

    def fits(self, unit: Unit) -> bool:
        """Return True for a message, and for the end of the wait."""
        return unit.kind in (Kind.SIGNAL_RECEIVED, Kind.WAIT_TIMED_OUT) and (
            unit.name is None or self.answers_to(unit.name)
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the message; as an error, a time-out or why the message does not fit."""
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError(f"no signal {self.name!r} in time")
        return self.message_of(unit.payload if unit.payload is not None else "null")

    def message_of(self, payload: str) -> tuple[Any, NotStorable | None]:
        """Return the payload of a message as the code sees it, or why it does not fit."""
        try:
            return self.codec.decode(payload, f"the payload of signal {self.name!r}"), None
        except NotStorable as error:
            return None, error

    def wait(self, waits: Waits) -> None:
        """Names the signal, and its time-out."""
        waits.add("signals", [self.number, self.name])
        if self.started_seq:
            waits.add("timers", [self.number, self.started_seq, Kind.WAIT_TIMED_OUT])

    @property
    def looked_at_us(self) -> int | None:
        """Time at which it times out."""
        return self.due_us


@dataclass(eq=False)
class ChildRequest:
    """A child run as it is asked for."""

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
    """Its input as it is recorded, where the app has a codec."""
    stored_metadata: dict[str, Any] | None = None
    pool: str | None = None
    """Pool that it draws on; None for that of its parent."""
    budget: Amounts | None = None
    """Limits of a pool of its own."""


@dataclass(eq=False)
class ChildCall(Call):
    """A child run and the wait for its result."""

    request: ChildRequest = field(kw_only=True)
    result: Codec[Any] = field(kw_only=True)
    errors: ErrorClasses = field(kw_only=True)
    chain_id: int = 0
    """The child's chain, once it has started."""
    key: str = ""
    """The child's key, once it has started, if its start is waited for."""
    start: Call | None = None
    """The wait for its start alone: then that is an outcome too, which is released to the code."""
    has_started: bool = False
    """True once the child has started."""
    is_unwanted: bool = False
    """True if it was asked to end, and the code waits until it has."""
    take_over: Callable[[dict[str, Any], int], None] = lambda _left, _call: None
    """Told what the child leaves to be taken back, and by which call, when it has completed."""

    def ask(self) -> str:
        """Return whether it is to be started, or its result is to be looked for."""
        return Want.LOOK if self.chain_id else Want.CHILD

    def fits(self, unit: Unit) -> bool:
        """Return True for the end of a child."""
        return unit.kind == Kind.CHILD_FINISHED and (
            unit.name is None or self.answers_to(unit.name)
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return its result, or the error that awaiting it raises."""
        data = json.loads(unit.payload if unit.payload is not None else "null")
        status = data["status"]
        if status == "completed":
            try:
                return self.result.decode(
                    json.dumps(data["output"]), f"the result of child {self.name}"
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
        """Children are named by ranges, all at once."""

    def read(self, unit: Unit) -> bool:
        """Takes down under which key it was started."""
        if unit.kind != Kind.CHILD_STARTED or not self.answers_to(unit.name):
            return False
        self.note_start(unit)
        return True

    def note_start(self, unit: Unit) -> None:
        """Takes down its chain and key."""
        started = json.loads(unit.payload or "{}")
        self.chain_id, self.key = started["run_id"], started.get("key") or ""

    @property
    def awaits_start(self) -> bool:
        """True if the code waits for its start, which is an outcome then."""
        return self.start is not None and not self.has_started

    def tell_start(self) -> None:
        """The code need not wait for the start any more."""
        assert self.start is not None
        self.has_started = True
        self.start.deliver(None, None)

    def deliver(self, value: Any, error: Exception | None) -> None:
        """Hands its outcome to the code; to what waits for its start, if that was refused."""
        if self.start is not None and not self.has_started:
            self.has_started = True
            self.start.deliver(value, error)
        else:
            super().deliver(value, error)
