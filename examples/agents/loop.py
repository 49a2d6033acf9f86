"""The loop of an agent: observe, decide, gate, verify, act, fold, judge, compensate.

An agent fills a shelf. A model chooses each order, and may spend only what its pool admits. A
person lets the large ones happen. The supplier takes an order once, whoever dies on the way, and if
the shelf is not good in the end, everything is given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import pgflow
from examples.agents import offline
from examples.agents.counterparty import Refused
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import (
    Absent,
    Admit,
    Approved,
    Choice,
    Confirmed,
    Pool,
    StillUnknown,
    agent,
    decision,
    effect,
    read,
    workflow,
)
from pgflow.agent import Outcome

RISKY_CENTS = 1_500
"""An order that costs more needs a person."""

CALL = Admit(usd=Decimal("0.04"), tokens=4_000)
"""Most that one call of the model may cost."""

SURE = 80
"""Percent from which on the model's own word is enough."""

buying = Pool("buying", usd=50, per="1 day")


@dataclass(frozen=True)
class Goal:
    """Wish for a shelf; a style is in the eye of the beholder."""

    item: str
    pieces: int
    style: str | None = None


@dataclass(frozen=True)
class Order:
    """Some pieces, at a price that was seen."""

    item: str
    pieces: int
    cents: int


@dataclass(frozen=True)
class State:
    """Progress with a shelf."""

    missing: int
    numbers: tuple[str, ...] = ()
    most: int = 4
    """Most pieces that people let pass at once, as far as is known."""

    def fold(self, order: Order, number: str) -> State:
        """Return the state after an order."""
        return replace(self, missing=self.missing - order.pieces, numbers=(*self.numbers, number))

    def decline(self, order: Order) -> State:
        """Return the state after a no."""
        return replace(self, most=max(1, order.pieces - 1))


# ---------------------------------------------------------------- what leaves the process


@read
async def observe(goal: Goal, state: State) -> int:
    """Return the price of a piece now."""
    del state
    return await offline.price(goal.item)


@decision()
async def decide(goal: Goal, state: State, cents: int) -> Choice[Order]:
    """Choose the next order; sampled once, and from then on it is history."""
    said = await offline.sample(1, min(state.missing, state.most))
    pgflow.charge(usd=said.usd, tokens=said.tokens)
    return Choice(
        Order(goal.item, said.number, cents),
        why=f"{state.missing} are missing",
        evidence=[f"{goal.item} at {cents}", said.id],
        model=offline.MODEL,
    )


@effect(risk="compensable", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def place(order: Order) -> str:
    """Orders at the supplier, under the name of the decision."""
    key = pgflow.idempotency_key()
    return await counterparty("supplier").act("order", key, item=order.item, pieces=order.pieces)


@place.precondition
async def _(order: Order) -> bool:
    return await offline.price(order.item) <= order.cents  # has the world moved?


@place.settle
async def _(order: Order) -> Confirmed[str] | Absent | StillUnknown:
    del order
    found = counterparty("supplier").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@place.compensate
async def cancel(number: str, order: Order) -> None:
    """Gives the pieces back."""
    del order
    await counterparty("supplier").act("cancel", pgflow.idempotency_key(), undoes=number)


@read
async def count(numbers: tuple[str, ...]) -> int:
    """Ask the oracle: how many pieces the supplier's book has under these numbers."""
    lines = counterparty("supplier").lines()
    return sum(line["pieces"] for line in lines if line["number"] in numbers)


@decision()
async def assess(goal: Goal, state: State) -> Choice[int]:
    """Say how sure the model is that the style is right, in percent."""
    said = await offline.sample(0, 100)
    pgflow.charge(usd=said.usd, tokens=said.tokens)
    evidence = [*state.numbers, said.id]
    return Choice(said.number, why=f"is it {goal.style}?", evidence=evidence, model=offline.MODEL)


# ---------------------------------------------------------------- what is the agent's own


def fold(state: State, order: Order, number: str) -> State:
    """Return the state after an order, and let everybody read how far it is."""
    state = state.fold(order, number)
    pgflow.set_state(missing=state.missing, numbers=[*state.numbers])
    return state


async def leave_for(order: Order) -> pgflow.Verdict[Order]:
    """Ask a person if it is risky: for hours if need be, while nothing is held."""
    if order.pieces * order.cents <= RISKY_CENTS:
        return Approved(order)
    return await pgflow.gate("order", order, approvers=["buyers"], timeout=8 * 3600)


async def is_full(goal: Goal, state: State) -> bool | None:
    """Ask the oracle. The style is in the eye of the beholder."""
    if await count(state.numbers) != goal.pieces:
        return False
    return True if goal.style is None else None


async def look(goal: Goal, state: State) -> pgflow.Verdict[Goal]:
    """Ask a person."""
    del state
    return await pgflow.gate("review", goal, approvers=["buyers"], timeout=8 * 3600)


# ---------------------------------------------------------------- the loop


@workflow
async def restock(goal: Goal, state: State | None = None) -> Outcome[State]:
    """Fills a shelf, or leaves it as it was."""
    return await agent.loop(
        goal,
        state or State(goal.pieces),
        done=lambda state: state.missing <= 0,
        observe=observe,  # fresh in every turn
        decide=decide.options(admit=CALL),  # once, if the pool lets the call happen
        gate=leave_for,
        act=place,  # whose precondition looks if the world has moved
        fold=fold,
        decline=lambda state, order, _: state.decline(order),
        oracle=is_full,
        grade=assess.options(admit=CALL),
        sure=SURE,
        review=look,
        ends=[Refused],  # all orders are given back, the last first
    )
