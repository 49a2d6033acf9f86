"""A durable graph with a fan-out, a graph within and a question, whose every node leaves a witness
outside, and may die there: for `tests.agentkills`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import langchain_core.tracers.context  # noqa: F401 - which each process would import
import psycopg
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt

import pgflow
from pgflow.agent.langgraph import durable
from pgflow.authority import Approve
from tests.kits import fates
from tests.kits.fates import arrive, witness

ITEMS = 3
PRICE = Decimal("0.25")
BODIES = (
    "node begins", "node ends", "node of a def", "router", "item", "graph within", "before the ask",
    "behind the answer",
)  # fmt: skip
COMMITS = ("node:first", "node:item", fates.ASKED, fates.ENDED)
ANSWER = Approve("yes")
EXPECTED = {"first": 1, "beside": 1, "item": ITEMS, "deep": 1, "answer": 1}
CHARGES = sum(EXPECTED.values())
WORDS = ["first", "deep", "answer yes"]
OUTPUT = ["answer yes", "beside", "deep", "first", "item 0", "item 1", "item 2"]


class State(TypedDict):
    words: Annotated[list[str], operator.add]


class Inner(TypedDict):
    """State of the graph within: what it adds, and not what it was given."""

    words: list[str]


def act(kind: str, word: str) -> dict[str, list[str]]:
    """Do what a node does: leave a witness, and pay."""
    witness(kind)
    pgflow.authority.charge(usd=PRICE)
    return {"words": [word]}


async def first(state: State) -> dict[str, list[str]]:
    arrive("node begins")
    done = act("first", "first")
    pgflow.emit("words", "first")
    arrive("node ends")
    return done


def beside(state: State) -> dict[str, list[str]]:
    done = act("beside", "beside")
    arrive("node of a def")
    return done


def spread(state: State) -> list[Send]:
    arrive("router")
    return [Send("item", {"n": n}) for n in range(ITEMS)]


async def item(state: Any) -> dict[str, list[str]]:
    done = act("item", f"item {state['n']}")
    arrive("item")
    return done


def deep(state: Inner) -> dict[str, list[str]]:
    done = act("deep", "deep")
    pgflow.emit("words", "deep")
    arrive("graph within")
    return done


async def ask(state: State) -> dict[str, list[str]]:
    arrive("before the ask")
    answer = interrupt({"words": len(state["words"])})
    done = act("answer", f"answer {answer}")
    pgflow.emit("words", f"answer {answer}")
    arrive("behind the answer")
    return done


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
async def walk(question: str) -> list[str]:
    state = await GRAPH.ainvoke({"words": []})
    return sorted(state["words"])


@pgflow.workflow
def walk_in_thread(question: str) -> list[str]:
    state = GRAPH.invoke({"words": []})
    return sorted(state["words"])


FLOWS = (walk, walk_in_thread)


def serve(dsn: str, **options: Any) -> None:
    """Work as a child of the nursery."""
    fates.serve(dsn, FLOWS, **options)


def judge(conn: psycopg.Connection[Any], key: str) -> Iterator[str]:
    """Look at what only a graph leaves: nothing."""
    return iter(())
