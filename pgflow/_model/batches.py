"""Batches, as a client counts them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchCount:
    """Members of a batch, and their ends.

    Attributes:
        runs: Number of members.
        completed: Members that have completed.
        failed: Members that have failed.
        cancelled: Members that have been cancelled.
        is_whole: True once all members are started.
    """

    runs: int
    completed: int
    failed: int
    cancelled: int
    is_whole: bool

    @property
    def open(self) -> int:
        """Members that have not ended; none if the batch is over."""
        return self.runs - self.completed - self.failed - self.cancelled
