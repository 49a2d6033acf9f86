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
    """Gate methods of a client."""

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
        """Answer a gate. The first answer that closes it counts.

        Args:
            gate: Key of the gate, as ``pgflow.gates`` shows it.
            answer: ``Approve()``, perhaps with an edit, ``Reject(reason)``, ``Escalate(to)`` or
                ``TakeOver(result)``.
            by: Name of the approver; ``app.approvers`` decides on their roles.
            payload_hash: Hash of the request that the approver saw. The answer counts for that
                request only.
            valid_until: Expiry of the answer, by the database's clock. Links set it.
            acting_as: Roles of the approver, if the app has no ``approvers`` function.

        Raises:
            GateClosed: The gate was answered before, or has expired. The error names the approver,
                the time and the answer.
            NotAllowed: The gate asks others, ``app.approvers`` refused, or ``valid_until`` has
                passed.
            PayloadChanged: The request has changed since the approver saw it.
            InvalidArgument: The edit does not fit what the gate asks for; the gate stays open.
            WrongState: The same person has already approved.
            RunNotFound: No open gate has the key.
            DefinitionError: ``app.approvers`` returned an invalid value.
        """
        roles = self._roles(gate, by)
        if self._mapping.hook is None and acting_as is not None:
            roles = list(acting_as)
        query = answer_query(gate, answer, by, roles, payload_hash, valid_until, self._envelopes)
        self._ask(query, wakes=True)

    def delegate_gate(self, gate: str, to: str, *, by: str, why: str = "") -> None:
        """Delegate a gate: let another approver answer in place of ``by``.

        Args:
            gate: Key of the gate.
            to: Name or role of the new approver.
            by: Name or role of the approver who delegates.
            why: The reason, kept with the answers.

        Raises:
            NotAllowed: The gate does not ask ``by``.
            GateClosed: The gate is closed.
            WrongState: Anybody may answer the gate, ``to`` may already, or ``by`` has approved.
            RunNotFound: No open gate has the key.
        """
        self._ask(gates.delegate_gate(gate, by, to, why), wakes=True)

    def _roles(self, gate: str, by: str) -> list[str] | None:
        """Ask the app for the roles of an approver at a gate. Return None if the app has no such
        function, or if the gate is closed: the database then raises the error.
        """
        if self._mapping.hook is None:
            return None
        found = self._find(gates.find_gate(gate))
        if found is None:
            return None
        roles: Any = self._mapping.hook(opened_gate(self._envelopes, found), by)
        return self._mapping.read(roles, found, by)
