"""The queue of the committer: runs that have something to make durable, and the connections that
rest until it is worth to set out.

At most half of the active runs go in one batch. A second connection sets out only when so many are
waiting: see :mod:`pgflow._worker.committer`.
"""

from __future__ import annotations

import asyncio

from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._worker.runs import Runs

MAX_BATCH_RUNS = 256
MAX_BATCH_BYTES = 4 * 1024 * 1024

Item = tuple[Execution, Flush]


class CommitQueue:
    """See the module. A line, as a connection with its task is called, looks for a batch, is on its
    way with one, or rests.

    Args:
        runs: Those of the worker: how many there are bounds a batch.
        lines: Number of lines, all of which begin with a look.
    """

    def __init__(self, runs: Runs, lines: int) -> None:
        self._executions = runs.executions
        self._pending: dict[int, Execution] = {}
        self._again: list[Item] = []
        self._due: list[Item] = []  # those that were put off, and go alone
        self._resting: list[asyncio.Future[None]] = []
        self._awake = lines
        self._looking = lines  # those of them that are about to look for what waits
        self._is_closed = False

    def submit(self, execution: Execution) -> None:
        """This run has something to make durable."""
        self._pending[execution.run_id] = execution
        if self._resting and not self._looking:
            self._call_up()

    def send_again(self, item: Item) -> None:
        """The server was busy with this run:
        its flush goes with the next batch, exactly as it was.
        """
        self._again.append(item)

    def put_off(self, item: Item, delay_seconds: float) -> None:
        """The same after a delay, and alone: it may be refused again."""
        asyncio.get_running_loop().call_later(delay_seconds, self._come_due, item)

    def _come_due(self, item: Item) -> None:
        if not self._is_closed:
            self._due.append(item)
            self._call_up()

    def _call_up(self) -> None:
        """Calls a line that rests, if none is about to look anyway and what waits is worth it."""
        if not self._resting or self._looking:
            return
        if self._due or (self._pending and (not self._awake or len(self._pending) >= self._limit)):
            self._awake += 1
            self._looking += 1
            self._resting.pop().set_result(None)

    @property
    def _limit(self) -> int:
        """Most runs in one batch; so many must wait before a second connection sets out."""
        return min(MAX_BATCH_RUNS, max(1, (len(self._executions) + 1) // 2))

    def take_batch(self) -> list[Item]:
        """Return the next batch, with which a line sets out; empty if there is none, or if the
        other line should go on alone.
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
        """A line has delivered its batch, and is about to look for another."""
        self._looking += 1

    def left(self) -> None:
        """A line that was on its way has ended."""
        self._awake -= 1

    def rest(self) -> asyncio.Future[None]:
        """Return the call for which a line rests: if all rest, the first that has something to
        commit makes it.
        """
        self._awake -= 1
        self._looking -= 1
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(called)
        return called

    def close(self) -> None:
        """Takes up nothing any more that was put off."""
        self._is_closed = True
