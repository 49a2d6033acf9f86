"""The parts of an async app that belong to one event loop, and what becomes of them when it ends.

An app of a module meets many loops: a task of a queue calls ``asyncio.run``, each test has a loop
of its own, a web framework has some in threads. What waits on a loop works on no other. So each has
a pool and a waiter of its own, made when they are first needed. A loop that ends without a close
cancels its tasks and leaves open connections, which the next one cuts.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

from psycopg_pool import AsyncConnectionPool
from psycopg_pool.pool_async import StopWorker

from pgflow._client.results import ResultWaiter
from pgflow._worker.worker import Worker
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class OnLoop:
    """State of an app for one event loop.

    Attributes:
        pool: Connections of the app's clients; None while it is not open here.
        waiter: Waiter for results.
        workers: Workers of the app here.
        opening: Lock of the task that opens the app.
        nudging: Task that notifies workers of runs started here.
        next_nudge_at: Time of the loop until which that task rests.
    """

    def __init__(self) -> None:
        self.pool: AsyncConnectionPool[Any] | None = None
        self.waiter: ResultWaiter | None = None
        self.workers: list[Worker] = []
        self.opening = asyncio.Lock()
        self.nudging: asyncio.Task[None] | None = None
        self.next_nudge_at = -math.inf

    def notify(self, chains: list[int]) -> None:
        """Wake the waits for these chains, whose runs have ended or answered."""
        if self.waiter is not None:
            self.waiter.notify(chains)

    def abandon(self) -> None:
        """Cut the connections of a loop that ended without a close and can no longer wait."""
        if self.pool is not None:
            jobs = getattr(self.pool, "_tasks", None)
            while jobs is not None and not jobs.empty():
                # One may be on its way back.
                if (connection := getattr(jobs.get_nowait(), "conn", None)) is not None:
                    connection.pgconn.finish()
            while self.pool._pool:
                self.pool._pool.popleft().pgconn.finish()
        if self.waiter is not None:
            self.waiter.abandon()


def end_with_its_loop(pool: AsyncConnectionPool[Any]) -> None:
    """Make the tasks of a pool end when they are cancelled. By themselves they take a cancel for
    trouble with a connection and continue, so a loop that ends without a close would wait for them
    forever.
    """
    pool.worker = _work  # type: ignore[method-assign]


async def _work(q: Any) -> None:
    task = asyncio.current_task()
    while not isinstance(job := await q.get(), StopWorker):
        try:
            await job.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next job may fare better
            log.warning("a job of a pool has failed: %s", redacted(error))
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
