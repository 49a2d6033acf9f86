"""What else goes to a run on another node, and how its parent's end reaches it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from clusterkit import ask, cluster_of, value
from test_cluster import FLOWS, GO, Cluster, parent, wait_for_go

import pgflow
from pgflow import App, AsyncApp, KeyConflict, RunCancelled, RunFailed, RunNotFound, workflow
from pgflow._worker.letters import Letters
from pgflow.authority import Approve, Approved
from pgflow.errors import InvalidArgument, SetupError


class Cart:
    """State of a run."""

    def __init__(self) -> None:
        self.skus: list[str] = []


@workflow
async def cart() -> list[str]:
    state = Cart()
    pgflow.set_state(size=0)
    await pgflow.updates.serve(state, until=lambda: len(state.skus) == 2)
    return state.skus


@cart.update
def add(state: Cart, sku: str) -> int:
    state.skus.append(sku)
    return len(state.skus)


@workflow
async def asks(what: str) -> str:
    verdict = await pgflow.authority.gate("sure", what, approvers=["ann"])
    assert isinstance(verdict, Approved)
    return str(verdict.value)


MORE = [*FLOWS, cart, asks]


class Nodes(Cluster):
    """Apps that know more workflows."""

    def __init__(self, nodes: list[str], **options: Any) -> None:
        super().__init__(nodes)
        self.apps = [AsyncApp(dsn, include=MORE, cluster=True, **options) for dsn in nodes]


def gates_of(dsn: str) -> list[str]:
    return [row[0] for row in ask(dsn, "select gate from pgflow.gates")]


async def until(condition: Any) -> Any:
    async with asyncio.timeout(60):
        while not (found := condition()):
            await asyncio.sleep(0.05)
    return found


def test_gates_updates_and_queries_reach_a_run_on_any_node(nodes: list[str]) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one, two, _ = cluster.apps
            await one.start(cart.options(key="cart", node=3), *())
            run = two.get("cart", cart)
            assert await run.execute_update(add, "tea") == 1
            assert await run.query("size") == 0
            assert await one.get("cart", cart).execute_update(add, "milk") == 2
            assert await run.result() == ["tea", "milk"]

            gate = await one.start(asks.options(key="gate", node=2), "ship")
            (key,) = await until(lambda: gates_of(nodes[1]))
            await one.answer(key, Approve(), by="ann")
            assert await gate.result() == "ship"

    asyncio.run(main())


def test_an_approvers_hook_is_asked_for_a_gate_on_another_node(nodes: list[str]) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one = cluster.apps[0]
            asked: list[str] = []

            @one.approvers
            def roles(gate: Any, by: str) -> list[str]:
                asked.append(gate.name)
                return ["ann"]

            await one.start(asks.options(key="gate", node=2), "ship")
            (key,) = await until(lambda: gates_of(nodes[1]))
            await one.answer(key, Approve(), by="somebody")
            assert asked == ["sure"]
            assert await one.get("gate", asks).result() == "ship"

    asyncio.run(main())


@pytest.mark.parametrize("force", [False, True])
def test_the_cancel_of_a_parent_reaches_its_child_on_another_node(
    nodes: list[str], force: bool
) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one = cluster.apps[0]
            run = await one.start(parent.options(key="p", node=1), 3, "run")
            there = "select count(*) from pgflow.run_key where key = 'the-child'"
            await until(lambda: value(nodes[2], there))
            await one.cancel("p", force=force)
            with pytest.raises(RunCancelled):
                await run.result()
            with pytest.raises(RunCancelled):
                await one.get("the-child", wait_for_go).result()
            for dsn in nodes:
                await until(
                    lambda dsn=dsn: not value(dsn, "select count(*) from pgflow_cluster.outbox")
                )
                assert ask(dsn, "select * from pgflow_cluster.dead") == []

    asyncio.run(main())


def test_an_abandoned_child_on_another_node_goes_on(nodes: list[str]) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one = cluster.apps[0]
            run = await one.start(parent.options(key="p", node=1), 3, "abandon")
            await run.result()
            there = "select count(*) from pgflow.run_key where key = 'the-child'"
            await until(lambda: value(nodes[2], there))
            await one.send("the-child", GO, 1)
            assert await one.get("the-child", wait_for_go).result() == 2

    asyncio.run(main())


def test_what_is_not_offered_is_refused_in_one_line(nodes: list[str], dsn: str) -> None:
    async def main() -> None:
        async with AsyncApp(nodes[0], include=MORE, cluster=True) as app:
            with pytest.raises(InvalidArgument, match="its own node"):
                await app.start_batch(wait_for_go.options(node=2), [(1,)], then=cart)
            async with await psycopg.AsyncConnection.connect(nodes[0]) as connection:
                with pytest.raises(RunNotFound, match="no node of the cluster"):
                    await app.using(connection).send("none", GO, 1)
        async with AsyncApp(nodes[0], include=MORE) as app:
            with pytest.raises(InvalidArgument, match="cluster=True"):
                await app.start(wait_for_go.options(node=2), 1)
            with pytest.raises(InvalidArgument, match="cluster=True"):
                await app.start_many(wait_for_go.options(node=2), [(1,)])
        async with AsyncApp(dsn, include=MORE, cluster=True) as app:
            with pytest.raises(SetupError, match="pgflow cluster init"):
                await app.start(wait_for_go.options(key="k"), 1)

    asyncio.run(main())


def test_what_starts_runs_on_its_own_node_takes_no_other(nodes: list[str]) -> None:
    @workflow
    async def tidy(row: dict[str, Any]) -> None:
        del row

    placed = tidy.options(node=2)
    refused = r"own node: it takes no node= and no near="
    every = pgflow.schedule(every=3600)
    for make in (
        lambda: every(placed),
        lambda: every(tidy.options(near=("orders", 1))),
        lambda: pgflow.events.on("orders")(placed),
        lambda: pgflow.events.Relay("r", ["t"], to=placed),
    ):
        with pytest.raises(InvalidArgument, match=refused):
            make()
    with (
        App(nodes[0], include=MORE, cluster=True) as app,
        pytest.raises(InvalidArgument, match=f"schedule 'hourly' .*{refused}"),
    ):
        app.set_schedule("hourly", every, wait_for_go.options(node=2), 1)

    @workflow
    async def owes() -> None:
        await pgflow.authority.owe("pay", on_breach=placed)

    with App(nodes[0], include=[owes], cluster=True) as app, app.worker():
        with pytest.raises(RunFailed) as failed:
            app.start(owes).result()
        assert "own node" in str(failed.value.__cause__)


def keys_at(nodes: list[str]) -> list[list[str]]:
    return [
        [row[0] for row in ask(dsn, "select key from pgflow.run_key order by key")] for dsn in nodes
    ]


def test_many_runs_are_started_on_one_node_which_keeps_their_keys(nodes: list[str]) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one, two, three = cluster.apps
            runs = await one.start_many(wait_for_go, [(1,), (2,)], keys=["a", "b"])
            again = await two.start_many(wait_for_go, [(3,), (1,)], keys=["c", "a"])
            await three.start_many(wait_for_go.options(node=2), [(4,), (5,)], keys=["d", "e"])
            await three.start_many(wait_for_go.options(node=2), [(6,)])
            await three.tenant("acme").start_many(wait_for_go, [(7,)], keys=["a"])
            found = keys_at(nodes)
            assert (found[0], found[1][-2:], len(found[1]), found[2]) == (
                ["a", "b", "c"], ["d", "e"], 3, ["a"],
            )  # fmt: skip
            assert runs[0].key == again[1].key == "a"
            await three.send("a", GO, 1)
            assert await again[1].result() == 2
            with pytest.raises(KeyConflict):
                await two.start_many(wait_for_go, [(8,), (9,)], keys=["new", "b"])
            with pytest.raises(InvalidArgument, match="nodes 1 and 2"):
                await three.start_many(wait_for_go, [(4,), (1,)], keys=["d", "a"])
            with pytest.raises(InvalidArgument, match="node 9 is not an open node"):
                await one.start_many(wait_for_go.options(node=9), [(1,)], keys=["x"])
            assert keys_at(nodes) == found
            for place, app in enumerate(cluster.apps):
                near = wait_for_go.options(near=("orders", 7))
                await app.start_many(near, [(1,)], keys=[f"near-{place}"])
            homes = "select count(distinct node) from pgflow_cluster.key where key ~ '^near-'"
            assert value(nodes[0], homes) == 1

    asyncio.run(main())


def test_sync_apps_start_many_and_fork_too(nodes: list[str]) -> None:
    with App(nodes[0], include=FLOWS, cluster=True) as one:
        one.start_many(wait_for_go.options(node=2), [(1,)], keys=["a"])
        assert one.fork("a", "b") == "b"
        assert keys_at(nodes) == [[], ["a", "b"], []]


def test_a_fork_with_a_key_of_its_own_is_on_the_node_of_its_run(nodes: list[str]) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one, two, _ = cluster.apps
            await one.start(wait_for_go.options(key="k", node=3), 40)
            assert await one.fork("k", "again") == "again"
            assert await two.fork("k", "again") == "again"
            await two.start(wait_for_go.options(key="taken", node=2), 1)
            with pytest.raises(KeyConflict, match="node 2"):
                await one.fork("k", "taken")
            with pytest.raises(RunNotFound):
                await one.fork("none", "other")
            same = await two.start(wait_for_go.options(key="again", node=1), 40)
            assert keys_at(nodes) == [[], ["taken"], ["again", "k"]]
            async with await psycopg.AsyncConnection.connect(nodes[2]) as connection:
                assert await cluster.apps[2].using(connection).fork("k", "third") == "third"
            await one.send("third", GO, 1)
            await same.send(GO, 2)
            assert await same.result() == 42
            assert await two.get("third", wait_for_go).result() == 41

    asyncio.run(main())


def test_a_gate_is_answered_though_a_node_is_silent(nodes: list[str]) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one = cluster.apps[0]

            @one.approvers
            def roles(gate: Any, by: str) -> list[str]:
                del gate
                return [by]

            await one.start(asks.options(key="gate", node=3), "ship")
            (key,) = await until(lambda: gates_of(nodes[2]))
            ask(nodes[0], "update pgflow_cluster.node set port = '1' where node = 2 returning 1")
            await one.answer(key, Approve(), by="ann")
            assert await one.get("gate", asks).result() == "ship"
            with pytest.raises(RunNotFound, match="do not answer may have it: 2"):
                await one.answer("none", Approve(), by="ann")

    asyncio.run(main())


def test_a_silent_node_costs_its_own_runs_only(nodes: list[str]) -> None:
    async def main() -> None:
        async with Nodes(nodes) as cluster:
            one = cluster.apps[0]
            await one.start(wait_for_go.options(key="two", node=2), 1)
            await one.start(wait_for_go.options(key="three", node=3), 1)
            address = "update pgflow_cluster.node set dbname = %s where node = 2 returning 1"
            (name,) = ask(nodes[0], "select dbname from pgflow_cluster.node where node = 2")[0]
            ask(nodes[0], address, "gone")
            async with await psycopg.AsyncConnection.connect(nodes[0]) as connection:
                await one.using(connection).send("two", GO, 1)
                await one.using(connection).send("three", GO, 1)
            assert await one.get("three", wait_for_go).result() == 2
            waiting = "select error from pgflow_cluster.outbox where error is not null"
            (why,) = await until(lambda: ask(nodes[0], waiting))
            assert "gone" in why[0]
            ask(nodes[0], address, name)
            assert await one.get("two", wait_for_go).result() == 2

    asyncio.run(main())


def test_one_node_alone_is_a_cluster(server_dsn: str, template: str) -> None:
    async def main(dsn: str) -> None:
        async with Nodes([dsn]) as cluster:
            (app,) = cluster.apps
            await app.start(wait_for_go.options(key="k", near=("orders", 1)), 1)
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await app.using(connection).send("k", GO, 1)
            assert await app.get("k", wait_for_go).result() == 2
            run = await app.start(parent.options(key="p"), 1, "fail")
            with pytest.raises(RunFailed):
                await run.result()

    with cluster_of(server_dsn, template, 1) as (dsn,):
        asyncio.run(main(dsn))


def test_the_courier_goes_on_after_an_error(
    nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, failed = Letters.round, []

    async def once(self: Letters) -> float:
        if not failed:
            failed.append(True)
            raise LookupError("once")
        return await sound(self)

    monkeypatch.setattr(Letters, "round", once)

    async def main() -> None:
        async with Nodes(nodes[:2]) as cluster:
            one = cluster.apps[0]
            async with await psycopg.AsyncConnection.connect(nodes[0]) as connection:
                run = await one.using(connection).start(wait_for_go.options(key="k", node=2), 1)
            await until(lambda: value(nodes[1], "select count(*) from pgflow.run_key"))
            await one.send("k", GO, 1)
            assert await run.result() == 2
        assert failed

    asyncio.run(main())
