"""``pgflow pg``: the embedded server."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Annotated

import typer

pg = typer.Typer(name="pg", help="The embedded Postgres server, for development.", no_args_is_help=True)

Home = Annotated[Path | None, typer.Option(help="Folder of its data; else PGFLOW_HOME.")]


@pg.command()
def start(home: Home = None) -> None:
    """Starts the server, prints its connection string, and keeps it up until interrupted."""
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
def status(home: Home = None) -> None:
    """Says whether the server is up."""
    from pgflow.embedded import status as server_status

    typer.echo(str(server_status(home)))


@pg.command()
def stop(home: Home = None) -> None:
    """Stops the server, whoever uses it."""
    from pgflow.embedded import stop as stop_server

    stop_server(home)


@pg.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context, home: Home = None) -> None:
    """Opens psql on the server; further arguments are psql's."""
    from pgflow.embedded import acquire
    from pgflow.embedded._binaries import find_programs

    server = acquire(home)
    try:
        code = subprocess.run([str(find_programs() / "psql"), server.dsn, *context.args], env=os.environ, check=False).returncode  # noqa: S603 - our own program
    finally:
        server.release()
    raise typer.Exit(code)
