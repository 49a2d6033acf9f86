"""Schedules that code declares fire their slots, each once, and a test skips to them."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from clikit import pgflow as doctor
from records import SOON, launch, wait_until
from schedulekit import at, keep, setting
from servers import HANG_SECONDS
from sqlkit import one, rows, set_clock

import pgflow
from pgflow import App, AsyncApp, InvalidArgument, Slot, schedule, workflow
from pgflow.errors import DefinitionError, ScheduleNotFound
from pgflow.inspect import (
    ask,
    ask_async,
    count_schedules,
    find_schedule,
    list_schedule_changes,
    list_schedules,
)
from pgflow.prometheus import DatabaseCollector


@schedule("0 * * * *")
@workflow
async def hourly(slot: Slot) -> datetime:
    return slot.at


@schedule(every=timedelta(minutes=20), name="three times")
@workflow
def plain() -> str:
    return "done"


go = pgflow.Signal("go", str)


@schedule("0 * * * *", overlap="buffer_one")
@workflow
async def waiting(slot: Slot) -> str:
    return await go.wait()


@workflow
async def greeting(slot: Slot, name: str, times: float = 1.0) -> str:
    return f"{name} {slot.at:%H:%M} {times!r}"


@pytest.mark.full
async def test_a_test_skips_to_the_slots_one_after_the_other(aflow, conn):
    aflow.include(hourly)
    await aflow.until_idle()
    began = one(conn, "select pgflow.now_()")
    await aflow.skip(timedelta(hours=3))
    keys = rows(conn, "select key from pgflow.run order by run_id")
    first = began.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    slots = [first + timedelta(hours=n) for n in (1, 2, 3)]
    assert keys == [f"hourly/{slot:%Y-%m-%dT%H:%M:%SZ}" for slot in slots]
    for key, slot in zip(keys, slots, strict=True):
        assert await aflow.app.get(key, hourly).result() == slot


@pytest.mark.full
def test_sync_code_has_schedules_too(flow, conn):
    flow.include(plain)
    assert flow.until_idle() is not None  # the next slot
    flow.skip(timedelta(hours=1))
    assert one(conn, "select count(*) from pgflow.outcome where status = 'completed'") == 3
    assert rows(conn, "select distinct labels from pgflow.run") == [{"schedule": "three times"}]


@pytest.mark.full
async def test_a_buffered_slot_runs_when_the_run_before_has_ended(aflow, conn):
    aflow.include(waiting)
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=3))
    (key,) = rows(conn, "select key from pgflow.run")
    await aflow.app.send(key, go, "on")
    await aflow.until_idle()
    found = rows(conn, "select pgflow.status_(run_id) from pgflow.run order by run_id")
    assert found == ["completed", "waiting"]


@pytest.mark.full
async def test_a_run_of_a_schedule_outlives_its_worker(aflow, conn):
    aflow.include(hourly)
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=1))
    await aflow.crash()
    await aflow.skip(timedelta(hours=1))
    assert rows(conn, "select pgflow.status_(run_id) from pgflow.run") == ["completed"] * 2


@pytest.mark.full
def test_a_worker_fires_what_is_due_by_itself(dsn, conn):
    @schedule("* * * * * *", overlap="allow", name="each second")
    @workflow
    async def ticking(slot: Slot) -> None: ...

    with App(dsn, include=[ticking]) as app, app.worker(poll_seconds=0.1):
        done = "select count(*) from pgflow.outcome where status = 'completed'"
        wait_until(lambda: one(conn, done) >= 3, "three slots have run")
    keys = rows(conn, "select key from pgflow.run")
    assert len(set(keys)) == len(keys)
    early = "select count(*) from pgflow.run where created_at < (input->'slot'->>'at')::timestamptz"
    assert one(conn, early) == 0


@pytest.mark.full
def test_a_worker_says_what_is_not_declared_any_more(dsn, conn, caplog):
    @schedule("* * * * * *", name="old")
    @workflow
    async def old() -> None: ...

    @schedule("* * * * * *", name="new")
    @workflow
    async def new() -> None: ...

    with App(dsn, include=[old]) as app, app.worker(poll_seconds=0.1):
        wait_until(lambda: one(conn, "select count(*) from pgflow.run") > 0, "the old one fires")
    with caplog.at_level(logging.WARNING, "pgflow"), App(dsn, include=[new]) as app:
        with app.worker(poll_seconds=0.1):
            state = "select state from pgflow.schedules where name = 'old'"
            wait_until(lambda: one(conn, state) == "undeclared", "it is noticed")
            wait_until(lambda: "pgflow schedules remove old" in caplog.text, "it is said")


def test_clients_set_pause_trigger_backfill_and_remove(dsn, conn):
    set_clock(conn, at("03-01 10:30"))

    async def main() -> None:
        async with AsyncApp(dsn, include=[greeting]) as app:
            made = schedule("0 * * * *", tz="Europe/London", jitter=timedelta(minutes=1))
            named = greeting.options(
                queue="default", priority=3, timeout=timedelta(hours=1), labels={"of": "acme"}
            )
            assert await app.set_schedule(
                "greet acme", made, named, name="Ada", times=1e22, why="they asked", by="eve"
            )
            assert not await app.set_schedule("greet acme", made, named, "Ada", times=1e22)
            found = await ask_async(app, find_schedule("greet acme"))
            assert found is not None
            assert (found.state, found.queue, found.is_declared) == ("active", "default", False)
            assert found.slots == "0 * * * * Europe/London"
            assert found.input == {"name": "Ada", "times": 1e22}
            assert found.next_slots(2) == [at("03-01 11:00"), at("03-01 12:00")]
            assert await app.pause_schedule("greet acme", why="holidays", by="eve")
            assert (await ask_async(app, find_schedule("greet acme"))).why_paused == "holidays"
            started = await app.trigger_schedule("greet acme", slot_at=at("03-01 09:00"), by="eve")
            key = started.run_key
            assert key == "greet acme/2027-03-01T09:00:00Z"
            assert await app.resume_schedule("greet acme")
            filled = await app.backfill_schedule(
                "greet acme", at("03-01 08:00"), at("03-01 10:00"), overlap="allow"
            )
            got = [(one.slot_at.hour, one.state) for one in filled]
            assert got == [(8, "started"), (9, "there"), (10, "started")]
            async with app.worker(poll_seconds=0.1):
                said = await app.get(key, greeting).result(timeout=SOON)
            assert said == "Ada 09:00 1e+22"
            got = rows(conn, "select distinct (priority, labels->>'of')::text from pgflow.run")
            assert got == ["(3,acme)"]
            assert not await app.remove_schedule("greet acme", why="gone", by="eve")
            with pytest.raises(ScheduleNotFound, match="schedule 'greet acme' does not exist"):
                await app.pause_schedule("greet acme")
            changes = await ask_async(app, list_schedule_changes("greet acme"))
            got = [(one.what, one.said_by) for one in reversed(changes.items)][:2]
            assert got == [("set", "eve (postgres)"), ("paused", "eve (postgres)")]
            assert changes.items[0].what == "removed"

    asyncio.run(main())


def test_schedules_are_read_in_pages(dsn):
    with App(dsn) as app:
        for name in ("b", "a", "c"):
            app.set_schedule(name, schedule(every=60), plain)
        page = ask(app, list_schedules(limit=2))
        assert [row.name for row in page] == ["a", "b"]
        assert [row.name for row in ask(app, list_schedules(after=page.next, limit=2))] == ["c"]
        page = ask(app, list_schedule_changes(limit=1))
        assert [row.schedule for row in page] == ["c"]
        assert [row.schedule for row in ask(app, list_schedule_changes(after=page.next))] == [
            "a",
            "b",
        ]


def test_a_schedule_that_is_set_in_a_transaction_is_there_if_that_commits(dsn, conn):
    with App(dsn) as app:
        with psycopg.connect(dsn) as mine:
            app.using(mine).set_schedule("a", schedule(every=60), plain)
            assert rows(conn, "select name from pgflow.schedules") == []
        assert rows(conn, "select name from pgflow.schedules") == ["a"]


def test_declarations_that_cannot_be_kept_are_refused_at_once():
    with pytest.raises(DefinitionError, match="no values for b"):

        @schedule("0 * * * *")  # type: ignore[arg-type]
        @workflow
        async def two(a: int, b: int) -> None: ...

    with pytest.raises(DefinitionError, match="must be above @workflow"):

        @workflow
        @schedule("0 * * * *")  # type: ignore[call-overload]
        async def upside_down() -> None: ...

    with pytest.raises(InvalidArgument, match="overlap= is one of"):
        schedule("0 * * * *", overlap="never")  # type: ignore[arg-type]


def test_catching_up_with_all_slots_warns_where_a_slot_may_be_skipped():
    with pytest.warns(UserWarning, match='catch_up="all" starts no run for a slot that comes'):
        schedule("0 * * * *", catch_up="all")
    for overlap in ("skip", "buffer_all", "allow"):
        schedule("0 * * * *", catch_up="all", overlap=overlap)  # type: ignore[call-overload]
    assert schedule("0 * * * *").declared.overlap == "skip"


def test_two_schedules_of_one_name_are_refused(dsn):
    @schedule("0 * * * *")
    @schedule("30 * * * *")
    @workflow
    async def twice() -> None: ...

    with pytest.raises(DefinitionError, match="two schedules are named"):
        App(dsn, include=[twice]).start(twice)


async def test_a_workflow_with_a_schedule_is_started_as_any_other(aflow):
    run = await launch(aflow, hourly, Slot(at("03-01 10:00")))
    assert await asyncio.wait_for(run.result(), HANG_SECONDS) == at("03-01 10:00")


def test_what_is_late_broken_or_undeclared_is_counted(dsn, conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    setting(conn, "bad", spec={"cron": ["61 * * * *"]})
    keep(conn)
    set_clock(conn, at("03-01 11:00:30"))
    with App(dsn) as app:
        counts = ask(app, count_schedules())
    got = [(one.state, one.schedules, one.late_seconds) for one in counts]
    assert got == [("active", 1, 30.0), ("broken", 1, 0.0)]
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in DatabaseCollector(dsn).collect()
        for sample in family.samples
    }
    assert found["pgflow_schedules", "broken"] == 1
    assert found["pgflow_schedule_lateness_seconds",] == 30.0
    said = [row for row in doctor(dsn, "doctor").data if row["check"] == "schedules"]
    assert any("'61 * * * *' is not a cron expression" in row["found"] for row in said)
