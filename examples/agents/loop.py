"""The loop of an agent: observe, decide, gate, verify, act, fold, judge, compensate.

An agent fills a shelf. A model chooses each order, within the budget of its pool. A person approves
large orders. The supplier takes each order once, whichever process dies on the way. If the shelf is
not good in the end, all orders are given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import pgflow
from examples.agents import offline
from examples.agents.counterparty import Refused
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import agent, read, workflow
from pgflow.agent import Outcome
from pgflow.authority import Admit, Approved, Pool
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect

RISKY_CENTS = 1_500
"""Price above which an order needs a person."""

CALL = Admit(usd=Decimal("0.04"), tokens=4_000)
"""Largest cost of one call of the model."""

SURE = 80
"""Percent from which on the model's own grade is enough."""

buying = Pool("buying", usd=50, per="1 day")


@dataclass(frozen=True)
class Goal:
    """Goal for a shelf; a style is a matter of taste."""

    item: str
    pieces: int
    style: str | None = None


@dataclass(frozen=True)
class Order:
    """Order of some pieces, at an observed price."""

    item: str
    pieces: int
    cents: int


@dataclass(frozen=True)
class State:
    """Progress with a shelf."""

    missing: int
    numbers: tuple[str, ...] = ()
    most: int = 4
    """Largest order that people have approved so far."""

    def fold(self, order: Order, number: str) -> State:
        """Return the state after an order."""
        return replace(self, missing=self.missing - order.pieces, numbers=(*self.numbers, number))

    def decline(self, order: Order) -> State:
        """Return the state after a rejection."""
        return replace(self, most=max(1, order.pieces - 1))


# ---------------------------------------------------------------- outside the process


@read
async def observe(goal: Goal, state: State) -> int:
    """Return the price of a piece now."""
    del state
    return await offline.price(goal.item)


@decision()
async def decide(goal: Goal, state: State, cents: int) -> Choice[Order]:
    """Choose the next order: sampled once, then recorded."""
    said = await offline.sample(1, min(state.missing, state.most))
    pgflow.authority.charge(usd=said.usd, tokens=said.tokens)
    return Choice(
        Order(goal.item, said.number, cents),
        why=f"{state.missing} are missing",
        evidence=[f"{goal.item} at {cents}", said.id],
        model=offline.MODEL,
    )


@effect(risk="compensable", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def place(order: Order) -> str:
    """Order at the supplier, under a key that names the decision."""
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
    """Give the pieces back."""
    del order
    await counterparty("supplier").act("cancel", pgflow.idempotency_key(), undoes=number)


@read
async def count(numbers: tuple[str, ...]) -> int:
    """Return the pieces under these numbers in the supplier's book: the oracle."""
    lines = counterparty("supplier").lines()
    return sum(line["pieces"] for line in lines if line["number"] in numbers)


@decision()
async def assess(goal: Goal, state: State) -> Choice[int]:
    """Return how sure the model is of the style, in percent."""
    said = await offline.sample(0, 100)
    pgflow.authority.charge(usd=said.usd, tokens=said.tokens)
    evidence = [*state.numbers, said.id]
    return Choice(said.number, why=f"is it {goal.style}?", evidence=evidence, model=offline.MODEL)


# ---------------------------------------------------------------- inside the agent


def fold(state: State, order: Order, number: str) -> State:
    """Return the state after an order, and publish the progress."""
    state = state.fold(order, number)
    pgflow.set_state(missing=state.missing, numbers=[*state.numbers])
    return state


async def leave_for(order: Order) -> pgflow.authority.Verdict[Order]:
    """Ask a person if the order is risky, for hours if necessary, without holding resources."""
    if order.pieces * order.cents <= RISKY_CENTS:
        return Approved(order)
    return await pgflow.authority.gate("order", order, approvers=["buyers"], timeout=8 * 3600)


async def is_full(goal: Goal, state: State) -> bool | None:
    """Ask the oracle. It cannot judge a style."""
    if await count(state.numbers) != goal.pieces:
        return False
    return True if goal.style is None else None


async def look(goal: Goal, state: State) -> pgflow.authority.Verdict[Goal]:
    """Ask a person."""
    del state
    return await pgflow.authority.gate("review", goal, approvers=["buyers"], timeout=8 * 3600)


# ---------------------------------------------------------------- the loop


@workflow
async def restock(goal: Goal, state: State | None = None) -> Outcome[State]:
    """Fill a shelf, or leave it as it was."""
    return await agent.loop(
        goal,
        state or State(goal.pieces),
        done=lambda state: state.missing <= 0,
        observe=observe,  # fresh in every turn
        decide=decide.options(admit=CALL),  # once, if the pool lets the call happen
        gate=leave_for,
        act=place,  # its precondition checks that the world has not moved
        fold=fold,
        decline=lambda state, order, _: state.decline(order),
        oracle=is_full,
        grade=assess.options(admit=CALL),
        sure=SURE,
        review=look,
        ends=[Refused],  # all orders are given back, the last first
    )
