"""The sales agent: a mail cannot be unsent. One agent at a time writes to a prospect, a person
reads the first mail, and a prospect who has opted out gets none, from any run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pgflow
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import Signal, workflow
from pgflow.authority import Approved
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect
from pgflow.errors import Stale

answered = Signal("answered", str)


@pgflow.entities.entity("agents.prospect")
@dataclass
class Prospect:
    """Prospect, shared by all runs."""

    wants_none: bool = False
    mails: int = 0

    @pgflow.entities.update
    def stop(self) -> None:
        """Opt out of mails."""
        self.wants_none = True

    @pgflow.entities.update
    def wrote(self) -> int:
        """Count a mail."""
        self.mails += 1
        return self.mails


@decision()
async def draft(prospect: str, number: int, answer: str | None) -> Choice[str]:
    """Write a mail, in place of a model."""
    text = f"Dear {prospect}, mail {number}" + (f": you said {answer}" if answer else "")
    return Choice(text, why="no answer yet" if answer is None else "an answer", model="small-1")


@effect(risk="irreversible", timeout=ATTEMPT, settle_retries=OFTEN)
async def send(prospect: str, text: str) -> str:
    """Send a mail, irreversibly."""
    key = pgflow.idempotency_key()
    return await counterparty("mail").act("send", key, prospect=prospect, text=text)


@send.precondition
async def _(prospect: str, text: str) -> bool:
    """Check right before sending, since days may pass between the draft and its approval."""
    del text
    return not await is_stopped(prospect)


@send.settle
async def _(prospect: str, text: str) -> Confirmed[str] | Absent | StillUnknown:
    del prospect, text
    found = counterparty("mail").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


async def is_stopped(prospect: str) -> bool:
    """Return True if the prospect is on the stop list, which is outside of all runs."""
    return any(line["prospect"] == prospect for line in counterparty("stop list").lines())


@workflow
async def reach_out(prospect: str, mails: int = 3) -> str:
    """Write until the prospect answers."""
    async with pgflow.lock(f"prospect/{prospect}"):
        answer: str | None = None
        for number in range(1, mails + 1):
            if (await pgflow.entities.query(Prospect, prospect)).state.wants_none:
                return "wants none"
            text = await draft(prospect, number, answer)
            words = text.value
            if number == 1:
                verdict = await pgflow.authority.gate("first mail", words, approvers=["sales lead"])
                if not isinstance(verdict, Approved):
                    return "not sent"
                words = verdict.value
            try:
                await send.because(text)(prospect, words)
            except Stale:
                await Prospect.stop(prospect)
                return "wants none"
            await Prospect.wrote(prospect)
            try:
                answer = await answered.wait(timeout=timedelta(days=3))
            except TimeoutError:
                continue
            return f"answered: {answer}"
    return "no answer"
