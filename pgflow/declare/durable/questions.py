"""Questions to people: a gate for each, bound to the text that is shown, and the meaning of its
answer.

An approval may bring words and a decision, as an edit: ``{"response": "...", "decision": "..."}``.
An edit cannot change the text that was asked: the answer counts for exactly that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

import pgflow
from pgflow.declare.durable.logfile import LogFile, tail
from pgflow.declare.graph import Approval, Decision
from pgflow.declare.play.approvals import (
    NoSuchDecision,
    Refused,
    Rework,
    approve,
    reject,
    respond,
)
from pgflow.declare.text.outputs import Output


class Question(BaseModel):
    """A question as a person sees it, and the fields that an approval may fill in.

    Attributes:
        message: Text that is asked.
        decisions: Decisions that are offered, if any.
        response: Words of the person who approves.
        decision: The decision that they take; ``approve`` if none is offered.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    message: str = ""
    decisions: list[str] = Field([])  # of a factory in C pydantic reads the signature, by tokens
    response: str = ""
    decision: str = "approve"


@dataclass(frozen=True, slots=True)
class Yes:
    """The work goes on, with these words and this decision."""

    text: str
    decision: str


@dataclass(frozen=True, slots=True)
class No:
    """It does not, for this reason."""

    reason: str


async def ask(
    log: LogFile, key: str, message: str, decisions: tuple[Decision, ...] = ()
) -> Yes | No:
    """Ask a person, and wait for the answer.

    Args:
        log: Log of the run.
        key: Name of the gate: the key of the step that asks.
        message: Text that is asked.
        decisions: Decisions that are offered.
    """
    asked = Question(message=message, decisions=[decision.id for decision in decisions])
    log.tell("node_suspended", key, content=tail(message))
    answer = _answer(await pgflow.authority.gate(key, asked))
    answered = answer.text if isinstance(answer, Yes) else answer.reason
    decision = answer.decision if isinstance(answer, Yes) else "reject"
    log.tell("gate_decision", key, decision=decision, content=tail(answered))
    return answer


def _answer(verdict: Any) -> Yes | No:
    """Return the answer of a verdict."""
    match verdict:
        case pgflow.authority.Approved(value=said):
            return Yes(said.response, said.decision)
        case pgflow.authority.Rejected(reason=reason):
            return No(reason or "Rejected")
        case pgflow.authority.TakenOver(result=result):
            return Yes(result if isinstance(result, str) else "", "approve")
        case other:
            return No(f"no decision was made: {other}")


def answered(approval: Approval, answer: Yes | No, rejections: int) -> Output | Rework | Refused:
    """Return the consequence of an answer to an approval.

    Args:
        approval: The approval.
        answer: The answer.
        rejections: Number of earlier rejections.
    """
    if isinstance(answer, No):
        return reject(approval, answer.reason, rejections)
    if answer.decision == "approve":
        return approve(approval, answer.text)
    try:
        return respond(approval, answer.decision, answer.text)
    except NoSuchDecision as error:
        return Output("failed", error=str(error))
