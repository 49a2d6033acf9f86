"""Workers: the processes that count as alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgflow.inspect.question import Question, all_rows, columns, only_row, statement


@dataclass(frozen=True)
class WorkerRow:
    """A worker. A row of the view ``pgflow.workers``.

    Attributes:
        worker_id: The number of the worker.
        host: Name of the machine it runs on.
        pid: Number of its process there.
        queues: Queues that it serves.
        concurrency: Most runs that it holds at once.
        running: Number of runs that it holds now.
        stopping: True once it takes no further runs.
        version: Version of pgflow-engine that it runs.
        started_at: Time at which it announced itself.
        beat_at: Time of its last sign of life.
        is_outdated: True if the schema has been upgraded past the code of the worker.
        lost_threads: Threads whose step bodies still run after the worker stopped waiting for them.
    """

    worker_id: int
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    running: int
    stopping: bool
    version: str
    started_at: datetime
    beat_at: datetime
    is_outdated: bool
    lost_threads: int


@dataclass(frozen=True)
class WorkerCount:
    """Workers of a database, as one figure.

    Attributes:
        workers: Number of workers that count as alive.
        silence_seconds: Time since the last sign of life of the most silent of them;
            None if there is none.
    """

    workers: int
    silence_seconds: float | None


@dataclass(frozen=True)
class Holder:
    """A worker that holds runs.

    Attributes:
        worker_id: The number of the worker.
        beat: Counts up while it lives; None if it counts as dead already.
    """

    worker_id: int
    beat: int | None


@dataclass(frozen=True)
class HeldRun:
    """A run that a worker holds, and what it is about.

    Attributes:
        key: Key of the run.
        workflow: Name of its workflow.
        queue: Queue that it was claimed from.
        since: Time of the claim.
        attempt: Claims since the run last made progress.
        run_id: The number of the run.
        event: Kind of the newest unit of its journal; None if it has none.
        name: Name of what that is about; None where there is none.
        at: Time at which it was recorded; None if there is none.
        starts: Names of the steps that this unit allowed to start.
    """

    key: str
    workflow: str
    queue: str
    since: datetime
    attempt: int
    run_id: int
    event: str | None
    name: str | None
    at: datetime | None
    starts: list[str]


_COLUMNS: LiteralString = columns(WorkerRow)


def list_workers() -> Question[list[WorkerRow]]:
    """Ask for all workers that count as alive, by their number."""
    sql = statement("select", _COLUMNS, "from pgflow.workers order by worker_id")
    return all_rows(WorkerRow, sql)


_HELD: LiteralString = """
select r.key, r.workflow, r.queue, r.since, r.attempt, r.run_id, u.event, u.name, u.recorded_at,
  array(select s->>2 from jsonb_array_elements(coalesce(u.starts::jsonb, '[]')) s)
from pgflow.runs r
left join lateral (
  select t.event, t.name, t.recorded_at, t.starts from pgflow.timeline t
  where t.run_id = r.run_id order by t.seq desc limit 1
) u on true
where r.status = 'running' and r.worker_id = %s and (%s::text is null or r.tenant = %s)
order by r.since, r.run_id limit %s
"""


def list_held_runs(
    worker_id: int, *, tenant: str | None = None, limit: int | None = 50
) -> Question[list[HeldRun]]:
    """Ask for the runs that a worker holds, those that it has held longest first.

    Args:
        worker_id: The number of the worker.
        tenant: Only runs of this tenant; None for all.
        limit: Most rows; None for all.
    """
    params = (worker_id, tenant, tenant, limit)
    return all_rows(HeldRun, _HELD, *params)


def count_workers() -> Question[WorkerCount]:
    """Ask for the number of workers, and for the longest silence among them. It reads no runs."""
    sql = """
      select count(*) as workers,
        extract(epoch from clock_timestamp() - min(beat_at))::float8 as silence
      from pgflow.workers
    """
    return only_row(WorkerCount, sql)


def list_holders(
    queues: Sequence[str], workflows: Sequence[str], but: int
) -> Question[list[Holder]]:
    """Ask for the workers that hold runs of these workflows in these queues.

    Args:
        queues: Names of the queues.
        workflows: Names of the workflows.
        but: The number of a worker to leave out.
    """
    sql = """
      select h.worker_id, w.beat
      from (
        select distinct worker_id from pgflow.runs
        where status = 'running' and queue = any(%s::text[]) and workflow = any(%s::text[])
          and worker_id <> %s::int
      ) h left join pgflow.workers w on w.worker_id = h.worker_id
    """
    return all_rows(Holder, sql, list(queues), list(workflows), but)
