"""Durable graphs: nodes are steps that no replay runs again, interrupts are gates."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from records import SOON, recover, settle, steps

import pgflow
from pgflow.authority import Approve, Reject

pytest.importorskip("langgraph", reason="langgraph is not installed: pip install -e '.[adapters]'")

from langchain_core.messages import AIMessage, HumanMessage  # noqa: E402
from langgraph.config import get_stream_writer  # noqa: E402
from langgraph.graph import END, START, MessagesState, StateGraph  # noqa: E402
from langgraph.types import Command, RetryPolicy, Send, interrupt  # noqa: E402

from pgflow.agent.langgraph import AsyncPgflowSaver, durable  # noqa: E402
from pgflow.testing import AsyncHarness

go = pgflow.Signal("go", int)
called: list[str] = []


class Inner(TypedDict):
    x: list[Any]


class State(TypedDict):
    x: Annotated[list[Any], operator.add]


def node(name: str, *, is_async: bool = True) -> Any:
    async def run(state: State) -> dict[str, Any]:
        called.append(name)
        get_stream_writer()({"at": name})
        return {"x": [name]}

    def run_sync(state: State) -> dict[str, Any]:
        called.append(name)
        return {"x": [name]}

    return run if is_async else run_sync


def fan_out(state: State) -> list[Send]:
    return [Send("item", {"n": n}) for n in range(3)]


async def item(state: Any) -> dict[str, Any]:
    called.append(f"item {state['n']}")
    return {"x": [state["n"]]}


def choose(state: State) -> Command[Any]:
    called.append("choose")
    return Command(goto="inner", update={"x": ["chosen"]})


async def deep(state: Inner) -> dict[str, Any]:
    called.append("deep")
    get_stream_writer()({"at": "deep"})
    return {"x": ["deep"]}


def inner_graph() -> Any:
    inner = StateGraph(Inner)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")
    return inner.compile()


async def asks(state: State) -> dict[str, Any]:
    called.append("asks")
    first = interrupt({"question": "name?"})
    second = interrupt({"question": f"age of {first}?"})
    return {"x": [first, second]}


def wide_graph() -> Any:
    graph = StateGraph(State)
    graph.add_node("a", node("a"))
    graph.add_node("b", node("b", is_async=False))
    graph.add_node("item", item)
    graph.add_node("choose", choose)
    graph.add_node("inner", inner_graph())
    graph.add_node("asks", asks)
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    graph.add_conditional_edges("a", fan_out, ["item"])
    graph.add_edge(["item", "b"], "choose")
    graph.add_edge("inner", "asks")
    graph.add_edge("asks", END)
    return graph.compile()


WIDE = durable(wide_graph(), approvers=["ada"])


@pgflow.workflow
async def goes_wide() -> list[Any]:
    state = await WIDE.ainvoke({"x": []})
    await go.wait()
    return state["x"]


async def answer(aflow: AsyncHarness, value: Any) -> Any:
    (gate,) = await aflow.gates()
    await aflow.answer(gate.gate, value, by="ada")
    await aflow.until_idle()
    return gate


async def test_no_node_runs_again_and_an_interrupt_waits_for_an_approval(aflow, conn):
    called.clear()
    run = await settle(aflow, goes_wide)
    await recover(aflow)
    first = await answer(aflow, Approve("Ada"))
    await recover(aflow)
    second = await answer(aflow, Approve(36))
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    result = await run.result(SOON)
    assert sorted(map(str, result[:5])) == ["0", "1", "2", "a", "b"]
    assert result[5:] == ["chosen", "deep", "Ada", 36]
    assert (first.request, second.request) == ({"question": "name?"}, {"question": "age of Ada?"})
    assert (first.name, first.approvers) == ("interrupt:asks", ["ada"])
    ran = ["a", "asks", "asks", "asks", "b", "choose", "deep", "item 0", "item 1", "item 2"]
    assert sorted(called) == ran
    names = sorted(name for name, _, _ in steps(conn, run.key))
    assert names == sorted(
        ["node:a", "node:b", "node:choose", "node:inner/deep", *["node:asks", "node:item"] * 3]
    )
    assert [chunk async for chunk in run.stream("langgraph")] == [{"at": "a"}, {"at": "deep"}]


def rejected_graph() -> Any:
    graph = StateGraph(State)
    graph.add_node("flaky", flaky, retry_policy=RetryPolicy(max_attempts=3, retry_on=Flaky))
    graph.add_node("last", node("last"))
    graph.add_edge(START, "flaky")
    graph.add_edge("flaky", "last")
    return graph.compile(interrupt_before=["last"])


class Flaky(Exception):
    pass


async def flaky(state: State) -> dict[str, Any]:
    called.append("flaky")
    if called.count("flaky") < 3:
        raise Flaky
    return {"x": ["flaky"]}


FLAKY = durable(rejected_graph())


@pgflow.workflow
async def is_rejected() -> list[Any]:
    return (await FLAKY.ainvoke({"x": []}))["x"]


async def test_tries_are_steps_and_a_rejection_ends_the_graph(aflow, conn):
    called.clear()
    run = await settle(aflow, is_rejected)
    await aflow.skip(10)
    await aflow.until_idle()
    await aflow.answer("before:last", Reject("no"), by="ada")
    with pytest.raises(pgflow.RunFailed) as failed:
        await run.result(SOON)
    assert isinstance(failed.value.__cause__, pgflow.errors.GateRejected)
    assert called == ["flaky"] * 3
    assert [name for name, _, _ in steps(conn, run.key)] == ["node:flaky"] * 3


def talk(state: MessagesState) -> dict[str, Any]:
    return {
        "messages": [AIMessage(f"{len(state['messages'])} so far", id=f"a{len(state['messages'])}")]
    }


def talking(saver: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("talk", talk)
    graph.add_edge(START, "talk")
    return graph.compile(checkpointer=saver)


async def test_a_thread_goes_on_from_run_to_run(aflow):
    graph = talking(AsyncPgflowSaver(aflow.app))
    agent = durable(graph)

    @pgflow.workflow
    async def chat(text: str) -> str:
        config = {"configurable": {"thread_id": "chat"}}
        state = await agent.ainvoke({"messages": [HumanMessage(text, id=text)]}, config)
        await go.wait()
        return state["messages"][-1].content

    @pgflow.workflow
    def chat_in_thread(text: str) -> str:
        config = {"configurable": {"thread_id": "chat"}}
        state = agent.invoke({"messages": [HumanMessage(text, id=text)]}, config)
        go.sync.wait()
        return state["messages"][-1].content

    aflow.include(chat, chat_in_thread)
    for flow, text, said in ((chat, "hi", "1 so far"), (chat_in_thread, "and", "3 so far")):
        run = await settle(aflow, flow, text)
        await aflow.crash()
        await run.send(go, 1)
        await aflow.until_idle()
        assert await run.result(SOON) == said
    config: Any = {"configurable": {"thread_id": "chat"}}
    state = await graph.aget_state(config)
    assert [m.id for m in state.values["messages"]] == ["hi", "a1", "and", "a3"]
    history = [len(s.values.get("messages", ())) async for s in graph.aget_state_history(config)]
    assert history == [4, 3, 2, 2, 1, 0]


@pgflow.workflow
def goes_wide_in_thread() -> list[Any]:
    state = WIDE.invoke({"x": []})
    go.sync.wait()
    return state["x"]


@pgflow.workflow
def streams_in_thread() -> list[str]:
    return [name for chunk in SMALL.stream({"x": []}, stream_mode="updates") for name in chunk]


@pgflow.workflow
async def calls_the_other_colour() -> list[str]:
    said = []
    for call in (SMALL.invoke, SMALL.stream):
        try:
            call({"x": []})
        except pgflow.errors.WrongColourError as error:
            said.append(str(error))
    return said


def small_graph() -> Any:
    graph = StateGraph(State)
    graph.add_node("a", node("a", is_async=False))
    graph.add_node("b", node("b", is_async=False))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    return graph.compile()


SMALL = durable(small_graph())


async def test_a_def_workflow_runs_a_graph_in_its_own_thread(aflow, conn):
    called.clear()
    aflow.include(goes_wide_in_thread, streams_in_thread, calls_the_other_colour)
    run = await settle(aflow, goes_wide_in_thread)
    await recover(aflow)
    await answer(aflow, Approve("Ada"))
    await recover(aflow)
    await answer(aflow, Approve(36))
    await run.send(go, 1)
    await aflow.until_idle()
    assert (await run.result(SOON))[-4:] == ["chosen", "deep", "Ada", 36]
    ran = ["a", "asks", "asks", "asks", "b", "choose", "deep", "item 0", "item 1", "item 2"]
    assert sorted(called) == ran
    assert await (await aflow.start(streams_in_thread)).result(SOON) == ["a", "b"]
    refused = await (await aflow.start(calls_the_other_colour)).result(SOON)
    assert [line.rpartition("call ")[2] for line in refused] == ["ainvoke()", "astream()"]
    assert list(SMALL.stream({"x": []}))[-1] == {"b": {"x": ["b"]}}
    assert SMALL.invoke({"x": []})["x"] == ["a", "b"]
