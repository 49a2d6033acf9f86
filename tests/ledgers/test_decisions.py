"""Decisions: recorded once with their reasons, and named by the keys of what rests on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from records import SOON, result_of, settle
from sqlkit import rows

import pgflow
from pgflow import InvalidArgument, Retries, RunFailed, step, workflow
from pgflow.decisions import Choice, Decision, Usage, decision
from pgflow.effects import effect


@dataclass(frozen=True)
class Offer:
    seller: str
    cents: int


OFFERS = [Offer("b", 20), Offer("a", 10), Offer("c", 30)]


class Book:
    """Things that bodies saw, in this process."""

    picked = 0
    keys: list[str]


@pytest.fixture(autouse=True)
def book() -> None:
    Book.picked = 0
    Book.keys = []


@decision
async def pick(offers: list[Offer]) -> Choice[Offer]:
    Book.picked += 1
    best = min(offers, key=lambda offer: offer.cents)
    return Choice(
        best,
        why="the cheapest",
        evidence=["quote-7"],
        alternatives=[o.seller for o in offers if o != best],
        policy="thrift-2",
        model="none",
        usage=Usage(usd=Decimal("0.01"), tokens=9),
    )


@effect(risk="compensable")
async def buy(offer: Offer) -> str:
    Book.keys.append(pgflow.idempotency_key())
    return f"bought from {offer.seller}"


@step
async def tell(text: str) -> str:
    Book.keys.append(pgflow.idempotency_key())
    return text


@workflow
async def shop() -> tuple[str, str]:
    chosen = await pick(OFFERS)
    assert isinstance(chosen, Decision)
    return await buy.because(chosen)(chosen.value), chosen.id


@pytest.mark.full
async def test_a_choice_is_made_once_and_kept_with_its_reasons(aflow, conn):
    bought, key = await result_of(aflow, shop)
    assert bought == "bought from a"
    assert Book.picked == 1
    row = conn.execute(
        "select decision, name, value, why, evidence, alternatives, policy, model, usage->>'usd' "
        "from pgflow.decisions"
    ).fetchall()
    assert row == [
        (
            key,
            "pick",
            {"seller": "a", "cents": 10},
            "the cheapest",
            ["quote-7"],
            ["b", "c"],
            "thrift-2",
            "none",
            "0.01",
        )
    ]


@pytest.mark.full
async def test_what_rests_on_a_decision_names_it(aflow, conn):
    @workflow
    async def spree() -> str:
        chosen = await pick(OFFERS)
        await buy.because(chosen)(chosen.value)
        await buy.because(chosen)(chosen.value)
        await buy.because(chosen, item="gift")(chosen.value)
        with pgflow.because(chosen):
            await tell("x")
        await tell("y")
        return chosen.id

    chosen = await result_of(aflow, spree)
    root = chosen.removesuffix("/pick/1")
    assert Book.keys == [
        f"{chosen}/buy/1",
        f"{chosen}/buy/2",
        f"{chosen}/buy/gift",
        f"{chosen}/tell/1",
        f"{root}/tell/1",
    ]
    told = conn.execute(
        "select decided, why, evidence, act, name, act_key, status from pgflow.provenance order by "
        "act_key"
    ).fetchall()
    assert told == [
        ("pick", "the cheapest", ["quote-7"], act, name, key, status)
        for act, name, key, status in [
            ("effect", "buy", f"{chosen}/buy/1", "confirmed"),
            ("effect", "buy", f"{chosen}/buy/2", "confirmed"),
            ("effect", "buy", f"{chosen}/buy/gift", "confirmed"),
            ("step", "tell", f"{chosen}/tell/1", "completed"),
        ]
    ]
    (keys,) = rows(
        conn,
        "select array_agg(idempotency_key order by call) from pgflow.steps where step = 'tell'",
    )
    assert keys == [f"{chosen}/tell/1", f"{root}/tell/1"]


@pytest.mark.full
async def test_a_decision_outlives_its_worker(aflow):
    go = pgflow.Signal("go", str)

    @workflow
    async def slowly() -> str:
        chosen = await pick(OFFERS)
        await go.wait()
        return chosen.value.seller + str(chosen.usage)

    run = await settle(aflow, slowly)
    await aflow.crash()
    await run.send(go, "!")
    await aflow.until_idle()
    assert await run.result(SOON) == "a" + str(Usage(usd=Decimal("0.01"), tokens=9))
    assert Book.picked == 1


def test_decisions_work_in_sync_workflows(flow, conn):
    @decision(retries=1)
    def choose(n: int) -> Choice[int]:
        return Choice(n + 1, why="more")

    @workflow
    def counting() -> int:
        first = choose(1)
        with pgflow.because(first, item=7):
            second = choose(first.value)
        return second.value

    assert result_of(flow, counting) == 3
    first, second = (
        key
        for (key,) in conn.execute("select decision from pgflow.decisions order by seq").fetchall()
    )
    assert second == f"{first}/choose/7"


async def test_what_no_decision_can_be_is_refused(aflow):
    @decision(retries=1)
    async def odd() -> Choice[int]:
        return 4  # type: ignore[return-value]

    @workflow
    async def attempts() -> list[str]:
        said = []
        try:
            await odd()
        except TypeError as error:
            said.append(str(error))
        chosen = await pick(OFFERS)
        for item in ("a/b", "", "x" * 300, True, 1.5):
            try:
                await buy.because(chosen, item=item)(chosen.value)  # type: ignore[arg-type]
            except InvalidArgument:
                said.append("no such item")
        try:
            buy.because("p-91")  # type: ignore[arg-type]
        except InvalidArgument as error:
            said.append(str(error))
        await buy.because(chosen, item="once")(chosen.value)
        try:
            await buy.because(chosen, item="once")(chosen.value)
        except InvalidArgument as error:
            said.append(str(error).split(" because")[0])
        return said

    assert await result_of(aflow, attempts) == [
        "decision odd must return a pgflow.decisions.Choice, not int",
        *["no such item"] * 5,
        "because() takes the value that a @decision returned, not 'p-91'",
        "buy has already been called",
    ]


async def test_a_decision_that_fails_for_good_fails_its_caller(aflow, conn):
    @decision(retries=2)
    async def unable() -> Choice[Any]:
        Book.picked += 1
        raise LookupError("nothing to choose from")

    unable_now = unable.options(
        retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1))
    )

    @workflow
    async def asks_now() -> Any:
        return (await unable_now()).value

    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, asks_now)
    assert isinstance(failed.value.__cause__, LookupError)
    assert Book.picked == 2
    assert conn.execute("select count(*) from pgflow.decisions").fetchone() == (0,)
