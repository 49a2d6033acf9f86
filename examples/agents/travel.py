"""The travel agent: several vendors, a wait for approval, prices that age, and a trip that may fail
in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import pgflow
from examples.agents.counterparty import Refused
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import Signal, read, step, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, PlannedCall, StillUnknown, UndoRequest, effect
from pgflow.errors import Stale

approved = Signal("approved", bool)

Way = Literal["recover", "give up"]


@read(max_age=timedelta(minutes=15))
async def quote(leg: str) -> int:
    """Return the current price of a leg; an effect that depends on it must act within a quarter of
    an hour.
    """
    return 10_000 + sum(map(ord, leg))


@effect(risk="compensable", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def book_leg(leg: str, cents: int) -> str:
    """Book a flight, or a hotel."""
    return await counterparty("airline").act("book", pgflow.idempotency_key(), leg=leg, cents=cents)


@book_leg.settle
async def _(leg: str, cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del leg, cents
    found = counterparty("airline").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@book_leg.compensate
async def cancel_leg(booking: str, leg: str, cents: int) -> None:
    """Give it back."""
    del leg, cents
    await counterparty("airline").act("cancel", pgflow.idempotency_key(), undoes=booking)


@effect(risk="compensable", timeout=ATTEMPT, settle_retries=OFTEN)
async def ask_concierge(wish: str) -> str:
    """Ask the concierge for anything: wishes are unpredictable, so this effect has no
    compensation.
    """
    return await counterparty("concierge").act("ask", pgflow.idempotency_key(), wish=wish)


@ask_concierge.settle
async def _(wish: str) -> Confirmed[str] | Absent | StillUnknown:
    del wish
    found = counterparty("concierge").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@step
async def write_to_concierge(about: str, text: str) -> None:
    """Call a request off, with a reason for the concierge."""
    await counterparty("concierge").act(
        "call off", pgflow.idempotency_key(), undoes=about, text=text
    )


@decision()
async def propose_undo(done: UndoRequest) -> Choice[list[PlannedCall]]:
    """Propose how to undo a wish: a stand-in for a model, with the same request."""
    text = f"{done.request['wish']!r} is not needed any more: {done.goal} is off"
    letter = PlannedCall("write_to_concierge", {"about": done.reply, "text": text})
    return Choice([letter], why="only the concierge can", evidence=[done.key])


@decision()
async def what_now(leg: str, tried: list[str]) -> Choice[Way]:
    """Half a trip exists: book another fare of the same leg, or give all back."""
    if leg in tried:
        return Choice(
            "give up", why=f"{leg} was refused twice", evidence=tried, alternatives=["recover"]
        )
    return Choice(
        "recover",
        why=f"another fare of {leg} may be left",
        evidence=[f"{leg} refused"],
        alternatives=["give up"],
    )


async def booked(leg: str, tried: list[str]) -> str:
    """Book a leg at a fresh price, or at the next fare."""
    fare = f"{leg} flex" if leg in tried else leg
    while True:
        cents = await quote(fare)
        try:
            return await book_leg(fare, cents)
        except Stale:  # the approval took longer than the quote was valid
            continue


@workflow(raises=[Refused])
async def travel(legs: list[str], wishes: Sequence[str] = ()) -> list[str]:
    """Book the whole trip with all its wishes, or none of it."""
    quotes = {leg: await quote(leg) for leg in legs}
    pgflow.set_state(itinerary=quotes)
    if not await approved.wait():
        return []
    bookings: list[str] = []
    tried: list[str] = []
    async with pgflow.effects.saga(
        goal=" and ".join(legs), planner=propose_undo, steps=[write_to_concierge]
    ):
        for wish in wishes:
            await ask_concierge(wish)
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
