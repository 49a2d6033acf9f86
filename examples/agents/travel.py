"""The travel agent: several vendors, a wait for a yes, prices that age, and a trip that may break in the middle."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import pgflow
from examples.agents.counterparty import Refused
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import Absent, Choice, Confirmed, Signal, Stale, StillUnknown, decision, effect, read, workflow

approved = Signal("approved", bool)

Way = Literal["recover", "give up"]


@read(max_age=timedelta(minutes=15))
async def quote(leg: str) -> int:
    """What a leg costs at this moment; what rests on it must be done within a quarter of an hour."""
    return 10_000 + sum(map(ord, leg))


@effect(risk="compensable", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def book_leg(leg: str, cents: int) -> str:
    """Books a flight, or a hotel."""
    return await counterparty("airline").act("book", pgflow.idempotency_key(), leg=leg, cents=cents)


@book_leg.settle
async def _(leg: str, cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del leg, cents
    found = counterparty("airline").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@book_leg.compensate
async def cancel_leg(booking: str, leg: str, cents: int) -> None:
    """Gives it back."""
    del leg, cents
    await counterparty("airline").act("cancel", pgflow.idempotency_key(), undoes=booking)


@decision()
async def what_now(leg: str, tried: list[str]) -> Choice[Way]:
    """Half a trip exists: another fare of the same leg, or nothing at all."""
    if leg in tried:
        return Choice("give up", why=f"{leg} was refused twice", evidence=tried, alternatives=["recover"])
    return Choice("recover", why=f"another fare of {leg} may be left", evidence=[f"{leg} refused"], alternatives=["give up"])


async def booked(leg: str, tried: list[str]) -> str:
    """A leg at a price that is fresh when it is booked, or at the next fare."""
    fare = f"{leg} flex" if leg in tried else leg
    while True:
        cents = await quote(fare)
        try:
            return await book_leg(fare, cents)
        except Stale:  # the yes took longer than the quote held
            continue


@workflow(raises=[Refused])
async def travel(legs: list[str]) -> list[str]:
    """The whole trip or none of it."""
    quotes = {leg: await quote(leg) for leg in legs}
    pgflow.set_state(itinerary=quotes)
    if not await approved.wait():
        return []
    bookings: list[str] = []
    tried: list[str] = []
    async with pgflow.saga():
        for leg in legs:
            try:
                bookings.append(await booked(leg, tried))
            except Refused:
                way = await what_now(leg, tried)
                if way.value == "give up":
                    raise
                tried.append(leg)
                with pgflow.because(way):
                    bookings.append(await booked(leg, tried))
    return bookings
