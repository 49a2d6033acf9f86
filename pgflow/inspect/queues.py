"""Queues and their lanes: backlog, running work, and the workers that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from pgflow._db.query import Query
from pgflow.inspect.question import (
    Question,
    Steps,
    all_rows,
    first_row,
    listed,
    once,
    question,
    select,
)


@dataclass(frozen=True)
class QueueRow:
    """A queue. A row of the view ``pgflow.queues``.

    Attributes:
        queue: Name of the queue.
        queued: Runs that may be claimed.
        running: Runs that a worker holds.
        waiting: Runs that wait for a signal, a child, a timer or their time to start.
        paused: Paused runs.
        stuck: Runs that need a person.
        oldest_queued_at: Time since which the oldest of the queued runs may be claimed; None if
            none is queued.
        max_running: Maximum runs held at once by all workers; None for no limit.
        max_deaths: Number of workers that may die holding a run without progress before it is
            stuck.
        paused_at: Time of the pause; None if it is not paused.
        refuses_unknown: True if it refuses starts of workflows that no worker has ever registered.
        workers: Workers that serve it and are not about to stop.
        rules: Its rules by name, as ``set_queue`` takes them.
    """

    queue: str
    queued: int
    running: int
    waiting: int
    paused: int
    stuck: int
    oldest_queued_at: datetime | None
    max_running: int | None
    max_deaths: int
    paused_at: datetime | None
    refuses_unknown: bool
    workers: int
    rules: dict[str, Any]


@dataclass(frozen=True)
class LaneRow:
    """A workflow of a queue, or a version of one that runs are pinned to. A row of the view
    ``pgflow.lanes``.

    Attributes:
        queue: Name of the queue.
        workflow: Name of the workflow.
        version: Version of the code that its runs need; empty for any.
        queued: Runs that may be claimed.
        oldest_queued_at: Time since which the oldest of them may be claimed;
            None if none is queued.
        why: Reason why no worker takes queued runs; None if one does.
        why_code: That reason as a code: ``queue_paused``, ``no_worker``, ``no_workflow`` or
            ``no_version``.
        lane_id: Number of the lane.
    """

    queue: str
    workflow: str
    version: str
    queued: int
    oldest_queued_at: datetime | None
    why: str | None
    why_code: str | None
    lane_id: int


@dataclass(frozen=True)
class QueueChangeRow:
    """A change of a queue. A row of the view ``pgflow.queue_changes``.

    Attributes:
        changed_at: Time of the change.
        queue: Name of the queue.
        what: ``set``, ``paused`` or ``resumed``.
        said: Rules that were set; None removes one.
        why: The reason given; None for none.
        changed_by: Author of the change, with the role of the session in brackets.
    """

    changed_at: datetime
    queue: str
    what: str
    said: dict[str, Any]
    why: str | None
    changed_by: str


_QUEUES: LiteralString = """
select q.queue, q.queued, q.running, q.waiting, q.paused, q.stuck, q.oldest_queued_at,
  q.max_running, q.max_deaths, q.paused_at, q.refuses_unknown,
  (
    select count(*) from pgflow.workers w where q.queue = any(w.queues) and not w.stopping
  ) as workers,
  q.rules
