"""Workflows: outcomes of the newest runs of each, and durations of their steps.

As for rates, the newest runs are looked through and no others, so the answer costs the same however
long the history is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgflow.inspect.question import Question, all_rows
from pgflow.inspect.rates import NEWEST_RUNS

NEWEST_OF_ONE = 100
"""Number of runs of a workflow whose steps are scanned."""


@dataclass(frozen=True)
class WorkflowRow:
    """Statistics of a workflow over its newest runs.

    Attributes:
        workflow: Its name.
        runs: Number of its runs among those scanned.
        unended: Runs that have not ended.
        failed: Runs that failed.
        half_seconds: Median time from start to end, in seconds; None if no run has ended.
        most_seconds: 99th percentile of the same, in seconds.
        last_at: Time at which the newest was started.
    """

    workflow: str
    runs: int
    unended: int
    failed: int
    half_seconds: float | None
    most_seconds: float | None
    last_at: datetime


@dataclass(frozen=True)
class StepTimes:
    """Statistics of a step of a workflow over its newest runs.

    Attributes:
        step: Name of the step.
        calls: Number of calls scanned.
        repeated: Calls that started more than once.
        failed: Calls that failed for good.
        half_seconds: Median duration in seconds; None if the journal lacks the start times, as for
            a read.
        most_seconds: 99th percentile of the same, in seconds.
    """

    step: str
    calls: int
    repeated: int
    failed: int
    half_seconds: float | None
    most_seconds: float | None


_WORKFLOWS: LiteralString = """
select workflow, count(*) as runs, count(*) filter (where finished_at is null) as unended,
  count(*) filter (where status = 'failed') as failed,
  percentile_cont(0.5) within group (order by seconds) as half,
  percentile_cont(0.99) within group (order by seconds) as most, max(created_at) as last_at
from (
  select workflow, status, created_at, finished_at,
    extract(epoch from finished_at - created_at)::float8 as seconds
  from pgflow.runs order by run_id desc limit %s
) r group by workflow order by workflow
"""
_STEPS: LiteralString = """
select s.step, count(*) as calls, count(*) filter (where s.attempts > 1) as repeated,
  count(*) filter (where s.status = 'failed') as failed,
  percentile_cont(0.5) within group (order by s.seconds) as half,
  percentile_cont(0.99) within group (order by s.seconds) as most
from (
  select run_id from pgflow.runs where workflow = %s order by run_id desc limit %s
) r cross join lateral (
  select step, status, attempts, extract(epoch from ended_at - started_at)::float8 as seconds
  from pgflow.steps where run_id = r.run_id order by call limit 200
) s group by s.step order by s.step
"""


def list_workflow_rows(newest: int = NEWEST_RUNS) -> Question[list[WorkflowRow]]:
    """Ask how the newest runs of each workflow have gone, by its name.

    Args:
        newest: Number of the newest runs that are looked through.
    """
    return all_rows(WorkflowRow, _WORKFLOWS, newest)


def list_step_times(workflow: str, newest: int = NEWEST_OF_ONE) -> Question[list[StepTimes]]:
    """Ask for the durations of the steps of a workflow, by name. Of each run the first 200 steps
    are looked at.

    Args:
        workflow: Name of the workflow.
        newest: Number of its newest runs that are looked through.
    """
    params = (workflow, newest)
    return all_rows(StepTimes, _STEPS, *params)
