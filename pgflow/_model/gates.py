"""Gates: answers to them, the verdicts that code gets, and requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

R_co = TypeVar("R_co", covariant=True)

OnTimeout = Literal["expire", "reject", "escalate", "approve"]
"""Verdict of a gate that timed out."""


class Said:
    """Answers of people, and the timeout, as codes; ``sql/ledgers/gates.sql``."""

    APPROVE: Final = "approve"
    REJECT: Final = "reject"
    ESCALATE: Final = "escalate"
    TAKE_OVER: Final = "take_over"
    EXPIRE: Final = "expire"


# ---------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Approved(Generic[R_co]):
    """A gate was approved.

    Attributes:
        value: The request, with the edits of the approvers.
        by: Names of the approvers; empty if the timeout approved it.
        edited: True if an approver edited the request or brought the value.
    """

    value: R_co
    by: tuple[str, ...] = ()
    edited: bool = False


@dataclass(frozen=True)
class Rejected:
    """A gate was rejected.

    Attributes:
        reason: The reason given; ``timeout`` if the timeout rejected it.
        by: Name of the person who rejected it; empty if the timeout did.
    """

    reason: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class Escalated:
    """A gate was escalated to another approver.

    Attributes:
        to: Name of the new approver; after a timeout, the last ones asked.
    """

    to: str


@dataclass(frozen=True)
class Expired:
    """A gate expired without an answer."""


@dataclass(frozen=True)
class TakenOver:
    """A person did the work of a gate themselves. It must not be done again.

    Attributes:
        result: Result of the work, as JSON.
        by: Name of the person who did it.
    """

    result: Any
    by: tuple[str, ...]


# ---------------------------------------------------------------- answers


@dataclass(frozen=True)
class Approve:
    """Answer to a gate: go ahead.

    Attributes:
        edit: Value in place of the request; None leaves it as it is.
        comment: A reason, kept with the answer.
    """

    edit: Any = None
    comment: str = ""


@dataclass(frozen=True)
class Reject:
    """Answer to a gate: do not. One is enough, however many must approve.

    Attributes:
        reason: The reason, for the code.
    """

    reason: str


@dataclass(frozen=True)
class Escalate:
    """Answer to a gate: another approver must decide.

    Attributes:
        to: Name of that approver, for the code.
        comment: A reason, kept with the answer.
    """

    to: str
    comment: str = ""


@dataclass(frozen=True)
class TakeOver:
    """Answer to a gate: I have done it myself.

    Attributes:
        result: Result of the work, as JSON.
        comment: A reason, kept with the answer.
    """

    result: Any = None
    comment: str = ""


Answer = Approve | Reject | Escalate | TakeOver
"""Answer to a gate."""


@dataclass(frozen=True)
class GateRequest:
    """Message to the ``notify`` step of a gate.

    Attributes:
        id: Key of the gate, by which it is answered.
        name: Name of the gate.
        run_key: Key of the run.
        request: The request.
        payload_hash: Its hash, by which an answer is bound to it.
    """

    id: str
    name: str
    run_key: str
    request: Any
    payload_hash: str = ""


def answer_parts(answer: Answer) -> tuple[str, Any, bool, str, str | None]:
    """Return an answer as the database takes it: its code, value, whether it has one, reason, and
    to whom it is handed on.
    """
    match answer:
        case Approve(edit=edit, comment=comment):
            return Said.APPROVE, edit, edit is not None, comment, None
        case Reject(reason=reason):
            return Said.REJECT, None, False, reason, None
        case Escalate(to=to, comment=comment):
            return Said.ESCALATE, None, False, comment, to
        case TakeOver(result=result, comment=comment):
            return Said.TAKE_OVER, result, True, comment, None


@dataclass(frozen=True)
class OpenGate:
    """A gate that waits for an answer, as the function of ``app.approvers`` gets it.

    Attributes:
        gate: Its key.
        key: Key of the run.
        workflow: Name of its workflow.
        name: Name of the gate.
        approvers: Names or roles that it asks now; empty = anybody.
        request: The request.
        payload_hash: Its hash.
    """

    gate: str
    key: str
    workflow: str
    name: str
    approvers: list[str]
    request: Any
    payload_hash: str
