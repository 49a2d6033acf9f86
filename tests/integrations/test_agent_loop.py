"""The loop of examples/agents: each way through it, each lost reply, and some kills.

`python -m tests.loops` harms its workers at each of its points, many times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from records import SOON
from sqlkit import one, rows

from examples.agents import loop, offline, world
from examples.agents.counterparty import LOSSES
from examples.agents.loop import Goal, Order, State, buying
from pgflow import AsyncRun
from pgflow.agent import Outcome
from pgflow.authority import Approve, Reject, TakeOver
from pgflow.testing import AsyncHarness


@pytest.fixture(autouse=True)
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(world, "_known", {})
    monkeypatch.setattr(offline, "price", _of(500))


def _of(*prices: int) -> Any:
    """A market with these prices, one after the other, and the last for good."""
    left = list(prices)

    async def price(item: str) -> int:
        del item
        return left.pop(0) if len(left) > 1 else left[0]

    return price


def says(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Has the model say these, one after the other."""
    left = list(numbers)

    async def sample(least: int, most: int) -> offline.Sample:
        del least, most
        return offline.Sample(f"answer {len(left)}", left.pop(0), Decimal("0.01"), 1_000)

    monkeypatch.setattr(offline, "sample", sample)


async def start(aflow: AsyncHarness, goal: Goal, usd: float = 1) -> AsyncRun[Outcome[State]]:
    aflow(pools=[buying]).include(loop.restock)
    aflow.app.approvers(lambda gate, by: ["buyers"] if by == "ann" else [])
    run = await aflow.start(
        loop.restock.options(pool="buying", budget={"usd": Decimal(str(usd))}), goal
    )
    await aflow.until_idle()
    return run


async def end_of(run: AsyncRun[Outcome[State]]) -> tuple[str, tuple[str, ...], str]:
    outcome = await run.result(SOON)
    return outcome.how, outcome.state.numbers, outcome.why


def supplier() -> Any:
    return world.counterparty("supplier")


def ordered() -> list[tuple[str, int | None]]:
    return [(line["act"], line.get("pieces")) for line in supplier().lines()]


@pytest.mark.parametrize("loss", [None, *LOSSES], ids=str)
async def test_small_orders_need_nobody_and_are_placed_once_whatever_reply_is_lost(
    aflow, conn, monkeypatch, loss
):
    says(monkeypatch, 2, 3)
    supplier().lose = {} if loss is None else {1: loss, 2: loss}
    run = await start(aflow, Goal("boots", 5))
    assert await end_of(run) == ("good", ("order-1", "order-2"), "")
    assert ordered() == [("order", 2), ("order", 3)]
    found = rows(conn, "select why, model from pgflow.decisions order by call")
    assert found == [("5 are missing", "small-1"), ("3 are missing", "small-1")]
    assert await run.state() == {"missing": 0, "numbers": ["order-1", "order-2"]}


@pytest.mark.full
async def test_a_large_order_is_what_a_person_lets_happen(aflow, conn, monkeypatch):
    says(monkeypatch, 4, 4, 4, 2)
    run = await start(aflow, Goal("boots", 8))
    assert ordered() == [], "nothing is done before somebody has answered"
    ((request, why),) = rows(conn, "select request, why from pgflow.gates")
    assert (request["pieces"], why) == (4, "8 are missing")
    await aflow.answer("order", Reject("too many"), by="ann")
    await aflow.answer("order", Approve(edit=Order("boots", 2, 500)), by="ann")
    number = await supplier().act("order", "by phone", item="boots", pieces=4)
    await aflow.answer("order", TakeOver(number), by="ann")
    assert await end_of(run) == ("good", ("order-1", "order-2", "order-3"), "")
    assert ordered() == [("order", 2), ("order", 4), ("order", 2)]


async def test_a_price_that_has_risen_since_is_decided_again(aflow, conn, monkeypatch):
    says(monkeypatch, 2, 2)
    monkeypatch.setattr(offline, "price", _of(500, 520))
    run = await start(aflow, Goal("boots", 2))
    assert await end_of(run) == ("good", ("order-1",), "")
    assert one(conn, "select count(*) from pgflow.decisions") == 2


@pytest.mark.full
async def test_an_agent_without_money_stops_and_gives_everything_back(aflow, conn, monkeypatch):
    says(monkeypatch, 1, 1, 1)
    run = await start(aflow, Goal("boots", 9), usd=0.055)
    assert await end_of(run) == ("compensated", ("order-1", "order-2"), "BudgetExceeded")
    assert supplier().standing("order", "cancel") == []
    spent = "select charged, reserved from pgflow.budgets where unit = 'usd'"
    assert rows(conn, spent) == [(Decimal("0.02"), 0)] * 2, "of the run, and of all that buy"


async def test_a_refusal_of_the_supplier_gives_everything_back(aflow, monkeypatch):
    says(monkeypatch, 2, 1)
    supplier().refuse = {"order 1"}
    run = await start(aflow, Goal("boots", 3))
    assert await end_of(run) == ("compensated", ("order-1",), "Refused")
    assert ordered() == [("order", 2), ("cancel", None)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("sure", "answer", "how"),
    [
        (80, None, "good"),
        (79, Approve(), "good"),
        (79, Reject("the wrong colour"), "compensated"),
        (79, "nobody", "needs review"),
    ],
)
async def test_a_model_that_is_not_sure_leaves_the_judgement_to_a_person(
    aflow, monkeypatch, sure, answer, how
):
    says(monkeypatch, 2, sure)
    run = await start(aflow, Goal("boots", 2, style="rustic"))
    if answer == "nobody":
        await aflow.skip(timedelta(hours=9))
    elif answer is not None:
        await aflow.answer("review", answer, by="ann")
    outcome = await run.result(SOON)
    assert outcome.how == how
    assert len(supplier().standing("order", "cancel")) == (how != "compensated")


async def test_the_oracle_outvotes_the_model(aflow, monkeypatch):
    says(monkeypatch, 3, 100)
    run = await start(aflow, Goal("boots", 2))
    outcome = await run.result(SOON)
    assert (outcome.how, outcome.why) == ("compensated", "NotGood")


async def test_why_an_order_was_placed_stands_beside_it(aflow, conn, monkeypatch):
    says(monkeypatch, 2)
    await start(aflow, Goal("boots", 2))
    found = "select name, why, evidence from pgflow.provenance"
    assert rows(conn, found) == [("place", "2 are missing", ["boots at 500", "answer 1"])]
    found = "select step, model, usd, tokens from pgflow.charges"
    assert rows(conn, found) == [("decide", "small-1", Decimal("0.01"), 1000)]


@pytest.mark.full
def test_the_books_agree_whatever_dies_is_frozen_or_cut_off(dsn):
    asked = "--here --kills 0 --freezes 0 --cuts 0 --harms 9 --victims 4 --seed 2"
    done = subprocess.run(
        [sys.executable, "-m", "tests.loops", dsn, *asked.split()],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["wrong"] == []
    assert figures["kills"] + figures["freezes"] + figures["cuts"] >= 9
