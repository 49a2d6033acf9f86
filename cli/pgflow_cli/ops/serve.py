"""``pgflow serve --files``: workflow files whose runs start by themselves, and their worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pgflow_cli.files.declared import ProviderMap, SearchPath, check_search
from pgflow_cli.look.database import Dsn, find_dsn
from pgflow_cli.look.output import LogFormat, LogLevel
from pgflow_cli.look.parsing import (
    DeadAfter,
    parse_amounts,
    parse_pairs,
    refuse_no_folder,
    seconds_option,
)


def serve(
    *,
    files: Annotated[
        Path,
        typer.Option("--files", metavar="DIR", help="Folder of workflow files and triggers.toml."),
    ],
    triggers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another file of triggers.", show_default=False),
    ] = None,
    dsn: Dsn = None,
    cwd: Annotated[
        Path | None, typer.Option(help="Folder to work in; else the files' own.")
    ] = None,
    search: SearchPath = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Who takes the turns of agents: cmd:COMMAND, stub:FILE, or a plug-in."),
    ] = None,
    providers: ProviderMap = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A variable that programs get too.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The same, and its value is never recorded."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A limit of agents that may be overlooked."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="UNIT=AMOUNT", help="Most that each run may spend, such as usd=5."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address at which webhooks come in.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of webhooks; 0 for any that is free.")
    ] = 8422,
    look: Annotated[
        float,
        seconds_option("--look", "Time between looks at files.", shown="1s", least=0.01),
    ] = 1.0,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Runs to work on at once; waiting runs do not count.")
    ] = 100,
    grace: Annotated[
        float,
        seconds_option("--grace", "How long running nodes may go on after SIGTERM.", shown="10s"),
    ] = 10.0,
    dead_after: DeadAfter = 10.0,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Runs workflow files by schedule, webhook, topic or new file.

    The file triggers.toml says what starts which. Each event has one run, however often it comes
    and whenever this process dies. A changed file counts for the runs that start from then on. It
    works on these runs too, until SIGTERM.
    """
    from pgflow import AsyncApp
    from pgflow._worker.options import Rhythm, WorkerOptions
    from pgflow.declare.durable import declared
    from pgflow_cli.look.logs import set_up_logging
    from pgflow_cli.ops import serving
    from pgflow_cli.ops.served.arrivals import Arrivals
    from pgflow_cli.ops.served.flows import Flows
    from pgflow_cli.ops.served.going import Going
    from pgflow_cli.ops.served.starts import Starts
    from pgflow_cli.ops.served.triggers import NAME, read_triggers
    from pgflow_cli.runs.declared import Wishes

    set_up_logging(log_level, log_format)
    refuse_no_folder("--files", files)
    folder = Path(os.path.realpath(files))
    found = read_triggers(folder / NAME if triggers is None else triggers)
    pool = parse_amounts(budget) if budget else None
    wishes = Wishes(
        [],
        [],
        folder if cwd is None else cwd,
        provider,
        tuple(env or ()),
        tuple(secret or ()),
        pool is not None,
        False,
        tuple(ignore or ()),
        search=check_search(search),
        providers=parse_pairs(providers, "--map"),
    )
    flows = Flows(folder, found, wishes)
    stop = serving.Stop()
    app = AsyncApp(find_dsn(dsn), include=[declared])
    starts = Starts(app, flows, found, pool)
    app.include(*starts.relays())
    going = Going(starts, Arrivals(starts, folder, look), folder, host, port)
    serving.spare_what_is_loaded()
    options = WorkerOptions(
        queues=app.queues,
        concurrency=concurrency,
        grace_seconds=grace,
        rhythm=Rhythm.within(dead_after),
        listen=app.listens,
    )
    serving.leave(serving.serve(app, options, stop, None, going.go_on))
