"""The player of an ICM workspace: its stages instead of plain nodes, and the messages from outside
that they and their branches wait for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.frozen import Frozen, Settings
from pgflow.declare.durable.player import STREAM, Player
from pgflow.declare.durable.results import Result, WorkflowFailed
from pgflow.declare.durable.schemas import misfits
from pgflow.declare.durable.stages.files import Tree
from pgflow.declare.durable.stages.looks import checked_target
from pgflow.declare.durable.stages.plans import Workspace, targets_of, value_at
from pgflow.declare.durable.stages.stage import StagePlay
from pgflow.declare.graph import Artifact, Atom, Graph, Node
from pgflow.declare.play.interpreter import Change, Place, State, Task
from pgflow.declare.play.progress import Settled, apply
from pgflow.declare.play.triggers import is_triggered
from pgflow.declare.text.javascript import parse_json
from pgflow.declare.text.outputs import completed

REQUEST: Final = "request:"
"""Begin of the names of signals that ask for a stage."""


class StagePlayer(Player):
    """Plays the stages of a workspace."""

    def __init__(
        self,
        declared: pgflow.Workflow[..., Result],
        frozen: Frozen,
        settings: Settings,
        message: str,
        inputs: dict[str, JsonValue],
    ) -> None:
        super().__init__(declared, frozen, settings, message, inputs)
        self.workspace = frozen.workspace or Workspace()
        self.tree = Tree(settings.cwd)
        self.signals = {one.name: one for one in frozen.graph.artifacts if one.kind == "signal"}
        self.given = inputs
        self.heard: dict[str, JsonValue] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def play(self) -> Result:
        """Play the whole workspace, and answer its result.

        Raises:
            WorkflowFailed: It failed.
        """
        for name, value in self.given.items():
            if why := await self._why_refused(name, value, 0):
                raise WorkflowFailed(f"input {name}: {why}")
            self.heard[name] = value
        result = await super().play()
        stages = {name: state for name, state in result.nodes.items() if name not in self.signals}
        return result.model_copy(update={"nodes": stages})

    async def work(self, task: Task, state: State) -> Change:
        """Play a stage."""
        return await StagePlay(self, task, state).play()

    async def opened(self, places: list[Place], state: State) -> State:
        """Wait for the messages that decide which stages of a layer run."""
        for place in places:
            for name in self._compared(self.plan.node(place), state):
                output = completed(await self.hear(name))
                state = apply(state, Settled((name,), output))
        return state

    def _compared(self, node: Node, state: State) -> list[str]:
        """Signals that a node's condition compares, if the condition is looked at."""
        outputs = state.scope.outputs
        before = [outputs[one].state if one in outputs else "failed" for one in node.depends_on]
        if node.when is None or not is_triggered(node.trigger_rule, before):
            return []
        atoms = [part for clause in node.when.any_of for part in clause if isinstance(part, Atom)]
        names = {atom.reference.removeprefix("$").split(".")[0] for atom in atoms}
        return sorted(name for name in names if name in self.signals and name not in outputs)

    async def hear(self, name: str) -> JsonValue:
        """Wait for a message, once a run. One that does not fit is refused, and another is waited
        for.
        """
        async with self._turns.setdefault(name, asyncio.Lock()):
            number = 0
            while name not in self.heard:
                number += 1
                signal: pgflow.Signal[Any] = pgflow.Signal(name, Any)  # type: ignore[arg-type]
                value = await signal.wait()
                why = await self._why_refused(name, value, number)
                if not why:
                    self.heard[name] = value
                else:
                    said = {"id": name, "type": "signal", "state": "refused", "reason": why}
                    pgflow.emit(STREAM, said)
        return self.heard[name]

    async def _why_refused(self, name: str, value: JsonValue, number: int) -> str:
        """Return the reason why a message is none that its stage can use, as a step."""
        graph, tree = self.frozen.graph, self.tree

        def check(value: Any) -> str:
            return why_refused(graph, tree, name, value)

        key = f"{name}:check" if number <= 1 else f"{name}:check#{number}"
        return await pgflow.call(key, check, value, returns=str)

    async def is_requested(self, stage: str) -> bool:
        """Return True if somebody has asked for a stage by now."""
        if stage in self.settings.requested:
            return True
        try:
            await pgflow.Signal(f"{REQUEST}{stage}", Any).wait(timeout=0)  # type: ignore[arg-type]
        except TimeoutError:
            return False
        return True

    def values(self, state: State) -> dict[str, JsonValue]:
        """Values of the state's entries: messages, and the outputs of stages that are JSON."""
        values = dict(self.heard)
        for entry in self.frozen.graph.artifacts:
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
        if why := checked_target(tree, value_at(path, {name: value})):
            return f"{path}: {why}"
    return ""


def _named(artifacts: tuple[Artifact, ...]) -> str:
    return ", ".join(one.name for one in artifacts if one.kind == "signal") or "none"
