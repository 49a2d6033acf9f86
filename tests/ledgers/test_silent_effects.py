"""Accepted effects whose counterparty promised signs of life: beats are noted, and silence is
noticed once and for good.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import SOON, count, events, eventually, recover, run_row, settle
from sqlkit import rows

import pgflow
from pgflow import InvalidArgument, Page, Retries, RunFailed, RunNotFound, Signal, workflow
from pgflow.effects import Absent, Accepted, Confirmed, StillUnknown, effect
from pgflow.errors import WrongState
from pgflow.testing import AsyncHarness, set_clock

Conn = psycopg.Connection[Any]

MINUTE = timedelta(minutes=1)
LONGER = timedelta(seconds=61)
PART = timedelta(seconds=40)
SLOWLY = Retries(max_attempts=3, first_delay=MINUTE, backoff=1, max_delay=MINUTE)

go = Signal("go", str)


@dataclass
class Farm:
    """A counterparty that takes jobs on, and says of them what a test has told it to."""

    taken: list[str] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)


_FARMS: list[Farm] = []


@pytest.fixture
def farm() -> Farm:
    _FARMS[:] = [Farm()]
    return _FARMS[0]


def take(name: str, heartbeat_timeout: timedelta | float | None) -> Accepted:
    _FARMS[0].taken.append(pgflow.idempotency_key())
    return Accepted(f"job {name}", heartbeat_timeout=heartbeat_timeout)


def answer() -> Any:
    farm = _FARMS[0]
    farm.asked.append(pgflow.heartbeat_details())
    said = farm.answers.pop(0)
    if isinstance(said, Exception):
        raise said
    return said


@effect(risk="irreversible")
async def render(name: str) -> str | Accepted:
    return take(name, MINUTE)


@effect(risk="irreversible")
def render_sync(name: str) -> str | Accepted:
    return take(name, 60)


@effect(risk="irreversible")
async def render_quietly(name: str) -> str | Accepted:
    return take(name, None)


@effect(risk="compensable", settle_retries=SLOWLY, dedup_window=timedelta(days=1))
async def train(name: str) -> str | Accepted:
    return take(name, MINUTE)


@train.settle
async def _(name: str) -> Confirmed[str | Accepted] | Absent | StillUnknown:
    del name
    said = answer()
    if isinstance(said, asyncio.Event):
        await said.wait()
    return said  # type: ignore[no-any-return]


@train.compensate
async def remove(taken: str | Accepted, name: str) -> None:
    assert taken == Accepted(f"job {name}")
    _FARMS[0].removed.append(name)


@workflow
async def rendering(name: str) -> str:
    taken = await render(name)
    assert isinstance(taken, Accepted)
    return taken.ref


@workflow
def rendering_sync(name: str) -> str:
    taken = render_sync(name)
    assert isinstance(taken, Accepted)
    return taken.ref


@workflow
async def rendering_quietly(name: str) -> str:
    taken = await render_quietly(name)
    assert isinstance(taken, Accepted)
    return taken.ref


@workflow
async def training(name: str) -> str:
    taken = await train(name)
    assert isinstance(taken, Accepted)
    return taken.ref


@workflow
async def training_and_waiting(name: str) -> str:
    taken = await train(name)
    assert isinstance(taken, Accepted)
    return taken.ref + await go.wait() + await go.wait()


@workflow
async def failing(name: str) -> str:
    async with pgflow.effects.saga():
        await train(name)
        raise RuntimeError("out of memory")


def obligations(conn: Conn, columns: str = "name, state") -> list[tuple[Any, ...]]:
    return conn.execute(
        f"select {columns} from pgflow.obligations order by run_id, call"
    ).fetchall()


def effects(conn: Conn, columns: str = "name, status") -> list[tuple[Any, ...]]:
    return conn.execute(f"select {columns} from pgflow.effects order by run_id, call").fetchall()


def reasons(conn: Conn) -> list[str]:
    """The reasons for which outcomes became unknown."""
    return rows(
        conn, "select payload->>'reason' from pgflow.unit where kind = 'U' order by run_id, seq"
    )


@pytest.mark.full
async def test_beats_keep_an_effect_accepted_and_neither_wake_the_run_nor_grow_its_journal(
    aflow, conn, farm
):
    run = await settle(aflow, rendering, "a")
    before = events(conn, run.key)
    for percent in (10, 20, None):
        await aflow.skip(PART)
        await aflow.app.beat_effect("job a", None if percent is None else {"percent": percent})
    await aflow.skip(PART)
    found = obligations(conn, "state, beat_details, silent_at - beat_at")
    assert found == [("accepted", {"percent": 20}, MINUTE)]
    assert events(conn, run.key) == before
    assert await run.status() == "waiting"
    assert farm.asked == []
    await aflow.app.confirm_effect("job a")
    assert await run.result(SOON) == "job a"
    assert count(conn, "pgflow.effect_beat") == 0


@pytest.mark.full
def test_a_sync_client_beats_too(flow, conn, farm):
    run = settle(flow, rendering_sync, "a")
    flow.skip(PART)
    flow.app.beat_effect("job a", [1, 2])
    flow.skip(PART)
    assert obligations(conn, "state, beat_details") == [("accepted", [1, 2])]
    flow.skip(LONGER)
    assert run.status() == "stuck"
    with pytest.raises(WrongState, match="has been silent for more than 60 s"):
        flow.app.beat_effect("job a")
    flow.app.confirm_effect("job a")
    assert run.result(SOON) == "job a"


async def test_a_beat_in_a_transaction_of_the_callers_counts_once_that_is_committed(
    aflow, conn, farm
):
    await settle(aflow, rendering, "a")
    async with (
        await psycopg.AsyncConnection.connect(aflow.app.dsn) as other,
        other.transaction() as transaction,
    ):
        await aflow.app.using(other).beat_effect("job a", "lost")
        raise psycopg.Rollback(transaction)
    assert obligations(conn, "beat_details") == [(None,)]


@pytest.mark.full
async def test_a_beat_that_nobody_waits_for_is_refused(aflow, conn, farm):
    run = await settle(aflow, rendering, "a")
    quiet = await settle(aflow, rendering_quietly, "b")
    with pytest.raises(
        RunNotFound, match="no open effect was accepted under the reference 'job c'"
    ):
        await aflow.app.beat_effect("job c")
    with pytest.raises(WrongState, match="without heartbeat_timeout"):
        await aflow.app.beat_effect("job b")
    with pytest.raises(InvalidArgument, match="64 KiB"):
        await aflow.app.beat_effect("job a", "x" * 70_000)
    for ref in ("job a", "job b"):
        await aflow.app.confirm_effect(ref)
    assert [await run.result(SOON), await quiet.result(SOON)] == ["job a", "job b"]
    with pytest.raises(RunNotFound):
        await aflow.app.beat_effect("job a")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_a_promise_that_is_no_duration_is_refused_where_it_is_made(timeout):
    with pytest.raises(InvalidArgument, match="heartbeat_timeout of Accepted"):
        Accepted("job", heartbeat_timeout=timeout)


def test_a_promise_is_none_of_the_value_that_code_sees():
    assert Accepted("job", heartbeat_timeout=5) == Accepted("job")
    assert repr(Accepted("job", heartbeat_timeout=5)) == "Accepted(ref='job')"


@pytest.mark.full
async def test_what_is_silent_is_asked_after_with_what_its_last_beat_said(aflow, conn, farm):
    farm.answers = [StillUnknown(), ConnectionResetError("no reply"), Confirmed("model 7")]
    run = await settle(aflow, training, "a")
    await aflow.app.beat_effect("job a", {"epoch": 3})
    await aflow.skip(LONGER)
    assert obligations(conn) == [("train", "unknown")]
    assert effects(conn) == [("train", "unknown")]
    assert await run.status() == "waiting"
    await aflow.crash()
    await aflow.skip(MINUTE)
    await aflow.skip(MINUTE)
    assert await run.result(SOON) == "job a"
    found = effects(conn, "status, result, said_by, attempts, ref")
    assert found == [("confirmed", "model 7", "settle", 1, "job a")]
    assert farm.asked == [{"epoch": 3}] * 3
    assert reasons(conn) == ["silent", "still_unknown", "asking_failed"]
    assert len(farm.taken) == 1, "within the window of its key too it is not sent again"


@pytest.mark.full
async def test_without_anybody_to_ask_a_person_is_paged_and_a_late_confirmation_still_counts(
    aflow, conn, farm
):
    pages: list[Page] = []
    aflow.app.pager(pages.append)
    run = await settle(aflow, rendering, "a")
    await aflow.app.beat_effect("job a", "half")
    await aflow.skip(LONGER)
    assert await run.status() == "stuck"
    await eventually(lambda: pages, "somebody is told")
    assert (pages[0].kind, pages[0].reason) == ("effect", "silent")
    assert pages[0].why == "it was accepted, and sent no heartbeat for 60 s"
    assert obligations(conn, "state, due_at, beat_details") == [("unknown", None, "half")]
    await aflow.app.confirm_effect("job a", value="at last", by="farm")
    assert await run.result(SOON) == "job a"
    assert effects(conn, "status, result, said_by") == [("confirmed", "at last", "farm (postgres)")]
    assert obligations(conn) == []


@pytest.mark.full
async def test_a_person_may_say_what_became_of_it_and_not_have_it_done_again(aflow, conn, farm):
    run = await settle(aflow, rendering, "a")
    await aflow.skip(LONGER)
    ((key,),) = obligations(conn, "effect")
    with pytest.raises(InvalidArgument, match="confirmed or failed, not absent"):
        await aflow.app.settle_effect(key, "absent")
    await aflow.app.settle_effect(key, "failed", why="the farm burnt down", by="ada")
    assert await run.result(SOON) == "job a"
    assert effects(conn, "status, attempts") == [("failed", 1)]


@pytest.mark.full
async def test_what_the_counterparty_still_has_is_accepted_again_and_beats_count_again(
    aflow, conn, farm
):
    farm.answers = [
        Confirmed(Accepted("job a")),
        Confirmed(Accepted("job a", heartbeat_timeout=600)),
        Confirmed("model 7"),
    ]
    run = await settle(aflow, training, "a")
    await aflow.skip(LONGER)
    assert obligations(conn) == [("train", "accepted")]
    await aflow.app.beat_effect("job a", "again")
    await aflow.crash()
    await aflow.skip(PART)
    assert obligations(conn) == effects(conn) == [("train", "accepted")]
    await aflow.skip(LONGER)
    assert obligations(conn, "state, silent_at - beat_at") == [("accepted", timedelta(minutes=10))]
    await aflow.skip(timedelta(minutes=9))
    assert len(farm.asked) == 2
    await aflow.skip(timedelta(minutes=2))
    assert await run.result(SOON) == "job a"
    assert reasons(conn) == ["silent", "accepted", "silent", "accepted", "silent"]


async def test_what_the_counterparty_has_lost_is_failed_and_not_sent_again(aflow, conn, farm):
    farm.answers = [Absent()]
    run = await settle(aflow, training, "a")
    await aflow.skip(LONGER)
    assert await run.result(SOON) == "job a"
    assert effects(conn, "status, attempts") == [("failed", 1)]
    assert len(farm.taken) == 1


@pytest.mark.full
async def test_a_counterparty_that_never_says_leaves_the_run_stuck_and_a_retry_asks_anew(
    aflow, conn, farm
):
    farm.answers = [
        Confirmed(Accepted("another job")),
        StillUnknown(),
        StillUnknown(),
        Confirmed("model 7"),
    ]
    run = await settle(aflow, training, "a")
    for _ in range(3):
        await aflow.skip(LONGER)
    assert await run.status() == "stuck"
    assert reasons(conn)[1] == "accepted_anew"
    conn.execute("select pgflow.retry_run(%s)", (run.key,))
    await aflow.until_idle()
    assert await run.result(SOON) == "job a"


@pytest.mark.full
async def test_it_is_noticed_while_the_code_goes_on_and_without_a_worker_too(aflow, conn, farm):
    farm.answers = [Confirmed("model 7")]
    run = await settle(aflow, training_and_waiting, "a")
    await run.send(go, "!")
    await aflow.until_idle()
    await aflow.crash()
    set_clock(aflow.app.dsn, LONGER)
    with pytest.raises(WrongState, match="silent"):
        await aflow.app.beat_effect("job a")
    assert obligations(conn) == [("train", "accepted")], "nobody has noticed yet"
    await aflow.until_idle()
    assert effects(conn) == [("train", "confirmed")]
    await run.send(go, "?")
    assert await run.result(SOON) == "job a!?"


@pytest.mark.full
async def test_what_is_silent_is_known_before_it_is_taken_back(aflow, conn, farm):
    farm.answers = [StillUnknown(), Confirmed("model 7")]
    run = await settle(aflow, failing, "a")
    await aflow.skip(LONGER)
    assert farm.removed == []
    await aflow.crash()
    await aflow.skip(MINUTE)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert farm.removed == ["a"]


async def test_what_turns_out_to_be_lost_need_not_be_taken_back(aflow, conn, farm):
    farm.answers = [Absent()]
    run = await settle(aflow, failing, "a")
    await aflow.skip(LONGER)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert farm.removed == []
    assert ("compensated", "remove") in events(conn, run.key)


@pytest.mark.full
async def test_a_confirmation_stops_the_question_that_is_under_way(aflow, conn, farm):
    farm.answers = [StillUnknown()]
    run = await settle(aflow, training, "a")
    await aflow.skip(LONGER)
    await aflow.app.confirm_effect("job a", value="model 7")
    assert await run.result(SOON) == "job a"
    await aflow.skip(timedelta(hours=1))
    assert len(farm.asked) == 1
    assert effects(conn, "status, result") == [("confirmed", "model 7")]


def words(conn: Conn) -> list[str]:
    """Return the mail on effects that waits, in its order."""
    return rows(
        conn, "select payload->>'verdict' from pgflow.signal where kind = 'e' order by signal_id"
    )


async def left_alone(aflow: AsyncHarness) -> Any:
    """A run with an accepted effect, and no worker."""
    run = await settle(aflow, rendering, "a")
    await aflow.crash()
    return run


@pytest.mark.full
@pytest.mark.parametrize("first", ["confirmed", "silent"])
async def test_a_confirmation_counts_before_and_after_the_silence(aflow, conn, farm, first):
    run = await left_alone(aflow)
    set_clock(aflow.app.dsn, LONGER)
    steps = [
        "select pgflow.confirm_effect('job a')",
        "select pgflow.notice_silence_(10, pgflow.now_())",
    ]
    for statement in steps if first == "confirmed" else steps[::-1]:
        conn.execute(statement)
    assert sorted(words(conn)) == ["confirmed", "silent"]
    assert words(conn)[0] == first
    await aflow.until_idle()
    assert await run.result(SOON) == "job a"
    assert reasons(conn) == (["silent"] if first == "silent" else [])
    assert effects(conn) == [("render", "confirmed")]


@pytest.mark.full
async def test_a_sweep_passes_over_a_beat_under_way_and_finds_it_later(aflow, conn, farm):
    run = await left_alone(aflow)
    set_clock(aflow.app.dsn, PART)
    with psycopg.connect(aflow.app.dsn) as beating:
        beating.execute("select pgflow.beat_effect('job a')")
        conn.execute("select pgflow.notice_silence_(10, pgflow.now_() + interval '30 seconds')")
    assert words(conn) == []
    conn.execute("select pgflow.notice_silence_(10, pgflow.now_() + interval '30 seconds')")
    assert words(conn) == []
    found = conn.execute("select look_at - beat_at from pgflow.effect_beat").fetchall()
    assert found == [(MINUTE,)]
    conn.execute("select pgflow.confirm_effect('job a')")
    await aflow.until_idle()
    assert await run.result(SOON) == "job a"


@pytest.mark.full
async def test_a_beat_waits_for_a_sweep_and_learns_that_it_came_too_late(aflow, conn, farm):
    run = await left_alone(aflow)
    set_clock(aflow.app.dsn, LONGER)
    with psycopg.connect(aflow.app.dsn) as sweeping:
        sweeping.execute("select pgflow.notice_silence_(10, pgflow.now_())")
        conn.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("select pgflow.beat_effect('job a')")
    with pytest.raises(psycopg.Error, match="silent for more than") as late:
        conn.execute("select pgflow.beat_effect('job a')")
    assert late.value.sqlstate == "PF006"
    conn.execute("select pgflow.confirm_effect('job a')")
    await aflow.until_idle()
    assert await run.result(SOON) == "job a"


@pytest.mark.full
async def test_two_sweeps_tell_the_run_once_and_a_dead_one_not_at_all(aflow, conn, farm):
    run = await left_alone(aflow)
    set_clock(aflow.app.dsn, LONGER)
    with psycopg.connect(aflow.app.dsn) as dying:
        dying.execute("select pgflow.notice_silence_(10, pgflow.now_())")
        conn.execute("select pgflow.notice_silence_(10, pgflow.now_())")
        assert words(conn) == []
        dying.rollback()
    for _ in range(2):
        conn.execute("select pgflow.notice_silence_(10, pgflow.now_())")
    assert words(conn) == ["silent"]
    await aflow.until_idle()
    assert await run.status() == "stuck"
    await aflow.app.confirm_effect("job a")
    assert await run.result(SOON) == "job a"


@pytest.mark.full
async def test_silence_that_a_dying_worker_has_taken_is_found_by_the_next(aflow, conn, farm):
    farm.answers = [asyncio.Event(), Confirmed("model 7")]
    run = await settle(aflow, training, "a")
    set_clock(aflow.app.dsn, LONGER)
    aflow._worker.poll_now()  # type: ignore[union-attr]
    await eventually(lambda: farm.asked, "the farm is asked")
    await recover(aflow)
    assert await run.result(SOON) == "job a"
    assert reasons(conn) == ["silent"]


@pytest.mark.full
async def test_a_rewind_hands_the_promise_on(aflow, conn, farm):
    farm.answers = [Confirmed("model 7")]
    run = await settle(aflow, training_and_waiting, "a")
    await run.send(go, "!")
    await aflow.until_idle()
    conn.execute("select pgflow.rewind_run(%s, to_seq => 2)", (run.key,))
    await aflow.until_idle()
    await aflow.app.beat_effect("job a", 1)
    assert obligations(conn, "state, beat_details") == [("accepted", 1)]
    await aflow.skip(LONGER)
    assert effects(conn, "generation, status") == [(1, "accepted"), (2, "confirmed")]
    await run.send(go, "?")
    assert await run.result(SOON) == "job a!?"


@pytest.mark.full
async def test_silence_behind_a_cut_is_found_again(aflow, conn, farm):
    farm.answers = [StillUnknown(), Confirmed("model 7")]
    run = await settle(aflow, training_and_waiting, "a")
    await aflow.skip(LONGER)
    assert reasons(conn) == ["silent", "still_unknown"]
    conn.execute("select pgflow.rewind_run(%s, to_seq => 2, effects => 'repeat')", (run.key,))
    await aflow.until_idle()
    assert conn.execute(
        "select payload->>'reason' from pgflow.unit where kind = 'U' and run_id = (select "
        "max(run_id) from pgflow.run)"
    ).fetchall() == [("silent",)]
    assert obligations(conn) == []
    for _ in range(2):
        await run.send(go, "!")
    assert await run.result(SOON) == "job a!!"


@pytest.mark.full
@pytest.mark.parametrize("known_at", ["before", "after"])
async def test_what_is_silent_in_a_dropped_part_is_settled_and_taken_back(
    aflow, conn, farm, known_at
):
    farm.answers = [StillUnknown(), Confirmed("model 7"), Confirmed("model 8")]
    run = await settle(aflow, training, "a")
    if known_at == "before":
        await aflow.skip(LONGER)
    conn.execute("select pgflow.restart_run(%s, effects => 'compensate')", (run.key,))
    await aflow.until_idle()
    for _ in range(2):
        await aflow.skip(LONGER)
    assert farm.removed == ["a"]
    assert len(farm.taken) == 2
    await eventually(
        lambda: obligations(conn) in ([], [("train", "accepted")]), "the first is closed"
    )
    if obligations(conn):
        await aflow.skip(LONGER)
    assert await run.result(SOON) == "job a"


@pytest.mark.full
async def test_what_a_restart_leaves_to_the_old_generation_is_watched_there(aflow, conn, farm):
    run = await settle(aflow, rendering, "a")
    conn.execute("select pgflow.restart_run(%s, effects => 'repeat')", (run.key,))
    await aflow.until_idle()
    keys = [key for (key,) in obligations(conn, "effect")]
    assert len(keys) == 2
    with pytest.raises(InvalidArgument, match="several effects were accepted"):
        await aflow.app.beat_effect("job a")
    await aflow.skip(LONGER)
    assert obligations(conn) == [("render", "unknown")] * 2
    for key in keys:
        await aflow.app.settle_effect(key, "confirmed")
    assert await run.result(SOON) == "job a"


@pytest.mark.full
async def test_what_a_forced_cancel_leaves_open_is_watched_until_a_person_says(aflow, conn, farm):
    pages: list[Page] = []
    aflow.app.pager(pages.append)
    run = await settle(aflow, training, "a")
    conn.execute("select pgflow.cancel_run(%s, 'enough', force => true)", (run.key,))
    await aflow.until_idle()
    await aflow.app.beat_effect("job a", "still at it")
    assert pages == []
    await aflow.skip(LONGER)
    found = obligations(conn, "state, beat_details, reason")
    assert found == [("unknown", "still at it", "forced")]
    await eventually(lambda: len(pages) == 1, "somebody is told")
    await aflow.app.confirm_effect("job a", value="model 7")
    assert obligations(conn, "state, reason") == [("uncompensated", "forced")]
    await aflow.app.settle_effect(obligations(conn, "effect")[0][0], "taken_back")
    assert (run_row(conn, run.key, "status"), farm.asked) == (("cancelled",), [])
