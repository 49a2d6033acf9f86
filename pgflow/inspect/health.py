"""Health: problems of the work in a database, and its volume. ``pgflow doctor`` has the words for
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, LiteralString

from pgflow._db.calls.replay import Idleness, idle_state
from pgflow._db.query import Query, Row
from pgflow.inspect.question import Question, Steps, all_rows, listed, once, question, statement

# ---------------------------------------------------------------- idleness


def read_idleness() -> Question[Idleness]:
    """Ask whether anything is to be done, and when the next timer is due.
    The role needs the rights of a worker.
    """
    return once(idle_state())


# ---------------------------------------------------------------- workers


@dataclass(frozen=True)
class WorkerHealth:
    """The health of a worker.

    Attributes:
        worker_id: The number of the worker.
        host: Name of the machine it runs on.
        pid: Number of its process there.
        running: Number of runs that it holds.
        version: Version of pgflow-engine that it runs.
        is_outdated: True if the schema has been upgraded past its code.
        lost_threads: Threads whose step bodies still run after their worker stopped waiting for
            them.
        silent_seconds: Time since its last sign of life.
    """

    worker_id: int
    host: str
    pid: int
    running: int
    version: str
    is_outdated: bool
    lost_threads: int
    silent_seconds: float


@dataclass(frozen=True)
class StrayLeases:
    """Runs that are leased to a worker which is gone.

    Attributes:
        worker_id: The number of the worker.
        runs: Number of the runs.
    """

    worker_id: int
    runs: int


_WORKERS: LiteralString = """
select w.worker_id, w.host, w.pid, w.running, w.version, w.is_outdated, w.lost_threads,
  extract(epoch from clock_timestamp() - w.beat_at)::float8 as silent
from pgflow.workers w order by w.worker_id
"""
_STRAYS: LiteralString = """
select r.worker_id, count(*) as runs from pgflow.runs r
where r.status = 'running'
  and not exists (select from pgflow.workers w where w.worker_id = r.worker_id)
group by r.worker_id order by r.worker_id
"""


def check_workers() -> Question[list[WorkerHealth]]:
    """Ask for all workers, and how they are."""
    return all_rows(WorkerHealth, _WORKERS)


def list_stray_leases() -> Question[list[StrayLeases]]:
    """Ask for runs that are leased to workers which are gone:
    the next worker that looks takes them over.
    """
    return all_rows(StrayLeases, _STRAYS)


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class WaitingQueue:
    """A queue with runs that may be claimed.

    Attributes:
        queue: Name of the queue.
        queued: Number of the runs.
        is_paused: True if nothing is claimed from it.
        seconds: Time for which the oldest of them has been ready.
        is_served: True if a worker serves it, even one that is about to stop.
    """

    queue: str
    queued: int
    is_paused: bool
    seconds: float
    is_served: bool


@dataclass(frozen=True)
class UnservedLane:
    """A workflow, or a version of one, whose runs no worker of their queue takes.

    Attributes:
        workflow: Name of the workflow.
        queued: Number of runs that may be claimed.
        why: Reason why no worker takes them.
        seconds: Time for which the oldest of them has been ready.
    """

    workflow: str
    queued: int
    why: str
    seconds: float


@dataclass(frozen=True)
class StuckRuns:
    """Runs that are stuck for one reason.

    Attributes:
        reason: The reason.
        runs: Number of the runs.
        example: Key of one of them.
    """

    reason: str | None
    runs: int
    example: str


@dataclass(frozen=True)
class LeftMessages:
    """Signals that need attention.

    Attributes:
        state: ``refused``: the code of the run could not take them; ``ended``: the run had ended.
        messages: Number of the signals.
        example: Key of a run that one of them is for.
    """

    state: Literal["refused", "ended"]
    messages: int
    example: str


_WAITING_QUEUES: LiteralString = """
select q.queue, q.queued, q.paused_at is not null as is_paused,
  extract(epoch from clock_timestamp() - q.oldest_queued_at)::float8 as seconds,
  exists (select from pgflow.workers w where q.queue = any(w.queues)) as is_served
from pgflow.queues q where q.queued > 0 order by q.queue
"""
_UNSERVED_LANES: LiteralString = """
select l.workflow, l.queued, l.why,
  extract(epoch from clock_timestamp() - l.oldest_queued_at)::float8 as seconds
from pgflow.lanes l join pgflow.queues q on q.queue = l.queue
where l.queued > 0 and l.why is not null and q.paused_at is null
  and l.oldest_queued_at < clock_timestamp() - %s * interval '1 second'
  and exists (select from pgflow.workers w where l.queue = any(w.queues))
