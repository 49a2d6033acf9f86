"""State and streams of a run while it runs: of state the last word counts, streams keep all."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import (
    SOON,
    calling,
    calling_sync,
    count,
    eventually,
    launch,
    recover,
    result_of,
    settle,
)
from servers import HANG_SECONDS

import pgflow
from pgflow import App, InvalidArgument, RunNotFound, RunStuck, Signal, step, workflow
from pgflow.errors import NotStorable, WrongState

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness

go = Signal("go", int)


@step
async def note(text: str) -> str:
    return text


@pytest.mark.full
async def test_readers_see_the_last_value_of_each_name_and_the_journal_keeps_all(aflow, conn):
    @workflow
    async def talks() -> None:
        pgflow.set_state(phase="one", total=3)
        await note("a")
        pgflow.set_state(phase="two", done=[1, {"x": None}])
        await go.wait()

    run = await launch(aflow, talks)
    assert await run.state() == {}
    await aflow.until_idle()
    assert await run.state() == {"phase": "two", "total": 3, "done": [1, {"x": None}]}
    said = conn.execute(
        "select payload from pgflow.timeline where event = 'state_set' order by seq"
    ).fetchall()
    assert said == [({"phase": "one", "total": 3},), ({"phase": "two", "done": [1, {"x": None}]},)]


@pytest.mark.full
async def test_state_outlives_the_run_and_is_not_said_again_on_replay(aflow, conn):
    @workflow
    async def talks() -> None:
        pgflow.set_state(phase="begun")
        await go.wait()
        pgflow.set_state(phase="over")

    run = await settle(aflow, talks)
    await recover(aflow)
    await run.send(go, 1)
    await run.result(SOON)
    assert await run.state() == {"phase": "over"}
    assert count(conn, "pgflow.timeline", "event = 'state_set'") == 2


async def test_state_is_readable_while_a_step_runs(aflow):
    proceed = asyncio.Event()

    @step
    async def long() -> None:
        await proceed.wait()

    @workflow
    async def talks() -> None:
        pgflow.set_state(phase="working")
        await long()

    run = await launch(aflow, talks)
    await eventually(run.state, "the state is durable before the step that follows it has ended")
    assert await run.state() == {"phase": "working"}
    proceed.set()
    await run.result(SOON)


def test_a_sync_workflow_talks_too(flow):
    @workflow
    def talks() -> None:
        pgflow.set_state(phase="sync")
        pgflow.emit("log", "sync")

    run = launch(flow, talks)
    run.result(SOON)
    assert run.state() == {"phase": "sync"}
    assert list(run.stream("log")) == ["sync"]


async def test_what_cannot_be_stored_is_a_typed_error_and_nothing_is_said(aflow, conn):
    @workflow
    async def talks() -> list[str]:
        said = []
        for say in (
            lambda: pgflow.set_state(x=object()),
            lambda: pgflow.set_state(x="\0"),
            lambda: pgflow.emit("s", float("nan")),
            lambda: pgflow.emit("", 1),
            lambda: pgflow.emit("s" * 256, 1),
        ):
            try:
                say()
            except InvalidArgument as error:
                said.append(type(error).__name__)
        return said

    found = await result_of(aflow, talks)
    assert found == [NotStorable.__name__] * 3 + [InvalidArgument.__name__] * 2
    assert count(conn, "pgflow.timeline") == 0


@workflow
async def counts(n: int) -> int:
    for i in range(n):
        pgflow.emit("numbers", {"i": i})
        pgflow.emit("others", i)
    return n


async def test_a_stream_has_all_values_in_order_from_an_offset_to_the_end(aflow):
    run = await launch(aflow, counts, 5)
    assert [value async for value in run.stream("numbers")] == [{"i": i} for i in range(5)]
    assert [value async for value in run.stream("others", offset=3)] == [3, 4]
    assert [value async for value in run.stream("others", offset=9)] == []
    assert [value async for value in run.stream("never used")] == []


@pytest.mark.full
async def test_a_long_stream_is_read_in_pages(aflow):
    run = await launch(aflow, counts, 1200)
    assert [value async for value in run.stream("others", offset=100)] == list(range(100, 1200))


@pytest.mark.full
async def test_a_reader_waits_for_what_is_not_there_yet_and_ends_with_the_run(aflow):
    @workflow
    async def live() -> None:
        while True:
            n = await go.wait()
            if n < 0:
                return
            pgflow.emit("heard", n)

    run = await launch(aflow, live)
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
    await asyncio.wait_for(reading, HANG_SECONDS)
    assert heard == [1, 2]


@pytest.mark.full
def test_a_stream_can_be_read_by_key_in_sync_code_while_it_grows(flow, dsn):
    @workflow
    async def live() -> None:
        for n in range(3):
            await go.wait()
            pgflow.emit("heard", n)

    run = launch(flow, live.options(key="k"))
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
    reading.join(HANG_SECONDS)
    assert heard == [0, 1, 2]


async def test_values_are_not_emitted_again_on_replay_and_none_is_lost(aflow):
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

    run = await launch(aflow, live)
    await hanging.wait()
    await recover(aflow)
    await run.result(SOON)
    assert [value async for value in run.stream("worked")] == [0, 1, 2]


async def test_a_stream_goes_on_over_generations(aflow):
    @workflow
    async def generations(n: int) -> None:
        pgflow.emit("numbers", n)
        pgflow.set_state(generation=n)
        if n < 3:
            pgflow.continue_as_new(n + 1)

    run = await launch(aflow, generations, 1)
    await run.result(SOON)
    assert [value async for value in run.stream("numbers")] == [1, 2, 3]
    assert [value async for value in run.stream("numbers", offset=2)] == [3]
    assert await run.state() == {"generation": 3}


async def test_the_stream_of_nobody_is_not_found(aflow):
    with pytest.raises(RunNotFound):
        _ = [value async for value in aflow.app.get("nobody", counts).stream("numbers")]


@workflow
async def tells(n: int) -> int:
    for i in range(n):
        pgflow.emit("told", f"{i} in generation {pgflow.run_info().generation}")
        await go.wait()
    return n


async def told(aflow: AsyncHarness, offset: int = 0) -> list[Any]:
    return [value async for value in aflow.app.get("k", tells).stream("told", offset=offset)]


@pytest.mark.full
async def test_what_a_rewind_has_dropped_of_a_stream_is_history_and_no_more_read(aflow, conn):
    run = await launch(aflow, tells.options(key="k"), 3)
    for n in range(3):
        await run.send(go, n)
    await run.result(SOON)
    assert await told(aflow) == [f"{n} in generation 1" for n in range(3)]
    await aflow.app.rewind("k", to=2)
    await run.result(SOON)
    assert await told(aflow) == ["0 in generation 1", "1 in generation 2", "2 in generation 2"]
    assert await told(aflow, offset=1) == ["1 in generation 2", "2 in generation 2"]
    assert count(conn, "pgflow.timeline", "event = 'emitted' and not is_inherited") == 5
    await aflow.app.rewind("k", to=4)
    await run.result(SOON)
    assert await told(aflow) == ["0 in generation 1", "1 in generation 2", "2 in generation 3"]
    await aflow.app.rewind("k", to=1)
    await run.result(SOON)
    assert await told(aflow) == ["0 in generation 1", "1 in generation 4", "2 in generation 4"]
    await aflow.app.restart("k")
    await run.result(SOON)
    assert await told(aflow) == [f"{n} in generation 5" for n in range(3)]


@pytest.mark.full
async def test_a_rewind_drops_nothing_of_the_generations_that_had_continued_as_new(aflow):
    @workflow
    async def generations(n: int) -> None:
        pgflow.emit("numbers", f"{n}a of {pgflow.run_info().generation}")
        await note("x")
        pgflow.emit("numbers", f"{n}b of {pgflow.run_info().generation}")
        if n < 2:
            pgflow.continue_as_new(n + 1)

    run = await launch(aflow, generations.options(key="k"), 1)
    await run.result(SOON)
    await aflow.app.rewind("k", to=1, effects="repeat")
    await run.result(SOON)
    found = [value async for value in run.stream("numbers")]
    assert found == ["1a of 1", "1b of 1", "2a of 2", "2b of 3"]


@pytest.mark.full
async def test_a_reader_that_is_ahead_of_a_rewind_goes_on_with_what_the_new_generation_emits(
    aflow, conn
):
    run = await launch(aflow, tells.options(key="k"), 3)
    heard: list[Any] = []

    async def read() -> None:
        async for value in run.stream("told"):
            heard.append(value)

    reading = asyncio.create_task(read())
    await run.send(go, 0)
    await eventually(lambda: len(heard) == 2, "the second value is read")
    conn.execute("select pgflow.pause_run('k')")
    conn.execute("select pgflow.wake()")
    await eventually(lambda: status_is(run, "paused"), "the run is paused")
    await aflow.app.rewind("k", to=1)
    await run.send(go, 1)
    await run.send(go, 2)
    await run.result(SOON)
    await asyncio.wait_for(reading, HANG_SECONDS)
    assert heard == [
        "0 in generation 1", "1 in generation 1", "1 in generation 2", "2 in generation 2",
    ]  # fmt: skip


async def status_is(run: Any, status: str) -> bool:
    return await run.status() == status


@pytest.mark.full
async def test_readers_of_a_closed_stream_end_though_the_run_goes_on(aflow, conn):
    @workflow
    async def talks() -> str:
        pgflow.emit("short", 1)
        pgflow.emit("long", 1)
        pgflow.emit("short", None)
        pgflow.close_stream("short")
        pgflow.close_stream("short")
        await go.wait()
        try:
            pgflow.emit("short", 2)
        except WrongState as error:
            return str(error)
        return "emitted"

    run = await launch(aflow, talks)
    async with asyncio.timeout(SOON.total_seconds()):
        assert [value async for value in run.stream("short")] == [1, None]
        assert [value async for value in run.stream("short", offset=1)] == [None]
        assert [value async for value in run.stream("short", offset=5)] == []
    assert await run.status() == "waiting"
    assert count(conn, "pgflow.timeline", "event = 'stream_closed' and name = 'short'") == 1
    await aflow.until_idle()
    await recover(aflow)
    await run.send(go, 1)
    assert (
        await run.result(SOON)
        == "stream 'short' of this run is closed: emit before close_stream('short'), or to another "
        "stream"
    )
    assert [value async for value in run.stream("long")] == [1]


def test_a_sync_reader_and_a_sync_workflow_close_too(flow):
    @workflow
    def talks() -> None:
        pgflow.emit("log", "one")
        pgflow.close_stream("log")
        go.sync.wait()

    run = launch(flow, talks)
    assert list(run.stream("log")) == ["one"]
    run.send(go, 1)
    run.result(SOON)


async def test_a_later_generation_may_emit_to_what_an_earlier_one_closed(aflow):
    @workflow
    async def generations(n: int) -> None:
        pgflow.emit("numbers", n)
        pgflow.close_stream("numbers")
        if n < 3:
            pgflow.continue_as_new(n + 1)

    run = await launch(aflow, generations, 1)
    await run.result(SOON)
    assert [value async for value in run.stream("numbers")] == [1, 2, 3]
    assert [value async for value in run.stream("numbers", offset=2)] == [3]


@pytest.mark.full
async def test_a_reader_of_a_stuck_run_is_told_so_and_does_not_take_it_for_the_end(aflow, conn):
    @workflow
    async def breaks() -> None:
        pgflow.emit("log", 1)
        await go.wait()

    run = await settle(aflow, breaks.options(key="k"))
    conn.execute("delete from pgflow.wait")
    conn.execute("delete from pgflow.parked")
    conn.execute(
        "insert into pgflow.held (run_id, held_at, lane_id, last_seq, attempt, priority, "
        "has_begun, state, reason)"
        " select run_id, now(), lane_id, 1, 1, 0, true, 'stuck', 'poison' from pgflow.run"
    )
    heard = []
    with pytest.raises(RunStuck, match="run 'k' is stuck"):
        async for value in run.stream("log"):
            heard.append(value)
    assert heard == [1]
    await run.cancel()


@pytest.mark.full
async def test_code_that_closes_where_it_emitted_diverges(aflow):
    closes = False

    @workflow
    async def changes() -> None:
        if closes:
            pgflow.close_stream("log")
        else:
            pgflow.emit("log", 1)
        await go.wait()

    run = await settle(aflow, changes.options(key="k"))
    await aflow.crash()
    closes = True
    await run.send(go, 1)
    await aflow.until_idle()
    with pytest.raises(
        RunStuck,
        match="in the journal stream 'log' was given a value here, the code asks to close it",
    ):
        await run.result(SOON)
    closes = False
    await aflow.app.retry("k")
    await run.result(SOON)


class Gate:
    """Lets a body go on when the test says so, in either colour."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await asyncio.to_thread(self._open.wait, 20)

    def passed_sync(self) -> None:
        self._open.wait(HANG_SECONDS)


