"""Sync workflows: plain functions in threads, with the same guarantees as coroutines."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from records import HOUR, SOON, events, launch, recover, result_of, settle, steps, wait_until
from servers import HANG_SECONDS

import pgflow
from pgflow import Retries, RunFailed, RunStuck, Signal, read, step, workflow

go = Signal("go", int)


@step
def add(a: int, b: int) -> int:
    return a + b


@step
async def add_async(a: int, b: int) -> int:
    return a + b


@workflow
def total(numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result = add(result, number)
    return result


def test_steps_of_both_colours_are_called_one_after_the_other(flow, conn):
    @workflow
    def mixed() -> list[int]:
        return [add(1, 2), add.sync(3, 4), add_async.sync(5, 6)]

    run = launch(flow, mixed)
    assert run.result(SOON) == [3, 7, 11]
    assert steps(conn, run.key) == [
        ("add", "completed", 1),
        ("add", "completed", 1),
        ("add_async", "completed", 1),
    ]


async def test_a_sync_workflow_runs_in_an_async_app(aflow):
    assert await result_of(aflow, total, [1, 2, 3]) == 6


def test_a_loop_that_a_framework_has_made_for_its_thread_is_closed_in_the_end(flow):
    loops = []

    @workflow
    def frame(fails: bool) -> str:
        loops.append(asyncio.new_event_loop())
        asyncio.set_event_loop(loops[-1])
        if fails:
            raise ValueError("refused")
        return loops[-1].run_until_complete(asyncio.sleep(0, "done"))

    assert result_of(flow, frame, False) == "done"
    with pytest.raises(RunFailed, match="refused"):
        flow.start(frame, True).result(SOON)
    assert [loop.is_closed() for loop in loops] == [True] * len(loops)


@pytest.mark.full
def test_more_of_them_than_there_are_threads_come_to_their_end(flow):
    flow.include(total)
    runs = [flow.start(total, [n, n]) for n in range(60)]
    assert [run.result(SOON) for run in runs] == [2 * n for n in range(60)]


def test_after_a_crash_recorded_steps_are_not_run_again(flow):
    bodies = []
    hanging, release = threading.Event(), threading.Event()

    @step
    def act(n: int) -> int:
        bodies.append(n)
        if bodies == [1, 2]:
            hanging.set()
            release.wait(HANG_SECONDS)
        return n

    @workflow
    def order() -> list[int]:
        return [act(n) for n in (1, 2, 3)]

    run = launch(flow, order)
    assert hanging.wait(HANG_SECONDS)
    recover(flow)
    release.set()
    assert run.result(SOON) == [1, 2, 3]
    assert bodies == [1, 2, 2, 3]


@pytest.mark.full
def test_it_parks_wakes_and_parks_again_in_the_middle_of_ordinary_code(flow, conn):
    @workflow
    def patient() -> list[int]:
        heard = []
        with pytest.MonkeyPatch.context() as context:
            context.setenv("PGFLOW_TEST_MARK", "1")
            for _ in range(3):
                try:
                    heard.append(go.sync.wait(timeout=HOUR))
                except TimeoutError:
                    heard.append(-1)
        pgflow.sync.sleep(timedelta(0))
        return heard

    run = launch(flow, patient)
    run.send(go, 1)
    flow.until_idle()
    flow.skip(HOUR)
    run.send(go, 3)
    assert run.result(SOON) == [1, -1, 3]
    assert [event for event, _ in events(conn, run.key)] == [
        "timer_started", "signal_received", "timer_started", "wait_timed_out", "timer_started",
        "signal_received",
    ]  # fmt: skip


@pytest.mark.full
def test_an_error_of_a_step_can_be_caught_and_an_error_of_its_own_fails_it(flow):
    @step(retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1)))
    def fails() -> None:
        raise LookupError("nothing there")

    @workflow
    def copes(then: str) -> str:
        try:
            fails()
        except LookupError as error:
            if then == "raise":
                raise ValueError("gave up") from error
            return str(error)
        return ""

    assert result_of(flow, copes, "return") == "nothing there"
    with pytest.raises(RunFailed) as failed:
        flow.start(copes, "raise").result(SOON)
    assert repr(failed.value.__cause__) == "ValueError('gave up')"


@pytest.mark.full
def test_what_is_said_and_asked_is_plain_calls(flow):
    seen = []

    @workflow
    def talks() -> str:
        pgflow.set_state(phase="talking")
        pgflow.emit("words", "hello")
        seen.append((pgflow.now(), pgflow.random(), pgflow.uuid(), pgflow.idempotency_key()))
        go.sync.wait()
        return pgflow.run_info().workflow

    run = settle(flow, talks)
    recover(flow)
    run.send(go, 1)
    assert run.result(SOON) == talks.name
    assert run.state() == {"phase": "talking"}
    assert list(run.stream("words")) == ["hello"]
    assert len(seen) > 1
    assert len(set(seen)) == 1


@pytest.mark.full
def test_one_that_changed_is_stuck_and_says_where_it_stands(flow, conn):
    first_version = [True]

    @workflow
    def changes() -> int:
        if first_version[0]:
            add(1, 1)
        else:
            add_async.sync(1, 1)
        return go.sync.wait()

    run = settle(flow, changes)
    first_version[0] = False
    run.send(go, 1)
    with pytest.raises(RunStuck, match=r"'add'.*'add_async'"):
        run.result(SOON)
    (detail,) = conn.execute("select error from pgflow.runs").fetchone()
    assert any("test_sync_workflows.py" in line for line in detail["where"])


def test_a_step_that_blocks_does_not_hold_up_other_runs(flow):
    release = threading.Event()

    @read
    def block() -> int:
        release.wait(HANG_SECONDS)
        return 1

    @workflow
    def blocked() -> int:
        return block()

    flow.include(blocked, total)
    waiting = [flow.start(blocked) for _ in range(5)]
    try:
        assert flow.start(total, [1, 2]).result(SOON) == 3
    finally:
        release.set()
    assert [run.result(SOON) for run in waiting] == [1] * 5


@pytest.mark.full
def test_a_run_whose_code_is_taken_apart_leaves_no_thread_behind(flow):
    cleaned = []

    @workflow
    def patient() -> int:
        try:
            return go.sync.wait()
        finally:
            cleaned.append(1)

    flow.include(patient)
    runs = [flow.start(patient) for _ in range(5)]
    flow.until_idle()
    wait_until(lambda: len(cleaned) == 5, "the code of parked runs is taken apart")
    wait_until(
        lambda: all(thread.name != "pgflow-workflow" for thread in threading.enumerate()),
        "their threads have ended",
    )
    for run in runs:
        run.send(go, 1)
    assert [run.result(SOON) for run in runs] == [1] * 5


def test_code_that_catches_everything_can_still_be_parked_and_goes_on(flow):
    @workflow
    def greedy() -> str:
        tries = 0
        while True:
            tries += 1
            try:
                return f"got {go.sync.wait()}"
            except BaseException:
                if tries > 500:
                    return "gave up"

    run = settle(flow, greedy)
    assert run.status() == "waiting"
    run.send(go, 1)
    assert run.result(SOON) == "got 1"
