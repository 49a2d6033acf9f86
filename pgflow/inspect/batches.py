"""Batches: the number of runs of each, and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pgflow.inspect.question import Question, listed


@dataclass(frozen=True)
class BatchRow:
    """A batch. A row of the view ``pgflow.batches``.

    Attributes:
        key: Key of the run that waits for its members.
        workflow: Workflow of that run.
        opened_at: Time at which its first members were named.
        begun_at: Time at which all had ended, or the run that waits had been cancelled; None if it
            waits.
        is_whole: True once all members are named.
        runs: Number of members.
        passed: Members before the first that is open.
        on_failure: Workflow of the run that begins with the first failure; None if none does.
        failed_at: Time at which the first failure was seen.
        first_failed: Key of the member that had failed then.
        failure_key: Key of the run that has begun with it.
        failure_trouble: SQLSTATE with which its start was refused.
    """

    key: str
    workflow: str
    opened_at: datetime
    begun_at: datetime | None
    is_whole: bool
    runs: int
    passed: int
    on_failure: str | None = None
    failed_at: datetime | None = None
    first_failed: str | None = None
    failure_key: str | None = None
    failure_trouble: str | None = None


def list_batches(*, limit: int | None = 50) -> Question[list[BatchRow]]:
    """Ask for batches, the newest first.

    Args:
        limit: Most rows; None for all.
    """
    return listed(BatchRow, "from pgflow.batches order by opened_at desc limit %s", limit)
