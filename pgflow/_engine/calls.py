"""Durable calls: what workflow code has asked for and not yet got."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.exceptions import ErrorClasses
from pgflow._model.kinds import StepKind
from pgflow._model.options import Retries

Effect = Literal["r", "s", "t", "d", "e"]
"""Effect class of a step: r = read, s = idempotent outside write, t = transactional write, d = decision, e = effect."""

State = Literal["pending", "unlicensed", "startable", "running", "backoff", "owed", "following", "decided", "misfit", "over"]
"""Life of a step's call. pending = replaying, or waiting for the database; owed = only a person can say what became of the effect;
following = it takes back an effect that was accepted and is not confirmed yet; decided = its unit has a seq, its release is due;
misfit = the message that it waits for does not fit its type."""


@dataclass(frozen=True)
class EffectTerms:
    """Terms on which an effect acts, and is settled when its outcome is unknown.

    Attributes:
        risk: Means by which it can be taken back, if at all.
        is_keyed: True if the counterparty deduplicates by key.
        dedup_seconds: Seconds after the first attempt in which another surely counts as the same for the counterparty; None = not said.
        settle_after_seconds: So long after an attempt it may still be under way, and "absent" is not believed.
        settling: Number and intervals of the questions how it ended.
        can_ask: True if there is a way to ask the counterparty.
        code: Place in the code, module and name: it is found by that when it must be taken back from elsewhere.
        has_body: False for an effect that only a person can do.
        must_be_done: True if a refusal is no outcome: a compensation is never given up.
        readable: Arguments that the policy can read where a codec encodes the request.
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


def spec_of_another(name: str) -> StepSpec:
    """Return the spec of an effect that only another run or an earlier generation has left: it is not called here."""
    return StepSpec(name, StepKind.EFFECT, ANYTHING, ErrorClasses(), Retries())


class Waiter(Protocol):
    """Receiver of a call's outcome: an asyncio future, or its like for a thread."""

    def done(self) -> bool:
        """Return True if it has an outcome, or nobody waits any more."""

    def set_result(self, value: Any, /) -> None:
        """The call returned."""

    def set_exception(self, error: BaseException, /) -> None:
        """The call raised."""


@dataclass(eq=False)
class Call:
    """One durable call."""

    number: int
    name: str
    waiter: Waiter | None
    state: State = "pending"
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    """Names that it had before: a journal that knows it by one of them fits."""

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
    emitted: tuple[tuple[str, str], ...] = ()
    """Values that the successful try emitted, as (stream, value)."""
    try_id: str = ""
    """Identifier of that try."""
    stored: str = ""
    """Result of a transaction, or request of an effect, as it is recorded; empty where the app has no codec."""
    key: str = ""
    """Idempotency key, for calls of the ledgers and those that rest on a decision; others make it when they are asked for it."""


@dataclass(eq=False)
class EffectCall(StepCall):
    """A call of an effect. Its own state is the journal's: how often it was attempted and asked after, and what is known."""

    request: str = "null"
    decision: str | None = None
    compensates: str | None = None
    expected: str | None = None
    """Fingerprint of what must be observed immediately before the act."""
    expects: str | None = None
    """That fingerprint as it is recorded."""
    notice: dict[str, Any] | None = None
    """Notice for the person who closes it: why only a person can take an effect back, and the plan there was."""
    reads: list[tuple[str, int, float]] = field(default_factory=list)
    """Reads it rests on that age: name, seq of the newest result, allowed age in seconds."""
    phase: Literal["act", "ask"] = "act"
    ground: Literal["w", "a", "p"] | None = None
    """Reason why it may be attempted again: the key is still remembered (w), it is absent (a), a person said so (p)."""
    attempts: int = 0
    asks: int = 0
    is_unknown: bool = False
    is_settled: bool = False
    is_silent: bool = False
    """True if it was accepted, and its counterparty has given no sign of life in time."""
    is_by_word: bool = False
    """True if somebody stated its outcome."""
    may_have_acted: bool = False
    """True if an earlier attempt may have acted."""
    turn: int = 0
    """Counts the bodies and questions that were given up: what they still say is not heard."""
    attempted_us: int = 0
    needs_person: bool = False
    may_be_forgotten: bool = False
    """True if the counterparty may have forgotten the key."""
    value: Any = None
    closed_as: Literal["confirmed", "accepted", "failed"] | None = None
    settled_as: str | None = None
    """Verdict on an accepted effect, once there is one: confirmed or failed."""
    takes_back: EffectCall | None = None
    """The effect that this one takes back, if that was accepted: it acts once that is confirmed, and has nothing to do if that failed."""
    is_undo: bool = False
    """True if it helps to take another effect back: a step of a plan."""
    is_foreign: bool = False
    """True if another run takes it back."""
    is_of_child: bool = False
    """True if a child of this run did it."""
    of_call: int = 0
    """The call by which that child was started."""
    is_bound: bool = False
    """True if it must be taken back though nothing says how: it was done in a saga block that goes on in the next generation."""
    watchers: list[Waiter] = field(default_factory=list)
    """Waiters for it to be closed, beside the code that called it."""

    @property
    def was_accepted(self) -> bool:
        """True once the code has its acceptance: all that is still to come is for the ledger alone."""
        return self.closed_as == "accepted"

    @property
    def is_in_place(self) -> bool:
        """True if it was done, as far as is known once nothing of it is open."""
        return self.closed_as == "confirmed" or (self.closed_as == "accepted" and self.settled_as != "failed")

    @property
    def agreed(self) -> EffectTerms:
        """The terms of the effect."""
        assert self.spec.terms is not None
        return self.spec.terms


@dataclass(eq=False)
class TimerCall(Call):
    """A sleep or a time-out."""

    fire: Callable[[], None] = lambda: None
    started_seq: int = 0
    due_us: int = 0


@dataclass(eq=False)
class SignalCall(Call):
    """A wait for a signal, perhaps with a time-out."""

    codec: Codec[Any] = field(kw_only=True)
    started_seq: int = 0
    due_us: int | None = None


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
