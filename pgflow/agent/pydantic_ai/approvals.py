"""Approvals of tool calls: the run asks at a gate, and passes the verdict to the agent.

The request of a gate is the arguments of the call, and so is an edit. A call that is made outside
(pydantic-ai calls it external) is a gate too, whose answer brings the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# pyright: reportMissingImports=false
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    ToolApproved,
    ToolDenied,
)

import pgflow
from pgflow._flow.step import Step
from pgflow.agent.colour import gate, is_sync
from pgflow.authority import Approved, Escalated, Expired, Rejected, TakenOver


@dataclass(frozen=True)
class Approvals:
    """Terms on which tool calls are approved; see :func:`pgflow.authority.gate`.

    Attributes:
        approvers: Names or roles of the people who may answer; none for anyone.
        quorum: Number of people who must approve.
        timeout: Time for each of those who are asked one after the other, in seconds or as a
            timedelta.
        on_timeout: Verdict once it is over: ``expire``, ``reject``, ``escalate`` or ``approve``.
        escalate: Those who are asked next, one after the other.
        notify: Step or effect that notifies the approvers, once a gate.
    """

    approvers: Sequence[str] = ()
    quorum: int = 1
    timeout: Any = None
    on_timeout: Any = "expire"
    escalate: Sequence[str] = ()
    notify: Step[[pgflow.authority.GateRequest], Any] | None = None


Terms = Approvals | Mapping[str, Approvals]
"""Terms of all tools, or of each by its name."""


@dataclass(frozen=True)
class Question:
    """A call that a person must answer for."""

    call: ToolCallPart
    terms: Approvals
    is_external: bool


async def settle(agent: str, requests: DeferredToolRequests, terms: Terms) -> Any:
    """Ask about each call at a gate of its own, and return the verdicts; None if none has terms."""
    questions = [
        *_questions(requests.approvals, terms, is_external=False),
        *_questions(requests.calls, terms, is_external=True),
    ]
    if not questions:
        return None
    if is_sync():
        verdicts = [await _ask(agent, question) for question in questions]
    else:
        verdicts = await asyncio.gather(*(_ask(agent, question) for question in questions))
    results = DeferredToolResults()
    for question, verdict in zip(questions, verdicts, strict=True):
        _take(results, question, verdict)
    return results


def _questions(calls: Sequence[ToolCallPart], terms: Terms, *, is_external: bool) -> list[Question]:
    found = []
    for call in calls:
        own = terms if isinstance(terms, Approvals) else terms.get(call.tool_name)
        if own is not None:
            found.append(Question(call, own, is_external))
    return found


async def _ask(agent: str, question: Question) -> pgflow.authority.Verdict[Any]:
    return await gate(*_request(agent, question), **_options(question))


def _request(agent: str, question: Question) -> tuple[str, dict[str, Any]]:
    return f"{agent}:{question.call.tool_name}", question.call.args_as_dict()


def _options(question: Question) -> dict[str, Any]:
    terms = question.terms
    options = {
        "approvers": terms.approvers,
        "quorum": terms.quorum,
        "timeout": terms.timeout,
        "on_timeout": terms.on_timeout,
        "escalate": terms.escalate,
        "notify": terms.notify,
    }
    return {**options, "answer": Any} if question.is_external else options


def _take(
    results: DeferredToolResults, question: Question, verdict: pgflow.authority.Verdict[Any]
) -> None:
    """Enter a verdict."""
    call_id = question.call.tool_call_id
    if by := getattr(verdict, "by", ()):
        results.answered_by[call_id] = ", ".join(by)
    if question.is_external:
        results.calls[call_id] = _result(verdict)
    elif isinstance(verdict, Approved):
        results.approvals[call_id] = ToolApproved(
            override_args=verdict.value if verdict.edited else None
        )
    else:
        results.approvals[call_id] = ToolDenied(message=_refusal(verdict))


def _result(verdict: pgflow.authority.Verdict[Any]) -> Any:
    if isinstance(verdict, Approved):
        return verdict.value
    return verdict.result if isinstance(verdict, TakenOver) else ModelRetry(_refusal(verdict))


def _refusal(verdict: Rejected | Escalated | Expired | TakenOver) -> str:
    """Word a refusal for the model."""
    match verdict:
        case Rejected(reason=reason):
            return f"The call was rejected: {reason}"
        case Escalated(to=to):
            return f"The call was not made: {to} will decide about it."
        case Expired():
            return "The call was not made: it was not approved in time."
        case TakenOver(result=result):
            return f"A person has made this call themselves, do not repeat it. Result: {result!r}"
