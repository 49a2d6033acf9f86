"""Options that several commands of operations have, and options that are made from a table."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Made
from pgflow_cli.look.output import STYLES, Column, age

if TYPE_CHECKING:
    from rich.text import Text

ChangeWhy = Annotated[str | None, typer.Option("--why", help="The reason, kept with the change.")]


def made_of(options: Mapping[str, tuple[Any, Any]], make: Callable[..., Any]) -> Made:
    """Return the mark of a parameter that is made of these options.

    Args:
        options: Annotation and default of each option, by the name under which `make` gets it.
        make: Function that returns the value of the parameter.
    """

    def call(**given: Any) -> Any:
        return make(**given)

    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for name, (kind, default) in options.items()
        ]
    )
    return Made(call)


def ago(title: str, name: str, now: datetime, **layout: Any) -> Column:
    """Return a column with the time that has passed since a moment, an attribute of its rows."""
    return Column(title, lambda row: age(getattr(row, name), now), right=True, **layout)


def counted(name: str, title: str = "") -> Column:
    """Return a column with a number, which is pale if it is zero."""

    def cell(row: Any) -> Text:
        from rich.text import Text

        number = getattr(row, name)
        return Text(f"{number:,}", style=STYLES.get(name, "") if number else "bright_black")

    return Column(title or name.upper(), cell, right=True)


def names_of(kind: Any) -> tuple[str, ...]:
    """Return the attributes of the rows of a class, in their order."""
    return tuple(kind.__dataclass_fields__)


def confirm(question: str, remedy: str = "pass --yes, or look with --dry-run") -> None:
    """Ask a question at the terminal, and end the command if the answer is no.

    Raises:
        Mistake: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise Mistake(f"{question} Cannot ask without a terminal: {remedy}")
    typer.confirm(question, abort=True, err=True)
