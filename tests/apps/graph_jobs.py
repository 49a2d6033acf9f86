"""A durable graph with a fan-out, a graph within and a question, whose nodes leave a trace on the
disk: what `tests/graphkills.py` kills.
"""

from __future__ import annotations

import asyncio
import operator
import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt

import pgflow
from pgflow.agent.langgraph import durable

ITEMS = 4


class State(TypedDict):
    keys: Annotated[list[str], operator.add]
    words: Annotated[list[str], operator.add]


class Inner(TypedDict):
    """State of the graph within: what it adds, and not what it was given."""

    keys: list[str]
    words: list[str]


def trace(word: str) -> dict[str, Any]:
    """Writes the key of the step to the disk, and returns it with a word."""
    key = f"node-{pgflow.idempotency_key()}"
    with Path(os.environ["GRAPH_TRACE"]).open("ab", buffering=0) as file:
        file.write(f"{key}\n".encode())
    return {"keys": [key], "words": [word]}


async def first(state: State) -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return trace("first")


def beside(state: State) -> dict[str, Any]:
    return trace("beside")


def spread(state: State) -> list[Send]:
    return [Send("item", {"n": n}) for n in range(ITEMS)]


async def item(state: Any) -> dict[str, Any]:
    await asyncio.sleep(0.005 * state["n"])
    return trace(f"item {state['n']}")


def deep(state: Inner) -> dict[str, Any]:
    return trace("deep")


async def ask(state: State) -> dict[str, Any]:
    answer = interrupt({"words": len(state["words"])})
    return trace(f"answer {answer}")


def make() -> Any:
    inner = StateGraph(Inner)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")
    graph = StateGraph(State)
    for name, node in (("first", first), ("beside", beside), ("item", item), ("ask", ask)):
        graph.add_node(name, node)
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "first")
    graph.add_edge(START, "beside")
    graph.add_conditional_edges("first", spread, ["item"])
    graph.add_edge(["item", "beside"], "inner")
    graph.add_edge("inner", "ask")
    return graph.compile()


GRAPH = durable(make())


@pgflow.workflow
async def walk() -> list[str]:
    state = await GRAPH.ainvoke({"keys": [], "words": []})
    return list(state["words"])


@pgflow.workflow
def walk_in_thread() -> list[str]:
    state = GRAPH.invoke({"keys": [], "words": []})
    return list(state["words"])
