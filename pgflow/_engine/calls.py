"""Durable calls: what workflow code has asked for and not yet got."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pgflow.failures import ErrorClasses
from pgflow.model import Retries
from pgflow.values import Codec

Effect = Literal["r", "s", "t"]
"""Effect class of a step: r = read, s = idempotent outside write, t = transactional write."""

State = Literal["pending", "unlicensed", "startable", "running", "backoff", "decided", "over"]
"""Life of a step's call. pending = replaying, or waiting for the database; decided = its unit has a seq, its release is due."""


@dataclass(eq=False)
class StepSpec:
    """What the engine must know of a step."""

    name: str
    effect: Effect
    result: Codec[Any]
    errors: ErrorClasses
    retries: Retries
    raises: tuple[type[Exception], ...] = ()
    timeout_seconds: float | None = None
    definition: Any = None


class Waiter(Protocol):
    """Where the outcome of a call goes: an asyncio future, or its like for a thread."""

    def done(self) -> bool:
        """Whether it has an outcome, or nobody waits any more."""

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

    @property
    def kind(self) -> str:
        """What sort of call it is, as a diff names it."""
        return type(self).__name__.removesuffix("Call").lower()

    def __str__(self) -> str:
        """As a person reads it in a diff."""
        return f"call {self.number}: {self.kind} {self.name!r}"


@dataclass(eq=False)
class StepCall(Call):
    """A call of a step's body."""

    spec: StepSpec = None  # type: ignore[assignment]
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


@dataclass(eq=False)
class TimerCall(Call):
    """A sleep or a time-out."""

    fire: Callable[[], None] = lambda: None
    started_seq: int = 0
    due_us: int = 0


@dataclass(eq=False)
class SignalCall(Call):
    """A wait for a signal, perhaps with a time-out."""

    codec: Codec[Any] = None  # type: ignore[assignment]
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


@dataclass(eq=False)
class ChildCall(Call):
    """A child run and the wait for its result."""

    request: ChildRequest = None  # type: ignore[assignment]
    result: Codec[Any] = None  # type: ignore[assignment]
    errors: ErrorClasses = None  # type: ignore[assignment]
    chain_id: int = 0
    """The child's chain, once it has started."""
