"""The loop of an agent: observe, decide, gate, verify, act, fold, judge, compensate.

An agent fills a shelf. A model chooses each order, and may spend only what its pool admits. A
person lets the large ones happen. The supplier takes an order once, whoever dies on the way, and if
the shelf is not good in the end, everything is given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

import pgflow
from examples.agents import offline
from examples.agents.counterparty import Refused
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import (
    Absent,
    Admit,
    Approved,
    BudgetExceeded,
    Choice,
    Confirmed,
    Pool,
    Rejected,
    Stale,
    StillUnknown,
    TakenOver,
    decision,
    effect,
    read,
    workflow,
)

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


@dataclass(frozen=True)
class Outcome:
    """End of the loop."""

    how: Literal["good", "needs review", "compensated"]
    numbers: tuple[str, ...]
    why: str = ""


class NotGood(Exception):
    """The judge's no."""


# ---------------------------------------------------------------- what leaves the process


@read
async def observe(item: str) -> int:
    """Return the price of a piece now."""
    return await offline.price(item)


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
async def assess(goal: Goal, numbers: tuple[str, ...]) -> Choice[int]:
    """Say how sure the model is that the style is right, in percent."""
    said = await offline.sample(0, 100)
    pgflow.charge(usd=said.usd, tokens=said.tokens)
    evidence = [*numbers, said.id]
    return Choice(said.number, why=f"is it {goal.style}?", evidence=evidence, model=offline.MODEL)


# ---------------------------------------------------------------- the loop


@workflow
async def restock(goal: Goal) -> Outcome:
    """Fills a shelf, or leaves it as it was."""
    state = State(goal.pieces)
    try:
        async with pgflow.saga():
            while state.missing > 0:
                # 1. Observe: fresh in every round.
                cents = await observe(goal.item)
                # 2. Decide: once, if the pool lets the call happen; from then on it is history.
                chosen = await decide.options(admit=CALL)(goal, state, cents)
                with pgflow.because(chosen):  # its name is in the keys of all that rests on it
                    # 3. Gate: for hours if need be, while nothing is held.
                    match await leave_for(chosen.value):
                        case Approved(value=order):  # as it was shown, or as edited
                            # 4. Verify, which is the precondition of 5. the act.
                            try:
                                number = await place(order)
                            except Stale:
                                continue
                        case TakenOver(result=number):  # the person has ordered by hand
                            order = chosen.value
                        case _:
                            state = state.decline(chosen.value)
                            continue
                # 6. Fold, and let everybody read how far it is.
                state = state.fold(order, number)
                pgflow.set_state(missing=state.missing, numbers=state.numbers)
            # 7. Judge.
            how = await judge(goal, state)
    except (NotGood, Refused, BudgetExceeded) as error:
        # 8. Compensated: the block has given its orders back, the last first.
        return Outcome("compensated", state.numbers, type(error).__name__)
    return Outcome(how, state.numbers)


async def leave_for(order: Order) -> pgflow.Verdict[Order]:
    """Ask a person if it is risky."""
    if order.pieces * order.cents <= RISKY_CENTS:
        return Approved(order)
    return await pgflow.gate("order", order, approvers=["buyers"], timeout=8 * 3600)


async def judge(goal: Goal, state: State) -> Literal["good", "needs review"]:
    """Take the word of an oracle, else that of a model that is sure, else that of a person.

    Raises:
        NotGood: They say no.
    """
    if await count(state.numbers) != goal.pieces:
        raise NotGood
    if goal.style is None:
        return "good"
    grade = await assess.options(admit=CALL)(goal, state.numbers)
    if grade.value >= SURE:
        return "good"
    with pgflow.because(grade):
        match await pgflow.gate("review", goal, approvers=["buyers"], timeout=8 * 3600):
            case Approved() | TakenOver():
                return "good"
            case Rejected():
                raise NotGood
            case _:  # nobody has looked: a guess is no reason to undo what may be right
                return "needs review"
