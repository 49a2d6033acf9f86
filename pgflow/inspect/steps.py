"""Steps of a run: a page of them, in the order of its code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgflow.inspect.listing import After, Listing, page
from pgflow.inspect.question import Question, select


@dataclass(frozen=True)
class StepRow:
    """A step of a run. A row of the view ``pgflow.steps``.

    Attributes:
        call: Number of the call, in the order in which the code made them.
        step: Name of the step.
        status: ``started``, ``completed``, ``failed`` or ``abandoned``.
        attempts: Number of times that its body was begun, as far as is recorded; more than 1 means
            that it may have acted more than once.
        started_at: Time at which its body was first allowed to start; None where no leave is
            needed, as for a read.
        ended_at: Time at which it returned, failed for the last time or was given up;
            None if it has not.
        idempotency_key: Answer of ``idempotency_key()`` in its body, the same in every attempt;
            None for a read.
        output: Value that it returned; None unless it completed.
        error: The exception that it raised for the last time; None unless it failed.
        is_inherited: True if it is a step of the run whose journal this one begins with.
    """

    call: int
    step: str
    status: str
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    idempotency_key: str | None
    output: Any
    error: dict[str, Any] | None
    is_inherited: bool


def list_steps(
    run_id: int, *, after: After = None, limit: int | None = 50
) -> Question[Listing[StepRow]]:
    """Ask for a page of the steps of a run.

    Args:
        run_id: The number of the run.
        after: ``next`` of the previous page, or the number of a call; None for the first page.
        limit: Maximum steps of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    sql = select(StepRow, "from pgflow.steps where run_id = %s")
    return page(StepRow, sql, (run_id,), {"call": int}, after, limit)
