"""Sessions of agents: the earlier turn whose conversation a turn goes on in.

A node that is alone in its layer goes on in the session of the last such node before it. It begins
anew if it says ``context: fresh``, names another provider, or is the first of an included workflow.
Nodes that run at the same time begin anew, and so does the node after them. ``context: {resume:
NODE}`` goes on from that node. The turns of a loop go on in their own session, unless it says
``fresh_context``.

A session is part of a turn's recorded answer, so a replay finds the same one. An agent without
sessions gives none, and each of its turns begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgflow.declare.durable.agents import Agents
from pgflow.declare.graph import Loop, Node
from pgflow.declare.graph.plan import Place, Plan
from pgflow.declare.play.interpreter import Task

_OF_INCLUDE = "__"
"""Sign between the id of an include and that of a node in it."""


@dataclass(frozen=True, slots=True)
class _Thread:
    """A session that the next node may go on in, and the node that left it."""

    session: str
    node: Node


class Sessions:
    """Sessions of agents, each kept for the next turn that continues it.

    Args:
        plan: The run's plan.
        agents: The agents of its nodes.
    """

    def __init__(self, plan: Plan, agents: Agents) -> None:
        self._plan = plan
        self._agents = agents
        self._threads: dict[Place, _Thread] = {}
        self._left: dict[Place, str] = {}

    def of(self, task: Task) -> str | None:
        """Return the session that a turn goes on in; None if it begins anew."""
        if isinstance(task.node.body, Loop):
            goes_on = task.round > 1 and not task.node.body.fresh_context
            return self._left.get(task.place) if goes_on else None
        context = task.node.agent.get("context")
        if isinstance(context, dict):
            return self._left.get((*task.place[:-1], str(context.get("resume"))))
        thread = self._threads.get(task.place[:-1])
        if thread is None or context == "fresh" or not self._is_alone(task.place):
            return None
        return None if self._begins_anew(thread.node, task.node) else thread.session

    def leave(self, task: Task, session: str | None) -> None:
        """Keep the session of a turn that has ended.

        Args:
            task: The turn.
            session: Its session; None if its agent has none.
        """
        if session is None:
            return
        self._left[task.place] = session
        if self._is_alone(task.place):
            self._threads[task.place[:-1]] = _Thread(session, task.node)

    def cut(self, within: Place) -> None:
        """Have the next node of the run, or of a group, begin anew."""
        self._threads.pop(within, None)

    def _is_alone(self, place: Place) -> bool:
        """Return True if nothing else runs at the same time."""
        return any(layer == (place[-1],) for layer in self._plan.within(place[:-1]).layers)

    def _begins_anew(self, last: Node, node: Node) -> bool:
        """Return True if a node has nothing to do with the one before it."""
        block = node.id.rpartition(_OF_INCLUDE)[0]
        enters = bool(block) and not last.id.startswith(f"{block}{_OF_INCLUDE}")
        own, before = self._agents.of(node), self._agents.of(last)
        return enters or (own.word, own.spec) != (before.word, before.spec)
