"""The research agent: a search tree within a budget, and a source for each claim of the report.

A replay asks no search engine: it continues where the tree was. Two runs of one question may
differ, and each records the sources of its claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pgflow
from examples.agents.world import counterparty
from pgflow import step, workflow
from pgflow.authority import Admit
from pgflow.decisions import Choice, decision
from pgflow.errors import BudgetExceeded

PRICE = Decimal("0.02")
"""Price of one reading, in dollars."""


@dataclass(frozen=True)
class Hit:
    """Hit of a search."""

    url: str
    snippet: str


@dataclass(frozen=True)
class Reading:
    """Reading of one hit: the claim that it supports, and the next questions."""

    claim: str
    url: str
    follow_up: str | None


@dataclass(frozen=True)
class Report:
    """Report, with the rest of the tree if the budget ran out.

    Attributes:
        claims: Each with the address of its source.
        unread: Questions that were not followed.
    """

    claims: list[tuple[str, str]]
    unread: list[str]


@step(retries=3)
async def search(question: str) -> list[Hit]:
    """Query the search engine, which counts its queries."""
    await counterparty("search").act("search", pgflow.idempotency_key(), question=question)
    return [Hit(f"https://example.org/{question}/{n}", f"{question} {n}") for n in range(2)]


@decision()
async def read_hit(question: str, hit: Hit) -> Choice[Reading]:
    """Read a hit: this stand-in for a model follows every first hit, two levels deep."""
    await counterparty("model").act("read", pgflow.idempotency_key(), url=hit.url)
    pgflow.authority.charge(usd=PRICE)
    follows = hit.url.endswith("/0") and question.count(".") < 2
    return Choice(
        Reading(f"{hit.snippet} is so", hit.url, f"{question}.1" if follows else None),
        why=f"asked: {question}",
        evidence=[hit.url, hit.snippet],
        model="small-1",
    )


@workflow
async def research(question: str) -> Report:
    """Follow a question until no question or no money is left."""
    frontier, claims = [question], []
    reading = read_hit.options(admit=Admit(usd=PRICE))
    try:
        while frontier:
            hits = await search(frontier[0])
            for hit in hits:
                found = (await reading(frontier[0], hit)).value
                claims.append((found.claim, found.url))
                if found.follow_up is not None:
                    frontier.append(found.follow_up)
            frontier.pop(0)
    except BudgetExceeded:
        pass  # report the claims found so far
    return Report(claims, frontier)