@pytest.mark.full
async def test_what_a_body_emits_is_read_while_it_runs_and_once_more_by_nobody(aflow, conn):
    gate = Gate()

    @step
    async def tokens() -> str:
        for word in ("a", "b", "c"):
            pgflow.emit("tokens", word)
        await gate.passed()
        pgflow.emit("tokens", "d")
        return "abcd"

    @workflow
    async def talks() -> str:
        pgflow.emit("tokens", "first")
        said = await tokens()
        pgflow.emit("tokens", "last")
        await go.wait()
        return said

    run = await launch(aflow, talks)
    live = run.stream("tokens", live=True)
    assert [await anext(live) for _ in range(4)] == ["first", "a", "b", "c"]
    assert count(conn, "pgflow.timeline", "event = 'emitted'") == 1
    gate.open()
    assert [await anext(live) for _ in range(2)] == ["d", "last"]
    await aflow.until_idle()
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert [value async for value in live] == []
    assert [value async for value in run.stream("tokens")] == ["first", "a", "b", "c", "d", "last"]
    assert [value async for value in run.stream("tokens", offset=3)] == ["c", "d", "last"]
    assert [value async for value in run.stream("tokens", live=True)] == [
        "first", "a", "b", "c", "d", "last",
    ]  # fmt: skip
    assert count(conn, "pgflow.draft") == 0


