"""The shopping agent: a search, a choice, and acts on systems that do not know each other."""

from __future__ import annotations

from dataclasses import dataclass

import pgflow
from examples.agents.counterparty import Refused
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import read, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect


@dataclass(frozen=True)
class Wish:
    """Wish of a customer."""

    what: str
    most_cents: int


@dataclass(frozen=True)
class Offer:
    """Offer of a retailer."""

    item: str
    cents: int


SHELF = (Offer("runner-11", 12_900), Offer("trail-11", 9_900), Offer("gold-11", 99_900))


@read
async def search(wish: Wish) -> list[Offer]:
    """Search for offers."""
    return [offer for offer in SHELF if offer.cents <= wish.most_cents]


@decision()
async def choose(wish: Wish, offers: list[Offer]) -> Choice[Offer]:
    """Choose one: this stand-in for a model takes the most expensive within the limit."""
    best = max(offers, key=lambda offer: offer.cents)
    return Choice(
        best,
        why=f"the best {wish.what} within {wish.most_cents} cents",
        evidence=[f"{o.item} at {o.cents}" for o in offers],
        alternatives=[o.item for o in offers if o != best],
        model="rule-1",
    )


@effect(risk="compensable", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def authorize(cents: int) -> str:
    """Hold money on the card."""
    return await counterparty("card").act("hold", pgflow.idempotency_key(), cents=cents)


@authorize.settle
async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del cents
    found = counterparty("card").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@authorize.compensate
async def release(hold: str, cents: int) -> None:
    """Release the money."""
    del cents
    await counterparty("card").act("release", pgflow.idempotency_key(), undoes=hold)


@effect(risk="compensable", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def place_order(offer: Offer, hold: str) -> str:
    """Order at the retailer."""
    return await counterparty("retailer").act(
        "order", pgflow.idempotency_key(), item=offer.item, hold=hold
    )


@place_order.settle
async def _(offer: Offer, hold: str) -> Confirmed[str] | Absent | StillUnknown:
    del offer, hold
    found = counterparty("retailer").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@place_order.compensate
async def cancel_order(order: str, offer: Offer, hold: str) -> None:
    """Cancel the order."""
    del offer, hold
    await counterparty("retailer").act("cancel", pgflow.idempotency_key(), undoes=order)


@workflow(raises=[Refused])
async def shop(wish: Wish) -> str:
    """Make one hold and one order, however often the process dies, or neither."""
    chosen = await choose(wish, await search(wish))
    async with pgflow.effects.saga():
        with pgflow.because(chosen):
            hold = await authorize(chosen.value.cents)
            return await place_order(chosen.value, hold)
