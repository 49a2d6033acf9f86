"""The flusher: commits buffered units that have waited for a tenth of a second.

This loop never rests for long. So the watchdog uses its ticks to see whether the worker's loop
runs, and it also checks the lost threads.
"""

from __future__ import annotations

import asyncio

from pgflow._worker.commit_queue import CommitQueue
from pgflow._worker.lost_threads import LostThreads
from pgflow._worker.parts import Loop, Tasks
from pgflow._worker.runs import Runs

FLUSH_AFTER_US = 100_000
SWEEP_SECONDS = 0.05


class Flusher(Loop):
    """Bounds how long a unit waits in a buffer.

    Attributes:
        ticks: Counter that moves while the worker's loop runs.
    """

    name = "the loop of flushes"

    def __init__(self, tasks: Tasks, runs: Runs, queue: CommitQueue, lost: LostThreads) -> None:
        super().__init__(tasks)
        self.ticks = 0
        self._runs = runs
        self._queue = queue
        self._lost = lost

    async def loop(self) -> None:
        """Look twenty times a second."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.ticks += 1
            self._flush_old()
            self._lost.look()

    def _flush_old(self) -> None:
        """Submit runs with old units. A separate function, because the loop's own variables would
        keep the last execution alive while it sleeps.
        """
        for execution in self._runs.executions.values():
            if (
                execution.buffer.rows
                and (oldest := execution.oldest_unflushed_us) is not None
                and execution.clock.estimate_us() - oldest > FLUSH_AFTER_US
                and not execution.history.replaying
            ):
                self._queue.submit(execution)
