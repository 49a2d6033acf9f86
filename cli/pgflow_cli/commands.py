"""Every command, in the order in which ``pgflow --help`` shows them.

A module of a command imports typer and what is small; psycopg, pgflow and rich come when the command runs,
so that help and completion answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer

from pgflow_cli import failures
from pgflow_cli.demo import demo
from pgflow_cli.doctor import doctor
from pgflow_cli.embedded import pg
from pgflow_cli.listing import list_runs
from pgflow_cli.orders import cancel, pause, resume, retry
from pgflow_cli.queues import queues
from pgflow_cli.reading import sql
from pgflow_cli.schema import init, migrate
from pgflow_cli.showing import show
from pgflow_cli.signals import signal
from pgflow_cli.skill import install_skill
from pgflow_cli.starting import run as run_command
from pgflow_cli.starting import start
from pgflow_cli.tick import tick
from pgflow_cli.timeline import timeline
from pgflow_cli.workers import workers

BEGIN, WORK, LOOK, ACT, DATABASE = "Begin", "Start and work", "Look", "Act", "Database"

EPILOG = "Exit codes: " + " · ".join(f"{code} {meaning}" for code, meaning in failures.MEANINGS.items())

app = typer.Typer(
    name="pgflow",
    help="Durable execution with nothing but Postgres.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"pgflow {version('pgflow-engine')}")
        raise typer.Exit


@app.callback()
def _main(*, version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Say which version this is.")) -> None:
    """Durable execution with nothing but Postgres."""


_GROUPS: dict[str, list[tuple[str, Any]]] = {
    BEGIN: [("demo", demo), ("init", init), ("doctor", doctor), ("install-skill", install_skill)],
    WORK: [("start", start), ("run", run_command), ("workers", workers), ("tick", tick)],
    LOOK: [("list", list_runs), ("show", show), ("timeline", timeline), ("queues", queues), ("sql", sql)],
    ACT: [("signal", signal), ("cancel", cancel), ("pause", pause), ("resume", resume), ("retry", retry)],
    DATABASE: [("migrate", migrate), ("pg", pg)],
}
for _panel, _commands in _GROUPS.items():
    for _name, _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def run(arguments: list[str]) -> int:
    """Runs a command line; answers its exit code. A mistake is one line on standard error."""
    try:
        answer = app(args=arguments, prog_name="pgflow", standalone_mode=False)
    except failures.Ended as ended:
        return ended.code
    except typer.Abort:
        failures_say("nothing was done")
        return failures.FAILED
    except KeyboardInterrupt:
        return failures.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our answer has had enough; Python must not complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.DONE
    except Exception as error:  # noqa: BLE001 - whatever it is, it has an exit code
        return _fail(error)
    return answer if isinstance(answer, int) else failures.DONE


def _fail(error: Exception) -> int:
    if hasattr(error, "format_message"):
        return _misused(error)
    code, line = failures.explain(error)
    if line is None or os.environ.get("PGFLOW_TRACEBACK"):
        traceback.print_exception(error)
    if line is not None:
        failures_say(line)
    return code


def _misused(error: Any) -> int:
    """A command line that cannot be read: what is wrong with it, and where to look."""
    path = getattr(getattr(error, "ctx", None), "command_path", "pgflow")
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
    else:
        message = " ".join(error.format_message().split()).rstrip(".")
        print(f"{path}: {message}. See `{path} --help`", file=sys.stderr)
    return failures.USAGE


def failures_say(line: str) -> None:
    """Says what went wrong."""
    print(f"pgflow: {line}", file=sys.stderr)
