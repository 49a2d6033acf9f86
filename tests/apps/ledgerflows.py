"""Workflows whose journals between them hold every unit of the ledgers, each with what people say
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from exampleflows import Example

import pgflow
from pgflow import Retries, Signal, read, step, workflow
from pgflow.authority import Obligation
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Accepted, Confirmed, Ref, StillUnknown, effect

SLOWLY = Retries(
    max_attempts=3, first_delay=timedelta(minutes=1), backoff=1, max_delay=timedelta(minutes=1)
)


class Refused(Exception):
    """The counterparty's definite no."""


class LostReply(Exception):
    """The request went out and nothing came back."""


@dataclass(frozen=True)
class Offer:
    """Offer that may be ordered."""

    item: str
    cents: int


_seen: set[str] = set()


@read
async def search(most: int) -> list[Offer]:
    return [offer for offer in (Offer("tent", 300), Offer("boat", 900)) if offer.cents <= most]


@decision()
async def choose(offers: list[Offer]) -> Choice[Offer]:
    return Choice(
        offers[-1],
        why="the best",
        evidence=[f"{len(offers)} offers"],
        alternatives=[offer.item for offer in offers[:-1]],
    )


@effect(risk="compensable", raises=[Refused], settle_retries=SLOWLY)
async def order(item: str) -> str | Accepted:
    """Does what its argument says: loses its reply, refuses, or takes it on."""
    if item == "lost":
        raise LostReply(item)
    if item == "refused":
        raise Refused(item)
    return Accepted(f"number of {item}") if item == "later" else f"order of {item}"


@order.settle
async def _(item: str) -> Confirmed[str | Accepted] | Absent | StillUnknown:
    return Confirmed(f"order of {item}")


@order.compensate
async def cancel_order(number: str | Accepted, item: str) -> None:
    del number, item


@effect(risk="reversible", dedup_window=timedelta(hours=1), settle_retries=SLOWLY)
async def insist(item: str) -> str:
    key = pgflow.idempotency_key()
    if key not in _seen:
        _seen.add(key)
        raise LostReply(item)
    return f"order of {item}"


@effect(risk="irreversible")  # pgflow: ignore[PF302] a person is to say
async def wire(cents: int) -> str:
    raise LostReply(cents)


@workflow(raises=(Refused,))
async def ordering(n: int) -> list[Any]:
    chosen = await choose(await search(n))
    with pgflow.because(chosen):
        got: list[Any] = [await order(chosen.value.item)]
    got.append(await order("lost"))
    got.append(await insist("patience"))
    try:
        await order("refused")
    except Refused:
        got.append("no")
    taken = await order("later")
    got.append(taken.ref if isinstance(taken, Accepted) else taken)
    return got


@workflow(raises=(Refused,))
async def undoing(n: int) -> list[str]:
    said: list[str] = []
    try:
        async with pgflow.effects.saga():
            for i in range(n):
                said.append(str(await order(f"leg {i}")))
            await order("refused")
    except Refused as error:
        said.append(str(error))
    return said


@workflow
async def asking_a_person(n: int) -> list[str]:
    return [await wire(cents) for cents in range(n)]


@workflow
async def letting_go(n: int) -> str:
    """Gives up an effect that was intended: what became of it is still found out."""
    try:
        async with asyncio.timeout(10 * n):
            return await insist("too late")
    except TimeoutError:
        return "in vain"


_places: list[str] = []


@step
async def shelve(what: str) -> Ref:
    _places.append(what)
    return Ref("shelf", f"{what} in place {len(_places)}")


async def is_on_shelf(ref: Ref) -> bool:
    """The first place is cleared while nobody looks."""
    return not ref.id.endswith(" 1")


@workflow
async def shelving(n: int) -> str:
    """Finds what it has put away gone."""
    there = await shelve("a tent")
    await pgflow.sleep(timedelta(days=n))
    return there.id


def _confirm(ref: str) -> Callable[[Any], None]:
    return lambda world: world.confirm(ref)


