"""Stages of ICM workspaces on the command line: what a start gives them, ``pgflow request``, and
messages that a run would refuse.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pgflow import inspect
from pgflow.console.output import shown
from pgflow_cli.files.declared import refuse_unknown
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, operator
from pgflow_cli.look.selection import Key, find_detail

if TYPE_CHECKING:
    from pgflow.declare import Graph
    from pgflow.declare.graph import Input
    from pgflow_cli.look.database import Database


def folder_of(graph: Graph, path: Path) -> Path | None:
    """Return the folder of a workspace that a path names; None for files of other families.

    Raises:
        Mistake: It is a workflow file without the folders of its stages.
    """
    from pgflow.declare.icm import is_workspace

    if graph.family != "icm":
        return None
    folder = path if path.is_dir() else path.parent
    if not is_workspace(folder):
        raise Mistake(f"{path} is not in a workspace: stages run in the folder of theirs")
    return folder


def check_requested(graph: Graph, stages: tuple[str, ...]) -> None:
    """Refuse requests for stages that do not wait for one.

    Raises:
        Mistake: One of them does not.
    """
    which = " that runs on request only"
    known = [node.id for node in graph.nodes if any(gate.kind == "request" for gate in node.gates)]
    refuse_unknown("stage", stages, known, graph, which)


def signals_of(graph: Graph) -> list[str]:
    """Return the messages that a workspace waits for."""
    return [entry.name for entry in graph.artifacts if entry.kind == "signal"]


def check_message(graph: Graph, cwd: str, name: str, value: Any) -> None:
    """Refuse a message that a run would refuse.

    Raises:
        Mistake: It does not fit.
    """
    from pgflow.declare.durable.stages.files import Tree
    from pgflow.declare.durable.stages.mail import why_refused

    try:
        why = why_refused(graph, Tree(cwd), name, value)
    except ImportError:  # without the extra `run`, the run itself looks
        return
    if why:
        raise Mistake(f"{name}: {shown(why)}")


def check_mail(detail: inspect.RunDetail, name: str, value: Any) -> None:
    """Refuse a message to a run of a workspace that it would refuse, or that it has no signal for.

    Raises:
        Mistake: It does not fit.
    """
    graph, given = _graph_of(detail), detail.input or {}
    if graph is None:
        return
    from pgflow.declare.durable.stages.mail import REQUEST

    if not name.startswith(REQUEST):
        check_message(graph, given["settings"]["cwd"], name, value)


def awaited(detail: inspect.RunDetail) -> list[str]:
    """Return the messages that a run of a workspace waits for now."""
    waits = (detail.reason_detail or {}).get("signals") or ()
    graph = _graph_of(detail) if waits else None
    names = signals_of(graph) if graph is not None else []
    return [name for name in names if name in waits]


def events(detail: inspect.RunDetail) -> list[str]:
    """Return the events that a run of another file waits for now."""
    is_workspace = _graph_of(detail) is not None
    return [] if is_workspace else list((detail.reason_detail or {}).get("signals") or ())


def _graph_of(detail: inspect.RunDetail) -> Graph | None:
    """Return the workspace that a run plays; None if the run is of something else.

    The extra `files` is imported for a run of a file only.
    """
    frozen = detail.input.get("frozen") if isinstance(detail.input, dict) else None
    graph = frozen.get("graph") if isinstance(frozen, dict) else None
    if not isinstance(graph, dict) or graph.get("family") != "icm":
        return None
    from pgflow.declare.durable import declared
    from pgflow.declare.graph import Graph

    if detail.workflow != declared.name:
        return None
    return Graph.model_validate(inspect.readable(graph))


def request(key: Key, stage: str, db: Answer) -> None:
    """Requests a stage that a run would skip.

    The run is one of a workspace. It must not have passed the stage yet: exit code 2 if it has, or
    has ended.

    Args:
        stage: A stage with gate: explicit_request.
    """
    from pgflow import Signal
    from pgflow.declare.durable.stages.mail import REQUEST

    detail, client = find_detail(db, key), db.client
    graph = _graph_of(detail)
    if graph is None:
        raise Mistake(f"run {key!r} is not of a workspace, or its input cannot be read here")
    check_requested(graph, (stage,))
    name = f"{REQUEST}{stage}"
    units = db.ask(inspect.list_units(detail.run_id, limit=None))
    if any(unit.name == name and unit.event == "wait_timed_out" for unit in units):
        raise Mistake(f"run {key!r} has passed stage {stage!r}: it was left out")
    with client.transaction():
        sent = client.send(key, Signal(name, object), {}, idempotency_key=name, by=operator())
        if sent.ended_as is not None and sent.is_new:
            raise Mistake(f"run {key!r} is {sent.ended_as}: it runs no more stages")
    text = (
        f"{key} will run stage {stage} when it reaches it."
        if sent.is_new
        else f"Stage {stage} of {key} was already requested."
    )
    db.answer({"key": key, "stage": stage, "new": sent.is_new}, text)


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
