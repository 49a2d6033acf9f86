"""``pgflow workers``: a process that drains queues; without a module, the list of those that do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    LogFormat,
    LogLevel,
    age,
    choose_form,
    plain,
    print_rows,
)
from pgflow_cli.look.parsing import DeadAfter, seconds_option

if TYPE_CHECKING:
    from datetime import datetime


def workers(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Module or file with the workflows, perhaps with the name of an app.",
            metavar="MODULE[:APP]",
        ),
    ] = None,
    *,
    dsn: Dsn = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Runs to work on at once; waiting runs do not count.")
    ] = 100,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", help="Queue to serve; may be given again. Else those of the workflows."
        ),
    ] = None,
    grace: Annotated[
        float,
        seconds_option("--grace", "How long running steps may go on after SIGTERM.", shown="10s"),
    ] = 10.0,
    poll: Annotated[
        float,
        seconds_option(
            "--poll", "Time between sweeps where nothing is notified.", shown="1s", least=0.01
        ),
    ] = 1.0,
    transaction_idle: Annotated[
        float,
        seconds_option(
            "--transaction-idle",
            "How long a @transaction may be idle before the server ends it.",
            shown="5m",
            least=0.001,
        ),
    ] = 300.0,
    transactions: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="How many @transactions may be open at once, on as many connections.",
        ),
    ] = 4,
    dead_after: DeadAfter = 10.0,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of an endpoint for Prometheus; 0 for any that is free.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address of that endpoint, which needs no password.")
    ] = "127.0.0.1",
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port that answers probes at /live and /ready; 0 for any that is free.",
            show_default=False,
        ),
    ] = None,
    health_host: Annotated[str, typer.Option(help="Address of that port.")] = "127.0.0.1",
    only_list: Annotated[
        bool, typer.Option("--list", help="List the workers, as without a module.")
    ] = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
) -> None:
    """Works on runs until SIGTERM, or lists the workers.

    Without a module it lists the workers. After SIGTERM it claims nothing more, finishes or hands
    back its runs, and exits 0. A second signal is a crash: nothing is handed back, and the runs go
    on elsewhere once this worker is found dead.
    """
    if target is None or only_list:
        _list_workers(dsn, as_json=as_json, as_csv=as_csv)
        return
    from pgflow._worker.options import Rhythm, WorkerOptions
    from pgflow_cli.look.logs import set_up_logging
    from pgflow_cli.look.targets import load_app
    from pgflow_cli.ops.serving import Stop, leave, serve, spare_what_is_loaded

    set_up_logging(log_level, log_format)
    stop = Stop()
    app = load_app(target, dsn)
    spare_what_is_loaded()
    options = WorkerOptions(
        queues=sorted(set(queue)) if queue else app.queues,
        concurrency=concurrency,
        poll_seconds=poll,
        grace_seconds=grace,
        transaction_idle_seconds=transaction_idle,
        transaction_connections=transactions,
        rhythm=Rhythm.within(dead_after),
        listen=app.listens,
    )
    leave(
        serve(
            app,
            options,
            stop,
            None if metrics_port is None else (metrics_host, metrics_port),
            probes_at=None if health_port is None else (health_host, health_port),
        )
    )


# ---------------------------------------------------------------- the list

_COLUMNS = (
    "worker_id",
    "host",
    "pid",
    "queues",
    "concurrency",
    "running",
    "stopping",
    "version",
    "started_at",
    "beat_at",
    "is_outdated",
)


def _list_workers(dsn: str | None, *, as_json: bool | None, as_csv: bool) -> None:
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow.inspect import list_workers

        rows = [as_row(worker, _COLUMNS) for worker in fetch(connection, list_workers())]
        now = database_now(connection)
    empty = (
        "No worker is registered: start one with `pgflow workers MODULE`, "
        "or drain once with `pgflow tick MODULE`."
    )
    print_rows(form, _worker_columns(now), rows, names=_COLUMNS, empty=empty)


def _worker_columns(now: datetime) -> list[Column]:
    def state(row: Any) -> str:
        silent = (now - row["beat_at"]).total_seconds()
        if silent > 10:
            return f"silent for {age(row['beat_at'], now)}"
        return "stopping" if row["stopping"] else "outdated" if row["is_outdated"] else "alive"

    return [
        Column("WORKER", lambda row: plain(row["worker_id"]), right=True),
        Column("HOST", lambda row: plain(row["host"])),
        Column("PID", lambda row: plain(row["pid"]), right=True),
        Column("RUNS", lambda row: plain(f"{row['running']}/{row['concurrency']}"), right=True),
        Column("UP", lambda row: plain(age(row["started_at"], now)), right=True),
        Column("STATE", lambda row: plain(state(row))),
        Column("VERSION", lambda row: plain(row["version"]), from_width=100),
        Column("QUEUES", lambda row: plain(", ".join(row["queues"])), takes_rest=True),
    ]
