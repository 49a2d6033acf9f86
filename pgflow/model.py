"""The vocabulary: small values that every layer shares, and nothing that acts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, Literal, TypeVar

from pgflow.durations import SHORTEST, Duration, duration

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Status = Literal["queued", "running", "waiting", "paused", "stuck", "completed", "failed", "cancelled"]
"""Status of a run, as users see it."""

EndedAs = Literal["completed", "failed", "cancelled"]
"""Status of a run that has ended."""

Risk = Literal["reversible", "compensable", "irreversible"]
"""Means by which an effect can be taken back, if at all."""


class Kind:
    """Kinds of units, as one byte; the table ``pgflow.unit_kind`` documents them and a test holds the two equal."""

    STEP_STARTED: Final = "s"
    STEP_COMPLETED: Final = "c"
    STEP_FAILED: Final = "f"
    ATTEMPT_FAILED: Final = "a"
    TIMER_STARTED: Final = "t"
    TIMER_FIRED: Final = "T"
    SIGNAL_RECEIVED: Final = "S"
    WAIT_TIMED_OUT: Final = "W"
    CHILD_STARTED: Final = "k"
    CHILD_FINISHED: Final = "K"
    CALL_CANCELLED: Final = "x"
    STEP_ABANDONED: Final = "X"
    PATCHED: Final = "p"
    CLOCK_READ: Final = "w"
    STATE_SET: Final = "v"
    EMITTED: Final = "e"
    CONTINUED: Final = "n"
    OPERATOR: Final = "o"
    DECISION_RECORDED: Final = "d"
    EFFECT_INTENDED: Final = "i"
    EFFECT_ATTEMPTED: Final = "j"
    EFFECT_CONFIRMED: Final = "C"
    EFFECT_FAILED: Final = "F"
    EFFECT_UNKNOWN: Final = "U"
    EFFECT_ACCEPTED: Final = "A"
    EFFECT_SETTLED: Final = "E"
    COMPENSATED: Final = "R"
    STEP_RENEWED: Final = "r"
    LABELS_SET: Final = "y"


@dataclass(frozen=True)
class Retries:
    """Number of tries of a step, and the waits between them.

    Attributes:
        max_attempts: Tries in all, the first included.
        first_delay: Wait before the second try.
        backoff: Factor from one wait to the next.
        max_delay: No wait is longer.
    """

    max_attempts: int = 3
    first_delay: Duration = timedelta(seconds=0.5)
    backoff: float = 2.0
    max_delay: Duration = timedelta(seconds=60)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_delay", duration(self.first_delay, "first_delay of Retries"))
        object.__setattr__(self, "max_delay", duration(self.max_delay, "max_delay of Retries"))
        if self.max_attempts < 1 or self.backoff < 1:
            raise ValueError("max_attempts and backoff must be at least 1")

    def delay_seconds(self, failed_attempts: int) -> float:
        """Wait after so many failed tries, with up to a fifth of it left to chance so that many do not return as one."""
        ceiling = duration(self.max_delay, "max_delay").total_seconds()
        try:
            delay = duration(self.first_delay, "first_delay").total_seconds() * self.backoff ** (failed_attempts - 1)
        except OverflowError:
            delay = ceiling
        return min(delay, ceiling) * random.uniform(0.8, 1.0)  # noqa: S311 - not a secret


IfTaken = Literal["match", "reject", "attach", "replace"]
"""Action of a start whose key a run already has; see :meth:`pgflow.Workflow.options`."""

DEFAULT_QUEUE = "default"


@dataclass(frozen=True)
class StartOptions:
    """Options of a start.

    Attributes:
        version: Version of the code that it is pinned to; empty = any.
        if_taken: Action where a run has the key.
    """

    key: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    run_at: datetime | None = None
    timeout: timedelta | None = None
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    when_parent_ends: Literal["cancel", "abandon"] = "cancel"
    version: str = ""
    if_taken: IfTaken = "match"

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", duration(self.timeout, "timeout of a run"))


@dataclass(frozen=True)
class Delivery:
    """Result of sending a signal.

    Attributes:
        message: The number of the message, by which `pgflow messages` knows it.
        ended_as: Status of the run that had ended, so that nobody takes the message; None while it is open. Mail that an ended run did not
            take is kept in ``pgflow.undelivered_messages``, and is the run's again if that is rewound or restarted.
        is_new: False if the message had been sent before under its idempotency key: it is that one, and nothing was sent now.
    """

    message: int
    ended_as: EndedAs | None = None
    is_new: bool = True

    @property
    def is_delivered(self) -> bool:
        """True if the message is in the mailbox of an open run."""
        return self.ended_as is None


@dataclass(frozen=True)
class Message:
    """A signal that no run has taken.

    Attributes:
        key: The run that it is for.
        message: The number of the message.
        signal: Name of the signal.
        payload: Its payload.
        state: ``waiting`` in the mailbox; or put aside: the run had ``ended``, or somebody ``dropped`` or ``replaced`` it.
        sent_at: Time of sending.
        sent_by: Sender.
        why: Of one that waits, why the run's code could not take it; of one that was put aside, the reason that was given.
    """

    key: str
    message: int
    signal: str
    payload: Any
    state: Literal["waiting", "ended", "dropped", "replaced"]
    sent_at: datetime
    sent_by: str | None
    why: str | None


@dataclass(frozen=True)
class Usage:
    """Cost of a call to a model."""

    usd: Decimal = Decimal(0)
    tokens: int = 0


@dataclass(frozen=True)
class Choice(Generic[T]):
    """Result of a ``@decision``: the value chosen, and why."""

    value: T
    why: str
    evidence: Sequence[str] = ()
    alternatives: Sequence[str] = ()
    policy: str | None = None
    model: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Decision(Generic[R_co]):
    """A recorded choice, as the workflow gets it.

    Attributes:
        id: Its idempotency key, which the keys of what rests on it name.
        value: Value that was chosen.
        why: The reason given.
        evidence: Evidence that the choice rested on.
        alternatives: Alternatives to it.
        policy: Policy that it followed.
        model: Model that chose.
        usage: Cost of the choice.
    """

    id: str
    value: R_co
    why: str
    evidence: Sequence[str] = ()
    alternatives: Sequence[str] = ()
    policy: str | None = None
    model: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Confirmed(Generic[T]):
    """The counterparty knows the effect; this is its result."""

    value: T


@dataclass(frozen=True)
class Absent:
    """The counterparty has never heard of the effect."""


@dataclass(frozen=True)
class StillUnknown:
    """The counterparty cannot say yet."""


@dataclass(frozen=True)
class Accepted:
    """Result of an ``@effect`` whose counterparty has taken it on and will confirm it later.

    The workflow goes on with it; the run does not complete before somebody has confirmed it
    (``app.confirm_effect``, or ``pgflow.confirm_effect`` in SQL).

    Attributes:
        ref: The counterparty's reference, under which the confirmation will come.
        heartbeat_timeout: The counterparty promises a beat (``app.beat_effect``) at least so often. After so long without one
            the outcome is unknown: the effect's ``.settle`` asks, else a person is needed. It is a promise to the ledger, and the
            workflow gets ``Accepted(ref)``.
    """

    ref: str
    heartbeat_timeout: InitVar[Duration | None] = None

    def __post_init__(self, heartbeat_timeout: Duration | None) -> None:
        if heartbeat_timeout is not None:
            promised = duration(heartbeat_timeout, "heartbeat_timeout of Accepted", least_seconds=SHORTEST)
            self.__dict__["_beats_within"] = promised.total_seconds()

    @property
    def beats_within_seconds(self) -> float | None:
        """Seconds within which each beat is promised; None if none is, or where the workflow looks."""
        within: float | None = self.__dict__.get("_beats_within")
        return within


@dataclass(frozen=True)
class Ref:
    """Something outside that a result claims to exist: a file, a workspace, a row of another system.

    Where the app has a checker for the kind (``app.ref_checker``), it is asked whenever a run goes on from its journal. If
    what a ``@read`` or ``@step`` returned is gone, its body runs again under the same key and the new result counts from
    then on; what an effect, a decision or a transaction returned is never made again: the run is stuck, with reason ``ref_lost``.

    Attributes:
        kind: Name of the checker that knows it, such as ``"s3"``.
        id: Identifier by which that checker finds it.
        pgflow: Mark by which the journal tells it from other objects with a kind and an id; leave it as it is.
    """

    kind: str
    id: str
    pgflow: Literal["ref"] = field(default="ref", repr=False)


@dataclass(frozen=True)
class Approved(Generic[R_co]):
    """A gate was approved, with the value as edited by whoever approved."""

    value: R_co
    by: tuple[str, ...]
    edited: bool


@dataclass(frozen=True)
class Rejected:
    """A gate was rejected."""

    reason: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class Escalated:
    """A gate was handed on to somebody else."""

    to: str


@dataclass(frozen=True)
class Expired:
    """Nobody answered a gate in time."""


@dataclass(frozen=True)
class Approve:
    """Answer to a gate: go ahead, perhaps with an edited value."""

    edit: Any = None
    comment: str = ""


@dataclass(frozen=True)
class Reject:
    """Answer to a gate: do not."""

    reason: str


@dataclass(frozen=True)
class Escalate:
    """Answer to a gate: somebody else must decide."""

    to: str


PageKind = Literal["stuck", "effect"]
"""Reason why a person is needed."""


@dataclass(frozen=True)
class Page:
    """Notice to the hook of ``app.pager`` that only a person can bring something on.

    Attributes:
        id: The same whenever the same need is told, which may happen twice: the idempotency key of the message. What needs
            somebody again later has another.
        kind: ``stuck``: the run cannot go on; ``effect``: nobody knows what became of it.
        run: Key of the run.
        workflow: Name of its workflow.
        name: Reason why it is stuck, in one word; or the name of the effect.
        why: That in a sentence, as far as it is known.
        since: Since when a person is needed.
        attempt: Number of the try to tell this, from 1.
        effect: Of an effect, its idempotency key: what ``pgflow settle`` takes.
        tenant: Tenant of the run.
        generation: Generation of the run.
        reason: Code to branch on: why the run is stuck, as ``pgflow.runs`` has it, or why nobody knows what became of the effect,
            as its last unit ``effect_unknown`` has it; empty if none is recorded.
    """

    id: str
    kind: PageKind
    run: str
    workflow: str
    name: str
    why: str
    since: datetime
    attempt: int = 1
    effect: str | None = None
    tenant: str = ""
    generation: int = 1
    reason: str = ""


class GateRequest:
    """Message to the ``notify`` step of a gate."""

    id: str
    name: str
    run_key: str
    request: Any


class Slot:
    """The time for which a schedule started a run."""

    at: datetime


@dataclass(frozen=True)
class Admit:
    """Limit on the cost of a call, reserved before it starts."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    pool: str | None = None


@dataclass(frozen=True)
class MapResult(Generic[T, R_co]):
    """Results and failures of ``map()``.

    Attributes:
        values: Results of the items that succeeded, in the order of the items.
        failed: Items that did not, each a pair of the item and its error, in the order of the items.
    """

    values: list[R_co] = field(default_factory=list)
    failed: list[tuple[T, Exception]] = field(default_factory=list)


def is_name(text: str) -> bool:
    """Return True if the database can hold this as a name: 1 to 255 bytes, no NUL, no half of a character."""
    try:
        return 1 <= len(text.encode()) <= 255 and "\0" not in text
    except UnicodeEncodeError:
        return False
