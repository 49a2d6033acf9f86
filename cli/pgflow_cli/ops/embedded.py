"""``pgflow pg``: the embedded server."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from pgflow.console.output import print_one
from pgflow_cli.look.declaring import make_group, opt
from pgflow_cli.look.options import AnswerForm

pg = make_group("pg", "The embedded Postgres server, for development.", no_args_is_help=True)

Home = Annotated[Path | None, opt("Folder of its data; else PGFLOW_HOME.")]


@pg.command()
def start(home: Home = None) -> None:
    """Starts the server, says where it is, and stays until Ctrl-C."""
    from pgflow.embedded import acquire

    server = acquire(home)
    typer.echo(server.dsn)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        server.release()


@pg.command()
def status(home: Home = None, *, form: AnswerForm) -> None:
    """Says whether the server is up, and where."""
    from dataclasses import asdict

    from pgflow.embedded import status as server_status

    found = server_status(home)
    where = f"up, process {found.pid}: {found.dsn}" if found.running else "not running"
    print_one(form, asdict(found), f"The server of {found.home} is {where}")


@pg.command()
def stop(home: Home = None) -> None:
    """Stops the server, even if other processes use it."""
    from pgflow.embedded import stop as stop_server

    stop_server(home)


@pg.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context, home: Home = None) -> None:
    """Opens psql on the server; further arguments are psql's."""
    from pgflow.embedded import acquire, find_programs

    server = acquire(home)
    try:
        code = subprocess.run(  # noqa: S603
            [str(find_programs() / "psql"), server.dsn, *context.args], env=os.environ, check=False
        ).returncode
    finally:
        server.release()
    raise typer.Exit(code)
