"""Options that several commands of operations have, and options that are made from a table."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

from pgflow.console.output import shown
from pgflow_cli.look.declaring import Made, arg, opt
from pgflow_cli.look.failures import opening
from pgflow_cli.look.options import LogFormat, LogLevel
from pgflow_cli.look.parsing import seconds_option

ChangeWhy = Annotated[str | None, opt("The reason, kept with the change.", "--why")]


Concurrency = Annotated[int, opt("Runs to work on at once; waiting runs do not count.", min=1)]
QueueNames = Annotated[
    list[str] | None,
    opt(
        "Queues to serve, with commas or repeated; by default those of the workflows.",
        "--queue",
        "-q",
        metavar="QUEUE",
    ),
]
WorkerTarget = Annotated[
    str | None,
    arg(
        "Module or file with the workflows, perhaps with the name of an app.",
        metavar="MODULE[:APP]",
    ),
]


def grace_option(what: str) -> Any:
    """Return the option for the time that running steps have at the end."""
    about = f"How long running {what} may go on after SIGTERM."
    return seconds_option("--grace", about, shown="10s")


PORT = opt(min=0, max=65535)
"""The number of a port; 0 for any that is free."""


class Endpoints(NamedTuple):
    """Addresses, each a host and a port, at which a worker answers; None for no endpoint."""

    metrics: tuple[str, int] | None = None
    probes: tuple[str, int] | None = None


class Logging(NamedTuple):
    """Level and format of the log of a command."""

    level: str
    form: str

    def set_up(self) -> None:
        """Log to standard error from now on."""
        from pgflow_cli.look.logs import set_up_logging

        set_up_logging(self.level, self.form)


def _logging(log_level: LogLevel = "info", log_format: LogFormat = "text") -> Logging:
    return Logging(log_level, log_format)


def _quiet_logging(log_level: LogLevel = "warning", log_format: LogFormat = "text") -> Logging:
    return Logging(log_level, log_format)


Logs = Annotated[Logging, Made(_logging)]
QuietLogs = Annotated[Logging, Made(_quiet_logging)]
"""The same, for a command whose answer is what matters: it logs warnings."""


OutputFile = Annotated[
    Path | None, opt("Write to this file instead of standard output.", "--output", "-o")
]


def open_file(path: Path, mode: Literal["r", "w", "a"]) -> IO[str]:
    """Open a file that the command line names.

    Raises:
        Mistake: It cannot be opened.
    """
    with opening(shown(str(path)), "read" if mode == "r" else "written"):
        return path.open(mode, encoding="utf-8")
