"""The host of executions (:class:`pgflow._engine.host.Host`): what a run asks of its worker.

The code of a sync workflow asks from its own thread. Then the request is posted to the loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from heapq import heappop, heappush

from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._worker.bodies import Bodies
from pgflow._worker.committer import CommitQueue
from pgflow._worker.context import WorkerContext
from pgflow._worker.parts import Part
from pgflow._worker.runs import Runs

PATIENCE_US = 250_000
"""Microseconds that a parent waits in memory for children that have just started, or for further
results after one: a few round trips of a busy server.
"""
PATIENCE_A_RUN_US = 5_000
"""More of it for each run of the worker, since a child may have to wait for it."""
WAITING_A_PLACE = 10
"""Parents that wait in memory for each place of the worker. Each holds a lease and some kilobytes;
any more park at once, and replay their journals for each result.
"""


class RunHost(Part):
    """Answers executions. It keeps a heap of the looks at the database that runs wait for, and one
    timer, for the first of them.

    Args:
        runs: The runs of this worker.
        bodies: Runs bodies.
        queue: Takes the runs with something to commit.
    """

    def __init__(
        self, context: WorkerContext, runs: Runs, bodies: Bodies, queue: CommitQueue
    ) -> None:
        self._runs = runs
        self._waiting = runs.waiting
        self._bodies = bodies
        self._queue = queue
        self._posts = context.posts
        self._concurrency = context.options.concurrency
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._looks: dict[int, float] = {}  # by run, the time when it looks
        self._heap: list[tuple[float, int]] = []  # times and runs, also those put forward since
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self.start_body = bodies.start

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
            if execution in self._waiting:
                self._runs.goes_on(execution)
            self._queue.submit(execution)
        else:
            self._posts.post(self._queue.submit, execution)

    def look_later(self, execution: Execution, delay_seconds: float) -> None:
        """Schedule a look at the database after a delay; the earliest request counts."""
        if execution.agenda.children:
            self._runs.waits(execution)
        when, run_id = time.monotonic() + delay_seconds, execution.run_id
        known = self._looks.get(run_id)
        # Half a millisecond is not worth a new look.
        if known is not None and known <= when + 0.0005:
            return
        self._looks[run_id] = when
        heappush(self._heap, (when, run_id))
        if when < self._alarm_at:
            self._set_alarm(when)

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = when
        self._alarm = self._loop.call_later(max(0.0, when - time.monotonic()), self._looks_due)

    def _looks_due(self) -> None:
        """Have each run look whose time has come; set the alarm for the next."""
        self._alarm, self._alarm_at = None, -math.inf  # set once, after all of them
        heap, now = self._heap, time.monotonic()
        while heap and heap[0][0] <= now:
            when, run_id = heappop(heap)
            # Of a run that has left since, or has put its look forward, nothing is due.
            if self._looks.get(run_id) == when:
                del self._looks[run_id]
                execution = self._runs.executions.get(run_id)
                if execution is not None and not execution.over:
                    self._runs.guard(execution, execution.look_due)
        self._alarm_at = math.inf
        if heap:
            self._set_alarm(heap[0][0])

    def patience_us(self) -> int:
        """Return how long a parent may wait in memory for news of its children, in microseconds.

        It is 0 once too many parents wait.
        """
        if len(self._waiting) > self._concurrency * WAITING_A_PLACE:
            return 0
        return PATIENCE_US + len(self._runs.executions) * PATIENCE_A_RUN_US

    monotonic_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds on a clock that only measures durations."""

    # ------------------------------------------------------------ leaving

    def hand_back(self, execution: Execution) -> None:
        """Hand the run back once its dropped effects are undone. The next claim runs its code."""
        self._runs.give_back(execution)

    async def stop(self) -> None:
        """Cancel the timer."""
        if self._alarm is not None:
            self._alarm.cancel()
