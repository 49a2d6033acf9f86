"""A graph as the code of a workflow: its nodes are steps, its interrupts gates.

Everything else of the framework, the order of the nodes, the reducers and the edges, runs again at
a replay, over the recorded results of the nodes. So a graph needs no checkpointer to be durable. If
it has one of pgflow's and is called with a thread, the thread is read at the beginning and written
at the end.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph import errors
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel

import pgflow
from pgflow.agent.colour import is_sync, iterate_here, run_here
from pgflow.agent.langgraph.memory import ThreadMemory, load, save
from pgflow.agent.langgraph.nodes import NodeStep, Terms
from pgflow.agent.langgraph.saver import AwaitedSaver, PgflowSaver
from pgflow.errors import InvalidArgument, WrongColourError

pgflow.extensions.register_errors(
    errors.GraphRecursionError,
    errors.InvalidUpdateError,
    errors.EmptyInputError,
    errors.NodeTimeoutError,
)

START = "__start__"


class DurableGraph:
    """A graph whose nodes are steps of the run that calls it. Made by :func:`durable`."""

    def __init__(self, graph: Pregel[Any, Any, Any, Any], terms: Terms) -> None:
        self._plain = graph
        self._graph = _with_steps(graph, terms, "")
        self._serde = terms.serde

    async def ainvoke(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> Any:
        """Runs the graph, and returns its state at the end. Outside a workflow it is the plain
        graph.

        Args:
            input: The state to begin with.
            config: As the framework takes it.
            **options: As the framework takes them.

        Raises:
            GateRejected: A person has rejected what a node asks for.
        """
        if not pgflow.in_workflow():
            return await self._plain.ainvoke(input, config, **options)
        graph, thread = await self._open(config)
        with pgflow.inline(), self._telling(config):
            result = await graph.ainvoke(input, config, **options)
        await save(thread.puts if thread else [])
        return result

    async def astream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> AsyncGenerator[Any, None]:
        """Yields what the graph does: with ``stream_mode`` updates, values or tasks.

        Tokens of a model, and what a node writes while it runs, are in the stream ``langgraph`` of
        the run: they are not code of the workflow.
        """
        if not pgflow.in_workflow():
            async for chunk in self._plain.astream(input, config, **options):
                yield chunk
            return
        graph, thread = await self._open(config)
        with pgflow.inline(), self._telling(config):
            async for chunk in graph.astream(input, config, **options):
                yield chunk
        await save(thread.puts if thread else [])

    def invoke(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> Any:
        """Runs the graph in a sync workflow; see :meth:`ainvoke`. Nodes run one after the other.

        Raises:
            WrongColourError: The workflow is async.
        """
        if not pgflow.in_workflow():
            return self._plain.invoke(input, config, **options)
        _be_sync("invoke", "ainvoke")
        return run_here(self.ainvoke(input, config, **options))

    def stream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Yields what the graph does in a sync workflow; see :meth:`astream`.

        Raises:
            WrongColourError: The workflow is async.
        """
        if not pgflow.in_workflow():
            return self._plain.stream(input, config, **options)
        _be_sync("stream", "astream")
        return iterate_here(self.astream(input, config, **options))

    def _telling(self, config: RunnableConfig | None) -> AbstractContextManager[Any]:
        """Trace one call."""
        thread = (config or {}).get("configurable", {}).get("thread_id")
        name = self._plain.get_name()
        return pgflow.extensions.operation(
            "invoke_agent", name, conversation=None if thread is None else str(thread)
        )

    async def _open(
        self, config: RunnableConfig | None
    ) -> tuple[Pregel[Any, Any, Any, Any], ThreadMemory | None]:
        """Return the graph for one call, and the memory of its thread."""
        saver = self._plain.checkpointer
        if not isinstance(saver, (PgflowSaver, AwaitedSaver)):
            return self._graph, None
        if config is None or "thread_id" not in config.get("configurable", {}):
            raise InvalidArgument(
                "the graph has a checkpointer, so it needs a thread: pass "
                "config={'configurable': {'thread_id': ...}}"
            )
        thread = ThreadMemory(saver.serde)
        thread.take(await load(saver.serde, config))
        graph = copy.copy(self._graph)
        graph.checkpointer = thread
        return graph, thread


def durable(
    graph: Pregel[Any, Any, Any, Any],
    *,
    approvers: Sequence[str] = (),
    timeout: timedelta | float | None = None,
) -> DurableGraph:
    """Return a graph whose nodes are steps of the run that calls it.

    An async workflow calls ``ainvoke`` or ``astream``, a sync one ``invoke`` or ``stream``.

    Nodes may be ``async def`` or ``def``. A node that is a graph is made of steps itself; a graph
    that a node calls is a part of that node. ``interrupt(value)`` is a gate: it returns the answer
    of the approval. ``interrupt_before`` and ``interrupt_after`` are gates, too.

    Each try of a node is a step, as often as its retry policy says, with waits that outlive a
    worker. Without a policy it is tried once, and again only if its worker has died.

    Args:
        graph: A compiled graph. A checkpointer must be one of pgflow's.
        approvers: Names or roles of the people who may answer an interrupt; none for anyone.
        timeout: Time to answer.

    Raises:
        InvalidArgument: The graph cannot be durable as it is.

    Example::

        agent = durable(builder.compile())

        @workflow
        async def answer(question: str) -> str:
            return (await agent.ainvoke({"question": question}))["answer"]
    """
    saver = graph.checkpointer
    serde = saver.serde if isinstance(saver, BaseCheckpointSaver) else JsonPlusSerializer()
    return DurableGraph(graph, Terms(serde, tuple(approvers), timeout))


def _be_sync(called: str, wanted: str) -> None:
    if not is_sync():
        raise WrongColourError(
            f"{called}() of a durable graph is for sync workflows: in this async one, "
            f"call {wanted}()"
        )


def _with_steps(
    graph: Pregel[Any, Any, Any, Any], terms: Terms, path: str
) -> Pregel[Any, Any, Any, Any]:
    saver = graph.checkpointer
    if isinstance(saver, BaseCheckpointSaver) and not isinstance(
        saver, (PgflowSaver, AwaitedSaver, InMemorySaver)
    ):
        raise InvalidArgument(
            f"a durable graph cannot have {type(saver).__name__} as its checkpointer, whose writes "
            "would be code of the workflow: take PgflowSaver, or none"
        )
    made = copy.copy(graph)
    made.nodes = {
        name: node if name == START else _step_of(graph, name, node, terms, f"{path}{name}")
        for name, node in graph.nodes.items()
    }
    made.interrupt_before_nodes, made.interrupt_after_nodes = (), ()
    made.cache, made.retry_policy = None, ()
    return made


def _step_of(
    graph: Pregel[Any, Any, Any, Any], name: str, node: Any, terms: Terms, path: str
) -> Any:
    """Return a node whose code is a step, or a graph of such nodes."""
    bound: Any = node.bound
    if isinstance(bound, Pregel):
        bound = _with_steps(bound, terms, f"{path}/")
    else:
        times = {"before": graph.interrupt_before_nodes, "after": graph.interrupt_after_nodes}
        asks = frozenset(when for when, names in times.items() if names == "*" or name in names)
        policies = tuple(node.retry_policy or graph.retry_policy or ())
        bound = NodeStep(path, node, terms, policies, asks)
    return node.copy({"bound": bound, "retry_policy": None, "timeout": None, "cache_policy": None})
