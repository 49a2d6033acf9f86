"""Mail of a workspace's run: messages from outside, and requests for stages.

A message that does not fit its schema, or that names a folder outside, is refused: the stream of
the run says why, and another is waited for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.frozen import Settings
from pgflow.declare.durable.results import WorkflowFailed
from pgflow.declare.durable.schemas import misfits
from pgflow.declare.durable.stages.files import Tree
from pgflow.declare.durable.stages.looks import checked_target
from pgflow.declare.durable.stages.plans import targets_of, value_of
from pgflow.declare.graph import Artifact, Graph
from pgflow.declare.play.interpreter import State
from pgflow.declare.play.progress import STREAM
from pgflow.declare.text.javascript import parse_json

REQUEST: Final = "request:"
"""Begin of the names of signals that ask for a stage."""
_ANYTHING: Final[Any] = Any
"""Type of a message: its schema is the workspace's."""


class Mail:
    """Messages of one run, each heard once.

    Args:
        graph: The workspace.
        tree: The folder that the run works in.
        settings: Settings of the run.
    """

    def __init__(self, graph: Graph, tree: Tree, settings: Settings) -> None:
        self.graph = graph
        self.tree = tree
        self.settings = settings
        self.key = pgflow.run_info().key
        self.signals = frozenset(one.name for one in graph.artifacts if one.kind == "signal")
        self.heard: dict[str, JsonValue] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def take(self, given: dict[str, JsonValue]) -> None:
        """Take the messages that were given at the start.

        Raises:
            WorkflowFailed: One does not fit.
        """
        for name, value in given.items():
            if why := await self._why_refused(name, value, 0):
                raise WorkflowFailed(f"input {name}: {why}")
            self.heard[name] = value

    async def hear(self, name: str) -> JsonValue:
        """Wait for a message, once a run. One that does not fit is refused, and another is waited
        for.
        """
        async with self._turns.setdefault(name, asyncio.Lock()):
            number = 0
            while name not in self.heard:
                number += 1
                signal: pgflow.Signal[Any] = pgflow.Signal(name, _ANYTHING)
                value = await signal.wait()
                why = await self._why_refused(name, value, number)
                if not why:
                    self.heard[name] = value
                else:
                    event = {"id": name, "type": "signal", "state": "refused", "reason": why}
                    pgflow.emit(STREAM, event)
        return self.heard[name]

    async def _why_refused(self, name: str, value: JsonValue, number: int) -> str:
        """Return the reason why a stage cannot use a message, as a step."""
        graph, tree = self.graph, self.tree

        def check(value: Any) -> str:
            return why_refused(graph, tree, name, value)

        key = f"{name}:check" if number <= 1 else f"{name}:check#{number}"
        return await pgflow.call(key, check, value, returns=str)

    async def is_requested(self, stage: str) -> bool:
        """Return True if a stage was requested by now."""
        if stage in self.settings.requested:
            return True
        try:
            await pgflow.Signal(f"{REQUEST}{stage}", _ANYTHING).wait(timeout=0)
        except TimeoutError:
            return False
        return True

    def values(self, state: State) -> dict[str, JsonValue]:
        """Values of the state's entries: messages, and the outputs of stages that are JSON."""
        values: dict[str, JsonValue] = {"run": {"key": self.key, "id": self.key}, **self.heard}
        for entry in self.graph.artifacts:
            output = state.scope.outputs.get(entry.written_by or "")
            if output is not None and output.text[:1] in ("{", "["):
                try:
                    values.setdefault(entry.name, parse_json(output.text))
                except ValueError:
                    continue
        return values


def why_refused(graph: Graph, tree: Tree, name: str, value: JsonValue) -> str:
    """Return the reason why a message cannot be used; empty if it can.

    Args:
        graph: The workspace.
        tree: The folder that the run works in.
        name: Name of the message.
        value: Its content.
    """
    entry = next((one for one in graph.artifacts if one.name == name), None)
    if entry is None or entry.kind != "signal":
        return f"the workspace has no signal {name!r}: it has {_named(graph.artifacts)}"
    if entry.json_schema is not None and (wrong := misfits(value, entry.json_schema)):
        return f"it does not fit the schema of {name}: {wrong}"
    for path in targets_of(graph, name):
        if why := checked_target(tree, value_of(path, {name: value})):
            return f"{path}: {why}"
    return ""


def _named(artifacts: tuple[Artifact, ...]) -> str:
    return ", ".join(one.name for one in artifacts if one.kind == "signal") or "none"
