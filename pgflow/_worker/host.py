"""The host of executions (:class:`pgflow._engine.host.Host`): what a run asks of its worker.

The code of a sync workflow asks from its own thread. Then the request is posted to the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time

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
        self._waiting = runs.waiting
        self._bodies = bodies
        self._queue = queue
        self._posts = context.posts
        self._concurrency = context.options.concurrency
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._looks: dict[Execution, asyncio.TimerHandle] = {}
        self.start_body = bodies.start
        runs.when_leaving(self._looks.__contains__, self._forget)

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

    def _forget(self, execution: Execution) -> None:
        if (look := self._looks.pop(execution, None)) is not None:
            look.cancel()

    async def stop(self) -> None:
        """Cancel all timers."""
        for look in self._looks.values():
            look.cancel()
