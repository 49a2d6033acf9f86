"""The flusher: buffers that nothing else has flushed leave after a tenth of a second.

It is the loop that never rests for long. So whoever watches the worker looks if it moves, and it
looks after lost threads.
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
    """See the module.

    Attributes:
        ticks: A number that moves while the worker's loop does.
    """

    name = "the loop of flushes"

    def __init__(self, tasks: Tasks, runs: Runs, queue: CommitQueue, lost: LostThreads) -> None:
        super().__init__(tasks)
        self.ticks = 0
        self._runs = runs
        self._queue = queue
        self._lost = lost

    async def loop(self) -> None:
        """Looks twenty times a second."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.ticks += 1
            self._flush_old()
            self._lost.look()

    def _flush_old(self) -> None:
        """Not in the loop itself, whose variables would hold the last execution while it rests."""
        for execution in self._runs.executions.values():
            if (
                execution.buffer.rows
                and (oldest := execution.oldest_unflushed_us) is not None
                and execution.estimate_us() - oldest > FLUSH_AFTER_US
                and not execution.replaying
            ):
                self._queue.submit(execution)
