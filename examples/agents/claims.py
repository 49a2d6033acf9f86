"""The support agent: it says nothing that is not on the books.

A model writes prose, and prose promises. So each promise is found in the draft, permitted by a
policy and recorded as an obligation, all before the sentence is sent. What the policy forbids is
written out of the draft. After that the promises are data: they are kept here, or handed to people,
and one that nobody keeps is breached by the database's clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

import pgflow
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import Absent, Choice, Confirmed, StillUnknown, decision, effect, workflow

MOST_CENTS = 5_000
"""Most that the agent may promise to give back."""

PHRASES = (
    (re.compile(r"refund of \$(\d+)"), "refund", timedelta(days=5)),
    (re.compile(r"call you by Friday"), "call", timedelta(days=3)),
)
"""Sentences that promise something, and until when that must be done."""


@dataclass(frozen=True)
class Claim:
    """Promise that a draft makes."""

    what: str
    cents: int
    due: timedelta


def claims_in(draft: str) -> list[Claim]:
    """Return the promises of a draft. A model would find them; this knows two phrases."""
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
    """Writes a reply. A model would; this one is generous until it is told not to be."""
    cents = 20 if "refund" in forbidden else 200
    return Choice(
        f"We are sorry. You get a refund of ${cents}, and we will call you by Friday.",
        why="the customer is upset",
        evidence=[question],
        model="rule-1",
    )


@effect(risk="irreversible", timeout=ATTEMPT, settle_retries=OFTEN)
async def send(customer: str, text: str) -> str:
    """Sends the reply."""
    key = pgflow.idempotency_key()
    return await counterparty("mail").act("send", key, customer=customer, text=text)


@send.settle
async def _(customer: str, text: str) -> Confirmed[str] | Absent | StillUnknown:
    del customer, text
    found = counterparty("mail").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@effect(risk="irreversible", timeout=ATTEMPT, settle_retries=OFTEN)
async def pay_back(customer: str, cents: int) -> str:
    """Gives money back."""
    key = pgflow.idempotency_key()
    return await counterparty("bank").act("pay", key, customer=customer, cents=cents)


@pay_back.settle
async def _(customer: str, cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del customer, cents
    found = counterparty("bank").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@workflow
async def reply(customer: str, question: str) -> str:
    """Claims before prose: one reply, and each of its promises kept once, or in somebody's
    hands.
    """
    forbidden: list[str] = []
    draft = await draft_reply(question, forbidden)
    while wrong := [c.what for c in claims_in(draft.value) if not is_permitted(c)]:
        forbidden += wrong
        draft = await draft_reply(question, forbidden)
    owed = [
        (claim, pgflow.owe(claim.what, to=customer, due=claim.due, on_breach="page"))
        for claim in claims_in(draft.value)
    ]
    with pgflow.because(draft):
        await send(customer, draft.value)  # the obligations are durable before this begins
        for claim, obligation in owed:
            if claim.what == "refund":
                pgflow.discharge(obligation, evidence=await pay_back(customer, claim.cents))
            else:
                pgflow.transfer(obligation, "support desk", why="a person calls")
    return draft.value
