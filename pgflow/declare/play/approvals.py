"""Answers of persons: the node is done, the work is done over, or the run ends; and when a loop
asks a person at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pgflow.declare.graph import Approval, Group, Loop
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.outputs import Output, completed


@dataclass(frozen=True, slots=True)
class Rework:
    """The text that is worked on before the person is asked again."""

    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The run ends as cancelled."""

    reason: str


Answer = Output | Rework | Refused

Dialect = Literal["archon", "ion"]
"""Family whose rules hold where they differ."""


class NoSuchDecision(ValueError):
    """An answer that the approval does not offer."""


def approve(approval: Approval, comment: str = "") -> Output:
    """Return the output of an approval when a person lets the work go on.

    Args:
        approval: The approval.
        comment: Comment of the person.

    Returns:
        The comment if the approval captures it ("Approved" if there was none), the decision if it
        offers several, else nothing.
    """
    if approval.decisions:
        return completed({"decision": "approve", "text": comment})
    if not approval.capture_response:
        return completed("")
    return completed(comment if trim(comment) else "Approved")


def reject(approval: Approval, reason: str = "Rejected", rejections: int = 0) -> Answer:
    """Return the consequence when a person does not let the work go on.

    Args:
        approval: The approval.
        reason: Words of the rejection; ``$REJECTION_REASON`` of the text that is worked on then.
        rejections: Number of earlier rejections of this approval.

    Returns:
        The decision if the approval offers it; else what to work on before asking again;
        else that the run ends: at once if there is nothing to work on, and with the last
        rejection that is allowed.
    """
    if any(decision.id == "reject" for decision in approval.decisions):
        return completed({"decision": "reject", "text": reason})
    rework = approval.on_reject
    if rework is None or rejections + 1 >= rework.max_attempts:
        return Refused(reason)
    return Rework(rework.text)


def fails_when_rejected(approval: Approval, dialect: Dialect) -> bool:
    """Return True if a rejection is the node's failure, and not the end of the run.

    Args:
        approval: The approval.
        dialect: Family whose rules hold.
    """
    offers_no = any(decision.id == "reject" for decision in approval.decisions)
    return dialect == "ion" and approval.on_reject is None and not offers_no


def respond(approval: Approval, decision: str, text: str = "") -> Output:
    """Return the output of an approval that offers decisions, of which a person took one.

    Raises:
        NoSuchDecision: If it does not offer this one.
    """
    offered = [offer.id for offer in approval.decisions]
    if decision not in offered:
        raise NoSuchDecision(
            f"Decision '{decision}' is not offered here. Offered: {', '.join(offered) or 'none'}."
        )
    return completed({"decision": decision, "text": text})


def asks_after_turn(loop: Loop | Group, *, is_over: bool, was_answered: bool) -> bool:
    """Return True if a person is asked after a turn of a loop. A plain yes to a turn that was the
    last ends the loop.

    Args:
        loop: The loop, or group.
        is_over: True if this turn was the last by the loop's own rules.
        was_answered: True if a person has answered this loop before.

    Returns:
        True for each turn of an interactive loop that was not the last. True for the last one, too,
        if no person has answered so far, unless the loop lets its signal decide.
    """
    if not loop.interactive:
        return False
    return not is_over or not (loop.signal_completes or was_answered)
