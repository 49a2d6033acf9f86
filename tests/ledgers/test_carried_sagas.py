"""Sagas over `continue_as_new`: what an earlier generation did is taken back by the one that
fails.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pydantic
import pytest
from records import SOON, launch, result_of, run_row, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import App, Retries, RunCancelled, RunFailed, RunInfo, Signal, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Accepted, effect
from pgflow.errors import NotStorable
from pgflow.extensions import Interceptor
from pgflow.replay.check import find_divergence
from pgflow.replay.histories import export_chain, read_history
from pgflow.testing import AsyncHarness

go = Signal("go", str)
QUICKLY = Retries(
    max_attempts=20, first_delay=timedelta(milliseconds=5), max_delay=timedelta(milliseconds=20)
)


class Trouble(Exception):
    """Trouble that makes a run fail."""


class World:
    """The outside: every call that reached it, with its key."""

    calls: list[str]
    keys: dict[str, set[str]]


@pytest.fixture(autouse=True)
def world() -> None:
    World.calls, World.keys = [], {}


def reach(what: str) -> None:
    World.calls.append(what)
    World.keys.setdefault(what, set()).add(pgflow.idempotency_key())


@effect(risk="compensable", settle_retries=QUICKLY)
async def book(name: str, nights: int = 1) -> str:
    reach(f"book {name}")
    return f"{name} for {nights}"


@book.compensate
async def cancel_booking(found: str, name: str, nights: int = 1) -> None:
    assert found == f"{name} for {nights}"
    reach(f"cancel {name}")


@effect(risk="compensable")
def rent(name: str) -> str:
    reach(f"book {name}")
    return name


@rent.compensate
def give_back(found: str, name: str) -> None:
    assert found == name
    reach(f"cancel {name}")


@effect(risk="irreversible")
async def burn(name: str) -> str:
    reach(f"burn {name}")
    return name


@workflow(raises=[Trouble])
async def tour(n: int, stops: int, fails: bool) -> str:
    """A stop a generation, all of them in one saga."""
    async with pgflow.effects.saga():
        await book(f"stop {n}", nights=n + 1)
        await book(f"bed {n}")
        if n < stops:
            pgflow.continue_as_new(n + 1, stops, fails)
        if fails:
            raise Trouble("home again")
    return "done"


@workflow(raises=[Trouble])
def drive(n: int, stops: int, fails: bool) -> str:
    with pgflow.sync.saga():
        rent(f"stop {n}")
        rent(f"bed {n}")
        if n < stops:
            pgflow.continue_as_new(n + 1, stops, fails)
        if fails:
            raise Trouble("home again")
    return "done"


UNDONE = [f"cancel {what} {n}" for n in (2, 1, 0) for what in ("bed", "stop")]


@pytest.mark.full
@pytest.mark.parametrize("made", [tour, drive])
def test_all_generations_are_taken_back_the_last_first(flow, conn, made):
    with pytest.raises(RunFailed) as failed:
        result_of(flow, made.options(key="k"), 0, 2, True)
    assert isinstance(failed.value.__cause__, Trouble)
    assert World.calls[6:] == UNDONE
    assert run_row(conn, "k", "generation, status") == (3, "failed")
    open_effects = "select count(*) from pgflow.effects where status <> 'confirmed'"
    assert conn.execute(open_effects).fetchone() == (0,)
    missing = """select e.effect from pgflow.effects e where e.compensates is null
      and (select count(*) from pgflow.effects c where c.compensates = e.effect and c.status = 'confirmed') <> 1"""
    assert conn.execute(missing).fetchall() == []


@pytest.mark.parametrize("made", [tour, drive])
def test_what_went_well_in_the_end_stays(flow, conn, made):
    assert result_of(flow, made, 0, 2, False) == "done"
    assert len(World.calls) == 6
    assert conn.execute("select count(*) from pgflow.obligations").fetchone() == (0,)


async def test_the_key_of_a_compensation_is_made_of_what_it_takes_back(aflow, conn):
    with pytest.raises(RunFailed):
        await result_of(aflow, tour.options(key="a"), 0, 0, True)
    alone = World.keys.pop("cancel stop 0").pop()
    with pytest.raises(RunFailed):
        await (await aflow.start(tour.options(key="b"), 0, 1, True)).result(SOON)
    carried = World.keys["cancel stop 0"].pop()
    roots = [
        str(root)
        for (root,) in conn.execute("select root from pgflow.run_key order by key").fetchall()
    ]
    assert [alone, carried] == [f"{root}/book/1/cancel_booking/1" for root in roots]


@pytest.mark.full
async def test_a_crash_in_every_compensation_takes_each_back_once(aflow):
    """The worker is lost in each of the six, after it has reached the outside or before."""
    entered = asyncio.Event()
    tries: dict[str, int] = {}

    async def crashing(found: str, name: str, nights: int = 1) -> None:
        del found, nights
        tries[name] = tries.get(name, 0) + 1
        if name.startswith("bed"):
            reach(f"cancel {name}")
        if tries[name] == 1:
            entered.set()
            await asyncio.sleep(60)
        if name.startswith("stop"):
            reach(f"cancel {name}")

    aflow.include(tour)
    assert book.compensation is not None
    aflow.replace(book.compensation, crashing)
    run = await aflow.start(tour, 0, 2, True)
    for _ in range(6):
        working = asyncio.create_task(aflow.until_idle())
        await asyncio.wait_for(entered.wait(), HANG_SECONDS)
        entered.clear()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await aflow.crash()
    await aflow.until_idle()
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert list(dict.fromkeys(World.calls[6:])) == UNDONE
    assert set(tries.values()) == {2}
    assert all(len(keys) == 1 for keys in World.keys.values())


async def test_outside_of_a_block_the_run_takes_back_what_it_can(aflow):
    @workflow
    async def loose(n: int) -> None:
        await book(f"stop {n}")
        await burn(f"map {n}")
        if n < 2:
            pgflow.continue_as_new(n + 1)
        raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, loose, 0)
    assert World.calls[-3:] == ["cancel stop 2", "cancel stop 1", "cancel stop 0"]


@pytest.mark.full
async def test_what_nothing_takes_back_needs_a_person_in_the_next_generation_too(aflow, conn):
    @workflow
    async def arson(n: int) -> None:
        if n == 0:
            async with pgflow.effects.saga():
                await book("flight")
                await burn("papers")
                pgflow.continue_as_new(1)
        raise Trouble

    run = await settle(aflow, arson.options(key="k"), 0)
    assert run_row(conn, "k", "generation, status, reason") == (2, "stuck", "effect")
    ((name, key),) = conn.execute("select name, effect from pgflow.obligations").fetchall()
    assert name == "burn.compensate"
    await aflow.app.settle_effect(key, "confirmed", why="printed again", by="ada")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.calls == ["book flight", "burn papers", "cancel flight"]


async def aside() -> None:
    async with pgflow.effects.saga():
        await book("hotel")
        await pgflow.sleep(1000)


async def test_a_task_that_has_a_block_open_hands_it_on_too(aflow):
    @workflow
    async def careless(n: int) -> None:
        if n == 0:
            task = asyncio.create_task(aside())
            await book("flight")
            await book("car")
            assert not task.done()
            pgflow.continue_as_new(1)
        raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, careless, 0)
    assert sorted(World.calls[3:]) == ["cancel car", "cancel flight", "cancel hotel"]


async def test_a_run_that_fails_takes_back_what_its_tasks_have_in_open_blocks(aflow):
    @workflow
    async def careless() -> None:
        task = asyncio.create_task(aside())
        await book("flight")
        await book("car")
        raise Trouble(task.get_name())

    with pytest.raises(RunFailed):
        await result_of(aflow, careless)
    assert sorted(World.calls[3:]) == ["cancel car", "cancel flight", "cancel hotel"]


class Card(pydantic.BaseModel):
    """Argument with fields."""

    number: str
    valid_to: datetime


@pytest.mark.full
async def test_arguments_are_read_back_as_they_are_annotated(aflow):
    seen: list[Any] = []

    @effect(risk="compensable")
    async def pay(
        card: Card, /, amount: Decimal, *notes: str, raw: bytes = b"", **more: timedelta
    ) -> Card:
        del amount, notes, raw, more
        return card

    @pay.compensate
    async def pay_back(
        found: Card,
        card: Card,
        /,
        amount: Decimal,
        *notes: str,
        raw: bytes = b"",
        **more: timedelta,
    ) -> None:
        seen.append((found, card, amount, notes, raw, more))

    @workflow
    async def buy(n: int) -> None:
        if n == 0:
            await pay(card, Decimal("1.50"), "a", "b", raw=b"\x00\xff", limit=timedelta(hours=2))
            pgflow.continue_as_new(1)
        raise Trouble

    card = Card(number="1", valid_to=datetime(2031, 1, 1, tzinfo=UTC))
    with pytest.raises(RunFailed):
        await result_of(aflow, buy, 0)
    assert seen == [
        (card, card, Decimal("1.50"), ("a", "b"), b"\x00\xff", {"limit": timedelta(hours=2)})
    ]


async def test_arguments_that_could_not_be_read_back_are_refused_before_it_is_too_late(aflow):
    @effect(risk="compensable")
    async def pay(cents: int) -> str:
        reach("pay")
        return str(cents)

    @pay.compensate
    async def pay_back(found: str, cents: int) -> None:
        reach(f"pay back {cents!r}")

    @workflow
    async def buy(n: int) -> None:
        await pay("five")  # type: ignore[arg-type]
        pgflow.continue_as_new(n + 1)

    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, buy, 0)
    assert isinstance(failed.value.__cause__, NotStorable)
    assert "effect pay cannot be carried into the next generation" in str(failed.value.__cause__)
    assert World.calls == ["pay", "pay back 'five'"]


@pytest.mark.full
async def test_code_without_the_effect_guesses_nothing_and_waits_for_code_that_has_it(aflow, conn):
    from pgflow._flow.ledgers import handover as carry

    aflow.include(tour)
    known = dict(carry._declared)
    try:
        for place in known:
            if place[1] == "book":
                del carry._declared[place]
        run = await settle(aflow, tour.options(key="k"), 0, 1, True)
        assert run_row(conn, "k", "status, reason") == ("stuck", "definition")
        found = str(conn.execute("select detail from pgflow.held").fetchone())
        assert "effect book of an earlier generation or a child is to be taken back" in found
    finally:
        for place, made in known.items():
            carry._declared[place] = made
    conn.execute("select pgflow.retry_run('k')")
    await aflow.until_idle()
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.calls[4:] == UNDONE[2:]


def test_a_generation_that_cannot_even_begin_takes_back_what_it_was_handed(dsn):
    @workflow
    async def strict(n: int) -> None:
        await book("flight")
        pgflow.continue_as_new(n + 1)

    class Broken(Interceptor):
        def around_workflow(self, info: RunInfo) -> Any:
            if info.generation > 1:
                raise Trouble("an interceptor")
            return super().around_workflow(info)

    with App(dsn, include=[strict], interceptors=[Broken()]) as app, app.worker(poll_seconds=0.05):
        with pytest.raises(RunFailed):
            app.start(strict, 0).result(SOON)
    assert World.calls == ["book flight", "cancel flight"]


async def test_a_result_that_cannot_be_stored_is_a_failure_that_takes_back(aflow):
    @workflow
    async def wrong() -> int:
        await book("flight")
        return "no number"  # type: ignore[return-value]

    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, wrong)
    assert isinstance(failed.value.__cause__, NotStorable)
    assert World.calls == ["book flight", "cancel flight"]


@pytest.mark.full
async def test_cancelled_before_it_has_begun_the_next_generation_takes_back(aflow, conn):
    @workflow
    async def waiting(n: int) -> None:
        if n == 0:
            await book("flight")
            await go.wait()
            pgflow.continue_as_new(1)
        await go.wait()

    run = await settle(aflow, waiting.options(key="k"), 0)
    conn.execute("select pgflow.pause_queue('default')")
    await run.send(go, "on")
    conn.execute("select pgflow.resume_queue('default')")
    await aflow.until_idle()
    assert run_row(conn, "k", "generation") == (2,)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(SOON)
    assert World.calls == ["book flight", "cancel flight"]


@effect(risk="compensable")
async def order(name: str) -> Accepted:
    reach(f"order {name}")
    return Accepted(f"ref {name}")


@order.compensate
async def call_back(ref: Accepted, name: str) -> None:
    reach(f"call back {name} {ref.ref}")


@effect(risk="compensable")
def order_sync(name: str) -> Accepted:
    reach(f"order {name}")
    return Accepted(f"ref {name}")


@order_sync.compensate
def call_back_sync(ref: Accepted, name: str) -> None:
    reach(f"call back {name} {ref.ref}")


@workflow
async def buying(n: int) -> None:
    async with pgflow.effects.saga():
        await order("tea")
        await book("table")
        raise Trouble(str(n))


@workflow
def buying_sync(n: int) -> None:
    with pgflow.sync.saga():
        order_sync("tea")
        book.sync("table")
        raise Trouble(str(n))


@pytest.mark.full
@pytest.mark.parametrize("made", [buying, buying_sync])
@pytest.mark.parametrize("verdict", ["confirmed", "failed"])
@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_accepted_is_taken_back_once_it_is_confirmed_and_left_if_it_was_rejected(
    flow, conn, made, verdict, crashes
):
    run = settle(flow, made.options(key="k"), 1)
    assert World.calls == ["order tea", "book table", "cancel table"]
    assert run_row(conn, "k", "status, reason_code") == ("waiting", "effect")
    if crashes:
        flow.crash()
    flow.app.confirm_effect("ref tea", verdict)
    flow.until_idle()
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert World.calls[3:] == (["call back tea ref tea"] if verdict == "confirmed" else [])
    ledger = conn.execute("select name, status from pgflow.effects order by call").fetchall()
    taken_back = (
        [(made is buying and "call_back" or "call_back_sync", "confirmed")]
        if verdict == "confirmed"
        else []
    )
    assert ledger[0][1] == verdict
    assert ledger[3:] == taken_back
    assert conn.execute("select count(*) from pgflow.obligations").fetchone() == (0,)


@pytest.mark.full
async def test_what_was_accepted_and_rejected_is_not_carried(aflow, conn):
    @workflow
    async def buying_on(n: int) -> None:
        if n == 0:
            async with pgflow.effects.saga():
                await order("tea")
                await order("milk")
                pgflow.continue_as_new(1)
        raise Trouble

    run = await settle(aflow, buying_on.options(key="k"), 0)
    assert run_row(conn, "k", "generation, status") == (1, "waiting")
    await aflow.app.confirm_effect("ref tea")
    await aflow.app.confirm_effect("ref milk", "failed")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.calls == ["order tea", "order milk", "call back tea ref tea"]


async def carried_run(aflow: AsyncHarness) -> Any:
    """A chain of two generations that has failed: what both did is taken back."""
    run = await launch(aflow, tour.options(key="k"), 0, 1, True)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.calls[4:] == UNDONE[2:]
    World.calls.clear()
    return run


@pytest.mark.full
async def test_a_restart_does_not_take_back_again_what_was_taken_back(aflow, conn):
    run = await carried_run(aflow)
    await aflow.app.restart("k", effects="repeat")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert run_row(conn, "k", "generation") == (3,)
    assert World.calls == ["book stop 1", "book bed 1", "cancel bed 1", "cancel stop 1"]
    assert all(len(keys) == 1 for what, keys in World.keys.items() if what.endswith("0"))


@pytest.mark.full
async def test_a_rewind_goes_on_with_what_was_not_taken_back_yet(aflow, conn):
    run = await carried_run(aflow)
    undone = conn.execute(
        "select min(seq) from pgflow.effects where key = 'k' and name = 'cancel_booking' and "
        "request->>'name' = 'stop 0'"
    ).fetchone()
    assert undone is not None
    await aflow.app.rewind("k", to=undone[0] - 1, effects="repeat")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert World.calls == [], (
        "its compensation was begun by the generation before, which still answers for it"
    )
    assert conn.execute("select count(*) from pgflow.owed").fetchone() == (0,)


@pytest.mark.full
async def test_a_rewound_generation_still_has_what_earlier_ones_handed_on(aflow, conn):
    @workflow
    async def patient(n: int) -> None:
        await book(f"stop {n}")
        if n == 0:
            pgflow.continue_as_new(1)
        if await go.wait() == "fail":
            raise Trouble

    run = await settle(aflow, patient.options(key="k"), 0)
    await aflow.app.restart("k", effects="repeat")
    await run.send(go, "fail")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert run_row(conn, "k", "generation") == (3,)
    found = World.calls
    assert found == ["book stop 0", "book stop 1", "book stop 1", "cancel stop 1", "cancel stop 0"]


@pytest.mark.parametrize("step", ["book", "cancel_booking"])
async def test_a_fork_takes_back_nothing_of_its_origins(aflow, conn, step):
    await carried_run(aflow)
    cuts = conn.execute(
        "select seq from pgflow.effects where key = 'k' and generation = 2 and name = %s order by "
        "seq",
        (step,),
    ).fetchall()
    await aflow.app.fork("k", "f", at=cuts[-1][0] - 1, effects="repeat")
    with pytest.raises(RunFailed):
        await aflow.app.get("f", tour).result(SOON)
    assert World.calls == ({"book": ["book bed 1", "cancel bed 1"], "cancel_booking": []}[step])


async def test_the_last_unit_of_a_failed_run_can_be_forked(aflow):
    await carried_run(aflow)
    await aflow.app.fork("k", "f")
    with pytest.raises(RunFailed):
        await aflow.app.get("f", tour).result(SOON)
    assert World.calls == []


async def test_every_generation_is_replayed_elsewhere_from_its_line(aflow, conn):
    await carried_run(aflow)
    out = io.StringIO()
    (chain,) = conn.execute("select chain_id from pgflow.run_key where key = 'k'").fetchone() or (
        0,
    )
    export_chain(conn, chain, out)
    recorded = [read_history(line) for line in out.getvalue().splitlines()]
    assert [len(r.claim.saga) for r in recorded] == [0, 2]
    assert [find_divergence(r, tour, (Trouble,)) for r in recorded] == [None, None]


@pytest.mark.full
async def test_from_decision_to_the_compensation_of_a_later_generation(aflow, conn):
    @decision()
    async def where() -> Choice[str]:
        return Choice("hotel", why="near the sea", evidence=["map-3"])

    @workflow
    async def regret(n: int) -> None:
        if n == 0:
            chosen = await where()
            await book.because(chosen)(chosen.value)
            pgflow.continue_as_new(1)
        raise Trouble

    with pytest.raises(RunFailed):
        await result_of(aflow, regret, 0)
    found = conn.execute("select why, name, status, compensation from pgflow.provenance").fetchall()
    assert found == [("near the sea", "book", "confirmed", "confirmed")]


@effect(risk="irreversible", keyed=False)
async def send(n: int) -> Accepted:
    reach(f"send {n}")
    return Accepted(f"letter {n}")


@workflow
async def walk(leave_at: int, begin: int, most: int) -> None:
    """Three units an act, a letter among them now and then, whose answer comes when somebody asks
    what is owed.
    """
    async with pgflow.effects.saga():
        for n in range(begin, most):
            if n == leave_at:
                pgflow.continue_as_new(-1, n, most)
            if n % 8 == 3:
                await send(n)
            else:
                await book(f"stop {n}")
        raise Trouble


@pytest.mark.full
def test_wherever_it_continues_as_new_the_same_is_owed_and_taken_back(flow, conn):
    """Every place of a history of fifty units, at each of which another run leaves off."""
    acts = 18
    flow.include(walk)
    runs = {at: flow.start(walk.options(key=f"at-{at}"), at, 0, acts) for at in [*range(acts), -2]}
    owed = "select key, array_agg(ref order by ref) from pgflow.obligations where state = 'accepted' group by key"
    flow.until_idle()
    while waiting := conn.execute(owed).fetchall():
        for _, refs in waiting:
            assert len(refs) == len(set(refs))
        for (key,) in conn.execute(
            "select effect from pgflow.obligations where state <> 'intended'"
        ).fetchall():
            flow.app.settle_effect(key, "confirmed", by="ada")
        flow.until_idle()
    # What nothing takes back is taken back by a person: whoever did it, the same letters for every
    # run.
    while stuck := conn.execute("select effect from pgflow.obligations").fetchall():
        for (key,) in stuck:
            flow.app.settle_effect(key, "confirmed", by="ada")
        flow.until_idle()
    for run in runs.values():
        with pytest.raises(RunFailed):
            run.result(SOON)
    books = conn.execute(
        """select r.key, count(*) filter (where e.compensates is null), count(*) filter (where e.compensates is not null),
          count(distinct e.compensates), bool_and(e.status = 'confirmed')
        from pgflow.effects e join pgflow.run r on r.run_id = e.run_id group by r.key"""
    ).fetchall()
    assert {tuple(row[1:]) for row in books} == {(acts, acts, acts, True)}
    assert len(books) == acts + 1
    units = conn.execute(
        "select max(n) from (select count(*) as n from pgflow.unit group by run_id) x"
    ).fetchone()
    assert units is not None
    assert units[0] >= 50
    assert conn.execute("select invariant, detail from pgflow.check()").fetchall() == []
