"""``pgflow serve --files``: workflow files whose runs start by themselves, and their worker."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pgflow_cli.files.declared import ProviderMap, SearchPath, check_search
from pgflow_cli.look.database import Dsn, find_dsn
from pgflow_cli.look.options import Made
from pgflow_cli.look.parsing import (
    DeadAfter,
    parse_amounts,
    parse_pairs,
    refuse_no_folder,
    seconds_option,
)
from pgflow_cli.ops.options import Concurrency, Logs, grace_option, port_option
from pgflow_cli.runs.declared import Wishes


def _wishes(
    *,
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
) -> Wishes:
    """Return what counts for the runs of all files."""
    return Wishes(
        words=[],
        inputs=[],
        cwd=cwd,
        provider=provider,
        env=tuple(env or ()),
        secrets=tuple(secret or ()),
        ignored=tuple(ignore or ()),
        search=check_search(search),
        providers=parse_pairs(providers, "--map"),
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
    wishes: Annotated[Any, Made(_wishes)],
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="UNIT=AMOUNT", help="Most that each run may spend, such as usd=5."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address at which webhooks come in.")] = "127.0.0.1",
    port: Annotated[int, port_option("Port of webhooks")] = 8422,
    look: Annotated[
        float,
        seconds_option("--look", "Time between looks at files.", shown="1s", least=0.01),
    ] = 1.0,
    concurrency: Concurrency = 100,
    grace: Annotated[float, grace_option("nodes")] = 10.0,
    dead_after: DeadAfter = 10.0,
    logs: Logs,
) -> None:
    """Runs workflow files by schedule, webhook, topic or new file.

    The file triggers.toml says what starts which. Each event has one run, however often it comes
    and whenever this process dies. A changed file counts for the runs that start from then on. It
    works on these runs too, until SIGTERM.
    """
    from pgflow import AsyncApp
    from pgflow.declare.durable import declared
    from pgflow_cli.ops import serving
    from pgflow_cli.ops.served.arrivals import Arrivals
    from pgflow_cli.ops.served.flows import Flows
    from pgflow_cli.ops.served.going import Going
    from pgflow_cli.ops.served.starts import Starts
    from pgflow_cli.ops.served.triggers import NAME, read_triggers

    logs.set_up()
    refuse_no_folder("--files", files)
    folder = Path(os.path.realpath(files))
    found = read_triggers(folder / NAME if triggers is None else triggers)
    pool = parse_amounts(budget) if budget else None
    counting = replace(wishes, cwd=wishes.cwd or folder, has_budget=pool is not None)
    flows = Flows(folder, found, counting)
    stop = serving.Stop()
    app = AsyncApp(find_dsn(dsn), include=[declared])
    starts = Starts(app, flows, found, pool)
    app.include(*starts.relays())
    going = Going(starts, Arrivals(starts, folder, look), folder, host, port)
    serving.spare_what_is_loaded()
    settings = {"concurrency": concurrency, "grace_seconds": grace, "dead_after": dead_after}
    serving.leave(serving.serve(app, settings, stop, beside=going.go_on))
