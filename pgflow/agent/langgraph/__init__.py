"""LangGraph on pgflow: ``pip install 'pgflow-engine[langgraph]'``.

``durable(graph)`` is the graph for a workflow: each node is a step, and an interrupt a gate.
``PgflowSaver`` and ``PgflowStore`` keep checkpoints and memory in the database of an app, for
graphs in a workflow and outside.
"""

from pgflow.agent.langgraph.graph import DurableGraph, durable
from pgflow.agent.langgraph.saver import AwaitedSaver as AsyncPgflowSaver
from pgflow.agent.langgraph.saver import PgflowSaver
from pgflow.agent.langgraph.store import AwaitedStore as AsyncPgflowStore
from pgflow.agent.langgraph.store import PgflowStore

__all__ = [
    "AsyncPgflowSaver", "AsyncPgflowStore", "DurableGraph", "PgflowSaver", "PgflowStore", "durable",
]  # fmt: skip
