"""Runs of a cluster are started on, found on and spoken to from any node."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from clusterkit import ask, value

import pgflow
from pgflow import App, AsyncApp, RunCancelled, RunFailed, RunNotFound, Signal, workflow
from pgflow.errors import InvalidArgument

GO = Signal("go", int)


class OutOfStock(Exception):
    """An error of the application."""


@workflow
async def wait_for_go(start: int) -> int:
    return start + await GO.wait()


@workflow(raises=[OutOfStock])
async def fail(why: str) -> int:
    raise OutOfStock(why)


@workflow
async def pass_on(key: str, number: int) -> None:
    await pgflow.send(key, GO, number)


@workflow(raises=[OutOfStock])
async def parent(node: int, kind: str) -> Any:
    if kind == "fail":
        return await pgflow.run_child(fail.options(node=node), "none left")
    child = wait_for_go.options(key="the-child", node=node)
    if kind == "abandon":
        await pgflow.start_child(child.options(when_parent_ends="abandon"), 1)
        return None
    return await pgflow.run_child(child, 1)


FLOWS = [wait_for_go, fail, pass_on, parent]


class Cluster(AsyncExitStack):
    """Apps on all nodes, with a worker each."""

    def __init__(self, nodes: list[str]) -> None:
        super().__init__()
        self.apps = [AsyncApp(dsn, include=FLOWS, cluster=True) for dsn in nodes]

    async def __aenter__(self) -> Any:
        await super().__aenter__()
        for app in self.apps:
            await self.enter_async_context(app)
            await self.enter_async_context(app.worker())
        return self


def test_a_run_is_started_on_and_found_from_any_node(nodes: list[str]) -> None:
    async def main() -> None:
        async with Cluster(nodes) as cluster:
            one, two, three = cluster.apps
            await one.start(wait_for_go.options(key="k", node=3), 40)
            again = await two.start(wait_for_go.options(key="k", node=1), 40)
            assert value(nodes[2], "select count(*) from pgflow.run_key where key = 'k'") == 1
            await two.send("k", GO, 2)
            assert await again.result() == 42
            assert await one.get("k", wait_for_go).result() == 42
            assert await three.get("k", wait_for_go).status() == "completed"
            made_up = await one.start(wait_for_go.options(node=2), 1)
            await three.cancel(made_up.key)
            with pytest.raises(RunCancelled):
                await three.get(made_up.key, wait_for_go).result()
            with pytest.raises(RunNotFound):
                await one.cancel("nobody")
            with pytest.raises(InvalidArgument, match="node 9"):
                await one.start(wait_for_go.options(key="x", node=9), 1)
            near = [
                await app.start(wait_for_go.options(key=f"n{n}", near=("orders", 7)), 1)
                for n, app in enumerate(cluster.apps)
            ]
            homes = {value(nodes[0], "select pgflow_cluster.node_of(%s)", run.key) for run in near}
            assert len(homes) == 1
            for run in near:
                await run.cancel()

    asyncio.run(main())


def test_sync_apps_do_the_same(nodes: list[str]) -> None:
    with (
        App(nodes[0], include=FLOWS, cluster=True) as one,
        App(nodes[1], include=FLOWS, cluster=True) as two,
        two.worker(),
    ):
        run = one.start(wait_for_go.options(key="k", node=2), 40)
        one.get("k", wait_for_go).send(GO, 2)
        assert run.result() == 42
        acme = one.tenant("acme")
        acme.start(wait_for_go.options(key="k", node=2), 1)
        acme.send("k", GO, 1)
        assert acme.get("k", wait_for_go).result() == 2


def test_a_transaction_starts_signals_and_cancels_on_other_nodes(nodes: list[str]) -> None:
    async def main() -> None:
        async with Cluster(nodes) as cluster:
            one, two, _ = cluster.apps
            async with await psycopg.AsyncConnection.connect(nodes[0]) as connection:
                bound = one.using(connection)
                run = await bound.start(wait_for_go.options(key="k", node=2), 40)
                await bound.send("k", GO, 2)
                await bound.start(wait_for_go.options(key="other", node=3), 1)
                await bound.cancel("other")
                acme = one.tenant("acme").using(connection)
                theirs = await acme.start(wait_for_go.options(key="k", node=3), 1)
                await acme.send("k", GO, 3)
                assert value(nodes[0], "select count(*) from pgflow_cluster.outbox") == 0
                await connection.commit()
                await bound.start(wait_for_go.options(key="never", node=2), 1)
                await connection.rollback()
            async with asyncio.timeout(30):
                while not value(nodes[1], "select count(*) from pgflow.run_key where key = 'k'"):
                    await asyncio.sleep(0.05)
                while not value(nodes[2], "select count(*) from pgflow.run_key"):
                    await asyncio.sleep(0.05)
            assert await run.result() == 42
            async with asyncio.timeout(30):
                while not value(nodes[2], "select count(*) from pgflow.run_key where key = 'k'"):
                    await asyncio.sleep(0.05)
            assert await theirs.result() == 4
            with pytest.raises(RunCancelled):
                await two.get("other", wait_for_go).result()
            assert value(nodes[1], "select count(*) from pgflow.run_key where key = 'never'") == 0

    asyncio.run(main())


def test_a_child_on_another_node_has_a_result_an_error_and_is_cancelled(nodes: list[str]) -> None:
    async def main() -> None:
        async with Cluster(nodes) as cluster:
            one, two, three = cluster.apps

            async def child_is_there() -> None:
                while not value(
                    nodes[2], "select count(*) from pgflow.run_key where key = 'the-child'"
                ):
                    await asyncio.sleep(0.05)

            async with asyncio.timeout(60):
                run = await one.start(parent.options(key="p1", node=1), 2, "fail")
                with pytest.raises(RunFailed) as failed:
                    await run.result()
                assert isinstance(failed.value.__cause__, RunFailed)
                assert isinstance(failed.value.__cause__.__cause__, OutOfStock)

                run = await one.start(parent.options(key="p2", node=1), 3, "run")
                await child_is_there()
                await two.send("the-child", GO, 41)
                assert await run.result() == 42

                run = await one.start(parent.options(key="p3", node=1), 3, "run")
                with pytest.raises(RunFailed, match="already names a run"):
                    await run.result()

    asyncio.run(main())


def test_a_ring_of_signals_goes_round_all_nodes(nodes: list[str]) -> None:
    async def main() -> None:
        async with Cluster(nodes) as cluster:
            one = cluster.apps[0]
            runs = [
                await one.start(wait_for_go.options(key=f"r{n}", node=n % 3 + 1), n)
                for n in range(9)
            ]
            for n in range(9):
                await one.start(pass_on.options(key=f"s{n}", node=(n + 1) % 3 + 1), f"r{n}", n)
            async with asyncio.timeout(60):
                assert [await run.result() for run in runs] == [2 * n for n in range(9)]
            for dsn in nodes:
                assert ask(dsn, "select * from pgflow_cluster.dead") == []

    asyncio.run(main())
