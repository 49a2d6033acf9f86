"""The state of a worker that its parts share: its number, its last heartbeat, and whether it has
failed or stops.
"""

from __future__ import annotations

import asyncio
import logging
import time

from pgflow.errors import WorkerFailed
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Life:
    """State that every part of a worker may read. Only the methods here change it.

    A worker that has failed or stops stays so. The heart's thread records heartbeats; the worker's
    loop changes the rest.

    Args:
        stale_after_seconds: Age of the last heartbeat from which on others might soon believe this
            worker dead.

    Attributes:
        worker_id: The worker's number in the database; 0 before it is registered, a new one after
            it was declared dead.
        is_stopping: True once it is asked to stop.
        failed: Set once it can no longer work.
        failure: The reason for that; None before.
        stale_at: Time of the monotonic clock at which the last heartbeat becomes so old that others
            might soon believe this worker dead.
    """

    def __init__(self, stale_after_seconds: float) -> None:
        self.worker_id = 0
        self.is_stopping = False
        self.failed = asyncio.Event()
        self.failure: WorkerFailed | None = None
        self._stale_after_seconds = stale_after_seconds
        self.beaten(time.monotonic())

    def registered(self, worker_id: int) -> None:
        """Record the number of a new registration."""
        self.worker_id = worker_id

    def beaten(self, at: float) -> None:
        """Record the acknowledgement of a heartbeat sent at this time."""
        self.stale_at = at + self._stale_after_seconds

    @property
    def age_seconds(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent."""
        return time.monotonic() - self.stale_at + self._stale_after_seconds

    def fail(self, part: str, error: BaseException | None = None) -> None:
        """End this worker with an error: it claims nothing more, and its owner is notified by
        `failed`.
        """
        if self.failure is not None or self.is_stopping:
            return
        because = "" if error is None else f": {type(error).__name__}: {redacted(error)}"
        failure = WorkerFailed(
            f"worker {self.worker_id} has failed and hands its runs back: {part}{because}"
        )
        failure.__cause__ = error
        self.fail_for(failure)

    def fail_for(self, failure: WorkerFailed) -> None:
        """End this worker with this error, even if it is stopping or has failed before."""
        self.failure = failure
        log.error("%s", failure, exc_info=failure.__cause__)
        self.failed.set()

    def stop(self) -> bool:
        """Ask the worker to stop; return False if it was asked before."""
        was_stopping, self.is_stopping = self.is_stopping, True
        return not was_stopping
