"""The options of a worker, and the definitions that an app brings to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from pgflow._worker.heartbeat import Rhythm
from pgflow._worker.pager import PagerHook
from pgflow._worker.ref_checks import Checker
from pgflow._worker.startup import Hooks
from pgflow.meter import Meter


@dataclass
class Tally:
    """Tally of the runs that a worker has taken, for one that is to take no more than so many.

    Attributes:
        most: Most runs that it takes; None for as many as there are. One that it has taken counts
            once, however often.
        chains: The chains of those it has taken.
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
        poll_seconds: Between sweeps where nothing is notified.
        grace_seconds: Seconds for which running steps may go on after a stop.
        rhythm: Of its signs of life.
        listen: True to listen for notifications; False behind a pooler in transaction mode.
        meter: Counts what this worker does; see :class:`pgflow.meter.Meter`.
        busy_poll_seconds: While at most one run is worked on, an answer of the database is waited
            for so long without letting the processor rest: a run that is alone goes on sooner, at
            the price of that processor time. 0 for never.
        transaction_idle_seconds: Seconds that a `@transaction`'s body may go without a statement.
            Then the server ends the transaction, and the body runs again. A process that stands
            still keeps its locks on rows so long.
        transaction_connections: Most `@transaction`s of `async def` steps that may be open at once,
            each on a connection of its own, and as many of `def` steps; the others wait. A body
            that waits for something else keeps its connection meanwhile.
        max_lost_threads: Number of threads that are replaced when lost to `def` bodies which go on
            after their time-out or cancel. A worker that has lost so many for the grace hands its
            runs back and ends. As many as `concurrency` if not given, and at least 32.
        tally: Remembers which runs this worker takes, and may limit them; None for a worker that
            goes on and on.
    """

    queues: Sequence[str] = (DEFAULT_QUEUE,)
    concurrency: int = 100
    poll_seconds: float = 1.0
    grace_seconds: float = 10.0
    rhythm: Rhythm = field(default_factory=Rhythm)
    listen: bool = True
    meter: Meter | None = None
    busy_poll_seconds: float = 0.0005
    transaction_idle_seconds: float = 300.0
    transaction_connections: int = 4
    max_lost_threads: int | None = None
    tally: Tally | None = None

    def __post_init__(self) -> None:
        """Refuses what is no duration where it is given; a timedelta is taken for its seconds."""
        for name in (
            "poll_seconds",
            "grace_seconds",
            "busy_poll_seconds",
            "transaction_idle_seconds",
        ):
            setattr(self, name, seconds(getattr(self, name), f"{name} of a worker"))


@dataclass
class Definitions:
    """Definitions that an app brings to a worker."""

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
