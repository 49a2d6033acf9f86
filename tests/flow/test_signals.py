"""Signals: each message sent is taken by exactly one wait, in order, whenever it comes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import HOUR, SOON, calling, count, events, eventually, launch, recover, run_row, settle

import pgflow
from pgflow import InvalidArgument, RunNotFound, Signal, read, step, workflow
from pgflow.errors import NotStorable


@dataclass(frozen=True)
class Payment:
    cents: int
    note: str = ""


paid = Signal("paid", Payment)
word = Signal("word", str)
stop = Signal("stop", type(None))


@workflow
async def collect(n: int) -> list[str]:
    return [await word.wait() for _ in range(n)]


async def test_messages_are_taken_in_the_order_in_which_they_were_sent(aflow):
    run = await launch(aflow, collect, 4)
    await run.send(word, "a")
    await run.send(word, "b")
    await aflow.until_idle()
    await run.send(word, "c")
    await aflow.app.send(run.key, word, "d")
    assert await run.result(SOON) == ["a", "b", "c", "d"]


SAME_TRANSACTION = "select r.xmin = s.xmin from pgflow.ready r, pgflow.signal s"


@pytest.mark.full
async def test_who_sends_in_a_transaction_of_its_own_makes_the_run_ready_in_it(
    aflow, conn, pgflow_dsn
):
    run = await settle(aflow, collect, 2)
    await aflow.crash()
    await run.send(word, "a")
    assert conn.execute(SAME_TRANSACTION).fetchall() == [(True,)]
    await aflow.until_idle()
    await aflow.crash()
    async with await psycopg.AsyncConnection.connect(pgflow_dsn) as own:
        await aflow.app.using(own).send(run.key, word, "b")
    await aflow.app.nudge()
    assert conn.execute(SAME_TRANSACTION).fetchall() == [(False,)]
    await aflow.until_idle()
    assert await run.result(SOON) == ["a", "b"]


@pytest.mark.full
def test_so_does_sync_code(flow, conn, pgflow_dsn):
    run = settle(flow, collect, 2)
    flow.crash()
    flow.app.send(run.key, word, "a")
    assert conn.execute(SAME_TRANSACTION).fetchall() == [(True,)]
    flow.until_idle()
    flow.crash()
    with psycopg.connect(pgflow_dsn) as own:
        flow.app.using(own).send(run.key, word, "b")
    flow.app.nudge()
    assert conn.execute(SAME_TRANSACTION).fetchall() == [(False,)]
    flow.until_idle()
    assert run.result(SOON) == ["a", "b"]


async def test_messages_that_came_before_the_run_began_are_not_lost(aflow):
    aflow.include(collect)
    run = await aflow.app.start(collect, 2)
    for text in ("a", "b"):
        await run.send(word, text)
    await aflow.until_idle()
    assert await run.result(SOON) == ["a", "b"]


@pytest.mark.full
async def test_messages_survive_a_crash_and_are_taken_once(aflow, conn):
    seen = []

    @workflow
    async def reader() -> list[str]:
        first = await word.wait()
        seen.append(first)
        return [first, await word.wait()]

    run = await launch(aflow, reader)
    await run.send(word, "a")
    await aflow.until_idle()
    await aflow.crash()
    await run.send(word, "b")
    await aflow.until_idle()
    assert await run.result(SOON) == ["a", "b"]
    assert set(seen) == {"a"}
    assert count(conn, "pgflow.signal") == 0
    assert events(conn, run.key) == [("signal_received", "word")] * 2


async def test_a_payload_comes_back_as_its_class(aflow):
    @workflow
    async def till() -> Payment:
        payment = await paid.wait()
        assert isinstance(payment, Payment)
        return payment

    run = await launch(aflow, till)
    await run.send(paid, Payment(5, "thanks"))
    assert await run.result(SOON) == Payment(5, "thanks")


async def test_signals_of_different_names_do_not_meet(aflow):
    @workflow
    async def both() -> list[Any]:
        return [await word.wait(), (await paid.wait()).cents]

    run = await launch(aflow, both)
    await run.send(paid, Payment(7))
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await run.send(word, "a")
    assert await run.result(SOON) == ["a", 7]


async def test_waits_that_go_on_at_once_each_take_one_message(aflow):
    @workflow
    async def crowd() -> list[str]:
        return await asyncio.gather(*(word.wait() for _ in range(5)))

    run = await launch(aflow, crowd)
    for text in "abcde":
        await run.send(word, text)
    assert await run.result(SOON) == ["a", "b", "c", "d", "e"]


@pytest.mark.full
async def test_a_wait_that_loses_a_race_leaves_its_message_to_the_next(aflow):
    @workflow
    async def race() -> list[str]:
        waits = [asyncio.create_task(word.wait()), asyncio.create_task(stop.wait())]
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return [str(await done.pop()), await word.wait()]

    run = await settle(aflow, race)
    await run.send(stop, None)
    await aflow.until_idle()
    await run.send(word, "late")
    assert await run.result(SOON) == ["None", "late"]


@pytest.mark.full
async def test_messages_arrive_while_steps_run(aflow):
    started, proceed = asyncio.Event(), asyncio.Event()

    @step
    async def work() -> str:
        started.set()
        await proceed.wait()
        return "worked"

    @workflow
    async def busy() -> list[str]:
        working = asyncio.create_task(work())
        heard = [await word.wait(), await word.wait()]
        pgflow.set_state(heard=heard)
        return [*heard, await working]

    run = await launch(aflow, busy)
    await started.wait()
    await run.send(word, "a")
    await run.send(word, "b")

    async def has_heard() -> bool:
        return await run.state() == {"heard": ["a", "b"]}

    await eventually(has_heard, "both messages are taken while the step runs")
    proceed.set()
    assert await run.result(SOON) == ["a", "b", "worked"]


@pytest.mark.full
async def test_a_wait_that_lasts_too_long_is_a_timeout_error_and_a_later_message_stays_for_the_next(
    aflow, conn
):
    outcomes = []

    @workflow
    async def patient() -> str:
        try:
            await word.wait(timeout=HOUR)
        except TimeoutError as error:
            outcomes.append(str(error))
        await stop.wait()
        return await word.wait()

    run = await launch(aflow, patient)
    assert await aflow.until_idle() is not None
    assert run_row(conn, run.key, "status")[0] == "waiting"
    await aflow.skip(HOUR)
    await run.send(word, "late")
    await recover(aflow)
    await run.send(stop, None)
    assert await run.result(SOON) == "late"
    assert set(outcomes) == {"no signal 'word' in time"}
    assert len(outcomes) > 1
    assert ("wait_timed_out", "word") in events(conn, run.key)


@pytest.mark.full
async def test_a_message_in_time_beats_the_timeout_however_late_a_worker_looks(aflow, conn):
    run = await settle(aflow, calling(word.wait, timeout=HOUR))
    conn.execute("select pgflow.pause_queue('default')")
    await run.send(word, "in time")
    await aflow.skip(2 * HOUR)
    conn.execute("select pgflow.resume_queue('default')")
    await aflow.until_idle()
    assert await run.result(SOON) == "in time"


async def test_a_timeout_of_nothing_takes_what_is_there_and_waits_for_nothing(aflow):
    @workflow
    async def drain() -> list[str]:
        await stop.wait()
        taken = []
        while True:
            try:
                taken.append(await word.wait(timeout=timedelta(0)))
            except TimeoutError:
                return taken

    run = await launch(aflow, drain)
    for text in "abc":
        await run.send(word, text)
    await run.send(stop, None)
    assert await run.result(SOON) == ["a", "b", "c"]


@pytest.mark.full
def test_a_sync_workflow_waits_for_signals_too(flow):
    @workflow
    def patient() -> list[str]:
        first = word.sync.wait()
        try:
            word.sync.wait(timeout=HOUR)
        except TimeoutError:
            return [first, "too long"]
        return []

    run = launch(flow, patient)
    run.send(word, "a")
    flow.until_idle()
    flow.crash()
    flow.skip(HOUR)
    assert run.result(SOON) == ["a", "too long"]


def test_a_message_to_nobody_is_refused(flow):
    with pytest.raises(RunNotFound, match="'nobody'"):
        flow.app.send("nobody", word, "a")


def test_a_message_to_a_finished_run_is_put_aside(flow, conn):
    run = launch(flow, collect, 0)
    assert run.result(SOON) == []
    run.send(word, "late")
    flow.until_idle()
    assert count(conn, "pgflow.signal") == 0
    found = conn.execute("select name, payload from pgflow.undelivered").fetchall()
    assert found == [("word", "late")]


def test_what_a_run_has_not_taken_when_it_ends_is_put_aside(flow, conn):
    run = launch(flow, collect, 1)
    run.send(word, "a")
    run.send(word, "b")
    assert run.result(SOON) == ["a"]
    flow.until_idle()
    assert conn.execute("select payload from pgflow.undelivered").fetchall() == [("b",)]


async def test_a_payload_that_does_not_fit_is_refused_by_the_sender(aflow, conn):
    run = await launch(aflow, collect, 1)
    with pytest.raises(NotStorable, match="payload of signal 'paid'"):
        await run.send(paid, "five")  # type: ignore[arg-type]
    with pytest.raises(NotStorable):
        await run.send(Signal("anything", Any), object())  # type: ignore[arg-type]
    assert count(conn, "pgflow.signal") == 0


BAD_SQL = {
    "no name": "pgflow.send_signal('k', '')",
    "a name that is too long": "pgflow.send_signal('k', repeat('s', 256))",
    "a payload that is too long": "pgflow.send_signal('k', 's', to_json(repeat('x', 1048577)))",
    "a payload with a NUL": r"""pgflow.send_signal('k', 's', '"\u0000"')""",
}


@pytest.mark.parametrize("call", BAD_SQL.values(), ids=BAD_SQL)
def test_sql_refuses_messages_that_nobody_could_read(flow, conn, call):
    flow.app.start(collect.options(key="k"), 1)
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(f"select {call}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == "PF003"


@pytest.mark.parametrize("name", ["", "s" * 256, "é" * 128])
def test_a_signal_must_have_a_name_that_can_be_stored(name):
    with pytest.raises(InvalidArgument, match="255 bytes"):
        Signal(name, str)


@pytest.mark.full
async def test_a_message_is_not_sent_again_when_its_sender_is_replayed(aflow, conn):
    @read
    async def tick() -> None: ...

    @step
    async def tell(key: str) -> None:
        await aflow.app.send(key, word, "told")

    @workflow
    async def sender(key: str) -> None:
        await tell(key)
        await tick()
        await stop.wait()

    receiver = await launch(aflow, collect, 2, beside=[sender])
    run = await settle(aflow, sender, receiver.key)
    await recover(aflow)
    await run.send(stop, None)
    await run.result(SOON)
    assert await receiver.status() == "waiting"
    assert events(conn, receiver.key) == [("signal_received", "word")]
