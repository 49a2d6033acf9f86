"""Parts of an answer to a gate that wait for nothing: how it is written, and what an app says of
whoever answers.
"""

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
"""Function of an app: of a gate and a name, whether that one may answer it, or in which roles."""


@dataclass
class Mapping:
    """Mapping of names to roles, as an app declares it."""

    hook: Hook | None = None

    def declare(self, hook: Hook) -> None:
        """Takes the function of the app.

        Raises:
            DefinitionError: There is one already.
        """
        if self.hook is not None:
            raise DefinitionError("the app says who approvers are: there is one function to ask")
        self.hook = hook

    def read(self, said: Any, gate: OpenGate, by: str) -> list[str]:
        """Return the roles that the app's function has named: those that the gate asks, if it just
        said yes.

        Raises:
            NotAllowed: The function said no.
            DefinitionError: The function answered something else.
        """
        if said is True:
            return list(gate.approvers)
        if said is False or said is None:
            raise NotAllowed(f"{by!r} may not answer gate {gate.gate}: so says app.approvers")
        if isinstance(said, str) or not isinstance(said, Iterable):
            raise DefinitionError(
                f"the function of app.approvers answers True, False or roles, not {said!r}"
            )
        roles = list(said)
        if not all(isinstance(role, str) for role in roles):
            raise DefinitionError(f"the roles of an approver are texts, not {roles!r}")
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
    """Return an answer on its way."""
    if not isinstance(answer, Answer):
        raise InvalidArgument(
            f"an answer is Approve(), Reject(), Escalate() or TakeOver(), not {answer!r}"
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
    """A gate with its request in clear."""
    what = f"the request of gate {gate.gate!r}"
    return replace(gate, request=open_value(envelopes, gate.request, what))
