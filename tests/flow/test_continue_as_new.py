"""`continue_as_new`: loops that never end, as a chain of short runs under one key."""

from __future__ import annotations

import asyncio

import pytest
from records import (
    HOUR,
    SOON,
    count,
    events,
    eventually,
    launch,
    recover,
    result_of,
    run_row,
    settle,
)

import pgflow
from pgflow import KeyConflict, RunCancelled, RunFailed, Signal, step, workflow
from pgflow.errors import NotStorable

word = Signal("word", str)


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def sum_down(n: int, total: int = 0) -> int:
    total = await add(total, n)
    if n > 0:
        pgflow.continue_as_new(n - 1, total=total)
    return total


@workflow
def sum_down_sync(n: int, total: int = 0) -> int:
    total = add.sync(total, n)
    if n > 0:
        pgflow.continue_as_new(n - 1, total=total)
    return total


@workflow
async def collect(want: int, got: list[str]) -> list[str]:
    """One message a generation."""
    got = [*got, await word.wait()]
    if len(got) < want:
        pgflow.continue_as_new(want, got)
    return got


@pytest.mark.full
@pytest.mark.parametrize("made", [sum_down, sum_down_sync])
def test_the_result_follows_the_chain_to_its_last_generation(flow, conn, made):
    assert result_of(flow, made.options(key="k"), 4) == 10
    assert flow.app.get("k", made).result(SOON) == 10
    assert run_row(conn, "k", "generation, status") == (5, "completed")
    assert conn.execute(
        "select status, count(*) from pgflow.outcome group by 1 order by 1"
    ).fetchall() == [("completed", 1), ("continued", 4)]


def test_each_generation_has_a_journal_of_its_own(flow, conn):
    result_of(flow, sum_down.options(key="k"), 2)
    journal = "select generation, array_agg(event order by seq) from pgflow.timeline group by 1 order by 1"
    assert conn.execute(journal).fetchall() == [
        (1, ["step_started", "step_completed", "continued"]),
        (2, ["step_started", "step_completed", "continued"]),
        (3, ["step_started", "step_completed"]),
    ]


@pytest.mark.full
def test_the_key_goes_on_to_name_the_run_that_was_first_started(flow):
    result_of(flow, sum_down.options(key="k"), 2)
    assert flow.start(sum_down.options(key="k"), 2).result(SOON) == 3
    with pytest.raises(KeyConflict):
        flow.start(sum_down.options(key="k"), 1)


@pytest.mark.full
async def test_messages_that_were_not_taken_wait_for_the_next_generation(aflow):
    run = await launch(aflow, collect, 3, [])
    for text in ("a", "b"):
        await run.send(word, text)
    await aflow.until_idle()
    await recover(aflow)
    assert await run.status() == "waiting"
    await run.send(word, "c")
    assert await run.result(SOON) == ["a", "b", "c"]


@pytest.mark.full
async def test_a_parent_hears_of_the_last_generation_only(aflow, conn):
    @workflow
    async def parent() -> int:
        return await pgflow.run_child(sum_down.options(key="child"), 3)

    run = await launch(aflow, parent, beside=[sum_down])
    assert await run.result(SOON) == 6
    assert [event for event, _ in events(conn, run.key)] == ["child_started", "child_finished"]
    assert run_row(conn, "child", "generation") == (4,)


@pytest.mark.full
async def test_labels_metadata_priority_and_deadline_go_on(aflow, conn):
    aflow.include(collect)
    options = collect.options(
        key="k", labels={"a": "b"}, metadata={"m": 1}, priority=4, timeout=HOUR
    )
    run = await settle(aflow, options, 2, [])
    before = run_row(conn, "k", "labels, priority, deadline_at")
    await run.send(word, "a")
    await aflow.until_idle()
    assert run_row(conn, "k", "generation") == (2,)
    assert run_row(conn, "k", "labels, priority, deadline_at") == before
    found = conn.execute("select metadata from pgflow.run where generation = 2").fetchone()
    assert found == ({"m": 1},)
    await aflow.skip(HOUR)
    with pytest.raises(RunCancelled, match="deadline"):
        await run.result(SOON)


