"""Workflows: how the newest runs of each have gone, and how long their steps take.

As for rates, the newest runs are looked through and no others, so the answer costs the same however
long the history is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgflow._db.query import Query
from pgflow.inspect.question import Question, once
from pgflow.inspect.rates import NEWEST_RUNS

NEWEST_OF_ONE = 100
"""Runs of one workflow whose steps are looked through."""


@dataclass(frozen=True)
class WorkflowRow:
    """A workflow, as its newest runs tell.

    Attributes:
        workflow: Its name.
        runs: Number of its runs among those that were looked through.
        unended: Those that have not ended.
        failed: Those that failed.
        half_seconds: Time from start to end in which half of the ended ones had; None if none has.
        most_seconds: That in which 99 of 100 had.
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
    """A step of a workflow, as its newest runs tell.

    Attributes:
        step: Name of the step.
        calls: Number of calls that were looked through.
        repeated: Those that were begun more than once.
        failed: Those that failed for good.
        half_seconds: Time in which half of them had ended; None where the journal does not have
            their beginning, as of a read.
        most_seconds: That in which 99 of 100 had.
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
    return once(Query(_WORKFLOWS, (newest,), lambda rows: [WorkflowRow(*row) for row in rows]))


def list_step_times(workflow: str, newest: int = NEWEST_OF_ONE) -> Question[list[StepTimes]]:
    """Ask how long the steps of a workflow take, by their names. Of each run the first 200 steps
    are looked at.

    Args:
        workflow: Name of the workflow.
        newest: Number of its newest runs that are looked through.
    """
    params = (workflow, newest)
    return once(Query(_STEPS, params, lambda rows: [StepTimes(*row) for row in rows]))
