"""Execution of a workflow from Python: from a graph to the result of its run, in one call."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from typing import Any, overload

from pydantic import JsonValue

from pgflow import App, AsyncApp
from pgflow.declare.durable.agents import Agents
from pgflow.declare.durable.children import missing_inputs
from pgflow.declare.durable.config import configured, with_tiers
from pgflow.declare.durable.freezing import freeze
from pgflow.declare.durable.frozen import Frozen, Settings
from pgflow.declare.durable.limits import overlooked, refused
from pgflow.declare.durable.results import Result
from pgflow.declare.durable.workflow import declared
from pgflow.declare.graph import Graph
from pgflow.errors import InvalidArgument

log = logging.getLogger("pgflow")


@overload
def execute_workflow(
    graph: Graph,
    message: str = ...,
    *,
    app: App,
    inputs: Mapping[str, JsonValue] | None = ...,
    provider: str | None = ...,
    settings: Settings | None = ...,
    key: str | None = ...,
) -> Result: ...


@overload
def execute_workflow(
    graph: Graph,
    message: str = ...,
    *,
    app: AsyncApp,
    inputs: Mapping[str, JsonValue] | None = ...,
    provider: str | None = ...,
    settings: Settings | None = ...,
    key: str | None = ...,
) -> Coroutine[Any, Any, Result]: ...


def execute_workflow(
    graph: Graph,
    message: str = "",
    *,
    app: App | AsyncApp,
    inputs: Mapping[str, JsonValue] | None = None,
    provider: str | None = None,
    settings: Settings | None = None,
    key: str | None = None,
) -> Result | Coroutine[Any, Any, Result]:
    """Run a workflow to its end, as ``pgflow run`` does. This process works on it if no worker of
    the app is running.

    Args:
        graph: The workflow.
        message: Message of the person who starts it.
        app: The app. With an `AsyncApp`, await the result.
        inputs: Values of its inputs.
        provider: Provider of the turns of agents, such as ``claude:``, if the settings name none.
        settings: Settings of the run; those of the config of this folder if not given. The stages
            of a workspace work in ``settings.cwd``.
        key: Key of the run. A second call with the same key and arguments attaches to the existing
            run.

    Returns:
        Its result.

    Raises:
        InvalidArgument: An input is unknown or missing, an agent has no provider, or a limit of the
            file would not be kept (unless ``settings.ignored`` names it).
        InvalidWorkflow: It cannot be run.
        SetupError: It needs the extra ``run``.
        RunFailed: It failed; the cause is a `WorkflowFailed`, which names the node.
        RunCancelled: It was cancelled, such as by a person's rejection.
        KeyConflict: The key belongs to another run.
    """
    used = settings or configured(".", provider)
    if used.provider is None and provider is not None:
        used = used.model_copy(update={"provider": provider})
    used = with_tiers(used, graph)
    given = dict(inputs or {})
    frozen = freeze(graph, used.cwd if graph.family == "icm" else None)
    _check(frozen, used, given)
    if declared.name not in app.definitions.workflows:
        app.include(declared)
    return app.run(declared.options(key=key), frozen, used, message, given)


def _check(frozen: Frozen, settings: Settings, inputs: dict[str, JsonValue]) -> None:
    """Refuse a run that could not be as it is meant; warn of what would be overlooked.

    Raises:
        InvalidArgument: It could not.
    """
    graph = frozen.graph
    names = [one.name for one in graph.inputs]
    if unknown := [name for name in inputs if name not in names]:
        has = ", ".join(names) or "none"
        raise InvalidArgument(f"{graph.name} has no input {unknown[0]!r}: it has {has}")
    if missing := missing_inputs(frozen, inputs):
        raise InvalidArgument(missing)
    agents = Agents(graph, settings)
    if needed := agents.unserved():
        raise InvalidArgument(
            f"{graph.name}: no provider for {', '.join(needed[:5])}: pass provider="
        )
    if broken := refused(graph, agents, settings.ignored):
        raise InvalidArgument(f"{graph.name}: {'; '.join(broken[:5])}")
    for sentence in overlooked(frozen, agents, settings):
        log.warning("%s: %s", graph.name, sentence)
