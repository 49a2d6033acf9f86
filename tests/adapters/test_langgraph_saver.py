"""Checkpoints of LangGraph in the database: the framework's own conformance suite, and what it does
not ask.
"""

from __future__ import annotations

import asyncio
import json
import operator
import threading
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import pytest
import sqlkit
from records import SOON, eventually, in_a_loop, wait_until

from pgflow import App, AsyncApp
from pgflow.errors import InvalidArgument, NotStorable, WrongColourError

pytest.importorskip("langgraph", reason="langgraph is not installed: pip install -e '.[adapters]'")
conformance = pytest.importorskip(
    "langgraph.checkpoint.conformance", reason="langgraph-checkpoint-conformance is not installed"
)

from langchain_core.messages import AIMessage, HumanMessage  # noqa: E402
from langgraph.channels.delta import DeltaChannel  # noqa: E402
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer  # noqa: E402
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402
from langgraph.runtime import Runtime  # noqa: E402
from langgraph.store.base import (  # noqa: E402
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)

from pgflow.agent.langgraph import (  # noqa: E402
    AsyncPgflowSaver,
    AsyncPgflowStore,
    PgflowSaver,
    PgflowStore,
)
from pgflow.agent.langgraph.checkpoint import next_version  # noqa: E402
from pgflow.agent.langgraph.values import from_json, to_json  # noqa: E402


@pytest.mark.parametrize("is_async", [True, False])
@in_a_loop
async def test_the_saver_conforms_in_full(dsn, is_async):
    async def saver() -> AsyncGenerator[Any, None]:
        if is_async:
            async with AsyncApp(dsn) as app:
                yield AsyncPgflowSaver(app)
        else:
            with App(dsn) as app:
                yield PgflowSaver(app)

    report = await conformance.validate(RegisteredCheckpointer("pgflow", saver))
    report.print_report()
    assert report.conformance_level() == "FULL", report.to_dict()


