"""Workers and runs, the outbox and the triggers."""

from __future__ import annotations

from shlex import quote

from pgflow import inspect
from pgflow.console.output import duration, many
from pgflow.doctor.finding import Findings, Patient, each, warn
from pgflow.inspect import health

SILENT_SECONDS = 15
LATE_SECONDS = 60


def check_workers(patient: Patient) -> Findings:
    """Yield workers that are silent, run the code of an older schema or lose threads, and runs
    leased to workers that are gone.
    """
    workers = patient.ask(health.check_workers())
    remedy = "any live worker, or `pgflow tick MODULE`, finds it dead and goes on with its runs"
    alive = [worker for worker in workers if worker.silent_seconds <= SILENT_SECONDS]
    for worker in workers:
        if worker not in alive:
            silence, held = duration(worker.silent_seconds), many(worker.running, "run")
            yield warn(f"{_who(worker)} is silent for {silence} and holds {held}", remedy)
    for stray in patient.ask(health.list_stray_leases()):
        runs = many(stray.runs, "run")
        yield warn(f"{runs} leased to worker {stray.worker_id}, which is gone", remedy)
    for worker in alive:
        if worker.is_outdated:
            yield warn(
                f"{_who(worker)} has the code of an older schema ({worker.version})",
                "it goes on; start a worker of the version that migrated, then stop it with "
                "SIGTERM",
            )
    for worker in alive:
        if worker.lost_threads:
            yield warn(
                f"{_who(worker)} has {many(worker.lost_threads, 'thread')} in bodies of steps that "
                "run on after their runs gave up on them",
                "its log names the steps: set a time-out on the calls they wait for; it hands its "
                "runs back when it has lost too many",
            )
    return f"{many(len(alive), 'worker')} alive, none lost"


def _who(worker: inspect.WorkerHealth) -> str:
    return f"worker {worker.worker_id} (pid {worker.pid} on {worker.host})"


def check_queues(patient: Patient) -> Findings:
    """Yield queued runs that no worker will take."""
    for queue in patient.ask(health.list_waiting_queues()):
        if queue.is_paused:
            text = f"queue {queue.queue} is paused with {many(queue.queued, 'run')} queued"
            yield warn(text, f"pgflow queues resume {quote(queue.queue)}")
        elif not queue.is_served and queue.seconds > SILENT_SECONDS:
            held = f"{many(queue.queued, 'run')} queued for up to {duration(queue.seconds)}"
            remedy = "pgflow workers MODULE, or pgflow tick MODULE from cron"
            yield warn(f"queue {queue.queue} has {held}, and no worker", remedy)
    for lane in patient.ask(health.list_unserved_lanes(SILENT_SECONDS)):
        held = f"{many(lane.queued, 'run')} queued for up to {duration(lane.seconds)}"
        yield warn(
            f"{lane.why}: {held}",
            "start a worker that has it, or, if the name is wrong, "
            f"pgflow cancel --status queued --workflow {quote(lane.workflow)}",
        )
    return "every queue with work is served"


check_stuck = each(
    health.count_stuck,
    "no run is stuck",
    lambda stuck: (
        f"{many(stuck.runs, 'run')} stuck: {stuck.reason}",
        f"pgflow show {quote(stuck.example)}; "
        + (
            "find out what the other side did, then pgflow settle each"
            if stuck.reason == "effect"
            else "fix the cause, then pgflow retry --status stuck"
        ),
    ),
)


_WAITS = {
    "child": "its child {}",
    "lock": "a lock of {}",
    "line": "its turn, which {} has",
    "replacement": "the end of {}, which it replaces",
    "batch": "{}, which is of its batch",
}
MOST_NAMED = 4


def check_deadlocks(patient: Patient) -> Findings:
    """Yield runs that wait for each other."""
    found = patient.ask(health.list_deadlocks(limit=None))
    if not found:
        return "no runs wait for each other"
    waits = [f"{one.key} waits for {_WAITS[one.what].format(one.waits_for)}" for one in found]
    rest = [f"and {len(waits) - MOST_NAMED} more"] if len(waits) > MOST_NAMED else []
    yield warn(
        f"{many(len({one.key for one in found}), 'run')} wait for each other for ever: "
        + "; ".join(waits[:MOST_NAMED] + rest),
        f"pgflow cancel {quote(found[0].key)}, or another of them; then take locks and turns in "
        "one order",
    )


_LEFT = {
    "refused": ("that the code of its run could not take", "--replace, --drop or --requeue"),
    "ended": ("for a run that had ended", "--drop or --requeue"),
}


def _left(left: health.LeftMessages) -> tuple[str, str]:
    what, verbs = _LEFT[left.state]
    remedy = f"pgflow messages {quote(left.example)}; then {verbs} it"
    return f"{many(left.messages, 'signal')} {what}", remedy


check_messages = each(health.count_left_messages, "every signal was taken, or waits to be", _left)


def _lost(loss: health.LossRow) -> tuple[str, str]:
    runs = "no run that it remembers lacks anything"
    if loss.run_count:
        keys = f"{loss.keys}{', ...' if loss.run_count > 5 else ''}"
        runs = f"something of {many(loss.run_count, 'run')} is lost: {keys}"
    piece = f", {loss.bytes:,} bytes of the log" if loss.bytes > 0 else ""
    lost = f"a fail-over lost what was acknowledged to worker {loss.host}/{loss.pid}{piece}"
    close = f"select pgflow.close_loss({loss.loss_id}, 'why')"
    remedy = f"compare what was done outside with what is left, then: {close}"
    return f"loss {loss.loss_id}: {lost}; {runs}", remedy


