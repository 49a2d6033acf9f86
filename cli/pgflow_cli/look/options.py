"""Options that commands share. A command that takes a `Db` has the option ``--dsn``, one that takes
an `Answer` also ``--json``, and one that takes `Rows` these and ``--csv``.
"""

from __future__ import annotations

import getpass
import socket
import sys
from typing import Annotated, Any

import typer

from pgflow.console.output import Form, either
from pgflow_cli.look.database import Database, Dsn
from pgflow_cli.look.declaring import Made, arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.parsing import refuse_empty
from pgflow_cli.look.selection import Filters, complete_key

# ---------------------------------------------------------------- forms of the answer

AsJson = Annotated[
    bool | None, opt("Answer in JSON; a table is the default, in a pipe too.", "--json/--table")
]
Limit = Annotated[int, opt("At most so many rows; 0 for all.", "--limit", "-n", min=0)]
AsCsv = Annotated[bool, opt("Answer in CSV.", "--csv")]
LogLevel = Annotated[str, opt("How much to log: debug, info, warning or error.")]
LogFormat = Annotated[str, opt("How to log: text, or json, one object a line.")]


def choose_form(*, as_json: bool | None = None, as_csv: bool = False) -> Form:
    """Return the form that the options ask for, else a table."""
    if as_csv and as_json is not None:
        raise Mistake(
            f"--{'json' if as_json else 'table'} and --csv exclude each other: pass one of them"
        )
    if as_csv:
        return Form.CSV
    return Form.JSON if as_json else Form.TABLE


# ---------------------------------------------------------------- what is made


def _database(dsn: Dsn = None) -> Database:
    return Database(dsn)


def _for_one(as_json: AsJson = None, dsn: Dsn = None) -> Database:
    return Database(dsn, choose_form(as_json=as_json))


def _for_rows(as_json: AsJson = None, as_csv: AsCsv = False, dsn: Dsn = None) -> Database:
    return Database(dsn, choose_form(as_json=as_json, as_csv=as_csv))


def _form(as_json: AsJson = None) -> Form:
    return choose_form(as_json=as_json)


Db = Annotated[Database, Made(_database)]
"""The database of a command."""
Answer = Annotated[Database, Made(_for_one)]
"""The database of a command whose answer is one thing."""
Rows = Annotated[Database, Made(_for_rows)]
"""The database of a command whose answer is a list."""
AnswerForm = Annotated[Form, Made(_form)]
"""Form of the answer of a command without a database."""
Chosen = Annotated[Filters, Made(Filters)]
"""Filters that choose runs."""

# ---------------------------------------------------------------- options

OptionalKey = Annotated[str | None, arg("Key of a run.", autocompletion=complete_key)]
Keys = Annotated[
    list[str] | None,
    arg("Keys of runs; or choose them by options.", metavar="KEY", autocompletion=complete_key),
]
Why = Annotated[str | None, opt("The reason, kept in the history.")]
LedgerWhy = Annotated[str | None, opt("The reason, kept in the ledger.")]
Yes = Annotated[bool, opt("Do not ask.", "--yes", "-y")]
DryRun = Annotated[bool, opt("Show what it would do, and do nothing.", "--dry-run")]
ExitCode = Annotated[bool, opt("Exit code 4 if a person is needed, for scripts.", "--exit-code")]
Arguments = Annotated[str, arg("Arguments by name in JSON, @FILE, or - for standard input.")]
Timeout = Annotated[str | None, opt("Stop waiting after 90s, 10m...: exit code 3.", "--timeout")]
Deadline = Annotated[
    str | None, opt("Cancel the run if it is not over after 90s, 10m, 7d...", "--deadline")
]
OwnLabels = Annotated[
    list[str] | None, opt("A label; may be given again.", "--label", "-l", metavar="NAME=VALUE")
]
FromStep = Annotated[
    str | None,
    opt(
        "Go back to just before this step's last call, the last failed one if any.",
        callback=refuse_empty,
    ),
]
Attempts = Annotated[int | None, opt("How often each step may be tried from there on.", min=1)]
EFFECTS = ("reuse", "repeat", "compensate")
Effects = Annotated[
    str | None,
    opt(f"What becomes of what the dropped part has done: {either(EFFECTS)}.", metavar="WORD"),
]


def operator() -> str:
    """Return the name of the person at the terminal, for the history of runs."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def check_word(option: str, word: str | None, words: tuple[str, ...]) -> Any:
    """Return a word if it is one of those that an option takes, or none was given.

    Raises:
        Mistake: It is another.
    """
    if word is not None and word not in words:
        raise Mistake(f"{option} is {either(words)}, not {word!r}")
    return word


def confirm(question: str, remedy: str = "pass --yes, or look with --dry-run") -> None:
    """Ask a question at the terminal, and end the command if the answer is no.

    Raises:
        Mistake: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise Mistake(f"{question} Cannot ask without a terminal: {remedy}")
    typer.confirm(question, abort=True, err=True)