def test_what_a_sync_body_emits_is_read_while_it_runs(flow):
    gate = Gate()

    @step
    def tokens() -> None:
        pgflow.emit("tokens", 1)
        gate.passed_sync()
        pgflow.emit("tokens", 2)

    run = launch(flow, calling_sync(tokens))
    live = run.stream("tokens", live=True)
    assert next(live) == 1
    gate.open()
    assert list(live) == [2]
    assert list(run.stream("tokens")) == [1, 2]


@pytest.mark.full
async def test_what_a_try_that_failed_has_emitted_is_void(aflow, conn):
    gate = Gate()
    tries = []

    @step(retries=pgflow.Retries(2, first_delay=0.001))
    async def tokens() -> None:
        tries.append(1)
        pgflow.emit("tokens", f"of try {len(tries)}")
        if len(tries) == 1:
            await gate.passed()
            raise ConnectionError("again")

    run = await launch(aflow, calling(tokens))
    live = run.stream("tokens", live=True)
    assert await anext(live) == "of try 1"
    gate.open()
    assert [value async for value in live] == ["of try 2"]
    assert [value async for value in run.stream("tokens")] == ["of try 2"]


@pytest.mark.full
async def test_what_a_killed_worker_has_emitted_is_void_and_its_successor_emits_it_anew(aflow):
    gate = Gate()
    tries = []

    @step
    async def tokens() -> None:
        tries.append(1)
        pgflow.emit("tokens", f"of try {len(tries)}")
        if len(tries) == 1:
            await asyncio.Event().wait()
        await gate.passed()

    run = await launch(aflow, calling(tokens))
    live = run.stream("tokens", live=True)
    assert await anext(live) == "of try 1"
    await aflow.crash()
    waiting = asyncio.create_task(aflow.until_idle())
    assert await anext(live) == "of try 2"
    gate.open()
    await waiting
    assert [value async for value in live] == []
    assert [value async for value in run.stream("tokens")] == ["of try 2"]


