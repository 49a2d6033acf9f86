"""Answers to gates: build the query, and read the roles that the app gives an approver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pgflow._client.values import stored_value
from pgflow._db.calls import gates
from pgflow._db.calls.mail import Sent
from pgflow._db.query import Query
from pgflow._model.envelopes import Envelopes, open_value
from pgflow._model.gates import Answer, OpenGate, answer_parts
from pgflow.errors import DefinitionError, InvalidArgument, NotAllowed

Hook = Callable[[OpenGate, str], bool | Iterable[str]]
"""Function of an app: takes a gate and a name, and returns True, False or roles."""


@dataclass
class Mapping:
    """Mapping of names to roles, declared by an app."""

    hook: Hook | None = None

    def declare(self, hook: Hook) -> None:
        """Register the app's function.

        Raises:
            DefinitionError: The app already has one.
        """
        if self.hook is not None:
            raise DefinitionError("app.approvers is already set: an app has one such function")
        self.hook = hook

    def read(self, said: Any, gate: OpenGate, by: str) -> list[str]:
        """Return the roles from the app's function. If it returned True, they are those that the
        gate asks.

        Raises:
            NotAllowed: The function refused.
            DefinitionError: The function returned an invalid value.
        """
        if said is True:
            return list(gate.approvers)
        if said is False or said is None:
            raise NotAllowed(f"{by!r} may not answer gate {gate.gate}: app.approvers refused")
        if isinstance(said, str) or not isinstance(said, Iterable):
            raise DefinitionError(f"app.approvers must return True, False or roles, not {said!r}")
        roles = list(said)
        if not all(isinstance(role, str) for role in roles):
            raise DefinitionError(f"app.approvers must return roles as texts, not {roles!r}")
        return roles


def answer_query(
    gate: str,
    answer: Answer,
    by: str,
    roles: list[str] | None,
    payload_hash: str | None,
    valid_until: datetime | None,
    envelopes: Envelopes | None,
) -> Query[Sent]:
    """Return the query that sends an answer."""
    if not isinstance(answer, Answer):
        raise InvalidArgument(
            f"an answer must be Approve(), Reject(), Escalate() or TakeOver(), not {answer!r}"
        )
    verdict, value, has_value, reason, hand_to = answer_parts(answer)
    text = stored_value(envelopes, value, f"the value of an answer to gate {gate!r}")
    return gates.answer_gate(
        gate,
        verdict,
        payload_hash,
        text if has_value else None,
        reason,
        by,
        roles,
        hand_to,
        valid_until,
    )


def opened_gate(envelopes: Envelopes | None, gate: OpenGate) -> OpenGate:
    """Return a gate with its request decoded."""
    what = f"the request of gate {gate.gate!r}"
    return replace(gate, request=open_value(envelopes, gate.request, what))
