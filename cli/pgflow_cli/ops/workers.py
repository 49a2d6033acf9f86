"""``pgflow workers``: a process that drains queues; without a module, the list of those that do;
and ``pgflow tick``: what cron runs. It reclaims, drains, and ends when there is nothing left to do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pgflow import inspect
from pgflow.console.output import age, as_object, duration, many, note, when
from pgflow_cli.look import github, nodes
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, arg, opt
from pgflow_cli.look.failures import DONE, FAILED, NEEDS_A_PERSON, TIME_LIMIT
from pgflow_cli.look.options import Answer, Rows
from pgflow_cli.look.parsing import DeadAfter, parse_amounts, seconds_option
from pgflow_cli.look.selection import split_words
from pgflow_cli.ops.options import (
    PORT,
    Concurrency,
    Endpoints,
    Logs,
    QueueNames,
    QuietLogs,
    WorkerTarget,
    grace_option,
)

if TYPE_CHECKING:
    from pgflow.app.draining import Drained


def _settings(
    *,
    concurrency: Concurrency = 100,
    queues: QueueNames = None,
    grace_seconds: Annotated[float, grace_option("steps")] = 10.0,
    poll_seconds: Annotated[float, seconds_option("--poll", shown="1s", least=0.01)] = 1.0,
    transaction_idle_seconds: Annotated[
        float, seconds_option("--transaction-idle", shown="5m", least=0.001)
    ] = 300.0,
    transaction_connections: Annotated[int, opt("--transactions", min=1, metavar="COUNT")] = 4,
    dead_after: DeadAfter = 10.0,
) -> dict[str, Any]:
    """Return the options of the worker, as `AsyncApp.worker` takes them.

    Args:
        transaction_connections: Most @transactions that are open at once, on as many connections.
        poll_seconds: Time between sweeps where nothing is notified.
        transaction_idle_seconds: Time for which a @transaction may be idle before the server ends
            it.
    """
    return {**locals(), "queues": split_words(queues) or None}


def _endpoints(
    *,
    metrics_port: Annotated[int | None, PORT] = None,
    metrics_host: str = "127.0.0.1",
    health_port: Annotated[int | None, PORT] = None,
    health_host: str = "127.0.0.1",
) -> Endpoints:
    """Return the options.

    Args:
        metrics_host: Address of that endpoint, which needs no password.
        health_host: Address of that port.
        metrics_port: Port of an endpoint for Prometheus; 0 for any that is free.
        health_port: Port that answers probes at /live and /ready; 0 for any that is free.
    """
    return Endpoints(
        None if metrics_port is None else (metrics_host, metrics_port),
        None if health_port is None else (health_host, health_port),
    )


def workers(
    target: WorkerTarget = None,
    *,
    settings: Annotated[dict[str, Any], Made(_settings)],
    processes: Annotated[int, opt(min=1, max=256)] = 1,
    node: Annotated[int | None, opt(min=0)] = None,
    all_nodes: bool = False,
    supervised: Annotated[bool, opt("--supervised", hidden=True)] = False,
    endpoints: Annotated[Endpoints, Made(_endpoints)],
    logs: Logs,
    only_list: Annotated[bool, opt("--list")] = False,
    db: Rows,
) -> None:
    """Works on runs until SIGTERM, or lists the workers.

    Without a module it lists the workers. After SIGTERM it claims nothing more, finishes or hands
    back its runs, and exits 0. A second signal is a crash: nothing is handed back, and the runs go
    on elsewhere once this worker is found dead. With --processes, one that dies is started again.

    Args:
        processes: Processes to run, each of which is a worker.
        node: Node of the cluster to work on; else that of --dsn.
        all_nodes: So many processes for each node of the cluster, not in all.
        supervised: Ends with standard input.
        only_list: List the workers, as without a module.
    """
    if node is not None:
        with db:
            db = Database(nodes.dsn_of(db, node), db.form)
    if target is None or only_list:
        with db:
            _list_workers(db)
        return
    import asyncio

    from pgflow_cli.look.targets import load_app
    from pgflow_cli.ops.serving import (
        Stop,
        Supervisor,
        follow_supervisor,
        leave,
        serve,
        spare_what_is_loaded,
    )

    logs.set_up()
    stop = Stop()
    places: list[int] = []
    if all_nodes and node is None:
        with db:
            places = [one.node for one in nodes.nodes_of(db)] * processes
    if processes > 1 or places:
        supervisor = Supervisor(sys.argv[1:], endpoints, places)
        leave(asyncio.run(supervisor.run(len(places) or processes, stop)))
    if supervised:
        follow_supervisor(stop)
    app = load_app(target, db.given)
    spare_what_is_loaded()
    leave(asyncio.run(serve(app, settings, stop, endpoints)))


# ---------------------------------------------------------------- the list

_COLUMNS = (
    "worker_id", "host", "pid", "queues", "concurrency", "running", "stopping", "version",
    "started_at", "beat_at", "is_outdated",
)  # fmt: skip


def _list_workers(db: Database) -> None:
    columns = "WORKER=worker_id host pid RUNS> UP=started_at STATE version@100 queues*60"
    empty = (
        "No worker is registered: start one with `pgflow workers MODULE`, "
        "or drain once with `pgflow tick MODULE`."
    )
    shows = {
        "RUNS": lambda row: f"{row.running}/{row.concurrency}",
        "STATE": lambda row: _state(row, db.now),
    }
    db.print(db.ask(inspect.list_workers()), columns, empty, _COLUMNS, **shows)


def _state(row: inspect.WorkerRow, now: datetime) -> str:
    if (now - row.beat_at).total_seconds() > 10:
        return f"silent for {age(row.beat_at, now)}"
    return "stopping" if row.stopping else "outdated" if row.is_outdated else "alive"


# ---------------------------------------------------------------- tick


def _limits(
    *,
    max_runtime: Annotated[
        float, seconds_option("--max-runtime", shown="1h", least=0.001)
    ] = 3600.0,
    budget: list[str] | None = None,
    grace: Annotated[float, seconds_option("--grace", shown="8s")] = 8.0,
    linger: Annotated[float, seconds_option("--linger", shown="0s")] = 0.0,
) -> dict[str, Any]:
    """Return the limits of a drain but for its begin.

    Args:
        budget: UNIT=AMOUNT: take no more runs once those taken have spent this much.
        max_runtime: End by then, the grace included: 90s, 10m. Keep it below the job's own limit.
        grace: Time for which running steps may go on at the end.
        linger: Also wait for timers that are due so soon.
    """
    grace = min(grace, max_runtime / 2)
    budgets = parse_amounts(budget)
    return {"runtime": max_runtime, "grace": grace, "linger": linger, "budget": budgets}


def _tick_settings(
    *,
    max_runs: Annotated[int | None, opt(min=1)] = None,
    concurrency: Annotated[int, opt(min=1)] = 50,
    queue: QueueNames = None,
    dead_after: DeadAfter = 10.0,
) -> dict[str, Any]:
    """Return options of the worker, as `AsyncApp.worker` takes them.

    Args:
        max_runs: Take no more runs than this.
        concurrency: Runs to work on at once.
    """
    from pgflow.app import Tally

    return {
        "queues": sorted(set(split_words(queue))),
        "concurrency": concurrency,
        "poll_seconds": 0.5,
        "dead_after": dead_after,
        "tally": Tally(max_runs),
    }


def tick(
    target: Annotated[str, arg(metavar="MODULE[:APP]")],
    *,
    limited: Annotated[dict[str, Any], Made(_limits)],
    given: Annotated[dict[str, Any], Made(_tick_settings)],
    exclusive: bool = False,
    logs: QuietLogs,
    db: Answer,
) -> None:
    """Drains queues once, for cron: ends when nothing is ready.

    It takes up what a runner that died has left, fires schedules, works on what is ready or due,
    and ends with a summary and the time of the next timer or slot. SIGTERM hands back what is not
    done. In GitHub Actions it also annotates the run.

    Args:
        target: Module or file with the workflows.
        exclusive: Do nothing if another exclusive tick of these queues is at work.
    """
    import asyncio

    from pgflow.app.draining import Limits, drain_once
    from pgflow_cli.look.targets import load_app
    from pgflow_cli.ops.serving import Stop, leave, spare_what_is_loaded

    logs.set_up()
    stop = Stop()
    found = db.dsn
    limits = Limits(**limited, began_at=db.now)
    db.close()
    app = load_app(target, found, without_session=True)
    spare_what_is_loaded()
    queues = given["queues"] or app.queues
    settings = {**given, "queues": queues, "grace_seconds": limits.grace}
    with _alone(found, queues) if exclusive else nullcontext(True) as is_alone:
        if not is_alone:
            note("Another exclusive tick of these queues is at work: nothing was done.")
            return
        drained = asyncio.run(drain_once(app, settings, limits, stop.event))
    with Database(found) as again:
        workflows, since = list(app.definitions.workflows), limits.began_at
        taken = sorted(drained.taken)
        # Those that a dead worker has made stuck meanwhile too.
        runs = again.ask(
            inspect.list_outcomes(taken, stuck_since=since, queues=queues, workflows=workflows)
        )
    summary = _sum_up(drained, runs)
    db.answer(summary, _in_words(summary))
    failed = [run for run in runs if run.status in ("failed", "stuck")]
    github.report(summary, [as_object(run, _OUTCOME) for run in failed])
    leave(summary["exit_code"])


@contextmanager
def _alone(dsn: str, queues: Sequence[str]) -> Iterator[bool]:
    """Take the lock of ticks; yield False if another tick has it. It is a transaction's, since a
    pooler lends sessions; it keeps no snapshot.
    """
    with Database(dsn) as db, db.connection.transaction(force_rollback=True):
        db.connection.execute("set local idle_in_transaction_session_timeout = 0")
        yield db.client.begin_tick(queues)


# ---------------------------------------------------------------- its outcome


_COUNTED = ("completed", "failed", "cancelled", "waiting", "queued", "running", "paused", "stuck")
_OUTCOME = ("key", "status", "workflow", "why")


def _sum_up(drained: Drained, runs: list[inspect.RunRow]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "outcome": drained.outcome,
        "seconds": round(drained.seconds, 3),
        "taken": len(drained.taken),
        **{status: sum(run.status == status for run in runs) for status in _COUNTED},
        "work_left": drained.work_left,
        "next_wake_at": drained.next_wake_at,
    }
    return {**summary, "exit_code": _exit_code(summary)}


def _exit_code(summary: dict[str, Any]) -> int:
    """Return the exit code of the worst outcome. A tick that was asked to stop may leave work."""
    if summary["stuck"]:
        return NEEDS_A_PERSON
    if summary["failed"] or summary["outcome"] == "broken":
        return FAILED
    ended_early = summary["outcome"] in ("out of time", "full")
    return TIME_LIMIT if summary["work_left"] and ended_early else DONE


def _in_words(summary: dict[str, Any]) -> str:
    counts = ", ".join(f"{summary[status]} {status}" for status in _COUNTED if summary[status])
    taken = f"{many(summary['taken'], 'run')} taken" + (f" ({counts})" if counts else "")
    left = " There is work left." if summary["work_left"] else ""
    ended = f"{summary['outcome'].capitalize()} after {duration(summary['seconds'])}"
    return f"{ended}: {taken}.{left} Next wake-up: {when(summary['next_wake_at']) or 'none'}."
