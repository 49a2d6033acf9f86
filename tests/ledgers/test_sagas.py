"""Sagas: what was done is taken back when an exception leaves, last first, once, and never only
said to be.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import SOON, eventually, launch, recover, result_of, run_row, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import Retries, RunCancelled, RunFailed, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect
from pgflow.errors import DefinitionError
from pgflow.testing import set_clock

QUICKLY = Retries(
    max_attempts=20, first_delay=timedelta(milliseconds=5), max_delay=timedelta(milliseconds=20)
)


fail = pgflow.Signal("fail", int)


class World:
    """The outside: what is there, and every call that reached it."""

    there: set[str]
    calls: list[str]
    keys: dict[str, set[str]]
    trouble: dict[str, int]


@pytest.fixture(autouse=True)
def world() -> None:
    World.there, World.calls, World.keys, World.trouble = set(), [], {}, {}


def reach(act: str, name: str) -> None:
    World.calls.append(f"{act} {name}")
    World.keys.setdefault(f"{act} {name}", set()).add(pgflow.idempotency_key())
    (World.there.add if act == "book" else World.there.discard)(name)
    if World.trouble.get(f"{act} {name}", 0) > 0:
        World.trouble[f"{act} {name}"] -= 1
        raise ConnectionResetError(f"{act} {name}: no reply")


@effect(risk="compensable", settle_retries=QUICKLY)
async def book(name: str) -> str:
    reach("book", name)
    return f"booking of {name}"


@book.settle
async def _(name: str) -> Confirmed[str] | Absent | StillUnknown:
    if World.trouble.get(f"find {name}", 0) > 0:
        World.trouble[f"find {name}"] -= 1
        return StillUnknown()
    return Confirmed(f"booking of {name}") if name in World.there else StillUnknown()


@book.compensate
async def cancel_booking(found: str, name: str) -> None:
    assert found == f"booking of {name}"
    reach("cancel", name)


@effect(risk="irreversible")
async def burn(name: str) -> str:
    reach("burn", name)
    return name


class Trouble(Exception):
    """Trouble that makes a run fail."""


def ledger(conn: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    return conn.execute("select name, status from pgflow.effects order by run_id, call").fetchall()


@workflow(raises=[Trouble])
async def trip(fails: bool) -> str:
    async with pgflow.effects.saga():
        await book("flight")
        await book("hotel")
        await book("car")
        if fails:
            raise Trouble("no visa")
    return "gone"


async def test_what_was_done_is_taken_back_the_last_first(aflow, conn):
    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, trip, True)
    assert isinstance(failed.value.__cause__, Trouble)
    assert World.calls == [
        "book flight", "book hotel", "book car", "cancel car", "cancel hotel", "cancel flight",
    ]  # fmt: skip
    assert World.there == set()
    pairs = conn.execute(
        "select e.request->>'name', c.name, c.status from pgflow.effects e join pgflow.effects c "
        "on c.compensates = e.effect order by c.call"
    ).fetchall()
    assert pairs == [
        ("car", "cancel_booking", "confirmed"),
        ("hotel", "cancel_booking", "confirmed"),
        ("flight", "cancel_booking", "confirmed"),
    ]


async def test_what_went_well_stays(aflow):
    assert await result_of(aflow, trip, False) == "gone"
    assert World.there == {"flight", "hotel", "car"}


async def test_an_exception_that_is_caught_takes_back_its_block_only(aflow):
    @workflow
    async def nested() -> str:
        async with pgflow.effects.saga():
            await book("flight")
            try:
                async with pgflow.effects.saga():
                    await book("hotel")
                    raise Trouble
            except Trouble:
                await book("tent")
            try:
                await book("boat")
                raise Trouble
            except Trouble:
                pass
        return "gone"

    assert await result_of(aflow, nested) == "gone"
    assert World.there == {"flight", "tent", "boat"}


async def test_a_block_that_went_well_is_taken_back_by_the_one_around_it(aflow):
    @workflow
    async def nested() -> None:
        async with pgflow.effects.saga():
            await book("flight")
            async with pgflow.effects.saga():
                await book("hotel")
            raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, nested)
    assert World.there == set()
    assert World.calls[-2:] == ["cancel hotel", "cancel flight"]


async def test_a_run_that_fails_takes_back_what_it_can(aflow, conn):
    @workflow
    async def unblocked() -> None:
        await book("flight")
        await burn("papers")
        raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, unblocked)
    assert World.there == set()
    found = ledger(conn)
    assert found == [("book", "confirmed"), ("burn", "confirmed"), ("cancel_booking", "confirmed")]


async def test_a_cancelled_run_takes_back_too(aflow):
    go = pgflow.Signal("go", str)

    @workflow
    async def waiting() -> None:
        async with pgflow.effects.saga():
            await book("flight")
            await go.wait()

    run = await settle(aflow, waiting)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(SOON)
    assert World.calls == ["book flight", "cancel flight"]


@pytest.mark.full
def test_sync_sagas_are_the_same(flow):
    @effect(risk="compensable")
    def rent(name: str) -> int:
        reach("book", name)
        return len(name)

    @rent.compensate
    def give_back(n: int, name: str) -> None:
        assert n == len(name)
        reach("cancel", name)

    @workflow
    def renting() -> None:
        with pgflow.sync.saga():
            rent("car")
            book.sync("bed")
            raise Trouble

    with pytest.raises(RunFailed):
        result_of(flow, renting)
    assert World.calls == ["book car", "book bed", "cancel bed", "cancel car"]


@pytest.mark.full
async def test_what_is_not_known_is_settled_before_it_is_taken_back(aflow, conn):
    World.trouble |= {"book hotel": 1, "find hotel": 12}

    @workflow
    async def together() -> None:
        async with pgflow.effects.saga():
            await book("flight")
            async with asyncio.TaskGroup() as group:
                group.create_task(book("hotel"))
                group.create_task(fail_soon())

    async def fail_soon() -> None:
        await fail.wait()
        raise Trouble

    run = await launch(aflow, together)
    await eventually(lambda: "book hotel" in World.calls, "it is under way")
    await run.send(fail, 1)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.there == set()
    assert sorted(World.calls) == ["book flight", "book hotel", "cancel flight", "cancel hotel"]
    assert all(status == "confirmed" for _, status in ledger(conn))


async def test_a_compensation_is_repeated_under_its_own_key_until_it_is_done(aflow, conn):
    World.trouble["cancel hotel"] = 3
    with pytest.raises(RunFailed):
        await result_of(aflow, trip, True)
    assert World.there == set()
    assert World.calls.count("cancel hotel") == 4
    assert {name: len(keys) for name, keys in World.keys.items()} == dict.fromkeys(World.keys, 1)
    assert len({key for keys in World.keys.values() for key in keys}) == 6


async def test_a_crash_in_the_middle_of_taking_back_goes_on_where_it_was(aflow):
    entered = asyncio.Event()
    hang = True

    async def slow_cancel(found: str, name: str) -> None:
        nonlocal hang
        del found
        if name == "hotel" and hang:
            hang = False
            entered.set()
            await asyncio.sleep(60)
        reach("cancel", name)

    aflow.include(trip)
    assert book.compensation is not None
    aflow.replace(book.compensation, slow_cancel)
    run = await aflow.start(trip, True)
    await asyncio.wait_for(entered.wait(), HANG_SECONDS)
    await recover(aflow)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.there == set()
    assert World.calls == [
        "book flight", "book hotel", "book car", "cancel car", "cancel hotel", "cancel flight",
    ]  # fmt: skip


@pytest.mark.full
async def test_what_cannot_be_taken_back_leaves_the_run_stuck_and_the_debt_open(aflow, conn):
    @workflow
    async def arson() -> None:
        async with pgflow.effects.saga():
            await book("flight")
            await burn("papers")
            raise Trouble

    run = await settle(aflow, arson)
    assert run_row(conn, run.key, "status, reason") == ("stuck", "effect")
    ((name, key),) = conn.execute("select name, effect from pgflow.obligations").fetchall()
    assert name == "burn.compensate"
    assert World.there == {"flight"}, "the last first"
    done = key.removesuffix("/burn.compensate/1")
    assert run_row(conn, run.key, "reason_detail") == (
        {
            "message": f"take {done} back by hand, then settle {key} as confirmed: there is no "
            "@burn.compensate, so nothing was called",
            "effects": [{"effect": name, "key": key, "compensates": done}],
        },
    )
    await aflow.app.settle_effect(key, "confirmed", why="printed again", by="ada")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.there == set()
    assert conn.execute("select count(*) from pgflow.obligations").fetchone() == (0,)


async def test_from_fact_to_decision_to_effect_to_compensation(aflow, conn):
    @decision()
    async def where() -> Choice[str]:
        return Choice("hotel", why="near the sea", evidence=["map-3"])

    @workflow
    async def regret() -> None:
        async with pgflow.effects.saga():
            chosen = await where()
            await book.because(chosen)(chosen.value)
            raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, regret)
    ((evidence, why, name, status, compensation),) = conn.execute(
        "select evidence, why, name, status, compensation from pgflow.provenance"
    ).fetchall()
    assert (evidence, why, name, status, compensation) == (
        ["map-3"],
        "near the sea",
        "book",
        "confirmed",
        "confirmed",
    )
    await eventually(lambda: World.there == set(), "taken back")


async def test_what_a_task_does_while_its_block_is_taken_back_is_taken_back_too(aflow):
    @workflow
    async def careless() -> None:
        async def two() -> None:
            await book("flight")
            await book("hotel")

        async with pgflow.effects.saga():
            task = asyncio.create_task(two())
            await asyncio.sleep(0)
            raise Trouble(task.get_name())

    with pytest.raises(RunFailed):
        await result_of(aflow, careless)
    assert World.there == set()


async def test_what_a_task_does_after_its_block_belongs_to_the_run(aflow):
    @workflow
    async def careless() -> None:
        async def late() -> None:
            await pgflow.sleep(0.01)
            await book("flight")

        async with pgflow.effects.saga():
            task = asyncio.create_task(late())
        await task
        raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, careless)
    assert World.calls == ["book flight", "cancel flight"]


async def test_a_block_may_be_left_in_another_task_than_it_was_entered_in(aflow):
    @workflow
    async def odd() -> None:
        block = pgflow.effects.saga()

        async def enter() -> None:
            await block.__aenter__()
            await book("flight")

        await asyncio.create_task(enter())
        try:
            raise Trouble
        except Trouble as error:
            await block.__aexit__(type(error), error, error.__traceback__)
            raise

    with pytest.raises(RunFailed):
        await result_of(aflow, odd)
    assert World.calls == ["book flight", "cancel flight"]


async def test_a_generator_that_is_closed_hands_its_effects_on(aflow):
    @workflow
    async def lazy() -> None:
        async def bookings() -> Any:
            async with pgflow.effects.saga():
                yield await book("flight")

        generator = bookings()
        async for _ in generator:
            break
        await generator.aclose()
        raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, lazy)
    assert World.there == set()


async def test_compensations_have_keys_of_their_own_under_any_decision(aflow):
    @decision()
    async def chosen() -> Choice[str]:
        return Choice("x", why="y")

    @workflow
    async def decided() -> None:
        it = await chosen()
        with pgflow.because(it, "trip"):
            async with pgflow.effects.saga():
                await book.because(it, 1)("flight")
                await book.because(it, 2)("hotel")
                raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, decided)
    assert World.there == set()


def test_a_compensation_that_could_not_be_called_is_refused_where_it_is_declared():
    @effect(risk="compensable")
    async def rent(name: str) -> str:
        return name

    with pytest.raises(DefinitionError, match="must take its result and then its arguments"):

        @rent.compensate  # type: ignore[arg-type]
        async def give_back(found: str) -> None: ...


@pytest.mark.full
async def test_cancelled_twice_it_is_taken_back_once(aflow):
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def slow(found: str, name: str) -> None:
        del found
        entered.set()
        await may_end.wait()
        reach("cancel", name)

    @workflow
    async def timed() -> None:
        async with asyncio.timeout(60):
            async with pgflow.effects.saga():
                await book("flight")
                await book("hotel")
                await pgflow.sleep(100)

    aflow.include(timed)
    assert book.compensation is not None
    aflow.replace(book.compensation, slow)
    run = await settle(aflow, timed)
    set_clock(aflow._dsn, timedelta(seconds=61))
    aflow._worker.poll_now()  # type: ignore[union-attr]
    await asyncio.wait_for(entered.wait(), HANG_SECONDS)
    await run.cancel()
    await eventually(lambda: True, "the cancel is on its way")
    may_end.set()
    with pytest.raises((RunFailed, RunCancelled)):
        await run.result(SOON)
    assert World.calls == ["book flight", "book hotel", "cancel hotel", "cancel flight"]
