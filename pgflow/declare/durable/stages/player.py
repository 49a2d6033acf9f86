"""The player of an ICM workspace: its stages instead of plain nodes, and the messages from outside
that they and their branches wait for.
"""

from __future__ import annotations

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.frozen import Frozen, Settings, Workspace
from pgflow.declare.durable.player import Player
from pgflow.declare.durable.results import Result
from pgflow.declare.durable.stages.context import Context
from pgflow.declare.durable.stages.files import Tree
from pgflow.declare.durable.stages.mail import Mail
from pgflow.declare.durable.stages.stage import StagePlay
from pgflow.declare.graph import Atom, Node
from pgflow.declare.play.interpreter import Change, Place, State, Task
from pgflow.declare.play.progress import Settled, apply
from pgflow.declare.play.triggers import is_triggered
from pgflow.declare.text.outputs import NodeState, completed


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
        tree = Tree(settings.cwd)
        self.given = inputs
        self.at_work: list[str] = []
        self.mail = Mail(frozen.graph, tree, settings)
        self.context = Context(
            frozen.workspace or Workspace(), settings, tree, self.folders, self.works, self.mail
        )

    async def play(self) -> Result:
        """Play the whole workspace, and answer its result.

        Raises:
            WorkflowFailed: It failed.
        """
        await self.mail.take(self.given)
        result = await super().play()
        stages = {
            name: state for name, state in result.nodes.items() if name not in self.mail.signals
        }
        return result.model_copy(update={"nodes": stages})

    async def work(self, task: Task, state: State) -> Change:
        """Play a stage."""
        self.at_work.append(task.node.id)
        self._publish(state)
        change = await StagePlay(self.context, task, state).play()
        self.at_work.remove(task.node.id)
        self._publish(apply(state, change))
        return change

    def _publish(self, state: State) -> None:
        """Publish the stages at work and the state, for queries."""
        outputs, heard = state.scope.outputs, self.mail.heard
        written = {name for name, output in outputs.items() if output.state == "completed"}
        entries = {
            entry.name: heard.get(entry.name)
            if entry.kind == "signal"
            else entry.location
            if entry.written_by is None or entry.written_by in written
            else None
            for entry in self.frozen.graph.artifacts
        }
        pgflow.set_state(
            stage=self.at_work,
            stages={
                name: output.state
                for name, output in outputs.items()
                if name not in self.mail.signals
            },
            state=entries,
        )

    async def opened(self, places: list[Place], state: State) -> State:
        """Wait for the messages that decide which stages of a layer run."""
        for place in places:
            for name in self._compared(self.plan.node(place), state):
                output = completed(await self.mail.hear(name))
                state = apply(state, Settled((name,), output))
        return state

    def _compared(self, node: Node, state: State) -> list[str]:
        """Signals that a node's condition compares, if the condition is looked at."""
        outputs = state.scope.outputs
        before: list[NodeState] = [
            outputs[one].state if one in outputs else "failed" for one in node.depends_on
        ]
        if node.when is None or not is_triggered(node.trigger_rule, before):
            return []
        atoms = [part for clause in node.when.any_of for part in clause if isinstance(part, Atom)]
        names = {atom.reference.removeprefix("$").split(".")[0] for atom in atoms}
        return sorted(name for name in names if name in self.mail.signals and name not in outputs)
