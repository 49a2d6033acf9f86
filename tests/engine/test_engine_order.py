"""Order of events: one outcome at a time, licences before bodies, verdicts before what rests on
them.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import timedelta
from typing import Any

import pytest
from enginekit import SECOND, Worker, divergence, document_of, make_driver, replay, saw
from enginestore import Store, StoredRun
from exampleflows import (
    add,
    charged_child,
    clean_up,
    count,
    flaky,
    look_up,
    napping,
    paid,
    write_row,
    writing_and_telling,
)
from servers import HANG_SECONDS

import pgflow
from pgflow import read, step, workflow
from pgflow._engine.drivers import ThreadDriver
from pgflow._engine.execution import Execution, Program
from pgflow._engine.flush import MAX_FLUSH_CHILDREN, MAX_FLUSH_UNITS
from pgflow._flow.scope import WorkflowScope, current
from pgflow._model.kinds import Kind
from pgflow.errors import RunCancelled


def start(flow: Any, *args: Any, **kwargs: Any) -> tuple[Worker, StoredRun]:
    """A run that has been claimed, and what its first commits brought."""
    store = Store(flow)
    run = store.start(flow, *args, **kwargs)
    worker = Worker(store)
    worker.play("claim 1")
    return worker, run


def seen(worker: Worker, run_id: int = 1) -> list[Any]:
    """Return the values that the code noted with ``saw``, in the newest attempt."""
    execution = [e for e in worker.attempts if e.run_id == run_id][-1]
    return [
        tuple(value[1].strip("'") for value in event)
        for event in execution.events()
        if isinstance(event[0], tuple)
    ]


@workflow
async def two_chains() -> None:
    async def chain(name: str) -> None:
        await look_up(name)
        saw(name, "has looked up")
        await asyncio.sleep(0)
        await clean_up(name)
        saw(name, "has cleaned up")

    await asyncio.gather(chain("a"), chain("b"))


def test_the_code_runs_to_a_standstill_between_two_outcomes():
    worker, _ = start(two_chains)
    worker.play("body look_up 2")
    assert seen(worker) == [("b", "has looked up")]
    worker.play("body look_up 1")
    execution = worker.executions[1]
    assert [event[:3] for event in execution.events() if isinstance(event[0], int)] == [
        (1, "step", "look_up"),
        (2, "step", "look_up"),
        (3, "step", "clean_up"),
        (4, "step", "clean_up"),
    ]
    assert [call.ordinal for call in execution.agenda.unlicensed.values()] == [1, 2]


@workflow
async def waiting_beside_work() -> None:
    waiter = asyncio.create_task(paid.wait())
    await look_up("a")
    saw("looked up")
    await look_up("b")
    saw("looked up again")
    waiter.cancel()


def test_a_flush_with_a_question_locks_release_until_it_is_answered():
    worker, _ = start(waiting_beside_work)
    worker.play("send 1")
    assert worker.on_the_way[0][1].question is not None
    worker.play("body look_up")
    assert seen(worker) == []
    worker.play("commit 1")
    assert seen(worker) == []
    worker.play("ack 1")
    assert seen(worker) == [("looked up",)]


def test_a_question_that_is_answered_after_its_run_was_taken_apart_moves_nothing():
    worker, _ = start(waiting_beside_work)
    worker.play("send 1")
    worker.play("commit 1")
    ((execution, flush, answer),) = worker.durable
    assert answer is not None and answer["place"] == "leased"
    worker._remove(execution)
    execution.flush_committed(flush, answer)
    assert execution.over


@workflow
async def reading_beside_a_step() -> None:
    task = asyncio.create_task(add(1, 1))
    await look_up("a")
    saw("looked up")
    await task


def test_a_flush_without_a_question_locks_nothing():
    worker, _ = start(reading_beside_a_step)
    worker.play("send 1")
    assert worker.on_the_way[0][1].question is None
    worker.play("body look_up")
    assert seen(worker) == [("looked up",)]


@workflow
async def several_outcomes() -> list[int]:
    return [r["size"] for r in await asyncio.gather(*(look_up("x" * i) for i in range(3)))]


def test_outcomes_have_the_order_in_which_they_were_released():
    worker, run = start(several_outcomes)
    worker.play("body look_up 3", "body look_up 1", "body look_up 2")
    worker.finish()
    assert [unit.call for unit in run.units] == [3, 1, 2]
    assert run.result() == [0, 1, 2]


def test_a_lone_licence_is_a_unit_of_its_own():
    worker, run = start(two_steps)
    worker.settle()
    assert run.shape() == [(1, Kind.STEP_STARTED, "add")]


@workflow
async def two_steps() -> int:
    return await add(await add(1, 1), 1)


def test_a_licence_rides_with_the_outcome_before_it():
    worker, run = start(two_steps)
    worker.settle()
    worker.play("body add 1")
    worker.settle()
    assert run.kinds() == "sc"
    assert [start[0] for start in run.units[-1].starts] == [2]
    worker.finish()
    assert run.kinds() == "scc"


def test_a_body_does_not_start_while_its_licence_is_on_its_way():
    worker, _ = start(two_steps)
    worker.play("send 1")
    assert worker.bodies == []
    worker.play("commit 1")
    assert worker.bodies == []
    worker.play("ack 1")
    assert [body.call.number for body in worker.bodies] == [1]


@workflow
async def read_then_step() -> None:
    async def chain() -> None:
        await look_up("a")
        await clean_up("a")

    async with asyncio.TaskGroup() as group:
        group.create_task(chain())
        pgflow.emit("progress", 1)


def test_a_step_that_is_issued_while_a_flush_is_on_its_way_waits_for_the_next():
    worker, run = start(read_then_step)
    worker.play("send 1", "body look_up 2", "commit 1", "ack 1")
    assert worker.bodies == []
    worker.settle()
    assert [start[2] for start in run.licensed().values()] == ["clean_up"]
    assert [body.call.name for body in worker.bodies] == ["clean_up"]


def test_a_read_starts_without_a_commit():
    worker, run = start(several_outcomes)
    assert [body.call.name for body in worker.bodies] == ["look_up"] * 3
    assert run.units == []


@workflow
async def emitting(n: int) -> None:
    for i in range(n):
        pgflow.emit("numbers", i)
    await look_up("end")


def test_what_is_emitted_is_flushed_at_once():
    worker, run = start(emitting, 1)
    assert "send 1" in worker.offered()
    worker.play("send 1", "commit 1")
    assert run.shape() == [(1, Kind.EMITTED, "numbers")]


def test_a_flush_after_that_of_an_emitted_value_does_not_wake_its_readers():
    worker, _ = start(emitting, 1)
    worker.play("send 1")
    assert [flush.has_emitted for _, flush, _ in worker.on_the_way] == [True]
    worker.play("commit 1", "ack 1", "body look_up 2", "send 1")
    assert [flush.has_emitted for _, flush, _ in worker.on_the_way] == [False]


@workflow
async def noting(n: int, size: int = 1) -> None:
    for i in range(n):
        pgflow.set_state(**{"x" * size: i})
    await look_up("end")


@pytest.mark.parametrize(("n", "size"), [(MAX_FLUSH_UNITS, 1), (3, 100_000)])
def test_a_full_buffer_wants_to_leave(n, size):
    worker, _ = start(noting, n, size)
    assert "send 1" in worker.offered()


def test_a_short_buffer_waits_for_company():
    worker, run = start(noting, 3)
    assert worker.offered() == ["body look_up 4"]
    worker.play("body look_up 4")
    worker.settle()
    assert run.kinds() == "vvvc"
    assert run.status == "completed"


def test_a_short_buffer_is_swept_after_a_tenth_of_a_second():
    worker, run = start(noting, 3)
    before_us = worker.store.now_us
    assert worker.pass_time()
    assert worker.store.now_us - before_us == 100_000
    worker.settle()
    assert run.kinds() == "vvv"


def test_nothing_is_flushed_twice():
    worker, run = start(noting, 3)
    worker.pass_time()
    worker.play("send 1")
    worker.executions[1].poke()
    assert worker.executions[1].flushing.take() is None
    worker.finish()
    assert run.kinds() == "vvvc"


@workflow
async def writing_beside_reading() -> None:
    async def write() -> None:
        saw(await write_row.aio(1))

    async def look() -> None:
        saw((await look_up("abc"))["size"])

    await asyncio.gather(write(), look())


def test_nothing_is_released_between_a_fence_and_the_answer_of_its_commit():
    worker, run = start(writing_beside_reading)
    worker.play("fence write_row 1", "body look_up 2")
    assert seen(worker) == []
    assert worker.executions[1].flushing.take() is None
    worker.play("commit-fence write_row 1")
    assert seen(worker) == []
    worker.play("end write_row 1", "advance")
    assert seen(worker) == [("1001",), ("3",)]
    worker.finish()
    found = run.shape()
    assert found == [(1, Kind.STEP_COMPLETED, "write_row"), (2, Kind.STEP_COMPLETED, "look_up")]
    assert divergence(run) is None


@workflow
async def noting_then_writing() -> list[int]:
    pgflow.set_state(stage=1)
    started = asyncio.create_task(add(1, 1))
    await asyncio.sleep(0)
    return [await write_row.aio(1), await started]


def test_a_transaction_takes_the_buffer_with_it():
    worker, run = start(noting_then_writing)
    worker.play("fence write_row 3", "commit-fence write_row 3")
    assert run.kinds() == "vc"
    assert [start[2] for start in run.units[-1].starts] == ["add"]


def test_a_rollback_puts_the_buffer_and_the_licences_back():
    worker, run = start(noting_then_writing)
    execution = worker.executions[1]
    buffer = execution.buffer
    agenda = execution.agenda
    before = list(buffer.rows), dict(agenda.unlicensed), buffer.seq, buffer.size_bytes
    worker.play("fence write_row 3", "end write_row 3")
    assert (buffer.rows, agenda.unlicensed, buffer.seq) == before[:3]
    assert worker.bodies[0].call.name == "write_row"
    assert run.units == []
    worker.play(
        "advance", "fence write_row 3", "commit-fence write_row 3", "end write_row 3", "advance"
    )
    worker.finish()
    assert run.result() == [1001, 2]
    assert divergence(run) is None


def test_a_rollback_puts_the_size_of_the_buffer_back():
    worker, _ = start(noting_then_writing)
    execution = worker.executions[1]
    before = execution.buffer.size_bytes
    worker.play("fence write_row 3", "end write_row 3")
    assert execution.buffer.size_bytes == before


def test_a_fence_waits_for_a_flush_on_its_way():
    worker, _ = start(noting_then_writing)
    worker.pass_time()
    worker.play("send 1")
    assert "fence write_row 3" not in worker.offered()
    worker.play("commit 1", "ack 1")
    assert "fence write_row 3" in worker.offered()


@workflow
async def labelled_and_written() -> int:
    pgflow.set_labels(stage="1")
    return await write_row.aio(1)


def test_no_fence_takes_along_what_is_to_be_booked():
    """The snapshot of a transaction at repeatable read may be older than the debt that an effect's
    end pays, and would not see it.
    """
    worker, run = start(labelled_and_written)
    assert [offered for offered in worker.offered() if "write_row" in offered] == []
    worker.play(
        "send 1",
        "commit 1",
        "ack 1",
        "fence write_row 2",
        "commit-fence write_row 2",
        "end write_row 2",
        "advance",
    )
    worker.finish()
    assert run.kinds() == "yc"
    assert divergence(run) is None


def test_what_a_fence_answers_is_released_before_the_next_fence():
    for seed in range(30):
        store = Store(writing_and_telling)
        run = store.start(writing_and_telling, 3)
        Worker(store, seed=seed).finish_at_random()
        assert run.result() == 3003
        assert divergence(run) is None


@workflow
async def giving_up_a_write(after: float) -> str:
    try:
        async with asyncio.timeout(after):
            return str(await write_row.aio(1))
    except TimeoutError:
        return await look_up_name("gave up")


@read
async def look_up_name(name: str) -> str:
    return name


def test_a_transaction_that_nobody_wants_any_more_is_rolled_back():
    worker, run = start(giving_up_a_write, 2)
    worker.settle()
    execution = worker.executions[1]
    body = worker.bodies[0]
    worker.store.now_us += 3 * SECOND
    execution.poke()
    worker.settle()
    assert execution.begin_fence(body.call, "1001") is None
    worker.finish()
    assert run.result() == "gave up"
    assert run.shape()[1:3] == [(1, Kind.TIMER_FIRED, None), (2, Kind.CALL_CANCELLED, "write_row")]


def test_a_transaction_past_its_fence_is_recorded_although_its_time_is_over():
    worker, run = start(giving_up_a_write, 0.5)
    worker.settle()
    worker.play("fence write_row 2")
    worker.store.now_us += 3 * SECOND
    worker.executions[1].poke()
    worker.play("commit-fence write_row 2", "end write_row 2", "advance")
    worker.finish()
    assert run.result() == "1001"
    assert divergence(run) is None


@workflow
async def giving_up(after: float) -> str:
    try:
        async with asyncio.timeout(after):
            return str(await add(1, 1))
    except TimeoutError:
        pgflow.set_state(gave="up")
        return (await look_up("late"))["name"]


def test_giving_up_a_call_is_recorded_after_what_caused_it():
    worker, run = start(giving_up, 5)
    worker.settle()
    worker.pass_time()
    worker.store.now_us += 5 * SECOND
    worker.executions[1].poke()
    worker.settle()
    worker.finish()
    assert run.kinds() == "tTXvc"
    assert run.result() == "late"


def test_the_late_result_of_an_abandoned_step_is_ignored():
    worker, run = start(giving_up, 5)
    worker.settle()
    late = worker.bodies[0]
    worker.store.now_us += 5 * SECOND
    worker.executions[1].poke()
    worker.settle()
    assert not worker.executions[1].agenda.is_open(late.call)
    late.execution.step_returned(worker._run(late))
    worker.finish()
    assert run.kinds() == "tTXvc"
    assert divergence(run) is None


@workflow
async def giving_up_what_is_decided() -> list[str]:
    """Both timers are decided, by the answer to one question, when the first of them cancels the
    other.
    """
    heard: list[str] = []
    asyncio.ensure_future(paid.wait())  # so that only the database knows what comes first
    first, second = asyncio.create_task(asyncio.sleep(5)), asyncio.create_task(asyncio.sleep(5))
    await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    await asyncio.wait({second})
    heard.append("cancelled" if second.cancelled() else "slept")
    heard.append((await look_up("end"))["name"])
    return heard


def test_an_outcome_that_comes_after_its_call_was_given_up_changes_nothing_then_or_on_replay():
    worker, run = start(giving_up_what_is_decided)
    worker.finish()
    assert run.result()[1] == "end"
    assert run.kinds() == "ttTTc"
    assert divergence(run) is None
    again = replay(run)
    assert again.end.ending.output == run.output


@workflow
async def trying_again_after_cancel() -> str:
    try:
        await paid.wait()
    except asyncio.CancelledError:
        saw("cancelled")
        await clean_up("first")
        await asyncio.sleep(0.1)
        saw("cleaned up")
        raise
    return "never"


def test_a_cancel_raises_once_and_durable_calls_in_the_clean_up_work():
    worker, run = start(trying_again_after_cancel)
    worker.settle()
    worker.store.cancel(run, "first")
    worker.settle()
    worker.store.cancel(run, "second")
    worker.finish()
    assert seen(worker)[-2:] == [("cancelled",), ("cleaned up",)]
    assert (run.status, run.reason) == ("cancelled", "first")
    assert run.kinds().count(Kind.CALL_CANCELLED) == 2  # of the run, and of the wait for the signal
    assert divergence(run) is None


@workflow
async def shrugging_off_a_cancel() -> str:
    try:
        await paid.wait()
    except asyncio.CancelledError:
        return (await look_up("carried on"))["name"]
    return "never"


def test_code_may_end_well_although_it_was_cancelled():
    worker, run = start(shrugging_off_a_cancel)
    worker.settle()
    worker.store.cancel(run)
    worker.finish()
    assert run.result() == "carried on"
    assert divergence(run) is None


@workflow
async def waiting_for_a_cancelled_child() -> str:
    try:
        await pgflow.run_child(waiting_for_paid)
    except RunCancelled as error:
        return str(error)
    return "never"


@workflow
async def waiting_for_paid() -> int:
    return await paid.wait()


def test_a_cancelled_child_raises_in_its_parent():
    store = Store(waiting_for_a_cancelled_child, waiting_for_paid)
    run = store.start(waiting_for_a_cancelled_child)
    worker = Worker(store)
    worker.settle()
    store.cancel(store.runs[2], "by hand")
    worker.finish()
    assert "by hand" in run.result()


def test_the_end_of_a_parent_cancels_its_children():
    store = Store(waiting_for_a_cancelled_child, waiting_for_paid)
    run = store.start(waiting_for_a_cancelled_child)
    worker = Worker(store)
    worker.settle()
    store.cancel(run)
    worker.finish()
    assert [r.status for r in store.runs.values()] == ["cancelled", "cancelled"]


@workflow
async def hearing_twice() -> list[Any]:
    heard: list[Any] = []
    try:
        heard.append(await paid.wait(timeout=timedelta(seconds=2)))
    except TimeoutError:
        heard.append(None)
    heard.append(await paid.wait())
    return heard


def test_a_message_that_comes_too_late_stays_for_the_next_wait():
    worker, run = start(hearing_twice)
    worker.settle()
    worker.store.now_us += 3 * SECOND
    worker.store.send(run, "paid", 8)
    worker.finish()
    assert run.result() == [None, 8]


def test_a_message_that_came_in_time_is_taken_however_late_anybody_looks():
    worker, run = start(hearing_twice)
    worker.settle()
    worker.store.now_us += 1 * SECOND
    worker.store.send(run, "paid", 7)
    worker.store.now_us += 3600 * SECOND
    worker.store.send(run, "paid", 8)
    worker.finish()
    assert run.result() == [7, 8]


@workflow
async def hearing_side_by_side() -> list[int]:
    return await asyncio.gather(paid.wait(), paid.wait())


def test_each_message_is_taken_by_one_wait_in_the_order_of_sending():
    worker, run = start(hearing_side_by_side)
    worker.settle()
    worker.store.send(run, "paid", 1)
    worker.store.send(run, "paid", 2)
    worker.finish()
    assert run.result() == [1, 2]
    assert worker.store.mail == []


@workflow
async def hearing_once() -> int:
    return await paid.wait()


def test_a_message_that_does_not_fit_its_type_holds_the_run_and_stays():
    worker, run = start(hearing_once)
    worker.settle()
    worker.store.send(run, "paid", "not a number")
    worker.settle()
    assert run.place == "held"
    assert [mail.name for mail in worker.store.mail] == ["paid"]
    assert run.kinds() == ""


@workflow
async def trying(item: int) -> int:
    return await flaky(item)


def test_a_failed_attempt_is_a_unit_and_the_last_error_is_raised():
    worker, run = start(trying, 3)
    worker.finish()
    assert run.kinds() == "saaf"
    with pytest.raises(ValueError, match="no 3"):
        run.result()


def test_a_long_wait_for_the_next_try_parks_the_run():
    worker, run = start(trying, 3)
    worker.settle()
    worker.play("body flaky 1")
    assert run.place == "leased"
    worker.store.now_us += SECOND
    worker.play("retry flaky 1", "body flaky 1")
    worker.settle()
    assert run.place == "parked"
    assert run.kinds() == "saa"
    assert len(run.due_us) == 1
    worker.finish()
    assert run.attempt == 1
    assert run.kinds() == "saaf"


def test_the_next_try_knows_how_many_went_before_it():
    worker, run = start(trying, 3)
    worker.settle()
    worker.play("body flaky 1")
    worker.finish()
    assert [number for number, _ in enumerate(worker.bodies_run, 1)] == [1, 2, 3]
    assert len({key for _, _, key in worker.bodies_run}) == 1


@step
async def annotated(value: Any) -> int:
    return value


@workflow
async def misfit(value: Any) -> str:
    try:
        await annotated(value)
    except pgflow.errors.NotStorable as error:
        saw(error)
        return str(error)
    return "never"


def test_a_result_that_does_not_fit_its_annotation_is_the_steps_error():
    worker, run = start(misfit, "text")
    worker.finish()
    assert run.kinds() == "sf"
    assert "the result of step annotated does not fit its annotation int" in run.result()
    assert replay(run).events() == worker.attempts[-1].events()


@workflow
async def returning_what_cannot_be_stored() -> Any:
    return object()


def test_a_result_of_a_workflow_that_cannot_be_stored_fails_the_run():
    worker, run = start(returning_what_cannot_be_stored)
    worker.finish()
    with pytest.raises(
        pgflow.errors.NotStorable, match="the result of workflow returning_what_cannot_be_stored"
    ):
        run.result()


@workflow
async def waiting_for_nothing() -> None:
    await asyncio.get_running_loop().create_future()


def test_code_that_nothing_can_wake_is_held_with_the_line_where_it_stands():
    worker, run = start(waiting_for_nothing)
    worker.settle()
    state, reason, _hash, detail, by = run.held
    assert (state, reason, by) == ("stuck", "deadlock", "pgflow")
    assert any("in waiting_for_nothing" in line and __file__ in line for line in detail["where"])


def test_a_commit_that_the_server_refuses_holds_the_run_and_keeps_what_was_durable():
    worker, run = start(two_steps)
    worker.settle()
    worker.play("body add 1", "send 1")
    execution, flush, _ = worker.on_the_way.pop()
    held = execution.flushing.hold_instead_of(flush, {"message": "no room"})
    assert execution.flushing.inflight is flush, "nothing has changed before the hold is durable"
    execution.flushing.refused(held)
    worker.on_the_way.append((execution, held, document_of(held, execution.clock.estimate_us)))
    worker.settle()
    assert run.kinds() == "s"
    assert run.held[:2] == ["stuck", "refused"]
    assert run.held[3] == {"message": "no room", "units": ["c"]}


def test_a_paused_run_starts_nothing_new_and_goes_on_when_resumed():
    worker, run = start(two_steps)
    worker.settle()
    worker.store.pause(run)
    worker.settle()
    assert run.place == "leased", "a body runs"
    worker.play("body add 1")
    worker.settle()
    assert run.place == "held"
    assert worker.bodies == []
    assert run.kinds() == "sco"
    worker.store.resume(run)
    worker.finish()
    assert run.result() == 3
    assert divergence(run) is None


def test_a_resume_that_overtakes_the_pause_lets_the_run_go_on():
    worker, run = start(two_steps)
    worker.settle()
    worker.store.pause(run)
    worker.settle()
    worker.play("body add 1", "send 1")
    worker.store.resume(run)
    worker.finish()
    assert run.place == "ended", run
    assert run.result() == 3


@workflow
async def then_a_child() -> str:
    await look_up("a")
    return await pgflow.run_child(charged_child, 1)


@pytest.mark.parametrize("is_roomy", [True, False])
def test_a_parent_waits_for_its_child_in_memory_only_where_there_is_room(is_roomy):
    store = Store(then_a_child, charged_child)
    run = store.start(then_a_child)
    worker = Worker(store)
    worker.is_roomy = is_roomy
    for move in (
        "claim 1",
        "body look_up 1",
        "send 1",
        "commit 1",
        "ack 1",
    ):  # the child is started
        worker.play(move)
    assert len(store.runs) == 2
    if not is_roomy:
        worker.play("send 1")
        worker.play("commit 1")
    assert [label for label, _ in worker.moves() if label == "send 1"] == []
    assert run.place == ("leased" if is_roomy else "parked")


@workflow
async def with_many_children(count: int) -> int:
    return len((await pgflow.map(charged_child, range(count))).values)


def test_many_children_start_in_commits_of_some_hundreds_each():
    store = Store(with_many_children, charged_child)
    run = store.start(with_many_children, MAX_FLUSH_CHILDREN + 1)
    worker = Worker(store)
    worker.play("claim 1")
    started = []
    while len(store.runs) <= MAX_FLUSH_CHILDREN + 1:
        known = len(store.runs)
        for move in ("send 1", "commit 1", "ack 1"):
            worker.play(move)
        started.append(len(store.runs) - known)
    assert started == [MAX_FLUSH_CHILDREN, 1]
    assert [u.call for u in run.units] == list(range(1, MAX_FLUSH_CHILDREN + 2))


def test_a_paused_run_starts_no_child():
    store = Store(then_a_child, charged_child)
    run = store.start(then_a_child)
    worker = Worker(store)
    worker.play("claim 1")
    store.pause(run)
    worker.settle()
    worker.play("body look_up 1")
    worker.settle()
    assert list(store.runs) == [1]
    assert run.place == "held"
    store.resume(run)
    worker.finish()
    assert run.result() == "receipt 1"


@workflow
async def then_a_timer() -> None:
    await look_up("a")
    await asyncio.sleep(0.4)
    await paid.wait()


def test_a_paused_run_is_held_although_a_timer_is_due_soon():
    worker, run = start(then_a_timer)
    worker.store.pause(run)
    worker.settle()
    worker.play("body look_up 1")
    worker.settle()
    assert run.place == "held"


def test_a_draining_run_starts_nothing_new_and_loses_nothing():
    worker, run = start(two_steps)
    worker.settle()
    execution = worker.executions[1]
    execution.drain()
    assert not execution.is_drained, "a body runs"
    worker.play("body add 1")
    assert not execution.is_drained, "its result is not durable"
    worker.settle()
    assert execution.is_drained
    assert run.kinds() == "sc"
    assert run.licensed().keys() == {1}
    successor = worker.crash()
    successor.finish()
    assert run.result() == 3


@workflow
async def two_reads() -> list[Any]:
    return [await look_up("a"), await look_up("b")]


def test_a_draining_run_starts_no_read_either():
    worker, run = start(two_reads)
    worker.settle()
    worker.executions[1].drain()
    worker.play("body look_up 1")
    worker.settle()
    assert worker.executions[1].is_drained, "no body runs"
    assert worker.crash().offered() == ["claim 1"]
    assert run.kinds() == "c"


def test_a_draining_run_does_not_park():
    worker, run = start(waiting_for_paid)
    worker.executions[1].drain()
    worker.settle()
    assert run.place == "leased"
    assert worker.executions[1].is_drained


def test_a_worker_that_has_lost_the_run_writes_nothing():
    worker, run = start(two_steps)
    worker.settle()
    worker.play("body add 1", "send 1")
    worker.store.release_all()
    other = Worker(worker.store)
    other.play("claim 1")
    worker.play("commit 1")
    assert worker.lost == [1]
    assert worker.executions == {}
    assert run.kinds() == "s"
    other.finish()
    assert run.result() == 3


def test_a_transaction_of_a_worker_that_has_lost_the_run_is_rolled_back():
    worker, run = start(writing_beside_reading)
    worker.play("fence write_row 1")
    worker.store.release_all()
    other = Worker(worker.store)
    other.play("claim 1")
    worker.play("commit-fence write_row 1")
    assert worker.bodies[0].committed_us is None
    other.finish()
    assert run.kinds().count("c") == 2


def test_what_the_code_notes_between_two_verdicts_of_one_answer_is_repeated():
    worker, run = start(napping, 3)
    worker.finish()
    assert run.result() == 4
    assert divergence(run) is None


def start_loose(worker: Worker, run: Any) -> tuple[Execution, threading.Event]:
    """An execution whose thread runs beside the test, and the event that it sets when it stands
    still.
    """
    still = threading.Event()

    def make(execution: Execution) -> Any:
        lockstep = make_driver(execution, run.workflow)
        main, context = lockstep._code or pytest.fail("it has begun")
        loose = ThreadDriver(lockstep._spawn, still.set, main, context)
        _bind(context, loose)
        return loose

    journal = run.claim(0)
    journal.units = journal.units[:-1]
    return Execution(journal, worker, Program(make, run.workflow.result_codec)), still


@workflow
def counting_in_a_thread(n: int) -> int:
    return sum(count("x" * i) for i in range(n))


def test_a_thread_that_comes_to_a_standstill_behind_our_back_is_not_taken_for_stuck():
    store = Store(counting_in_a_thread)
    run = store.start(counting_in_a_thread, 3)
    Worker(store).finish()
    execution, still = start_loose(Worker(store), run)
    execution.start()
    try:
        while execution.history.replaying:
            assert still.wait(HANG_SECONDS)
            still.clear()
            assert execution.flushing.take() is None, "it has replayed nothing yet"
            execution.thread_waits()
        assert execution.agenda.running, "nothing but the last body is left to do"
    finally:
        execution.close()


def _bind(context: contextvars.Context, driver: ThreadDriver) -> None:
    """The workflow's scope names the driver on which its calls wait."""
    scope = context[current]
    assert isinstance(scope, WorkflowScope)
    scope.thread = driver