from pgflow.queues q where %s::text is null or q.queue = %s order by q.queue
"""


def list_queues(queue: str | None = None) -> Question[list[QueueRow]]:
    """Ask for all queues by name. It counts every open run.

    Args:
        queue: Name of the only queue to ask for; None for all.
    """
    return all_rows(QueueRow, _QUEUES, queue, queue)


def list_queue_changes(
    queue: str | None = None, *, limit: int | None = 50
) -> Question[list[QueueChangeRow]]:
    """Ask who set which rules of queues, paused or resumed them: the latest first.

    Args:
        queue: Name of the only queue to ask for; None for all.
        limit: Most rows; None for all.
    """
    return listed(
        QueueChangeRow,
        "from pgflow.queue_changes where %s::text is null or queue = %s order by "
        "changed_at desc limit %s",
        queue,
        queue,
        limit,
    )


def list_queue_names() -> Question[list[str]]:
    """Ask for the names of all queues, in their order."""
    return all_rows(str, "select queue from pgflow.queues order by queue")


def unknown_queues(names: Sequence[str]) -> Question[list[str]]:
    """Ask for those of these names that no queue has."""
    sql = (
        "select f.word from unnest(%s::text[]) f (word) "
        "where not exists (select from pgflow.queues q where q.queue = f.word)"
    )
    return all_rows(str, sql, list(names))


_LANES: LiteralString = select(
    LaneRow,
    ("from pgflow.lanes where %s::text is null or queue = %s order by queue, workflow, version"),
)
_QUEUED_LANES: LiteralString = select(
    LaneRow,
    (
        "from pgflow.lanes where (%s::text is null or queue = %s) and queued > 0 order "
        "by oldest_queued_at, queue, workflow, version limit %s"
    ),
)


def list_lanes(queue: str | None = None) -> Question[list[LaneRow]]:
    """Ask for all lanes by queue, workflow and version. It counts every queued run.

    Args:
        queue: Name of the only queue to ask for; None for all.
    """
    return all_rows(LaneRow, _LANES, queue, queue)


def list_queued_lanes(
    queue: str | None = None, *, limit: int | None = 50
) -> Question[list[LaneRow]]:
    """Ask for the lanes in which runs are queued: those that wait longest first.

    Args:
        queue: Name of the only queue to ask for; None for all.
        limit: Most rows; None for all.
    """
    return all_rows(LaneRow, _QUEUED_LANES, queue, queue, limit)


def is_served(queue: str) -> Question[bool]:
    """Ask for True if a worker serves a queue and is not about to stop."""
    sql = "select 1 from pgflow.workers where %s = any(queues) and not stopping limit 1"
    return once(Query(sql, (queue,), bool))


def why_unserved(queue: str, workflow: str, version: str = "") -> Question[str | None]:
    """Ask for the reason why no worker takes runs of a workflow and pinned version from a queue;
    None if a worker does.
    """
    sql = (
        "select why from pgflow.lane_reasons "
        "where queue = %s and workflow = %s and version = %s and why is not null"
    )
    return first_row(str, sql, queue, workflow, version)


_MAY_READ_LANES: LiteralString = (
    "select pg_catalog.has_table_privilege('pgflow.lane', 'select') as may"
)
_LATEST: LiteralString = """
select queue
from (select queue, workflow, run_id from pgflow.runs order by run_id desc limit 20000) recent
where workflow = %s order by run_id desc limit 1
"""
_LANE: LiteralString = """
select queue from pgflow.lane where workflow = %s and version = ''
order by queue <> 'default', lane_id limit 1
"""


@question
def find_queue(workflow: str) -> Steps[str | None]:
    """Ask for the queue of a workflow that is known by name only: that of its latest run, else one
    that workers serve for it.

    Args:
        workflow: Name of the workflow.

    Returns:
        Name of the queue; None if none of the newest 20,000 runs is of this workflow and no worker
        has ever had it, as far as the role may know.
    """
    may_read_lanes: bool = yield Query(_MAY_READ_LANES, (), lambda rows: rows[0][0])
    found: list[str] = yield Query(_LATEST, (workflow,), lambda rows: [row[0] for row in rows])
    if not found and may_read_lanes:
        found = yield Query(_LANE, (workflow,), lambda rows: [row[0] for row in rows])
    return found[0] if found else None


@question
def list_workflows(limit: int = 1000) -> Steps[list[str]]:
    """Ask for the names of the workflows that runs or workers have named, in no order.

    Args:
        limit: Most names.
    """
    may_read_lanes: bool = yield Query(_MAY_READ_LANES, (), lambda rows: rows[0][0])
    of_lanes: LiteralString = "select distinct workflow from pgflow.lane limit %s"
    of_runs: LiteralString = "select distinct workflow from pgflow.runs limit %s"
    names: list[str] = yield Query(
        of_lanes if may_read_lanes else of_runs, (limit,), lambda rows: [row[0] for row in rows]
    )
    return names
