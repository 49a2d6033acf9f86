"""Graphs of LangGraph in a run: nodes call steps, `def` nodes run as code of the workflow, an
interrupt is a signal.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from records import SOON, count, launch, settle

import pgflow

pytest.importorskip("langgraph", reason="langgraph is not installed: pip install -e '.[adapters]'")

from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402
from langgraph.types import Command, interrupt  # noqa: E402

go = pgflow.Signal("go", int)
answered = pgflow.Signal("answer", str)
called: list[str] = []


class State(TypedDict):
    x: Annotated[list[Any], operator.add]


@pgflow.step
async def work(name: str) -> list[str]:
    called.append(name)
    return [name]


async def node_a(state: State) -> dict[str, Any]:
    return {"x": await work("a")}


async def node_b(state: State) -> dict[str, Any]:
    return {"x": await work("b")}


def sync_node(state: State) -> dict[str, Any]:
    return {"x": [f"sync after {len(state['x'])}"]}


async def asks(state: State) -> dict[str, Any]:
    return {"x": [interrupt({"question": "ok?"})]}


def graph_of(*edges: tuple[str, str], **nodes: Any) -> StateGraph:
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for source, target in edges:
        graph.add_edge(source, target)
    return graph


PARALLEL = graph_of(
    (START, "a"), (START, "b"), ("a", "s"), ("b", "s"), ("s", END), a=node_a, b=node_b, s=sync_node
).compile()
ASKING = graph_of((START, "a"), ("a", "ask"), ("ask", END), a=node_a, ask=asks)


@pgflow.workflow
async def runs_a_graph() -> list[Any]:
    with pgflow.inline():
        state = await PARALLEL.ainvoke({"x": []})
    await go.wait()
    return state["x"]


@pgflow.workflow
async def streams_a_graph() -> list[Any]:
    chunks = []
    with pgflow.inline():
        async for chunk in PARALLEL.astream({"x": []}, stream_mode="updates"):
            chunks.append(chunk)
            pgflow.emit("updates", chunk)
    return chunks


@pgflow.workflow
async def waits_for_a_person() -> list[Any]:
    graph = ASKING.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    with pgflow.inline():
        state = await graph.ainvoke({"x": []}, config)
        while "__interrupt__" in state:
            pgflow.set_state(asks=[i.value for i in state["__interrupt__"]])
            state = await graph.ainvoke(Command(resume=await answered.wait()), config)
    return state["x"]


async def test_a_replayed_graph_calls_no_step_again_and_def_nodes_are_workflow_code(aflow, conn):
    called.clear()
    run = await settle(aflow, runs_a_graph)
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == ["a", "b", "sync after 2"]
    assert sorted(called) == ["a", "b"]
    assert count(conn, "pgflow.steps") == 2


async def test_the_updates_of_a_graph_are_a_stream_of_the_run(aflow):
    run = await launch(aflow, streams_a_graph)
    chunks = await run.result(SOON)
    assert [value async for value in run.stream("updates")] == chunks
    assert {"s": {"x": ["sync after 2"]}} in chunks


async def test_an_interrupt_waits_for_a_signal_over_a_crash(aflow):
    called.clear()
    run = await settle(aflow, waits_for_a_person)
    assert await run.state() == {"asks": [{"question": "ok?"}]}
    await aflow.crash()
    await run.send(answered, "yes")
    await aflow.until_idle()
    assert await run.result(SOON) == ["a", "yes"]
    assert called == ["a"]
