"""Sessions that outlive a run: a node with ``persist_session`` continues the session of its agent
from the last run of the same conversation.

You name the conversation when you start a run. Sessions are documents, by workflow, conversation,
node and provider. They are read and written in transactional steps, so a replay finds the session
that the node continued, and an unrecorded turn leaves no trace. They last until `pgflow
reset-sessions` removes them.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

import pgflow
from pgflow.declare.durable.agents import Agents
from pgflow.declare.durable.frozen import Settings
from pgflow.declare.graph import Command, Graph, Node, Prompt

SESSIONS: Final = "pgflow.sessions"
"""Collection of the documents."""


def asks(graph: Graph, node: Node) -> bool:
    """Return True if a node wants the session of the run before: turns of loops and of groups have
    none.

    Args:
        graph: Its workflow.
        node: The node.
    """
    if not isinstance(node.body, Prompt | Command) or node not in graph.nodes:
        return False
    own = node.agent.get("persist_session")
    wants = graph.options.get("persist_sessions") is True if own is None else own is True
    return wants and node.agent.get("context") != "fresh"


class Conversation:
    """The sessions that a run finds, and leaves to the next.

    Args:
        graph: The workflow.
        settings: Settings of the run.
        agents: The agents of its nodes.
    """

    def __init__(self, graph: Graph, settings: Settings, agents: Agents) -> None:
        self._graph = graph
        self._name = settings.conversation
        self._agents = agents
        self._stubs = settings.stubs

    def keeps(self, node: Node) -> bool:
        """Return True if the session of a node is kept."""
        return bool(self._name) and node.id not in self._stubs and asks(self._graph, node)

    async def session(self, key: str, node: Node) -> str | None:
        """Return the session that a node goes on in; None if there is none.

        Args:
            key: Key of the node.
            node: The node.
        """
        if isinstance(node.agent.get("context"), dict):
            return None  # it names the node of this run that it goes on from
        path = self._path(node)

        async def read(connection: psycopg.AsyncConnection[Any]) -> Any:
            from pgflow.documents import AsyncDocuments

            found = await AsyncDocuments(connection).get(SESSIONS, [path])
            return found[path].value if path in found else None

        recorded = await _step(f"{key}:session", read)
        return recorded if isinstance(recorded, str) else None

    async def keep(self, key: str, node: Node, session: str | None) -> None:
        """Keep the session of a turn for the next run; one that left none is forgotten.

        Args:
            key: Key of the turn.
            node: Its node.
            session: Its session.
        """
        path = self._path(node)

        async def write(connection: psycopg.AsyncConnection[Any]) -> None:
            from pgflow.documents import AsyncDocuments, Put

            documents = AsyncDocuments(connection)
            if session is None:
                await documents.delete(SESSIONS, [path])
            else:
                await documents.put([Put(SESSIONS, path, session)])

        await _step(f"{key}:keep", write)

    def _path(self, node: Node) -> tuple[str, ...]:
        return (self._graph.name, self._name, node.id, self._agents.of(node).name)


async def _step(name: str, body: Any) -> Any:
    body.__name__ = name
    return await pgflow.transaction(body)()