def _settle(verdict: str, value: Any) -> Callable[[Any], None]:
    return lambda world: world.settle(verdict, value)


@workflow
async def asking_at_gates(cents: int) -> list[Any]:
    """Asks for leave: edited, given by two, not in time, taken over, given up."""
    tent = Offer("tent", cents)
    with pgflow.because(await choose_tent(cents)):
        edited = await pgflow.authority.gate(
            "buy", tent, approvers=["ann", "bob"], timeout=timedelta(days=1)
        )
    both = await pgflow.authority.gate("sell", cents, approvers=["ann", "bob"], quorum=2)
    late = await pgflow.authority.gate(
        "send", cents, timeout=60, on_timeout="reject", escalate=["cto"]
    )
    done = await pgflow.authority.gate("carry", tent)
    try:
        async with asyncio.timeout(30):
            await pgflow.authority.gate("never", None)
    except TimeoutError:
        return [repr(edited), repr(both), repr(late), repr(done)]
    return []


@decision()
async def choose_tent(cents: int) -> Choice[int]:
    return Choice(cents, why="it is cheap")


def _answer(name: str, verdict: str, value: Any = None, by: str = "ann") -> Callable[[Any], Any]:
    return lambda world: world.answer(name, verdict, value, by)


overdue = Signal("overdue", Obligation)


@workflow
async def falling_behind(hours: int) -> list[str]:
    """Does too late what it owes."""
    made = pgflow.authority.owe(
        "call back", to="ada", due=timedelta(hours=hours), on_breach=overdue
    )
    late = await overdue.wait()
    pgflow.authority.discharge(made, evidence="a call")
    return [late.what, late.to or ""]


@pgflow.entities.entity("stock")
@dataclass
class Stock:
    """Places that are taken."""

    taken: int = 0

    @pgflow.entities.update
    def take(self, places: int) -> bool:
        if self.taken + places > 5:
            return False
        self.taken += places
        return True


@workflow
async def taking_places(n: int) -> list[bool]:
    """Changes what it shares with others."""
    return [await Stock.take("shelf 1", 2) for _ in range(n)]


@workflow
async def serving(n: int) -> list[str]:
    """Takes what others add, and answers."""
    names: list[str] = []
    await pgflow.updates.serve(names, until=lambda: len(names) == n)
    return names


@serving.update
async def add_name(names: list[str], name: str) -> int:
    names.append(await shelve_name(name))
    return len(names)


@step
async def shelve_name(name: str) -> str:
    return name.upper()


def _update(name: str, args: Any) -> Callable[[Any], Any]:
    return lambda world: world.update(name, args)


LEDGERS = [
    Example(serving, 2, ["ADA", "BOB"],
        events=(_update("add_name", {"name": "ada"}), _update("add_name", {"name": "bob"}))),
    Example(falling_behind, 2, ["call back", "ada"]),
    Example(taking_places, 3, [True, True, False]),
    Example(asking_at_gates, 500,
        ["Approved(value=Offer(item='tent', cents=300), by=('ann',), edited=True)",
            "Approved(value=500, by=('ann', 'bob'), edited=False)",
            "Rejected(reason='timeout', by=())", "TakenOver(result={'by': 'hand'}, by=('bob',))"],
        events=(_answer("buy", "approve", {"item": "tent", "cents": 300}),
            _answer("sell", "approve"), _answer("sell", "approve", by="bob"),
            _answer("carry", "take_over", {"by": "hand"}, "bob"))),
    Example(ordering, 500,
        ["order of tent", "order of lost", "order of patience", "no", "number of later"],
        events=(_confirm("number of later"),)),
    Example(undoing, 2, ["order of leg 0", "order of leg 1", "refused"]),
    Example(asking_a_person, 2, ["on the statement", "there too"],
        events=(_settle("confirmed", "on the statement"), _settle("confirmed", "there too"))),
    Example(letting_go, 1, "in vain"),
    Example(shelving, 1, "a tent in place 2"),
]  # fmt: skip