async def test_a_run_knows_its_generation(aflow):
    @workflow
    async def generations(seen: list[int]) -> list[int]:
        seen = [*seen, pgflow.run_info().generation]
        if len(seen) < 3:
            pgflow.continue_as_new(seen)
        return seen

    assert await result_of(aflow, generations, []) == [1, 2, 3]


@pytest.mark.full
async def test_a_chain_is_cancelled_and_paused_at_its_newest_generation(aflow):
    run = await launch(aflow, collect, 3, [])
    await run.send(word, "a")
    await aflow.until_idle()
    await aflow.app.pause(run.key)
    await run.send(word, "b")
    await aflow.until_idle()
    assert await run.status() == "paused"
    await aflow.app.resume(run.key)
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(SOON)


@pytest.mark.full
async def test_children_of_an_old_generation_end_with_it(aflow, conn):
    @workflow
    async def forever() -> None:
        await word.wait()

    @workflow
    async def parent(n: int) -> None:
        if n == 1:
            task = asyncio.create_task(pgflow.run_child(forever.options(key="child")))
            await word.wait()
            task.cancel()
            pgflow.continue_as_new(2)
        await word.wait()

    run = await settle(aflow, parent, 1, beside=[forever])
    await run.send(word, "go on")
    await aflow.until_idle()
    assert run_row(conn, "child", "status") == ("cancelled",)
    assert await run.status() == "waiting"


@pytest.mark.full
async def test_a_crash_between_two_generations_loses_neither(aflow):
    bodies = []
    hanging = asyncio.Event()

    @step
    async def act(n: int) -> None:
        bodies.append(n)
        if bodies == [1, 2]:
            hanging.set()
            await asyncio.Event().wait()

    @workflow
    async def loop(n: int) -> int:
        await act(n)
        if n < 3:
            pgflow.continue_as_new(n + 1)
        return n

    run = await launch(aflow, loop, 1)
    await hanging.wait()
    await recover(aflow)
    assert await run.result(SOON) == 3
    assert bodies == [1, 2, 2, 3]


async def test_an_input_that_does_not_fit_the_next_generation_is_a_typed_error_in_this_one(aflow):
    @workflow
    async def loop(n: int) -> list[str]:
        said = []
        for arguments in (("x",), (), (1, 2)):
            try:
                pgflow.continue_as_new(*arguments)
            except (NotStorable, TypeError) as error:
                said.append(type(error).__name__)
        return said

    found = await result_of(aflow, loop, 1)
    assert found == ["NotStorable", "TypeError", "TypeError"]


@pytest.mark.full
async def test_it_leaves_time_outs_and_handlers_alone(aflow, conn):
    @workflow
    async def loop(n: int) -> str:
        try:
            async with asyncio.timeout(3600):
                if n:
                    pgflow.continue_as_new(n - 1)
        except Exception:
            return "caught"
        return "done"

    assert await result_of(aflow, loop, 2) == "done"
    assert await aflow.until_idle() is None
    assert count(conn, "pgflow.timer") == 0


async def test_a_handle_waits_across_generations(aflow):
    run = await launch(aflow, collect, 2, [])
    waiting = asyncio.create_task(run.result(SOON))
    await aflow.until_idle()
    await run.send(word, "a")
    await aflow.until_idle()
    assert not waiting.done()
    await run.send(word, "b")
    assert await waiting == ["a", "b"]


async def test_an_error_in_a_later_generation_fails_the_run(aflow):
    @workflow
    async def loop(n: int) -> None:
        if n == 0:
            raise ValueError("the end")
        pgflow.continue_as_new(n - 1)

    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, loop, 3)
    assert str(failed.value.__cause__) == "the end"


async def test_a_step_that_still_runs_when_its_generation_ends_is_stopped(aflow):
    stopped = []
    started = asyncio.Event()

    @step
    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    @workflow
    async def loop(n: int) -> int:
        if n == 0:
            return n
        _task = asyncio.create_task(endless())
        await word.wait()
        pgflow.continue_as_new(n - 1)

    run = await launch(aflow, loop, 1)
    await started.wait()
    await run.send(word, "go on")
    assert await run.result(SOON) == 0
    await eventually(lambda: stopped, "the body is stopped")
