"""Options that commands share, and parameters that are made from several options.

A parameter whose annotation has `Made` is made of the options of the function in it: a command that
takes a `Database` has the option ``--dsn``, one that takes a `Rows` has ``--json`` and ``--csv``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pgflow_cli.look.database import Database, Dsn
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import AsCsv, AsJson, Form, choose_form, either
from pgflow_cli.look.parsing import refuse_empty
from pgflow_cli.look.selection import (
    ErrorText,
    Filters,
    KeyPattern,
    Labels,
    Queues,
    Since,
    Statuses,
    Until,
    WorkflowNames,
    complete_key,
)


@dataclass(frozen=True)
class Made:
    """Mark of a parameter: its value is what this function returns, whose own parameters are
    options. A context manager is open while the command works.
    """

    make: Callable[..., Any]


_LAST = ("as_json", "as_csv", "dsn")
"""Options that come last in the help."""


class _Call:
    """A function with the options that it and its parts need."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._own: list[str] = []
        self._parts: dict[str, _Call] = {}
        self.options: list[inspect.Parameter] = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            marks = getattr(parameter.annotation, "__metadata__", ())
            made = next((mark for mark in marks if isinstance(mark, Made)), None)
            if made is None:
                self._own.append(parameter.name)
                self.options.append(parameter)
            else:
                self._parts[parameter.name] = part = _Call(made.make)
                self.options += part.options

    def call(self, given: dict[str, Any], opened: ExitStack) -> Any:
        """Return what the function returns for these options."""
        parts = {name: part.call(given, opened) for name, part in self._parts.items()}
        for name, part in parts.items():
            parts[name] = opened.enter_context(part) if hasattr(part, "__exit__") else part
        return self._function(**{name: given[name] for name in self._own}, **parts)


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command as typer takes it: with options in place of parameters that are made."""
    whole = _Call(command)
    options = sorted(whole.options, key=lambda option: option.name in _LAST)

    def call(**given: Any) -> Any:
        with ExitStack() as opened:
            return whole.call(given, opened)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__module__ = command.__module__
    call.__annotations__ = {each.name: each.annotation for each in options}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options]
    )
    return call


# ---------------------------------------------------------------- what is made


def _database(dsn: Dsn = None) -> Database:
    return Database(dsn)


def _answer(as_json: AsJson = None) -> Form:
    return choose_form(as_json=as_json)


def _rows(as_json: AsJson = None, as_csv: AsCsv = False) -> Form:
    return choose_form(as_json=as_json, as_csv=as_csv)


def _filters(
    status: Statuses = None,
    workflow: WorkflowNames = None,
    queue: Queues = None,
    label: Labels = None,
    key: KeyPattern = None,
    since: Since = None,
    until: Until = None,
    error: ErrorText = None,
) -> Filters:
    return Filters(status, workflow, queue, label, key, since, until, error=error)


Db = Annotated[Database, Made(_database)]
"""The database of a command."""
Answer = Annotated[Form, Made(_answer)]
"""Form of an answer that is one thing."""
Rows = Annotated[Form, Made(_rows)]
"""Form of an answer that is a list."""
Chosen = Annotated[Filters, Made(_filters)]
"""Filters that choose runs."""

# ---------------------------------------------------------------- options

OptionalKey = Annotated[
    str | None,
    typer.Argument(help="Key of a run.", show_default=False, autocompletion=complete_key),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY", help="Keys of runs; or choose them by options.", autocompletion=complete_key
    ),
]
Why = Annotated[str | None, typer.Option(help="The reason, kept in the history.")]
LedgerWhy = Annotated[str | None, typer.Option(help="The reason, kept in the ledger.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and do nothing.")]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit code 4 if a person is needed, for scripts.")
]
Arguments = Annotated[
    str, typer.Argument(help="Arguments by name in JSON, @FILE, or - for standard input.")
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", help="Stop waiting after 90s, 10m...: exit code 3.")
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", help="Cancel the run if it is not over after 90s, 10m, 7d..."),
]
OwnLabels = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="NAME=VALUE", help="A label; may be given again."),
]
FromStep = Annotated[
    str | None,
    typer.Option(
        callback=refuse_empty,
        help="Go back to just before this step's last call, the last failed one if any.",
    ),
]
Attempts = Annotated[
    int | None, typer.Option(min=1, help="How often each step may be tried from there on.")
]
EFFECTS = ("reuse", "repeat", "compensate")
Effects = Annotated[
    str | None,
    typer.Option(
        metavar="WORD", help=f"What becomes of what the dropped part has done: {either(EFFECTS)}."
    ),
]


def check_word(option: str, word: str | None, words: tuple[str, ...]) -> Any:
    """Return a word if it is one of those that an option takes, or none was given.

    Raises:
        Mistake: It is another.
    """
    if word is not None and word not in words:
        raise Mistake(f"{option} is {either(words)}, not {word!r}")
    return word


def confirm_removal(what: str, question: str) -> None:
    """Ask before something is removed for good.

    Raises:
        Mistake: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise Mistake(
            f"{what} would be removed, and there is no terminal to ask at: pass --yes, or "
            "look with --dry-run"
        )
    typer.confirm(question, abort=True, err=True)
