"""What a run says of itself while it runs: state, of which the last word counts, and streams, which keep all."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import SOON, count, eventually

import pgflow
from pgflow import App, InvalidArgument, NotStorable, RunNotFound, Signal, step, workflow

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness, Harness

pytestmark = pytest.mark.timeout(90)

go = Signal("go", int)


@step
async def note(text: str) -> str:
    return text


# ---------------------------------------------------------------- state


async def test_readers_see_the_last_value_of_each_name_and_the_journal_keeps_all(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    @workflow
    async def talks() -> None:
        pgflow.set_state(phase="one", total=3)
        await note("a")
        pgflow.set_state(phase="two", done=[1, {"x": None}])
        await go.wait()

    aflow.include(talks)
    run = await aflow.start(talks)
    assert await run.state() == {}
    await aflow.until_idle()
    assert await run.state() == {"phase": "two", "total": 3, "done": [1, {"x": None}]}
    said = conn.execute("select payload from pgflow.timeline where event = 'state_set' order by seq").fetchall()
    assert said == [({"phase": "one", "total": 3},), ({"phase": "two", "done": [1, {"x": None}]},)]


async def test_state_outlives_the_run_and_is_not_said_again_on_replay(aflow: AsyncHarness, conn: psycopg.Connection) -> None:
    @workflow
    async def talks() -> None:
        pgflow.set_state(phase="begun")
        await go.wait()
        pgflow.set_state(phase="over")

    aflow.include(talks)
    run = await aflow.start(talks)
    await aflow.until_idle()
    await aflow.crash()
    await aflow.until_idle()
    await run.send(go, 1)
    await run.result(SOON)
    assert await run.state() == {"phase": "over"}
    assert count(conn, "pgflow.timeline", "event = 'state_set'") == 2


async def test_state_is_readable_while_a_step_runs(aflow: AsyncHarness) -> None:
    proceed = asyncio.Event()

    @step
    async def long() -> None:
        await proceed.wait()

    @workflow
    async def talks() -> None:
        pgflow.set_state(phase="working")
        await long()

    aflow.include(talks)
    run = await aflow.start(talks)
    await eventually(run.state, "the state is durable before the step that follows it has ended")
    assert await run.state() == {"phase": "working"}
    proceed.set()
    await run.result(SOON)


def test_a_sync_workflow_talks_too(flow: Harness) -> None:
    @workflow
    def talks() -> None:
        pgflow.set_state(phase="sync")
        pgflow.emit("log", "sync")

    flow.include(talks)
    run = flow.start(talks)
    run.result(SOON)
    assert run.state() == {"phase": "sync"}
    assert list(run.stream("log")) == ["sync"]


async def test_what_cannot_be_stored_is_a_typed_error_and_nothing_is_said(aflow: AsyncHarness, conn: psycopg.Connection) -> None:
    @workflow
    async def talks() -> list[str]:
        said = []
        for say in (
            lambda: pgflow.set_state(x=object()), lambda: pgflow.set_state(x="\0"), lambda: pgflow.emit("s", float("nan")),
            lambda: pgflow.emit("", 1), lambda: pgflow.emit("s" * 256, 1),
        ):  # fmt: skip
            try:
                say()
            except InvalidArgument as error:
                said.append(type(error).__name__)
        return said

    aflow.include(talks)
    run = await aflow.start(talks)
    assert await run.result(SOON) == [NotStorable.__name__] * 3 + [InvalidArgument.__name__] * 2
    assert count(conn, "pgflow.timeline") == 0


# ---------------------------------------------------------------- streams


@workflow
async def counts(n: int) -> int:
    for i in range(n):
        pgflow.emit("numbers", {"i": i})
        pgflow.emit("others", i)
    return n


async def test_a_stream_has_all_values_in_order_from_an_offset_to_the_end(aflow: AsyncHarness) -> None:
    aflow.include(counts)
    run = await aflow.start(counts, 5)
    assert [value async for value in run.stream("numbers")] == [{"i": i} for i in range(5)]
    assert [value async for value in run.stream("others", offset=3)] == [3, 4]
    assert [value async for value in run.stream("others", offset=9)] == []
    assert [value async for value in run.stream("never used")] == []


async def test_a_long_stream_is_read_in_pages(aflow: AsyncHarness) -> None:
    aflow.include(counts)
    run = await aflow.start(counts, 1200)
    assert [value async for value in run.stream("others", offset=100)] == list(range(100, 1200))


async def test_a_reader_waits_for_what_is_not_there_yet_and_ends_with_the_run(aflow: AsyncHarness) -> None:
    @workflow
    async def live() -> None:
        while True:
            n = await go.wait()
            if n < 0:
                return
            pgflow.emit("heard", n)

    aflow.include(live)
    run = await aflow.start(live)
    heard = []

    async def read() -> None:
        async for value in run.stream("heard"):
            heard.append(value)

    reading = asyncio.create_task(read())
    for n in (1, 2):
        await run.send(go, n)
        await eventually(lambda n=n: heard[-1:] == [n], "the reader hears it")
    assert not reading.done()
    await run.send(go, -1)
    await asyncio.wait_for(reading, 10)
    assert heard == [1, 2]


def test_a_stream_can_be_read_by_key_in_sync_code_while_it_grows(flow: Harness, dsn: str) -> None:
    @workflow
    async def live() -> None:
        for n in range(3):
            await go.wait()
            pgflow.emit("heard", n)

    flow.include(live)
    run = flow.start(live.options(key="k"))
    heard: list[Any] = []

    def read() -> None:
        with App(dsn) as app:
            for value in app.get("k", live).stream("heard"):
                heard.append(value)
                if len(heard) < 3:
                    app.send("k", go, 1)

    reading = threading.Thread(target=read)
    reading.start()
    run.send(go, 1)
    reading.join(10)
    assert heard == [0, 1, 2]


async def test_values_are_not_emitted_again_on_replay_and_none_is_lost(aflow: AsyncHarness) -> None:
    hanging = asyncio.Event()
    bodies = []

    @step
    async def work(n: int) -> int:
        bodies.append(n)
        if bodies == [0, 1]:
            hanging.set()
            await asyncio.Event().wait()
        return n

    @workflow
    async def live() -> None:
        for n in range(3):
            pgflow.emit("worked", await work(n))

    aflow.include(live)
    run = await aflow.start(live)
    await hanging.wait()
    await aflow.crash()
    await aflow.until_idle()
    await run.result(SOON)
    assert [value async for value in run.stream("worked")] == [0, 1, 2]


async def test_a_stream_goes_on_over_generations(aflow: AsyncHarness) -> None:
    @workflow
    async def generations(n: int) -> None:
        pgflow.emit("numbers", n)
        pgflow.set_state(generation=n)
        if n < 3:
            pgflow.continue_as_new(n + 1)

    aflow.include(generations)
    run = await aflow.start(generations, 1)
    await run.result(SOON)
    assert [value async for value in run.stream("numbers")] == [1, 2, 3]
    assert [value async for value in run.stream("numbers", offset=2)] == [3]
    assert await run.state() == {"generation": 3}


async def test_the_stream_of_nobody_is_not_found(aflow: AsyncHarness) -> None:
    with pytest.raises(RunNotFound):
        _ = [value async for value in aflow.app.get("nobody", counts).stream("numbers")]
