"""Workers and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgflow_cli.checks.finding import Finding, Patient, count_of
from pgflow_cli.output import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

SILENT_SECONDS = 15

_WORKERS = """
select w.worker_id, w.host, w.pid, w.running, w.version, w.is_outdated, w.lost_threads,
  extract(epoch from clock_timestamp() - w.beat_at)::float8 as silent
from pgflow.workers w order by w.worker_id
"""

_STRAYS = """
select r.worker_id, count(*) as runs from pgflow.runs r
where r.status = 'running' and not exists (select from pgflow.workers w where w.worker_id = r.worker_id)
group by r.worker_id order by r.worker_id
"""


def check_workers(patient: Patient) -> Iterator[Finding]:
    """Workers that have gone silent, that an upgrade has left behind or that lose threads, and runs that are leased to nobody."""
    rows = patient.rows(_WORKERS)
    alive = [row for row in rows if row["silent"] <= SILENT_SECONDS]
    lost = [row for row in rows if row["silent"] > SILENT_SECONDS]
    remedy = "any live worker, or `pgflow tick MODULE`, finds it dead and goes on with its runs"
    for row in lost:
        who = f"worker {row['worker_id']} (pid {row['pid']} on {row['host']})"
        yield Finding("warn", f"{who} is silent for {duration(row['silent'])} and holds {count_of(row['running'], 'run')}", remedy)
    for row in patient.rows(_STRAYS):
        yield Finding("warn", f"{count_of(row['runs'], 'run')} leased to worker {row['worker_id']}, which is gone", remedy)
    left_behind = [row for row in alive if row["is_outdated"]]
    for row in left_behind:
        who = f"worker {row['worker_id']} (pid {row['pid']} on {row['host']})"
        yield Finding(
            "warn", f"{who} has the code of an older schema ({row['version']})",
            "it goes on; start a worker of the version that migrated, then stop it with SIGTERM",
        )
    hung = [row for row in alive if row["lost_threads"]]
    for row in hung:
        who = f"worker {row['worker_id']} (pid {row['pid']} on {row['host']})"
        yield Finding(
            "warn", f"{who} has {count_of(row['lost_threads'], 'thread')} at bodies of steps that go on though nobody waits for them",
            "its log names the steps: give what they wait for a time-out of its own; it hands its runs back when it has lost too many",
        )
    if not lost and not left_behind and not hung:
        yield Finding("ok", f"{count_of(len(alive), 'worker')} alive, none lost")


_WAITING_QUEUES = """
select q.queue, q.queued, q.paused_at is not null as is_paused,
  extract(epoch from clock_timestamp() - q.oldest_queued_at)::float8 as seconds,
  exists (select from pgflow.workers w where q.queue = any(w.queues)) as is_served
from pgflow.queues q where q.queued > 0 order by q.queue
"""


_UNSERVED_LANES = """
select l.workflow, l.queued, l.why, extract(epoch from clock_timestamp() - l.oldest_queued_at)::float8 as seconds
from pgflow.lanes l join pgflow.queues q on q.queue = l.queue
where l.queued > 0 and l.why is not null and q.paused_at is null and l.oldest_queued_at < clock_timestamp() - %s * interval '1 second'
  and exists (select from pgflow.workers w where l.queue = any(w.queues))
