"""The threads of bodies, and those that are lost: a body in a thread cannot be stopped, so it
continues after its step was given up.

New threads replace lost ones, up to a bound. A worker at that bound for as long as its grace fails.
"""

from __future__ import annotations

import asyncio
import logging

from pgflow._db.calls import worker as worker_calls
from pgflow._engine.calls import StepCall
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.life import Life
from pgflow._worker.open_transactions import OpenTransactions
from pgflow._worker.options import WorkerOptions
from pgflow._worker.parts import Part, Tasks
from pgflow._worker.supervision import quietly
from pgflow._worker.threads import DaemonThreads, Job

log = logging.getLogger("pgflow")

LEAST_LOST = 32
"""Least default for the number of threads that may be lost, however low the concurrency."""


class LostThreads(Part):
    """Counts lost threads and fails the worker when there are too many.

    Args:
        threads: Run the bodies, and are shut down with this part.
        transactions: Open transactions; those of abandoned bodies are cut.
        control: Records the number of lost threads in the database.

    Attributes:
        most: Number of lost threads that are replaced. The worker fails with this many.
    """

    def __init__(
        self,
        threads: DaemonThreads,
        transactions: OpenTransactions,
        tasks: Tasks,
        control: WorkerConnection,
        life: Life,
        options: WorkerOptions,
    ) -> None:
        self.most = threads.max_lost
        self._threads = threads
        self._transactions = transactions
        self._tasks = tasks
        self._control = control
        self._life = life
        self._grace_seconds = options.grace_seconds
        self._meter = options.meter
        self._loop = asyncio.get_running_loop()
        self._is_ending = False
        self._told = 0
        self._is_telling = False
        self._too_many_since: float | None = None

    @property
    def count(self) -> int:
        """Number of threads that run abandoned bodies."""
        return self._threads.lost

    def left_behind(self, call: StepCall, job: Job) -> None:
        """Abandon a body, which continues in its thread if it has begun."""
        if self._threads.give_up(job) and not self._is_ending:
            # Past its fence a body goes on to commit.
            if not call.fencing:
                self._transactions.leave_behind(call)
            if self._meter is not None:
                self._meter.thread_lost()
            log.warning(
                "step %s continues in its thread after it was given up: %d of %d "
                "threads that this worker may lose are lost",
                call.name,
                self._threads.lost,
                self.most,
            )

    def end(self) -> None:
        """Stop reporting: all bodies are abandoned with their worker."""
        self._is_ending = True

    def look(self) -> None:
        """Record the number of lost threads, and fail the worker if there are too many for longer
        than its grace.
        """
        lost, now = self.count, self._loop.time()
        if lost != self._told and not self._is_telling:
            self._is_telling = True
            self._tasks.spawn(self._tell(lost))
        if lost < max(1, self.most):
            self._too_many_since = None
        elif self._too_many_since is None:
            self._too_many_since = now
            log.error(
                "%d of %d threads that worker %s may lose are lost to bodies that do not end: it "
                "hands its runs back in %.1f s",
                lost,
                self.most,
                self._life.worker_id,
                self._grace_seconds,
            )
        elif now - self._too_many_since > self._grace_seconds:
            self._life.fail(
                f"{lost} of its threads are lost to bodies that do not end, as many as it may lose"
            )

    async def _tell(self, lost: int) -> None:
        try:
            await quietly(
                self._control.ask(worker_calls.count_lost_threads(self._life.worker_id, lost))
            )
            self._told = lost
        finally:
            self._is_telling = False

    def registered_anew(self) -> None:
        """Record the number again: the database has none for the new registration."""
        self._told = 0

    async def stop(self) -> None:
        """Start no further body, and wait for none."""
        self._threads.shutdown(cancel_futures=True)


def most_lost(options: WorkerOptions) -> int:
    """Return the number of lost threads that are replaced."""
    return (
        max(LEAST_LOST, options.concurrency)
        if options.max_lost_threads is None
        else options.max_lost_threads
    )