check_losses = each(
    health.list_losses, "workers know of no fail-over that has lost anything", _lost, "fail"
)


def _large(partition: health.LargePartition) -> tuple[str, str]:
    name, rows = partition.partition, partition.units or 0
    call = f"pgflow.shrink_journal(max_units => {max(rows, 1)}, max_bytes => null)"
    then = "workers shrink it then"
    why, remedy = {
        "busy": (
            f"its lock was not to be had in {partition.tries} tries",
            (
                "workers try again; look for a transaction that reads the journal for long "
                "(pg_stat_activity)"
            ),
        ),
        "units": ("too many to be moved while everybody waits", f"when it is quiet, call {call}"),
        "vacuum": (
            "rows that were removed are still in its file",
            f"vacuum pgflow.{name}, and look for a transaction that is held open; {then}",
        ),
    }[partition.kept_large]
    held = f"partition {name} of the journal has {partition.size} for {many(rows, 'unit')}"
    return f"{held}: {why}", remedy


check_journal = each(
    health.list_large_partitions,
    "no partition of the journal is larger than what it holds",
    _large,
)


def check_seals(patient: Patient) -> Findings:
    """Seals that are late."""
    lag = patient.ask(inspect.read_seal_lag())
    if not lag.is_on:
        return "the journal is not sealed: `pgflow audit on` has workers do it"
    if lag.is_late:
        yield warn(
            f"seals are late: {many(lag.runs_behind, 'run')} not sealed yet, "
            f"{many(lag.runs_pending, 'run')} to be looked at again",
            "start a worker; if there is one, look in its log for why it cannot seal, or for a "
            "transaction that started a run and is held open",
        )
    return f"the journal is sealed, with {many(lag.runs_behind, 'run')} to come"


def check_schedules(patient: Patient) -> Findings:
    """Schedules that start nothing and should, and those that are late."""
    found = patient.ask(inspect.list_schedules(limit=None))
    troubles = [one for one in found if one.state in ("undeclared", "broken") or one.error]
    for one in troubles:
        if one.state == "undeclared":
            yield warn(
                f"schedule {one.name} starts nothing: no code of a living worker declares it",
                "start workers whose code has it; the next `pgflow tick` of that code fires it "
                f"too. If no code has it any more: `pgflow schedules remove {quote(one.name)}`",
            )
        else:
            is_broken = one.state == "broken"
            what = "cannot be evaluated" if is_broken else "could not start its last run"
            yield warn(
                f"schedule {one.name} {what}: {one.error}",
                f"`pgflow schedules show {quote(one.name)}`; set it anew, or mend its code",
            )
    late = [one for one in found if one.late_seconds > LATE_SECONDS]
    if late:
        longest = duration(max(one.late_seconds for one in late))
        yield warn(
            f"{many(len(late), 'schedule')} late, by up to {longest}: {late[0].name}",
            "start a worker, or a tick; if there is one, look in its log for why it cannot keep "
            "the schedules",
        )
    return f"{many(len(found), 'schedule')}, none late"


check_books = each(  # which reads everything, so it is made only on request
    health.check_books,
    "every invariant holds",
    lambda violation: (
        f"{violation.invariant}: {violation.detail}",
        "this is a bug, or another program wrote to pgflow's tables: keep a dump and report it",
    ),
    "fail",
)


def check_relays(patient: Patient) -> Findings:
    """Yield relays whose target fails, and dead events."""
    relays = patient.ask(inspect.list_relays())
    for relay in relays:
        if relay.dead:
            name = quote(relay.name)
            remedy = f"`pgflow outbox show {name}` says why; then `pgflow outbox redeliver {name}`"
            yield warn(f"relay {relay.name} has {many(relay.dead, 'dead event')}", remedy)
        if relay.is_failing:
            failures = f"has failed {relay.failures} times in a row: {relay.error}"
            remedy = f"fix {relay.target}, then `pgflow outbox resume {quote(relay.name)}`"
            yield warn(f"the target of relay {relay.name} {failures}", remedy)
        elif relay.state == "paused" or (relay.state == "idle" and relay.lag >= 10_000):
            yield warn(
                f"relay {relay.name} is {relay.state} with {relay.lag} events to take",
                f"`pgflow outbox resume {quote(relay.name)}`, start a worker whose app has it, or "
                f"`pgflow outbox drop {quote(relay.name)}`: it keeps its events meanwhile",
            )
    return f"{many(len(relays), 'relay')}, none in trouble"


def check_triggers(patient: Patient) -> Findings:
    """Triggers that are not as they were installed."""
    triggers = patient.ask(inspect.list_triggers())
    for trigger in triggers:
        if trigger.state != "installed":
            yield warn(
                f"trigger {trigger.name} on {trigger.target or 'a table that is gone'} was "
                f"{trigger.state} since it was installed",
                "install it again with what `pgflow triggers MODULE --sql` prints",
            )
    return f"{many(len(triggers), 'trigger')}, as installed"
