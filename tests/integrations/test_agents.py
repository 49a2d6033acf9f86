"""The agents of examples/agents: whatever reply is lost, the books of the counterparties hold each
promise once, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from records import SOON

from examples.agents import shopping, travel, treasury, world
from examples.agents.counterparty import LOSSES, Counterparty, Loss, Refused
from examples.agents.shopping import Wish
from pgflow import RunFailed


@pytest.fixture(autouse=True)
def each_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Iterator[Loss | None]]:
    """Every loss, each with books of its own: the cases of a test, which share its database and its
    worker.
    """

    def each(*more: None) -> Iterator[Loss | None]:
        for loss in (*more, *LOSSES):
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            monkeypatch.setenv("AGENTS_FOLDER", str(folder))
            monkeypatch.setattr(world, "_known", {})
            yield loss

    monkeypatch.setenv("AGENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(world, "_known", {})
    return each


def acts(name: str) -> list[str]:
    return [line["act"] for line in world.counterparty(name).lines()]


def keys_are_single(name: str) -> bool:
    keys = [line["key"] for line in world.counterparty(name).lines()]
    return len(keys) == len(set(keys))


def confirmed(conn: psycopg.Connection, key: str) -> list[str]:
    return [
        name
        for (name,) in conn.execute(
            "select name from pgflow.effects where status = 'confirmed' and key = %s order by call",
            (key,),
        ).fetchall()
    ]


@pytest.mark.full
async def test_one_hold_and_one_order_whatever_reply_is_lost(aflow, conn, each_loss):
    for at in ("card", "retailer", "both"):
        for loss in each_loss():
            for name in ("card", "retailer") if at == "both" else (at,):
                world.counterparty(name).lose = {1: loss}
            aflow.include(shopping.shop)
            run = await aflow.start(shopping.shop, Wish("running shoes", 20_000))
            assert await run.result(SOON) == "order-1"
            assert (acts("card"), acts("retailer")) == (["hold"], ["order"])
            assert confirmed(conn, run.key) == ["authorize", "place_order"]
            found = conn.execute(
                "select why, evidence, name from pgflow.provenance where key = %s order by act_key "
                "limit 1",
                (run.key,),
            ).fetchone()
            why, evidence, name = found or ("", [], "")
            assert (why, evidence, name) == (
                "the best running shoes within 20000 cents",
                ["runner-11 at 12900", "trail-11 at 9900"],
                "authorize",
            )


@pytest.mark.full
async def test_an_order_that_is_refused_lets_the_money_go(aflow, conn, each_loss):
    for loss in each_loss(None):
        world.counterparty("retailer").refuse = {"order runner-11"}
        world.counterparty("card").lose = {2: loss} if loss else {}
        aflow.include(shopping.shop)
        run = await aflow.start(shopping.shop, Wish("shoes", 20_000))
        with pytest.raises(RunFailed) as failed:
            await run.result(SOON)
        assert isinstance(failed.value.__cause__, Refused)
        assert acts("card") == ["hold", "release"]
        assert world.counterparty("card").standing("hold", "release") == []
        assert confirmed(conn, run.key) == ["authorize", "release"]


async def test_a_quote_that_grew_old_during_the_wait_is_asked_again(aflow, conn):
    aflow.include(travel.travel)
    run = await aflow.start(travel.travel, ["LHR-SIN", "SIN-LHR"])
    await aflow.until_idle()
    await aflow.skip(timedelta(days=2))
    await run.send(travel.approved, True)
    assert await run.result(SOON) == ["book-1", "book-2"]
    assert acts("airline") == ["book", "book"]
    quotes = conn.execute(
        "select count(*) from pgflow.timeline where event = 'step_completed' and name = 'quote'"
    ).fetchone()
    assert quotes == (4,), "two for the itinerary, and one more for each leg"


@pytest.mark.full
async def test_a_leg_that_is_refused_is_had_at_another_fare(aflow, conn, each_loss):
    for loss in each_loss(None):
        airline = world.counterparty("airline")
        airline.refuse, airline.lose = {"book SIN-LHR"}, {2: loss} if loss else {}
        aflow.include(travel.travel)
        run = await aflow.start(travel.travel, ["LHR-SIN", "SIN-LHR"])
        await run.send(travel.approved, True)
        assert await run.result(SOON) == ["book-1", "book-2"]
        assert [line["leg"] for line in airline.lines()] == ["LHR-SIN", "SIN-LHR flex"]
        ((why,),) = conn.execute(
            "select why from pgflow.decisions where key = %s", (run.key,)
        ).fetchall()
        assert why == "another fare of SIN-LHR may be left"


@pytest.mark.full
async def test_half_a_trip_is_given_back(aflow, each_loss):
    for loss in each_loss(None):
        airline = world.counterparty("airline")
        airline.refuse, airline.lose = (
            {"book SIN-LHR", "book SIN-LHR flex"},
            {2: loss} if loss else {},
        )
        aflow.include(travel.travel)
        run = await aflow.start(travel.travel, ["LHR-SIN", "SIN-LHR"])
        await run.send(travel.approved, True)
        with pytest.raises(RunFailed):
            await run.result(SOON)
        assert airline.standing("book", "cancel") == []
        assert acts("airline") == ["book", "cancel"]
        assert keys_are_single("airline")


@pytest.mark.full
@pytest.mark.parametrize("lost", [(), (1, 2)])
async def test_a_wish_that_nobody_foresaw_is_taken_back_by_a_plan(aflow, conn, lost):
    world.counterparty("airline").refuse = {"book SIN-LHR", "book SIN-LHR flex"}
    concierge = world.counterparty("concierge")
    concierge.lose = dict.fromkeys(lost, LOSSES[0])
    aflow.include(travel.travel)
    run = await aflow.start(travel.travel, ["LHR-SIN", "SIN-LHR"], ["a violinist at the gate"])
    await run.send(travel.approved, True)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert acts("concierge") == ["ask", "call off"]
    assert concierge.standing("ask", "call off") == []
    found = concierge.lines()[1]["text"]
    assert found == "'a violinist at the gate' is not needed any more: LHR-SIN and SIN-LHR is off"
    assert keys_are_single("concierge")
    assert "ask_concierge.compensate" in confirmed(conn, run.key)


@pytest.mark.full
async def test_the_day_is_closed_when_the_bank_has_confirmed(aflow, conn, each_loss):
    for loss in each_loss(None):
        world.counterparty("bank").lose = {1: loss} if loss else {}
        aflow.include(treasury.close_day)
        run = await aflow.start(treasury.close_day, "USD operating", 1_000_000)
        await aflow.until_idle()
        assert await run.status() == "waiting"
        found = conn.execute("select name, state, ref from pgflow.obligations").fetchall()
        assert found == [("wire", "accepted", "wire-1")]
        await aflow.app.confirm_effect(
            "wire-1", value={"value_date": "today"}, by="the bank's report"
        )
        assert await run.result(SOON) == "wire-1, hedged"
        assert acts("bank") == ["wire"]
        assert acts("broker") == ["trade", "trade"]


@pytest.mark.full
async def test_a_hedge_stands_on_both_legs_or_on_none(aflow, each_loss):
    for loss in each_loss(None):
        broker = world.counterparty("broker")
        broker.refuse, broker.lose = {"trade AUD forward"}, {2: loss} if loss else {}
        aflow.include(treasury.close_day)
        run = await aflow.start(treasury.close_day, "AUD operating", 1_000_000)
        await aflow.until_idle()
        await aflow.app.confirm_effect("wire-1")
        assert await run.result(SOON) == "wire-1, not hedged"
        assert acts("broker") == ["trade", "reverse"]
        assert broker.standing("trade", "reverse") == []


def test_a_counterparty_whose_memory_of_keys_ends_does_twice_what_is_sent_twice(tmp_path):
    forgetful = Counterparty(tmp_path / "f.book", key_memory=1)

    async def pay(*keys: str) -> int:
        for key in keys:
            await forgetful.act("pay", key, cents=1)
        return len(forgetful.lines())

    assert asyncio.run(pay("a", "a")) == 1
    found = asyncio.run(pay("b", "a"))
    assert found == 3, "which is why an unknown effect past its window is asked after first"
