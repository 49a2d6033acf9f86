"""``pgflow workers``: a process that drains queues; without a module, the list of those that do."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.output import age
from pgflow_cli.look import nodes
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.options import Rows
from pgflow_cli.look.parsing import DeadAfter, seconds_option
from pgflow_cli.look.selection import split_words
from pgflow_cli.ops.options import (
    PORT,
    Concurrency,
    Endpoints,
    Logs,
    QueueNames,
    WorkerTarget,
    grace_option,
)


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
    from pgflow_cli.ops.serving import Stop, leave, serve, spare_what_is_loaded
    from pgflow_cli.ops.supervisor import Supervisor, follow_supervisor

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
