# Made by tools/colours.py from pgflow/_client/_async/gates.py; edit that one.
"""Answers to gates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pgflow._client._sync.mailbox import Mailbox
from pgflow._client.gates import Mapping, answer_query, opened_gate
from pgflow._db.calls import gates
from pgflow._model.gates import Answer


class Gates(Mailbox):
    """The part of a client that answers gates."""

    _mapping: Mapping

    def answer(
        self,
        gate: str,
        answer: Answer,
        *,
        by: str,
        payload_hash: str | None = None,
        valid_until: datetime | None = None,
        acting_as: Sequence[str] | None = None,
    ) -> None:
        """Answers a gate: the first answer that closes it counts.

        Args:
            gate: Key of the gate, as ``pgflow.gates`` shows it.
            answer: ``Approve()``, perhaps with an edit, ``Reject(reason)``, ``Escalate(to)`` or
                ``TakeOver(result)``.
            by: Name of whoever answers; ``app.approvers`` says what that one may.
            payload_hash: Hash of the request that was shown; the answer counts for that one only.
            valid_until: Time from which it does not count, on the database's clock; as a link says.
            acting_as: Roles of that one, where the app has no function ``approvers`` that says it.

        Raises:
            GateClosed: Somebody answered before, or the time is over; the error says who, when and
                what.
            NotAllowed: The gate asks others, ``app.approvers`` said no, or ``valid_until`` has
                passed.
            PayloadChanged: The gate asks something else than was shown.
            InvalidArgument: The edit does not fit what the gate asks for; the gate stays open.
            WrongState: The same person has approved before.
            RunNotFound: No open gate has the key.
            DefinitionError: ``app.approvers`` answered something else than it may.
        """
        roles = self._roles(gate, by)
        if self._mapping.hook is None and acting_as is not None:
            roles = list(acting_as)
        query = answer_query(gate, answer, by, roles, payload_hash, valid_until, self._envelopes)
        self._ask(query, wakes=True)

    def delegate_gate(self, gate: str, to: str, *, by: str, why: str = "") -> None:
        """Lets another answer a gate in place of one who may.

        Args:
            gate: Key of the gate.
            to: Name or role of the other.
            by: Name or role that the gate asks, in whose place the other stands.
            why: The reason, kept with the answers.

        Raises:
            NotAllowed: The gate does not ask that one.
            GateClosed: It takes no more answers.
            WrongState: Anybody may answer it, or the other may already, or ``by`` has approved.
            RunNotFound: No open gate has the key.
        """
        self._ask(gates.delegate_gate(gate, by, to, why), wakes=True)

    def _roles(self, gate: str, by: str) -> list[str] | None:
        """Ask the app which roles somebody has at a gate; None if it says nothing of that, or the
        gate takes no answers: the database tells why.
        """
        if self._mapping.hook is None:
            return None
        found = self._ask(gates.find_gate(gate))
        if found is None:
            return None
        said: Any = self._mapping.hook(opened_gate(self._envelopes, found), by)
        return self._mapping.read(said, found, by)
