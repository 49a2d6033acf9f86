"""A message that comes with the claim, or the result of a child that comes with the child's last
commit: the code has it at once, and it leaves the mailbox with what is recorded next.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from enginekit import SECOND, Worker, divergence, replay, saw, seen
from enginestore import Store, StoredRun
from exampleflows import add, look_up, paid, write_row

import pgflow
from pgflow import Signal, workflow

word = Signal("word", str)


def parked(flow: Any, *args: Any) -> tuple[Worker, StoredRun]:
    """A run that waits."""
    store = Store(flow)
    run = store.start(flow, *args)
    worker = Worker(store)
    worker.settle()
    assert run.place == "parked"
    return worker, run


@workflow
async def hearing_and_adding() -> int:
    heard = await paid.wait()
    saw(heard)
    return await add(heard, 1)


def test_one_commit_records_the_signal_and_lets_the_next_step_run():
    worker, run = parked(hearing_and_adding)
    worker.store.send(run, "paid", 7)
    worker.play("wake 1", "claim 1")
    assert seen(worker) == ["7"]
    assert (run.kinds(), len(worker.store.mail)) == ("", 1)
    worker.play("send 1", "commit 1")
    assert (run.kinds(), worker.store.mail) == ("S", [])
    assert [start[2] for start in run.licensed().values()] == ["add"]
    worker.finish()
    assert run.result() == 8
    assert divergence(run) is None


def test_what_nobody_has_recorded_is_there_for_the_next_holder():
    worker, run = parked(hearing_and_adding)
    worker.store.send(run, "paid", 7)
    worker.play("wake 1", "claim 1", "send 1")
    worker.store.release_all()
    other = Worker(worker.store)
    other.finish()
    assert run.result() == 8
    assert run.kinds().count("S") == 1
    assert worker.store.mail == []


@workflow
async def hearing_in_time() -> list[int | None]:
    heard: list[int | None] = []
    try:
        heard.append(await paid.wait(timeout=timedelta(seconds=2)))
    except TimeoutError:
        heard.append(None)
    heard.append(await paid.wait())
    return heard


def test_a_timer_that_was_due_before_goes_first():
    worker, run = parked(hearing_in_time)
    worker.store.now_us += 3 * SECOND
    worker.store.send(run, "paid", 8)
    worker.finish()
    assert run.result() == [None, 8]


def test_a_timer_that_is_due_later_does_not_stand_in_the_way():
    worker, run = parked(hearing_in_time)
    worker.store.now_us += 1 * SECOND
    worker.store.send(run, "paid", 7)
    worker.play("wake 1", "claim 1", "send 1", "commit 1")
    assert run.kinds() == "tS"
    worker.store.send(run, "paid", 8)
    worker.finish()
    assert run.result() == [7, 8]


@workflow
async def hearing_either() -> str:
    async with asyncio.timeout(3600):
        done, _ = await asyncio.wait(
            [
                asyncio.ensure_future(word.wait()),
                asyncio.ensure_future(paid.wait()),
                asyncio.ensure_future(paid.wait()),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
    return repr([task.result() for task in done])


def test_of_two_waits_the_first_has_it():
    worker, run = parked(hearing_either)
    worker.store.send(run, "paid", 5)
    worker.finish()
    assert run.result() == "[5]"
    (received,) = [unit for unit in run.units if unit.kind == "S"]
    calls = [call for call, name in parked(hearing_either)[1].waits["signals"] if name == "paid"]
    assert received.call == min(calls)
    assert divergence(run) is None


@workflow
async def looking_before_hearing() -> str:
    first = await word.wait()
    found = await look_up(first)
    return f"{found} {await paid.wait()}"


def test_what_the_code_does_not_wait_for_yet_is_taken_once_it_does():
    worker, run = parked(looking_before_hearing)
    worker.store.send(run, "paid", 1)
    worker.settle()
    assert run.place == "parked"
    worker.store.send(run, "word", "a")
    worker.finish()
    assert run.result().endswith(" 1")
    assert worker.store.mail == []


@workflow
async def hearing_and_writing() -> int:
    heard = await paid.wait()
    await write_row.aio(heard)
    return heard


def test_a_transaction_waits_until_the_signal_before_it_is_recorded():
    worker, run = parked(hearing_and_writing)
    worker.store.send(run, "paid", 3)
    worker.play("wake 1", "claim 1")
    assert not any("fence" in name for name in worker.offered())
    worker.play("send 1", "commit 1", "ack 1")
    assert (run.kinds(), worker.store.mail) == ("S", [])
    assert any("fence" in name for name in worker.offered())
    worker.finish()
    assert run.result() == 3


def test_a_replay_of_what_was_taken_so_is_none_else():
    worker, run = parked(hearing_and_adding)
    worker.store.send(run, "paid", 7)
    worker.finish()
    assert replay(run).history.divergence is None


@workflow
async def one_up(n: int) -> int:
    return n + 1


@workflow
async def one_by_one() -> list[int]:
    return [await pgflow.run_child(one_up, 1), await pgflow.run_child(one_up, 2)]


def with_a_child(flow: Any = one_by_one, *, is_roomy: bool = True) -> tuple[Worker, StoredRun]:
    """A run whose first child has been started."""
    store = Store(flow, one_up)
    run = store.start(flow)
    worker = Worker(store)
    worker.is_roomy = is_roomy
    worker.play("claim 1", "send 1", "commit 1", "ack 1")
    return worker, run


def test_a_parent_in_memory_has_the_result_with_the_last_commit_of_its_child():
    worker, run = with_a_child()
    worker.play("claim 2", "send 2", "commit 2", "ack 2")
    assert (run.kinds(), len(worker.store.mail)) == ("k", 1)
    worker.play("send 1", "commit 1")  # with the next child
    assert (run.kinds(), worker.store.mail, len(worker.store.runs)) == ("kKk", [], 3)
    worker.finish()
    assert run.result() == [2, 3]
    assert divergence(run) is None


def test_a_parked_parent_has_it_with_its_claim():
    worker, run = with_a_child(is_roomy=False)
    worker.play("send 1", "commit 1", "ack 1")
    assert run.place == "parked"
    worker.play("claim 2", "send 2", "commit 2", "ack 2", "wake 1", "claim 1", "send 1", "commit 1")
    assert (run.kinds(), worker.store.mail, len(worker.store.runs)) == ("kKk", [], 3)
    worker.finish()
    assert run.result() == [2, 3]


def test_a_result_that_nobody_has_recorded_is_there_for_the_next_holder():
    worker, run = with_a_child()
    worker.play("claim 2", "send 2", "commit 2", "ack 2", "send 1")
    other = worker.crash()
    other.finish()
    assert run.result() == [2, 3]
    assert run.kinds().count("K") == 2
    assert other.store.mail == []


def test_an_answer_that_is_on_its_way_is_not_overtaken():
    worker, run = with_a_child()
    worker.executions[1].poke()
    worker.play("send 1", "claim 2", "send 2", "commit 2", "ack 2")
    assert worker.executions[1].claim.offer is None
    worker.finish()
    assert run.result() == [2, 3]


@workflow
async def one_up_in_time() -> list[int | None]:
    try:
        async with asyncio.timeout(2):
            return [await pgflow.run_child(one_up, 1)]
    except TimeoutError:
        return [None]


def test_a_timer_that_was_due_before_the_child_ended_goes_first():
    worker, run = with_a_child(one_up_in_time)
    worker.store.now_us += 3 * SECOND
    worker.play("claim 2", "send 2", "commit 2", "ack 2")
    worker.finish()
    assert run.result() == [None]
    assert divergence(run) is None


def test_a_look_is_put_off_by_news_of_a_child():
    worker, _ = with_a_child()
    worker.store.now_us += 40_000
    worker.play("claim 2", "send 2", "commit 2", "ack 2", "send 1", "commit 1", "ack 1")
    worker.store.now_us += 20_000  # the look of the first wait is due, that of the second is not
    worker.play("look 1")
    assert not [label for label in worker.offered() if label in ("send 1", "look 1")]
    worker.store.now_us += 40_000
    worker.play("look 1", "send 1")


def test_a_look_that_is_due_does_not_touch_calls_while_code_runs_in_a_thread(monkeypatch):
    """The thread may be entering a call just then."""
    worker, _ = with_a_child()
    execution = worker.executions[1]
    monkeypatch.setattr(execution.code.driver, "busy", True)
    execution.look_due()
    assert execution.agenda.wants_look
