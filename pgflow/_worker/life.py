"""The life of a worker, as far as its parts have to know of it: its number, its last sign of life,
and whether it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time

from pgflow.errors import WorkerFailed
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Life:
    """State that every part of a worker may read, and that only the methods here change.

    A worker that has failed, or is to stop, stays so. Signs of life are noted on the heart's
    thread, all else on the worker's loop.

    Args:
        stale_after_seconds: After so long without a sign
            of life others might soon believe this worker dead.

    Attributes:
        worker_id: Number under which the database knows this worker; 0 before it is registered,
            another one after it was declared dead.
        is_stopping: True once it is asked to stop.
        failed: Set once it is of no more use.
        failure: Reason for that; None before.
        stale_at: Time of the monotonic clock from which on its last sign of life is so long ago
            that others might soon believe it dead.
    """

    def __init__(self, stale_after_seconds: float) -> None:
        self.worker_id = 0
        self.is_stopping = False
        self.failed = asyncio.Event()
        self.failure: WorkerFailed | None = None
        self._stale_after_seconds = stale_after_seconds
        self.beaten(time.monotonic())

    def registered(self, worker_id: int) -> None:
        """The database knows it under this number from now on."""
        self.worker_id = worker_id

    def beaten(self, at: float) -> None:
        """A sign of life that was sent at this time is acknowledged."""
        self.stale_at = at + self._stale_after_seconds

    @property
    def age_seconds(self) -> float:
        """Seconds since the last acknowledged sign of life."""
        return time.monotonic() - self.stale_at + self._stale_after_seconds

    def fail(self, part: str, error: BaseException | None = None) -> None:
        """This worker is of no more use: it claims nothing more, and whoever runs it is told."""
        if self.failure is not None or self.is_stopping:
            return
        because = "" if error is None else f": {type(error).__name__}: {redacted(error)}"
        failure = WorkerFailed(
            f"worker {self.worker_id} has failed and hands its runs back: {part}{because}"
        )
        failure.__cause__ = error
        self.fail_for(failure)

    def fail_for(self, failure: WorkerFailed) -> None:
        """The same, whatever was before."""
        self.failure = failure
        log.error("%s", failure, exc_info=failure.__cause__)
        self.failed.set()

    def stop(self) -> bool:
        """Asks it to stop; False if somebody has asked before."""
        was_stopping, self.is_stopping = self.is_stopping, True
        return not was_stopping