order by l.queue, l.workflow, l.version
"""


def check_queues(patient: Patient) -> Iterator[Finding]:
    """Runs that nobody will take."""
    wrong = False
    for row in patient.rows(_WAITING_QUEUES):
        if row["is_paused"]:
            wrong = True
            yield Finding(
                "warn",
                f"queue {row['queue']} is paused with {count_of(row['queued'], 'run')} queued",
                f"pgflow queues resume {row['queue']}",
            )
        elif not row["is_served"] and row["seconds"] > SILENT_SECONDS:
            wrong = True
            yield Finding(
                "warn",
                f"queue {row['queue']} has {count_of(row['queued'], 'run')} queued for up to {duration(row['seconds'])}, and no worker",
                "pgflow workers MODULE, or pgflow tick MODULE from cron",
            )
    for row in patient.rows(_UNSERVED_LANES, (SILENT_SECONDS,)):
        wrong = True
        yield Finding(
            "warn",
            f"{row['why']}: {count_of(row['queued'], 'run')} queued for up to {duration(row['seconds'])}",
            "start a worker that has it, or, if the name is wrong, pgflow cancel --status queued --workflow " + row["workflow"],
        )
    if not wrong:
        yield Finding("ok", "every queue with work is served")


def check_stuck(patient: Patient) -> Iterator[Finding]:
    """Runs that need a person."""
    rows = patient.rows(
        "select reason, count(*) as runs, min(key) as example from pgflow.runs where status = 'stuck' group by reason order by 2 desc"
    )
    for row in rows:
        yield Finding(
            "warn",
            f"{count_of(row['runs'], 'run')} stuck: {row['reason']}",
            f"pgflow show {row['example']}; mend the cause, then pgflow retry --status stuck",
        )
    if not rows:
        yield Finding("ok", "no run is stuck")


def check_messages(patient: Patient) -> Iterator[Finding]:
    """Signals that runs could not take, or had ended before they came."""
    rows = patient.rows(
        "select reason, verbs, count(*) as messages, min(key) as example from ("
        "  select 'that the code of its run could not take' as reason, '--replace, --drop or --requeue' as verbs, key"
        "  from pgflow.messages where refused is not null"
        "  union all"
        "  select 'for a run that had ended', '--drop or --requeue', key from pgflow.undelivered_messages where reason = 'ended'"
        ") m group by reason, verbs order by reason"
    )
    for row in rows:
        yield Finding(
            "warn", f"{count_of(row['messages'], 'signal')} {row['reason']}",
            f"pgflow messages {row['example']}; then {row['verbs']} it",
        )  # fmt: skip
    if not rows:
        yield Finding("ok", "every signal was taken, or waits to be")


_LOSSES = """
select loss_id, noticed_at, host, pid, acknowledged_lsn, kept_lsn, acknowledged_lsn - kept_lsn as bytes, run_count,
  (select string_agg(r.run->>'key', ', ') from (select run from jsonb_array_elements(runs) run limit 5) r) as keys
from pgflow.losses where closed_at is null order by loss_id
"""


def check_losses(patient: Patient) -> Iterator[Finding]:
    """Check for fail-overs that lost units which workers were told are durable."""
    rows = patient.rows(_LOSSES)
    for row in rows:
        runs = "no run that it remembers lacks anything"
        if row["run_count"]:
            runs = f"something of {count_of(row['run_count'], 'run')} is lost: {row['keys']}{', ...' if row['run_count'] > 5 else ''}"
        piece = f", {row['bytes']:,} bytes of the log" if row["bytes"] > 0 else ""
        yield Finding(
            "fail",
            f"loss {row['loss_id']}: a fail-over lost what was acknowledged to worker {row['host']}/{row['pid']}{piece}; {runs}",
            f"compare what was done outside with what is left, then: select pgflow.close_loss({row['loss_id']}, 'why')",
        )
    if not rows:
        yield Finding("ok", "no fail-over has lost anything that workers know of")


_KEPT_LARGE = """
select p.partition, p.units, p.kept_large, p.tries, pg_size_pretty(p.bytes) as size
from pgflow.partitions p where p.kept_large is not null and (p.kept_large <> 'busy' or p.tries >= 3) order by p.first_run_id
"""


def check_journal(patient: Patient) -> Iterator[Finding]:
    """Partitions of the journal that stay large though history was removed from them."""
    rows = patient.rows(_KEPT_LARGE)
    for row in rows:
        name, units = row["partition"], count_of(row["units"], "unit")
        why, remedy = {
            "busy": (
                f"its lock was not to be had in {row['tries']} tries",
                "workers try again; look for a transaction that reads the journal for long (pg_stat_activity)",
            ),
            "units": (
                "too many to be moved while everybody waits",
                f"when it is quiet, call pgflow.shrink_journal(max_units => {max(row['units'], 1)}, max_bytes => null)",
            ),
            "vacuum": (
                "rows that were removed are still in its file",
                f"vacuum pgflow.{name}, and look for a transaction that is held open; workers shrink it then",
            ),
        }[row["kept_large"]]
        yield Finding("warn", f"partition {name} of the journal has {row['size']} for {units}: {why}", remedy)
    if not rows:
        yield Finding("ok", "no partition of the journal is larger than what it holds")


def check_books(patient: Patient) -> Iterator[Finding]:
    """The engine's own audit: reads everything, hence only when asked for."""
    rows = patient.rows("select invariant, detail from pgflow.check() limit 20")
    for row in rows:
        yield Finding(
            "fail", f"{row['invariant']}: {row['detail']}", "this is a bug, or somebody wrote to pgflow's tables: keep a dump and report it"
        )
    if not rows:
        yield Finding("ok", "every invariant holds")
