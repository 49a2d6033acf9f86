"""The queue of the committer: runs with something to commit, and connections that rest until a
batch is worth sending.

A batch takes at most half of the active runs. A second connection sends only when that many runs
are waiting: see :mod:`pgflow._worker.committer`.
"""

from __future__ import annotations

import asyncio

from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._worker.runs import Runs

MAX_BATCH_RUNS = 256
# Bounds the document of one batch, beside the number of runs.
MAX_BATCH_BYTES = 4 * 1024 * 1024

Item = tuple[Execution, Flush]


class CommitQueue:
    """Collects runs and hands out batches. A line (a connection with its task) looks for a batch,
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