@workflow
def taking_the_first_write() -> int:
    return pgflow.sync.map(write_row, [1, 2], min_successful=1).values[0]


def test_nothing_fences_while_code_runs_in_its_thread(monkeypatch):
    """Its notes and the fence would both be the next seq."""
    still, counting, go_on = threading.Event(), threading.Event(), threading.Event()
    count_really = pgflow.sync._count

    def count_slowly(*args: Any) -> None:
        counting.set()
        assert go_on.wait(HANG_SECONDS)
        count_really(*args)

    monkeypatch.setattr(pgflow.sync, "_count", count_slowly)

    def make_loose_driver(execution: Execution, flow: Any, errors: Any) -> Any:
        lockstep = make_driver(execution, flow, errors)
        main, context = lockstep._code or pytest.fail("it has begun")
        loose = ThreadDriver(lockstep._spawn, still.set, main, context)
        _bind(context, loose)
        return loose

    store = Store(taking_the_first_write)
    run = store.start(taking_the_first_write)
    worker = Worker(store, driver=make_loose_driver)
    worker.play("claim 1")
    assert still.wait(HANG_SECONDS)
    still.clear()
    execution = worker.executions[1]
    execution.thread_waits()
    worker.play("fence write_row 1", "commit-fence write_row 1", "end write_row 1", "advance")
    assert counting.wait(HANG_SECONDS)
    try:
        assert "fence write_row 2" not in worker.offered()
    finally:
        go_on.set()
    assert still.wait(HANG_SECONDS)
    execution.thread_waits()
    worker.finish()
    assert run.result() == 1001
    assert divergence(run) is None
