"""The host of executions (:class:`pgflow._engine.host.Host`): what a run asks of its worker. A run
asks for bodies, and for commits: the queue of the committer is here.

The code of a sync workflow asks from its own thread. Then the request is posted to the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time

from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._worker.bodies import Bodies
from pgflow._worker.context import WorkerContext
from pgflow._worker.parts import Part
from pgflow._worker.runs import Runs

MAX_BATCH_RUNS = 256
# Bounds the document of one batch, beside the number of runs.
MAX_BATCH_BYTES = 4 * 1024 * 1024

Item = tuple[Execution, Flush]


class CommitQueue:
    """Runs with something to commit, and connections that rest until a batch is worth sending.

    A batch takes at most half of the active runs. A second connection sends only when that many
    runs are waiting: see :mod:`pgflow._worker.committer`.
    A line (a connection with its task) looks for a batch,
    sends one, or rests.

    Args:
        runs: The runs of this worker. Their number bounds a batch.
        lines: Number of lines. All of them look first.
    """

    def __init__(self, runs: Runs, lines: int) -> None:
        self._executions = runs.executions
        self._pending: dict[int, Execution] = {}
        self._again: list[Item] = []
        self._due: list[Item] = []  # flushes that were put off, each sent alone
        self._resting: list[asyncio.Future[None]] = []
        self._awake = lines
        self._looking = lines  # lines among them that are about to look for a batch
        self._is_closed = False

    def submit(self, execution: Execution) -> None:
        """Queue a run that has something to commit."""
        self._pending[execution.run_id] = execution
        if self._resting and not self._looking:
            self._call_up()

    def send_again(self, item: Item) -> None:
        """Send a flush unchanged with the next batch, because the server was busy with its run."""
        self._again.append(item)

    def put_off(self, item: Item, delay_seconds: float) -> None:
        """Send a flush unchanged and alone after a delay: it may be refused again."""
        asyncio.get_running_loop().call_later(delay_seconds, self._come_due, item)

    def _come_due(self, item: Item) -> None:
        if not self._is_closed:
            self._due.append(item)
            self._call_up()

    def _call_up(self) -> None:
        """Wake a resting line, unless another is about to look or too few runs are waiting."""
        if not self._resting or self._looking:
            return
        if self._due or (self._pending and (not self._awake or len(self._pending) >= self._limit)):
            self._awake += 1
            self._looking += 1
            self._resting.pop().set_result(None)

    @property
    def _limit(self) -> int:
        """Most runs in one batch, and the number that must wait before a second connection
        sends.
        """
        return min(MAX_BATCH_RUNS, max(1, (len(self._executions) + 1) // 2))

    def take_batch(self) -> list[Item]:
        """Return the next batch for a line to send. It is empty if there is none, or if the other
        line should continue alone.
        """
        items = self._next_batch()
        if items:
            self._looking -= 1
            self._call_up()
        return items

    def _next_batch(self) -> list[Item]:
        if self._due:
            return [self._due.pop(0)]
        again, self._again = self._again, []
        limit = self._limit
        if not again and self._awake > 1 and len(self._pending) < limit:
            return []
        items = again
        size = 0
        while self._pending and len(items) < limit and size < MAX_BATCH_BYTES:
            execution = self._pending.pop(next(iter(self._pending)))
            flush = execution.take_flush()
            if flush is not None:
                items.append((execution, flush))
                size += flush.size_bytes
        return items

    def came_back(self) -> None:
        """Note that a line has delivered its batch and looks for the next."""
        self._looking += 1

    def left(self) -> None:
        """Note that a line ended while it was sending."""
        self._awake -= 1

    def rest(self) -> asyncio.Future[None]:
        """Return the future that wakes a resting line. If all lines rest, the first run with
        something to commit sets it.
        """
        self._awake -= 1
        self._looking -= 1
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(called)
        return called

    def close(self) -> None:
        """Drop the flushes that were put off."""
        self._is_closed = True


PATIENCE_US = 50_000
"""Microseconds that a parent waits in memory for children that have just started, or for further
results after one.
"""
PATIENCE_WITH_ROOM_US = 250_000
"""The same while the worker has free places: a few round trips of a busy server."""


class RunHost(Part):
    """Answers executions. It keeps one timer for each run that waits for a look at the database.

    Args:
        runs: The runs of this worker.
        bodies: Runs bodies.
        queue: Takes the runs with something to commit.
    """

    def __init__(
        self, context: WorkerContext, runs: Runs, bodies: Bodies, queue: CommitQueue
    ) -> None:
        self._runs = runs
        self._bodies = bodies
        self._queue = queue
        self._posts = context.posts
        self._concurrency = context.options.concurrency
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._looks: dict[Execution, asyncio.TimerHandle] = {}
        self.start_body = bodies.start
        runs.when_leaving(self._forget)

    # ------------------------------------------------------------ bodies

    def stop_body(self, execution: Execution, call: StepCall) -> None:  # noqa: ARG002 - the host of a test looks at it
        """Give up a body."""
        if threading.get_ident() != self._thread_id:
            self._posts.post(self._bodies.stop, call)
        else:
            self._bodies.stop(call)

    def retry_body_later(self, execution: Execution, call: StepCall, delay_seconds: float) -> None:
        """Schedule the next attempt at a body. It is dropped if the run has left by then."""
        if threading.get_ident() != self._thread_id:
            self._posts.post(self.retry_body_later, execution, call, delay_seconds)
            return
        self._loop.call_later(delay_seconds, self._retry_due, execution, call)

    def _retry_due(self, execution: Execution, call: StepCall) -> None:
        if not execution.over:
            self._runs.guard(execution, execution.retry_due, call)

    # ------------------------------------------------------------ the database

    def want_flush(self, execution: Execution) -> None:
        """Queue the run for a commit."""
        if threading.get_ident() == self._thread_id:
            self._queue.submit(execution)
        else:
            self._posts.post(self._queue.submit, execution)

    def look_later(self, execution: Execution, delay_seconds: float) -> None:
        """Schedule a look at the database after a delay; the earliest request counts."""
        when = self._loop.time() + delay_seconds
        known = self._looks.get(execution)
        if known is not None:
            # Half a millisecond is not worth a new timer.
            if known.when() <= when + 0.0005:
                return
            known.cancel()
        self._looks[execution] = self._loop.call_at(when, self._look_due, execution)

    def _look_due(self, execution: Execution) -> None:
        self._looks.pop(execution, None)
        if not execution.over:
            self._runs.guard(execution, execution.look_due)

    def patience_us(self) -> int:
        """Return how long a parent may wait in memory for news of its children, in microseconds.

        It is longer while the worker has free places, and 0 once waiting parents take most of the
        places that children need.
        """
        if len(self._runs.executions) < self._concurrency:
            return PATIENCE_WITH_ROOM_US
        return PATIENCE_US if 2 * len(self._looks) <= self._concurrency else 0

    monotonic_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds on a clock that only measures durations."""

    # ------------------------------------------------------------ leaving

    def hand_back(self, execution: Execution) -> None:
        """Hand the run back once its dropped effects are undone. The next claim runs its code."""
        self._runs.give_back(execution)

    def _forget(self, execution: Execution) -> None:
        if (look := self._looks.pop(execution, None)) is not None:
            look.cancel()

    async def stop(self) -> None:
        """Cancel all timers."""
        for look in self._looks.values():
            look.cancel()