order by l.queue, l.workflow, l.version limit %s
"""
_STUCK: LiteralString = """
select reason, count(*) as runs, min(key) as example
from pgflow.runs where status = 'stuck' group by reason order by 2 desc
"""
# refused = coalesce(refused, '') is "is not null", of which the planner expects every message; then
# it would read every run.
_MESSAGES: LiteralString = """
select state, count(*) as messages, min(key) as example from (
  select 'refused' as state, key from pgflow.messages where refused = coalesce(refused, '')
  union all
  select 'ended', key from pgflow.undelivered_messages where reason = 'ended'
) m group by state order by state
"""


def list_waiting_queues() -> Question[list[WaitingQueue]]:
    """Ask for the queues with runs that may be claimed, by name."""
    return all_rows(WaitingQueue, _WAITING_QUEUES)


def list_unserved_lanes(
    seconds: float, *, limit: int | None = None
) -> Question[list[UnservedLane]]:
    """Ask for workflows whose queue has workers but whose runs none of them takes.

    Args:
        seconds: Time for which the oldest of them must have been ready.
        limit: Most rows; None for all.
    """
    return all_rows(UnservedLane, _UNSERVED_LANES, seconds, limit)


def count_stuck() -> Question[list[StuckRuns]]:
    """Ask for the number of stuck runs by reason, the most frequent first."""
    return all_rows(StuckRuns, _STUCK)


@dataclass(frozen=True)
class Deadlock:
    """A run that waits for ever, and one that it waits for, which waits for ever too.

    Attributes:
        key: Key of the run.
        workflow: Name of its workflow.
        queue: Name of its queue.
        what: ``child``, ``lock``, ``line``, ``replacement`` or ``batch``.
        waits_for: Key of the run that it waits for: its child, or one that has the lock, that has
            the turn in its line, that it replaces, or that is of its batch.
    """

    key: str
    workflow: str
    queue: str
    what: str
    waits_for: str


def list_deadlocks(*, limit: int | None = 100) -> Question[list[Deadlock]]:
    """Ask for deadlocks: runs that wait for each other until one of them is ended.

    Args:
        limit: Most rows; None for all.
    """
    return listed(Deadlock, "from pgflow.deadlocks() limit %s", limit)


def count_left_messages() -> Question[list[LeftMessages]]:
    """Ask for the number of signals that runs could not take, or that came after their end."""
    return all_rows(LeftMessages, _MESSAGES)


# ---------------------------------------------------------------- the database


@dataclass(frozen=True)
class LossRow:
    """A failover that lost commits acknowledged to workers, and that is not closed yet. A row of
    the view ``pgflow.losses``.

    Attributes:
        loss_id: Number of the loss, for ``pgflow.close_loss()``.
        noticed_at: Time at which a worker noticed.
        host: Name of the machine of that worker.
        pid: Number of its process there.
        bytes: Minimum bytes of the log that were lost; 0 or less if unknown.
        run_count: Runs that lost commits acknowledged to this worker.
        keys: Keys of up to five of them, separated by commas; None if there are none.
    """

    loss_id: int
    noticed_at: datetime
    host: str
    pid: int
    bytes: int
    run_count: int
    keys: str | None


@dataclass(frozen=True)
class LargePartition:
    """A partition of the journal that stays large though history was removed from it. A row of the
    view ``pgflow.partitions``.

    Attributes:
        partition: Name of the table in the schema ``pgflow``.
        units: Rows, by the last vacuum; None if none has been by.
        kept_large: Reason why it has not been shrunk: ``busy``, ``units`` or ``vacuum``.
        tries: Number of times that its lock was not to be had in time.
        size: Size on disk with indexes, in words: ``8192 bytes``, ``12 MB``.
    """

    partition: str
    units: int | None
    kept_large: Literal["busy", "units", "vacuum"]
    tries: int
    size: str


@dataclass(frozen=True)
class Violation:
    """An invariant of the database that does not hold. A row of ``pgflow.check()``.

    Attributes:
        invariant: Name of the invariant.
        detail: Place at which it does not hold.
    """

    invariant: str
    detail: str


_LOSSES: LiteralString = """
select loss_id, noticed_at, host, pid, (acknowledged_lsn - kept_lsn)::bigint as bytes, run_count,
  (
    select string_agg(r.run->>'key', ', ')
    from (select run from jsonb_array_elements(runs) run limit 5) r
  ) as keys
from pgflow.losses where closed_at is null order by loss_id
"""
_KEPT_LARGE: LiteralString = """
select p.partition, p.units, p.kept_large, p.tries, pg_size_pretty(p.bytes) as size
from pgflow.partitions p
where p.kept_large is not null and (p.kept_large <> 'busy' or p.tries >= 3)
order by p.first_run_id
"""


def list_losses() -> Question[list[LossRow]]:
    """Ask for open losses by failovers."""
    return all_rows(LossRow, _LOSSES)


def list_large_partitions() -> Question[list[LargePartition]]:
    """Ask for partitions of the journal that stay large though history was removed from them."""
    return all_rows(LargePartition, _KEPT_LARGE)


def check_books(limit: int | None = 20) -> Question[list[Violation]]:
    """Ask for the engine's own audit, which reads everything. An empty list says that every
    invariant holds.

    Args:
        limit: Most violations; None for all.
    """
    sql = "select invariant, detail from pgflow.check() limit %s"
    return all_rows(Violation, sql, limit)


_LOOKED_AT: tuple[tuple[str, LiteralString], ...] = (
    ("runs", "select * from pgflow.runs order by run_id desc limit 50"),
    ("steps", "select * from pgflow.steps order by run_id desc limit 50"),
    ("effects", "select * from pgflow.effects order by run_id desc limit 50"),
    ("decisions", "select * from pgflow.decisions order by run_id desc limit 50"),
    ("queues", "select * from pgflow.queues"),
    ("workers", "select * from pgflow.workers"),
)
"""Read by dashboards. `lanes` costs too much in an empty database: the few rows that it reads are
never counted.
"""


@question
def read_view_costs() -> Steps[dict[str, float]]:
    """Ask for the cost of a look at each view that people look at, in the planner's units.
    Nothing is executed.
    """
    costs: dict[str, float] = {}
    for name, look in _LOOKED_AT:
        plan: Any = yield Query(statement("explain (format json)", look), (), _read_plan)
        costs[name] = float(plan["Total Cost"])
    return costs


def _read_plan(rows: list[Row]) -> Any:
    return rows[0][0][0]["Plan"]
