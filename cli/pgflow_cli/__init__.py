"""The ``pgflow`` command.

Exit codes, the same for every command:

    0   done
    1   a run failed, or a check found something
    2   usage or bad input
    3   a time limit was reached with work left
    4   a person is needed: a run is stuck
    69  the database cannot be reached

A user's mistake gives one line on standard error, never a traceback.
"""

from __future__ import annotations

import sys

import typer

from pgflow_cli.database import migrate
from pgflow_cli.embedded import pg
from pgflow_cli.failures import explain
from pgflow_cli.workers import workers

app = typer.Typer(
    name="pgflow", help="Durable execution with nothing but Postgres.", no_args_is_help=True, pretty_exceptions_enable=False,
    add_completion=True,
)
app.command()(migrate)
app.command()(workers)
app.add_typer(pg)


def main() -> None:
    """Runs the command line; entry point of ``pgflow``."""
    try:
        app()
    except Exception as error:
        code, line = explain(error)
        if line is None:
            raise
        print(f"pgflow: {line}", file=sys.stderr)
        sys.exit(code)