VALUES: list[Any] = [
    None, True, 1.0, 2**60, float("inf"), "text", "a\0b", b"\xff", [1, [2]], {1, 2},
    {"a": {"$b": 1}}, {1: "one", (2, 3): "pair"}, datetime(2030, 1, 1, tzinfo=UTC), Decimal("1.10"),
    [HumanMessage("hi", id="1"), AIMessage("", tool_calls=[{"name": "t", "args": {"n": 1}, "id": "c"}])],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_from_its_json_as_it_was(value):
    serde = JsonPlusSerializer()
    stored = json.loads(json.dumps(to_json(serde, value, "a value"), allow_nan=False))
    back = from_json(serde, stored)
    assert (back, type(back)) == (value, type(value))


def test_versions_take_no_ids_of_those_who_count_them(monkeypatch):
    monkeypatch.setattr("uuid.uuid4", lambda: pytest.fail("a test of LangGraph counts these"))
    first = next_version(None)
    assert first < next_version(first)
    assert next_version(first) != next_version(first)


def test_a_message_can_be_read_in_sql_and_nothing_is_pickled():
    assert "hi there" in json.dumps(to_json(JsonPlusSerializer(), [HumanMessage("hi there")], "it"))
    pickling = JsonPlusSerializer(pickle_fallback=True)
    with pytest.raises(NotStorable, match="pickle"):
        to_json(pickling, threading.Lock, "a lock")
    with pytest.raises(NotStorable, match="pickle"):
        from_json(pickling, {"type": "pickle", "base64": ""})


def extended(log: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*log, *(item for write in writes for item in write)]


class State(TypedDict):
    big: str
    n: Annotated[int, operator.add]
    log: Annotated[list[Any], DeltaChannel(extended, snapshot_frequency=4)]


def counting(state: State) -> dict[str, Any]:
    return {"n": 1, "log": [state["n"]]}


def graph_of(saver: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("count", counting)
    graph.add_edge(START, "count")
    graph.add_edge("count", END)
    return graph.compile(checkpointer=saver)


def test_a_value_that_does_not_change_is_stored_once_and_pruning_keeps_what_deltas_need(dsn, conn):
    with App(dsn) as app:
        graph, config = graph_of(PgflowSaver(app)), {"configurable": {"thread_id": "t"}}
        graph.invoke({"big": "x" * 1000, "n": 0, "log": []}, config)
        for _ in range(5):
            state = graph.invoke({"n": 0}, config)
        assert state["log"] == [0, 1, 2, 3, 4, 5]
        big = "select count(*) from pgflow.documents where path[3] = 'big'"
        assert sqlkit.one(conn, big) == 1
        before = len(list(graph.get_state_history(config)))
        graph.checkpointer.prune(["t"])
        assert len(list(graph.get_state_history(config))) < before
        assert graph.get_state(config).values == state
        assert graph.invoke({"n": 0}, config)["log"] == [0, 1, 2, 3, 4, 5, 6]
        graph.checkpointer.copy_thread("t", "copy")
        assert graph.get_state({"configurable": {"thread_id": "copy"}}).values["n"] == 7
        for thread in ("t", "copy"):
            graph.checkpointer.delete_thread(thread)
    assert sqlkit.one(conn, "select count(*) from pgflow.document") == 0


@pytest.mark.parametrize("strategy", ["keep_latest", "delete"])
def test_one_text_is_no_list_of_threads_to_prune(dsn, strategy):
    with App(dsn) as app:
        graph = graph_of(PgflowSaver(app))
        threads: list[Any] = [{"configurable": {"thread_id": name}} for name in ("a", "b")]
        for thread in threads:
            graph.invoke({"big": "", "n": 0, "log": []}, thread)
        before = [list(graph.get_state_history(thread)) for thread in threads]
        with pytest.raises(InvalidArgument, match="not the text 'ab'"):
            graph.checkpointer.prune("ab", strategy=strategy)
        assert [list(graph.get_state_history(thread)) for thread in threads] == before


def test_a_store_finds_lists_and_forgets(dsn, conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    with App(dsn) as app:
        store = PgflowStore(app, ttl={"refresh_on_read": True})
        for user, n in (("ada", 1), ("ada", 2), ("bob", 3)):
            store.put(("users", user), f"k{n}", {"n": n, "text": f"note {n}"})
        store.put(("users", "ada"), "short", {"n": 9}, ttl=1)
        assert store.get(("users", "bob"), "k3").value["n"] == 3
        found = [i.key for i in store.search(("users", "ada"), filter={"n": {"$gte": 2}})]
        assert found == ["k2", "short"]
        assert [i.key for i in store.search(("users",), limit=2, offset=1)] == ["k2", "short"]
        assert store.search(("users", "ada"), filter={"text": {"$gt": 1}}) == []
        assert store.list_namespaces(prefix=("users", "*")) == [("users", "ada"), ("users", "bob")]
        assert store.list_namespaces(suffix=("bob",), max_depth=1) == [("users",)]
        sqlkit.set_clock(conn, sqlkit.T0 + sqlkit.seconds(61))
        assert store.get(("users", "ada"), "short") is None
        store.delete(("users", "bob"), "k3")
        assert store.get(("users", "bob"), "k3") is None
        assert [i.key for i in store.search(("users",), query="tea")] == ["k1", "k2"]


@pytest.mark.parametrize("namespace", [("a.b",), ("a", ""), ("a", 1)])
def test_a_batch_with_an_invalid_namespace_does_nothing(dsn, namespace):
    with App(dsn) as app:
        store = PgflowStore(app)
        for wrong in (
            GetOp(namespace, "k"),
            PutOp(namespace, "k", {}),
            SearchOp(namespace),
            ListNamespacesOp((MatchCondition("suffix", namespace),)),
        ):
            with pytest.raises(InvalidNamespaceError, match="label"):
                store.batch([PutOp(("valid",), "k", {"n": 1}), wrong])
        assert store.get(("valid",), "k") is None
        anything = ListNamespacesOp((MatchCondition("prefix", ("*",)),))
        assert store.batch([SearchOp(()), anything]) == [[], []]


@in_a_loop
async def test_the_async_store_has_what_the_sync_one_wrote(dsn):
    with App(dsn) as app:
        await PgflowStore(app).aput(("a",), "k", {"n": 1})
    async with AsyncApp(dsn) as app:
        store = AsyncPgflowStore(app)
        assert (await store.aget(("a",), "k")).value == {"n": 1}
        assert [item.key for item in await store.asearch(("a",))] == ["k"]
        assert (await asyncio.to_thread(store.get, ("a",), "k")).value == {"n": 1}
        with pytest.raises(WrongColourError, match="threads beside its event loop"):
            store.get(("a",), "k")


def letters(texts: list[str]) -> list[list[float]]:
    """A vector for each text: how often it has some letters."""
    return [[float(text.count(letter)) for letter in "abcxyz"] for text in texts]


def test_a_store_with_an_embedding_searches_by_meaning(dsn, conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    with App(dsn) as app:
        store = PgflowStore(app, index={"dims": 6, "embed": letters, "fields": ["text"]})
        for key, text in (("a", "aab"), ("x", "xxy"), ("mixed", "ax")):
            store.put(("users",), key, {"text": text})
        store.put(("users",), "brief", {"text": "aaa"}, ttl=1)
        store.put(("users",), "hidden", {"text": "aaa"}, index=False)
        found = store.search(("users",), query="a")
        assert [item.key for item in found] == ["brief", "a", "mixed", "x", "hidden"]
        assert [round(item.score or 0, 1) for item in found] == [1.0, 0.9, 0.7, 0.0, 0.0]
        assert found[-1].score is None
        page = store.search(
            ("users",), query="a", limit=1, offset=1, filter={"text": {"$ne": "aaa"}}
        )
        assert [item.key for item in page] == ["mixed"]
        store.put(("users",), "a", {"text": "zzz"})
        assert store.search(("users",), query="z", limit=1)[0].key == "a"
        store.delete(("users",), "a")
        sqlkit.set_clock(conn, sqlkit.T0 + sqlkit.seconds(61))
        assert store.sweep_ttl() == 2  # the item and its vectors
        left = "select count(*) from pgflow.document where collection = 'langgraph.vector'"
        assert sqlkit.one(conn, left) == 2


@in_a_loop
async def test_an_async_store_embeds_and_sweeps_on_its_loop(dsn, conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    async with AsyncApp(dsn) as app:
        store = AsyncPgflowStore(app, index={"dims": 6, "embed": letters})
        await store.aput(("users",), "a", {"text": "aab"}, ttl=1)
        assert (await store.asearch(("users",), query="a"))[0].score > 0.8
        sqlkit.set_clock(conn, sqlkit.T0 + sqlkit.seconds(61))
        await store.start_ttl_sweeper()
        await eventually(
            lambda: sqlkit.one(conn, "select count(*) from pgflow.document") == 0, "the sweep"
        )
        assert await store.stop_ttl_sweeper(SOON.total_seconds())


def test_a_sync_store_sweeps_in_a_thread(dsn, conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    with App(dsn) as app:
        store = PgflowStore(app, ttl={"sweep_interval_minutes": 1})
        store.put(("users",), "a", {"text": "aab"}, ttl=1)
        sqlkit.set_clock(conn, sqlkit.T0 + sqlkit.seconds(61))
        sweeping = store.start_ttl_sweeper()
        assert store.start_ttl_sweeper() is sweeping
        wait_until(
            lambda: sqlkit.one(conn, "select count(*) from pgflow.document") == 0, "the sweep"
        )
        assert store.stop_ttl_sweeper(SOON.total_seconds())
        assert sweeping.done()


class Pictures(TypedDict):
    messages: Annotated[list[Any], operator.add]


@pytest.mark.parametrize("is_async", [True, False])
@in_a_loop
async def test_a_message_of_many_mib_is_kept_in_parts(dsn, conn, is_async):
    picture = {"type": "image", "base64": 'QUJD"\u00e4' * 400_000}

    def look(state: Pictures) -> Any:
        return {"messages": [AIMessage(f"{len(state['messages'])} seen")]}

    graph = StateGraph(Pictures)
    graph.add_node("look", look)
    graph.add_edge(START, "look")
    thread: Any = {"configurable": {"thread_id": "t"}}
    given: Any = {"messages": [HumanMessage([picture])]}
    async with AsyncApp(dsn) as awaited:
        with App(dsn) as app:
            saver: Any = AsyncPgflowSaver(awaited) if is_async else PgflowSaver(app)
            made = graph.compile(checkpointer=saver)
            state = await made.ainvoke(given, thread)
            assert (await made.aget_state(thread)).values == state
            assert state["messages"][0].content == [picture]
            await saver.acopy_thread("t", "copy")
            copy: Any = {"configurable": {"thread_id": "copy"}}
            assert (await made.aget_state(copy)).values == state
            await made.aupdate_state(thread, {"messages": [AIMessage("more")]})
            await saver.aprune(["t"])
            parts = (
                "select count(distinct path[1:array_length(path, 1) - 1]) from pgflow.documents "
                "where collection = 'langgraph.part' and path[1] = 't'"
            )
            assert sqlkit.one(conn, parts) == 1
            for name in ("t", "copy"):
                await saver.adelete_thread(name)
    assert sqlkit.one(conn, "select count(*) from pgflow.document") == 0


def subgraph() -> Any:
    graph = StateGraph(State)
    graph.add_node("count", counting)
    graph.add_edge(START, "count")
    return graph.compile(checkpointer=True)


@in_a_loop
async def test_def_nodes_of_an_async_graph_call_what_is_sync(dsn):
    inner = subgraph()

    def outer(state: State, runtime: Runtime[Any]) -> Any:
        assert runtime.store is not None
        runtime.store.put(("seen",), "n", {"n": state["n"]})
        return {"n": inner.invoke(state)["n"]}

    graph = StateGraph(State)
    graph.add_node("outer", outer)
    graph.add_edge(START, "outer")
    thread: Any = {"configurable": {"thread_id": "t"}}
    async with AsyncApp(dsn) as app:
        saver = AsyncPgflowSaver(app)
        made = graph.compile(checkpointer=saver, store=AsyncPgflowStore(app))
        state = await made.ainvoke({"big": "", "n": 5, "log": []}, thread)
        assert state["n"] == 5 + 6
        assert (await asyncio.to_thread(made.get_state, thread)).values == state
        assert len(await asyncio.to_thread(lambda: list(saver.list(thread)))) > 1
        with pytest.raises(WrongColourError, match="ainvoke"):
            made.get_state(thread)
        for name in ("t", "u"):
            await asyncio.to_thread(saver.copy_thread, "t", "u")
            await asyncio.to_thread(saver.prune, [name])
            await asyncio.to_thread(saver.delete_thread, name)
        await asyncio.to_thread(saver.delete_for_runs, ["none"])
        assert await saver.aget_tuple(thread) is None
