"""Workers and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgflow_cli.look.output import duration
from pgflow_cli.ops.checks.finding import Finding, Patient, count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgflow.inspect import WorkerHealth

SILENT_SECONDS = 15
LATE_SECONDS = 60


def check_workers(patient: Patient) -> Iterator[Finding]:
    """Yield workers that are silent, run the code of an older schema or lose threads, and runs
    leased to workers that are gone.
    """
    from pgflow.inspect import health

    workers = patient.ask(health.check_workers())
    alive = [worker for worker in workers if worker.silent_seconds <= SILENT_SECONDS]
    lost = [worker for worker in workers if worker.silent_seconds > SILENT_SECONDS]
    remedy = "any live worker, or `pgflow tick MODULE`, finds it dead and goes on with its runs"
    for worker in lost:
        silence, held = duration(worker.silent_seconds), count_of(worker.running, "run")
        yield Finding("warn", f"{_who(worker)} is silent for {silence} and holds {held}", remedy)
    for stray in patient.ask(health.list_stray_leases()):
        yield Finding(
            "warn",
            f"{count_of(stray.runs, 'run')} leased to worker {stray.worker_id}, which is gone",
            remedy,
        )
    left_behind = [worker for worker in alive if worker.is_outdated]
    for worker in left_behind:
        yield Finding(
            "warn",
            f"{_who(worker)} has the code of an older schema ({worker.version})",
            "it goes on; start a worker of the version that migrated, then stop it with SIGTERM",
        )
    hung = [worker for worker in alive if worker.lost_threads]
    for worker in hung:
        threads = count_of(worker.lost_threads, "thread")
        yield Finding(
            "warn",
            f"{_who(worker)} has {threads} in bodies of steps that run "
            "on after their runs gave up on them",
            "its log names the steps: set a time-out on the calls they wait for; it hands its "
            "runs back when it has lost too many",
        )
    if not lost and not left_behind and not hung:
        yield Finding("ok", f"{count_of(len(alive), 'worker')} alive, none lost")


def _who(worker: WorkerHealth) -> str:
    return f"worker {worker.worker_id} (pid {worker.pid} on {worker.host})"


def check_queues(patient: Patient) -> Iterator[Finding]:
    """Yield queued runs that no worker will take."""
    from pgflow.inspect import health

    wrong = False
    for queue in patient.ask(health.list_waiting_queues()):
        if queue.is_paused:
            wrong = True
            yield Finding(
                "warn",
                f"queue {queue.queue} is paused with {count_of(queue.queued, 'run')} queued",
                f"pgflow queues resume {queue.queue}",
            )
        elif not queue.is_served and queue.seconds > SILENT_SECONDS:
            wrong = True
            yield Finding(
                "warn",
                f"queue {queue.queue} has {count_of(queue.queued, 'run')} queued for up to "
                f"{duration(queue.seconds)}, and no worker",
                "pgflow workers MODULE, or pgflow tick MODULE from cron",
            )
    for lane in patient.ask(health.list_unserved_lanes(SILENT_SECONDS)):
        wrong = True
        yield Finding(
            "warn",
            f"{lane.why}: {count_of(lane.queued, 'run')} queued for up to {duration(lane.seconds)}",
            "start a worker that has it, or, if the name is wrong, "
            "pgflow cancel --status queued --workflow " + lane.workflow,
        )
    if not wrong:
        yield Finding("ok", "every queue with work is served")


def check_stuck(patient: Patient) -> Iterator[Finding]:
    """Runs that need a person."""
    from pgflow.inspect import health

    found = patient.ask(health.count_stuck())
    for stuck in found:
        yield Finding(
            "warn",
            f"{count_of(stuck.runs, 'run')} stuck: {stuck.reason}",
            f"pgflow show {stuck.example}; fix the cause, then pgflow retry --status stuck",
        )
    if not found:
        yield Finding("ok", "no run is stuck")


_WAITS = {
    "child": "its child {}",
    "lock": "a lock of {}",
    "line": "its turn, which {} has",
    "replacement": "the end of {}, which it replaces",
    "batch": "{}, which is of its batch",
}
MOST_NAMED = 4


def check_deadlocks(patient: Patient) -> Iterator[Finding]:
    """Yield runs that wait for each other."""
    from pgflow.inspect import health

    found = patient.ask(health.list_deadlocks(limit=None))
    if not found:
        yield Finding("ok", "no runs wait for each other")
        return
    told = [f"{one.key} waits for {_WAITS[one.what].format(one.waits_for)}" for one in found]
    rest = [f"and {len(told) - MOST_NAMED} more"] if len(told) > MOST_NAMED else []
    yield Finding(
        "warn",
        f"{count_of(len({one.key for one in found}), 'run')} wait for each other for ever: "
        + "; ".join(told[:MOST_NAMED] + rest),
        f"pgflow cancel {found[0].key}, or another of them; then take locks and turns in one order",
    )


_LEFT = {
    "refused": ("that the code of its run could not take", "--replace, --drop or --requeue"),
    "ended": ("for a run that had ended", "--drop or --requeue"),
}


def check_messages(patient: Patient) -> Iterator[Finding]:
    """Yield signals that runs could not take, or that came after their end."""
    from pgflow.inspect import health

    found = patient.ask(health.count_left_messages())
    for left in found:
        what, verbs = _LEFT[left.state]
        yield Finding(
            "warn",
            f"{count_of(left.messages, 'signal')} {what}",
            f"pgflow messages {left.example}; then {verbs} it",
        )
    if not found:
        yield Finding("ok", "every signal was taken, or waits to be")


def check_losses(patient: Patient) -> Iterator[Finding]:
    """Yield fail-overs that lost units acknowledged to workers as durable."""
    from pgflow.inspect import health

    losses = patient.ask(health.list_losses())
    for loss in losses:
        runs = "no run that it remembers lacks anything"
        if loss.run_count:
            runs = (
                f"something of {count_of(loss.run_count, 'run')} is lost: "
                f"{loss.keys}{', ...' if loss.run_count > 5 else ''}"
            )
        piece = f", {loss.bytes:,} bytes of the log" if loss.bytes > 0 else ""
        yield Finding(
            "fail",
            f"loss {loss.loss_id}: a fail-over lost what was acknowledged to worker "
            f"{loss.host}/{loss.pid}{piece}; {runs}",
            "compare what was done outside with what is left, then: select "
            f"pgflow.close_loss({loss.loss_id}, 'why')",
        )
    if not losses:
        yield Finding("ok", "no fail-over has lost anything that workers know of")


def check_journal(patient: Patient) -> Iterator[Finding]:
    """Partitions of the journal that stay large though history was removed from them."""
    from pgflow.inspect import health

    partitions = patient.ask(health.list_large_partitions())
    for partition in partitions:
        name, rows = partition.partition, partition.units or 0
        why, remedy = {
            "busy": (
                f"its lock was not to be had in {partition.tries} tries",
                (
                    "workers try again; look for a transaction that reads the journal for long "
                    "(pg_stat_activity)"
                ),
            ),
            "units": (
                "too many to be moved while everybody waits",
                (
                    f"when it is quiet, call pgflow.shrink_journal(max_units => {max(rows, 1)}, "
                    "max_bytes => null)"
                ),
            ),
            "vacuum": (
                "rows that were removed are still in its file",
                (
                    f"vacuum pgflow.{name}, and look for a transaction that is held open; "
                    "workers shrink it then"
                ),
            ),
        }[partition.kept_large]
        yield Finding(
            "warn",
            f"partition {name} of the journal has {partition.size} for {count_of(rows, 'unit')}: "
            f"{why}",
            remedy,
        )
    if not partitions:
        yield Finding("ok", "no partition of the journal is larger than what it holds")


def check_seals(patient: Patient) -> Iterator[Finding]:
    """Seals that are late."""
    from pgflow.inspect import read_seal_lag

    lag = patient.ask(read_seal_lag())
    if not lag.is_on:
        yield Finding("ok", "the journal is not sealed: `pgflow audit on` has workers do it")
    elif lag.is_late:
        yield Finding(
            "warn",
            f"seals are late: {count_of(lag.runs_behind, 'run')} not sealed yet, "
            f"{count_of(lag.runs_pending, 'run')} to be looked at again",
            "start a worker; if there is one, look in its log for why it cannot seal, or for a "
            "transaction that started a run and is held open",
        )
    else:
        behind = count_of(lag.runs_behind, "run")
        yield Finding("ok", f"the journal is sealed, with {behind} to come")


def check_schedules(patient: Patient) -> Iterator[Finding]:
    """Schedules that start nothing and should, and those that are late."""
    from pgflow.inspect import list_schedules

    found = patient.ask(list_schedules(limit=None))
    troubles = [one for one in found if one.state in ("undeclared", "broken") or one.error]
    for one in troubles:
        if one.state == "undeclared":
            yield Finding(
                "warn",
                f"schedule {one.name} starts nothing: no code of a living worker declares it",
                "start workers whose code has it; the next `pgflow tick` of that code fires it "
                f"too. If no code has it any more: `pgflow schedules remove {one.name}`",
            )
        else:
            what = (
                "cannot be evaluated" if one.state == "broken" else "could not start its last run"
            )
            yield Finding(
                "warn",
                f"schedule {one.name} {what}: {one.error}",
                f"`pgflow schedules show {one.name}`; set it anew, or mend its code",
            )
    late = [one for one in found if one.late_seconds > LATE_SECONDS]
    if late:
        longest = duration(max(one.late_seconds for one in late))
        yield Finding(
            "warn",
            f"{count_of(len(late), 'schedule')} late, by up to {longest}: {late[0].name}",
            "start a worker, or a tick; if there is one, look in its log for why it cannot keep "
            "the schedules",
        )
    if not troubles and not late:
        yield Finding("ok", f"{count_of(len(found), 'schedule')}, none late")


def check_books(patient: Patient) -> Iterator[Finding]:
    """Yield violations that the engine's own audit finds. It reads everything, so it runs only on
    request.
    """
    from pgflow.inspect import health

    violations = patient.ask(health.check_books())
    for violation in violations:
        found = f"{violation.invariant}: {violation.detail}"
        yield Finding(
            "fail",
            found,
            "this is a bug, or another program wrote to pgflow's tables: keep a dump and report it",
        )
    if not violations:
        yield Finding("ok", "every invariant holds")
