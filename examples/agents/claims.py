"""The support agent: it sends only promises that are on the books.

A model writes prose, and prose makes promises. So the agent finds each promise in the draft, checks
it against a policy and records it as an obligation, all before it sends the sentence. A draft with
a forbidden promise is written again. From then on the promises are data: the run keeps them, or
hands them to people, and the database's clock detects a breach.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

import pgflow
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect

MOST_CENTS = 5_000
"""Largest refund that the agent may promise."""

PHRASES = (
    (re.compile(r"refund of \$(\d+)"), "refund", timedelta(days=5)),
    (re.compile(r"call you by Friday"), "call", timedelta(days=3)),
)
"""Phrases that make a promise, and their deadlines."""


@dataclass(frozen=True)
class Claim:
    """Promise in a draft."""

    what: str
    cents: int
    due: timedelta


def claims_in(draft: str) -> list[Claim]:
    """Return the promises in a draft: this stand-in for a model knows two phrases."""
    return [
        Claim(what, int(found[1]) * 100 if found.groups() else 0, due)
        for phrase, what, due in PHRASES
        for found in phrase.finditer(draft)
    ]


def is_permitted(claim: Claim) -> bool:
    """Return True if the policy lets the agent promise this."""
    return claim.cents <= MOST_CENTS


@decision()
async def draft_reply(question: str, forbidden: list[str]) -> Choice[str]:
    """Write a reply: this stand-in for a model is generous until its draft is refused."""
    cents = 20 if "refund" in forbidden else 200
    return Choice(
        f"We are sorry. You get a refund of ${cents}, and we will call you by Friday.",
        why="the customer is upset",
        evidence=[question],
        model="rule-1",
    )


@effect(risk="irreversible", timeout=ATTEMPT, settle_retries=OFTEN)
async def send(customer: str, text: str) -> str:
    """Send the reply."""
    key = pgflow.idempotency_key()
    return await counterparty("mail").act("send", key, customer=customer, text=text)


@send.settle
async def _(customer: str, text: str) -> Confirmed[str] | Absent | StillUnknown:
    del customer, text
    found = counterparty("mail").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@effect(risk="irreversible", timeout=ATTEMPT, settle_retries=OFTEN)
async def pay_back(customer: str, cents: int) -> str:
    """Give money back."""
    key = pgflow.idempotency_key()
    return await counterparty("bank").act("pay", key, customer=customer, cents=cents)


@pay_back.settle
async def _(customer: str, cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del customer, cents
    found = counterparty("bank").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@workflow
async def reply(customer: str, question: str) -> str:
    """Send one reply, and keep each of its promises once or hand it to a person."""
    forbidden: list[str] = []
    draft = await draft_reply(question, forbidden)
    while wrong := [c.what for c in claims_in(draft.value) if not is_permitted(c)]:
        forbidden += wrong
        draft = await draft_reply(question, forbidden)
    owed = [
        (claim, pgflow.authority.owe(claim.what, to=customer, due=claim.due, on_breach="page"))
        for claim in claims_in(draft.value)
    ]
    with pgflow.because(draft):
        await send(customer, draft.value)  # the obligations are durable before this begins
        for claim, obligation in owed:
            if claim.what == "refund":
                pgflow.authority.discharge(
                    obligation, evidence=await pay_back(customer, claim.cents)
                )
            else:
                pgflow.authority.transfer(obligation, "support desk", why="a person calls")
    return draft.value
