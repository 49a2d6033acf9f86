"""The options of a worker, and the definitions that an app passes to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from pgflow._flow.interceptor import Interceptor
from pgflow._flow.relays import Relay
from pgflow._flow.step import Step
from pgflow._flow.workflow import Workflow
from pgflow._model.budgets import Pool
from pgflow._model.durations import seconds
from pgflow._model.envelopes import Envelopes
from pgflow._model.failures import FailedRun
from pgflow._model.options import DEFAULT_QUEUE
from pgflow._model.queues import Queue
from pgflow._worker.hooks import Checker, Hooks, PagerHook
from pgflow.meter import Meter


@dataclass(frozen=True)
class Rhythm:
    """Intervals of the heartbeat, in seconds.

    Attributes:
        beat: Between heartbeats.
        look: Between looks at the other workers.
        dead_after: A worker without a heartbeat for this long is dead.
        blocked_after: A worker's loop that is blocked for this long is worth a warning.
    """

    beat: float = 2.0
    look: float = 0.5
    dead_after: float = 10.0
    blocked_after: float = 1.0

    def __post_init__(self) -> None:
        """Reject invalid durations where they are given, and convert timedeltas to seconds."""
        for one in fields(self):
            value = seconds(getattr(self, one.name), f"{one.name} of a rhythm")
            object.__setattr__(self, one.name, value)

    @classmethod
    def within(cls, dead_after: float) -> Self:
        """Return the rhythm of a worker that counts as dead after `dead_after`.

        Args:
            dead_after: Seconds without a heartbeat.
        """
        # Five beats per time-out: a single lost one makes no worker look dead.
        return cls(beat=dead_after / 5, look=min(0.5, dead_after / 10), dead_after=dead_after)

    @property
    def patience(self) -> float:
        """Seconds that the heartbeat waits for an answer: if the server is frozen, it must find
        another before this worker counts as dead.
        """
        return max(2.0, self.dead_after / 2)


@dataclass
class Tally:
    """The runs that a worker has taken, for a worker with a limit on them.

    Attributes:
        most: Most runs to take; None for no limit. A run taken several times counts once.
        chains: The chains of the runs taken.
    """

    most: int | None = None
    chains: set[int] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """True if it has taken as many runs as it may."""
        return self.most is not None and len(self.chains) >= self.most


@dataclass
class WorkerOptions:
    """Options of a worker.

    Attributes:
        queues: Queues it serves.
        concurrency: Most runs that it works on at once; waiting runs do not count.
        poll_seconds: Seconds between polls for work without a notification.
        grace_seconds: Seconds for which running steps may continue after a stop.
        rhythm: Intervals of its heartbeats.
        listen: True to listen for notifications; False behind a pooler in transaction mode.
        meter: Counts what this worker does; see :class:`pgflow.meter.Meter`.
        transaction_idle_seconds: Seconds that a `@transaction`'s body may go without a statement.
            Then the server ends the transaction, and the body runs again. A frozen process keeps
            its row locks for this long.
        transaction_connections: Most `@transaction`s of `async def` steps that may be open at once,
            each on its own connection, and as many of `def` steps; further ones wait. A body keeps
            its connection while it waits for something else.
        max_lost_threads: Number of lost threads that are replaced. A thread is lost while its `def`
            body continues after a time-out or cancel. A worker that has lost this many for its
            grace hands its runs back and ends. Defaults to the larger of `concurrency` and 32.
        tally: Records which runs this worker takes, and may limit them; None for a worker that runs
            until it is stopped.
    """

    queues: Sequence[str] = (DEFAULT_QUEUE,)
    concurrency: int = 100
    poll_seconds: float = 1.0
    grace_seconds: float = 10.0
    rhythm: Rhythm = field(default_factory=Rhythm)
    listen: bool = True
    meter: Meter | None = None
    transaction_idle_seconds: float = 300.0
    transaction_connections: int = 4
    max_lost_threads: int | None = None
    tally: Tally | None = None

    def __post_init__(self) -> None:
        """Reject invalid durations where they are given, and convert timedeltas to seconds."""
        for name in (
            "poll_seconds",
            "grace_seconds",
            "transaction_idle_seconds",
        ):
            setattr(self, name, seconds(getattr(self, name), f"{name} of a worker"))


@dataclass
class Definitions:
    """Definitions that an app passes to a worker."""

    workflows: dict[str, Workflow[..., Any]]
    errors: tuple[type[Exception], ...] = ()
    providers: list[Any] = field(default_factory=list)
    interceptors: list[Interceptor] = field(default_factory=list)
    replacements: dict[Step[Any, Any], Callable[..., Any]] = field(default_factory=dict)
    ref_checkers: dict[str, Checker] = field(default_factory=dict)
    pager: PagerHook | None = None
    hooks: Hooks = field(default_factory=Hooks)
    envelopes: Envelopes | None = None
    pools: list[Pool] = field(default_factory=list)
    queues: list[Queue] = field(default_factory=list)
    relays: dict[str, Relay] = field(default_factory=dict)
    on_failure: list[Callable[[FailedRun], Any]] = field(default_factory=list)
    is_in_cluster: bool = False
