"""Bodies of steps see the context variables of the workflow code that called them: copies, so that
nothing comes back.
"""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import SOON, result_of, settle

import pgflow
from pgflow import AsyncApp, Signal, read, step, transaction, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.extensions import Interceptor

if TYPE_CHECKING:
    from collections.abc import Iterator


tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
process: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="none")
go = Signal("go", int)


@step
async def of_step() -> str:
    return tenant.get()


@step
def of_sync_step() -> str:
    return tenant.get()


@read
async def of_read() -> str:
    return tenant.get()


@transaction
async def of_transaction(conn: psycopg.AsyncConnection[Any]) -> str:
    return tenant.get()


@transaction
def of_sync_transaction(conn: psycopg.Connection[Any]) -> str:
    return tenant.get()


@effect(risk="reversible")
async def of_effect() -> str:
    return tenant.get()


@decision()
async def of_decision() -> Choice[str]:
    return Choice(tenant.get(), why="it is set")


async def test_bodies_of_every_kind_see_what_the_workflow_has_set(aflow):
    @workflow
    async def flow() -> list[str]:
        tenant.set("ada")
        return [
            await of_step(),
            await of_sync_step.aio(),
            await of_read(),
            await of_transaction(),
            await of_sync_transaction.aio(),
            await of_effect(),
            (await of_decision()).value,
            await pgflow.call("closure", tenant.get),
        ]

    assert await result_of(aflow, flow) == ["ada"] * 8


@pytest.mark.full
def test_bodies_that_a_sync_workflow_calls_see_what_it_has_set(flow):
    @workflow
    def code() -> list[str]:
        tenant.set("ada")
        return [
            of_step.sync(),
            of_sync_step(),
            of_sync_transaction(),
            of_effect.sync(),
            pgflow.sync.call("closure", tenant.get),
        ]

    assert result_of(flow, code) == ["ada"] * 5


async def test_each_task_of_a_workflow_hands_on_its_own(aflow):
    @workflow
    async def flow() -> list[str]:
        async def of(name: str) -> str:
            tenant.set(name)
            return await of_step()

        return (await pgflow.map(of_step, [])).values + [await of("a"), await of("b")]  # type: ignore[arg-type]

    assert await result_of(aflow, flow) == ["a", "b"]


async def test_what_a_body_sets_stays_there_and_its_next_try_begins_afresh(aflow):
    seen = []

    @step(retries=pgflow.Retries(2, first_delay=0.001))
    async def sets() -> None:
        seen.append(tenant.get())
        tenant.set("from a body")
        if len(seen) == 1:
            raise ConnectionError("again")

    @workflow
    async def flow() -> list[str]:
        tenant.set("ada")
        await sets()
        return [tenant.get(), await of_step()]

    assert await result_of(aflow, flow) == ["ada", "ada"]
    assert seen == ["ada", "ada"]


@pytest.mark.full
async def test_a_body_that_starts_after_a_crash_sees_them_too(aflow):
    @workflow
    async def flow() -> list[str]:
        tenant.set("ada")
        await go.wait()
        return [await of_step()]

    run = await settle(aflow, flow)
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == ["ada"]


@pytest.mark.full
async def test_runs_do_not_see_those_of_each_other(aflow):
    @workflow
    async def flow(name: str) -> list[str]:
        before = tenant.get()
        tenant.set(name)
        return [before, await of_step()]

    aflow.include(flow)
    runs = [await aflow.start(flow, name) for name in "abc"]
    assert [await run.result(SOON) for run in runs] == [["nobody", name] for name in "abc"]


@read
async def sets_one() -> str:
    tenant.set("of another body")
    return tenant.get()


@step(timeout=60)
async def of_timed_step() -> str:
    return tenant.get()


async def test_a_body_that_begins_when_another_ends_does_not_see_what_that_has_set(aflow):
    @workflow
    async def flow() -> list[str]:
        seen = []
        for body in (of_read, of_step, of_timed_step, of_transaction, of_effect):
            await sets_one()
            seen.append(await body())
        return seen

    assert await result_of(aflow, flow) == ["nobody"] * 5


class Sets(Interceptor):
    @contextmanager
    def around_workflow(self, info: pgflow.RunInfo) -> Iterator[None]:
        tenant.set(f"of {info.workflow}")
        yield


@step
async def of_both() -> list[str]:
    return [process.get(), tenant.get()]


@workflow
async def asks_for_both() -> list[str]:
    return await of_both()


def test_bodies_see_what_an_interceptor_sets_around_the_workflow_and_what_the_process_has_set_before_its_worker(
    dsn,
):
    async def main() -> list[str]:
        process.set("set before")
        async with (
            AsyncApp(dsn, include=[asks_for_both], interceptors=[Sets()]) as app,
            app.worker(poll_seconds=0.1),
        ):
            return await (await app.start(asks_for_both)).result(SOON)

    assert asyncio.run(main()) == ["set before", "of asks_for_both"]
