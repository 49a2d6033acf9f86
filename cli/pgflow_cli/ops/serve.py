"""``pgflow serve --files``: workflow files whose runs start by themselves, and their worker."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

from pgflow_cli.look.database import Dsn, find_dsn
from pgflow_cli.look.declaring import made_of, opt, options_of
from pgflow_cli.look.parsing import DeadAfter, refuse_no_folder, seconds_option
from pgflow_cli.ops.options import PORT, Concurrency, Logs, grace_option
from pgflow_cli.runs.declared import FileOptions

_OF_ALL_RUNS = ("cwd", "provider", "providers", "env", "secret", "budget", "ignore", "search")
"""Options of `pgflow run FILE` that count for the runs of all files here."""


def _shared_options() -> dict[str, tuple[Any, Any]]:
    options: dict[str, tuple[Any, Any]] = {}
    for parameter in options_of(FileOptions):
        if parameter.name in _OF_ALL_RUNS:
            option = get_args(parameter.annotation)[1]
            about = option.help.removeprefix("FILE: ").replace("this one", "the files' own")
            option.help = about[0].upper() + about[1:]
            options[parameter.name] = parameter.annotation, parameter.default
    return options


def serve(
    *,
    files: Annotated[Path, opt(metavar="DIR")],
    triggers: Annotated[Path | None, opt(metavar="FILE")] = None,
    dsn: Dsn = None,
    given: Annotated[FileOptions, made_of(_shared_options(), FileOptions)],
    host: str = "127.0.0.1",
    port: Annotated[int, PORT] = 8422,
    look: Annotated[float, seconds_option("--look", shown="1s", least=0.01)] = 1.0,
    concurrency: Concurrency = 100,
    grace: Annotated[float, grace_option("nodes")] = 10.0,
    dead_after: DeadAfter = 10.0,
    logs: Logs,
) -> None:
    """Runs workflow files by schedule, webhook, topic or new file.

    The file triggers.toml says what starts which. Each event has one run, however often it comes
    and whenever this process dies. A changed file counts for the runs that start from then on. It
    works on these runs too, until SIGTERM.

    Args:
        files: Folder of workflow files and triggers.toml.
        triggers: Another file of triggers.
        host: Address at which webhooks come in.
        port: Port of webhooks; 0 for any that is free.
        look: Time between looks at files.
    """
    import asyncio

    from pgflow import AsyncApp
    from pgflow.declare.durable import declared
    from pgflow_cli.ops import serving
    from pgflow_cli.ops.served.arrivals import Arrivals, go_on, listen
    from pgflow_cli.ops.served.starts import Flows, Starts
    from pgflow_cli.ops.served.triggers import NAME, read_triggers

    logs.set_up()
    refuse_no_folder("--files", files)
    folder = Path(os.path.realpath(files))
    found = read_triggers(folder / NAME if triggers is None else triggers)
    flows = Flows(folder, found, replace(given, cwd=given.cwd or folder))
    stop = serving.Stop()
    app = AsyncApp(find_dsn(dsn), include=[declared])
    starts = Starts(app, flows, found, given.pool)
    app.include(*starts.relays())
    endpoints = starts.endpoints()
    listening = listen(host, port) if endpoints else None
    beside = partial(go_on, Arrivals(starts, folder, look), endpoints, listening)
    serving.spare_what_is_loaded()
    settings = {"concurrency": concurrency, "grace_seconds": grace, "dead_after": dead_after}
    serving.leave(asyncio.run(serving.serve(app, settings, stop, beside=beside)))
