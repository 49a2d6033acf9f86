"""Missing inputs of a workflow: at a terminal, the command asks for them.

A second start with the key of a run uses the inputs of that run, and asks nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from pgflow import inspect
from pgflow.console.output import shown

if TYPE_CHECKING:
    from pgflow.declare import Graph
    from pgflow.declare.graph import Input
    from pgflow_cli.look.database import Database

_MOST_CHARS = 200


def ask_missing(
    db: Database, key: str | None, graph: Graph, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the values of missing inputs, asked for at the terminal; empty without one.

    Args:
        db: The database.
        key: Key of the run.
        graph: The workflow.
        given: Values that were given.

    Raises:
        typer.Abort: The user aborts.
    """
    from pgflow.declare.durable import wanted_inputs

    missing = wanted_inputs(graph, given)
    recorded = _recorded(db, key) if missing and key is not None else None
    if recorded is not None:
        return {one.name: recorded[one.name] for one in missing if one.name in recorded}
    return {one.name: _ask(one) for one in missing} if sys.stdin.isatty() else {}


def _recorded(db: Database, key: str) -> dict[str, Any] | None:
    """Return the inputs of the run with a key; None if there is none."""
    from pgflow.errors import RunNotFound

    try:
        found = db.ask(inspect.find_detail(key)).input
    except RunNotFound:
        return None
    inputs = found.get("inputs") if isinstance(found, dict) else None
    return inputs if isinstance(inputs, dict) else {}


def _ask(one: Input) -> str:
    """Return a person's text for one input, which has more than blanks."""
    description = " ".join(one.description.split())[:_MOST_CHARS]
    text = shown(f"{one.name} ({description})" if description else one.name)
    while True:
        typer.echo(f"{text}: ", nl=False, err=True)  # standard output is for the result
        answer = sys.stdin.readline()
        if not answer:
            raise typer.Abort
        if answer.strip():
            return answer.removesuffix("\n")