@pytest.mark.full
async def test_transactions_effects_and_decisions_emit_what_counts_with_their_outcome(aflow, conn):
    tries = []

    @pgflow.transaction
    async def book(conn: psycopg.AsyncConnection[Any]) -> None:
        tries.append(1)
        pgflow.emit("log", f"book {len(tries)}")
        if len(tries) == 1:
            await conn.execute("do $$ begin raise exception using errcode = '40001'; end $$")

    @pgflow.effects.effect(risk="reversible")
    async def charge() -> str:
        pgflow.emit("log", "charge")
        return "ch_1"

    @pgflow.decisions.decision()
    async def decide() -> pgflow.decisions.Choice[int]:
        pgflow.emit("log", "decide")
        return pgflow.decisions.Choice(1, why="one")

    @workflow
    async def talks() -> None:
        await book()
        await charge()
        await decide()
        await note("x")
        await go.wait()

    run = await settle(aflow, talks)
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert [value async for value in run.stream("log")] == ["book 2", "charge", "decide"]


async def test_a_step_that_fails_for_good_has_emitted_nothing(aflow):
    @step(retries=1)
    async def tokens() -> None:
        pgflow.emit("tokens", 1)
        raise ValueError("no")

    @workflow
    async def talks() -> str:
        try:
            await tokens()
        except ValueError:
            pgflow.emit("tokens", "after")
        return "done"

    run = await launch(aflow, talks)
    assert await run.result(SOON) == "done"
    assert [value async for value in run.stream("tokens")] == ["after"]


async def test_a_body_cannot_emit_what_could_not_be_stored(aflow):
    @step(retries=1)
    async def tokens() -> list[str]:
        said = []
        for stream, value in (("", 1), ("x" * 256, 1), ("tokens", object())):
            try:
                pgflow.emit(stream, value)
            except (InvalidArgument, NotStorable) as error:
                said.append(type(error).__name__)
        return said

    found = await result_of(aflow, calling(tokens))
    assert found == ["InvalidArgument", "InvalidArgument", "NotStorable"]
