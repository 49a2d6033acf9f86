# Made by tools/colours.py from pgflow/_client/_async/obligations.py; edit that one.
"""Client methods for obligations of open and finished runs."""

from __future__ import annotations

from typing import Any

from pgflow._client._sync.mailbox import Mailbox
from pgflow._client.values import stored_value
from pgflow._db.calls import obligations
from pgflow._model.obligations import Obligation, key_of


class Obligations(Mailbox):
    """Closes obligations by their keys, which are in ``pgflow.obligations``."""

    def discharge(
        self, obligation: Obligation | str, evidence: Any = None, *, by: str | None = None
    ) -> None:
        """Close an obligation as done. This also closes the debt of an effect that a forced end
        left uncompensated, once it was undone by hand.

        Args:
            obligation: The obligation, or its key.
            evidence: Proof that it was done; anything JSON.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: No open obligation or debt has the key.
            WrongState: The key belongs to an effect: settle it instead.
        """
        text = (
            None
            if evidence is None
            else stored_value(self._envelopes, evidence, "the evidence of a discharge")
        )
        self._ask(obligations.discharge(key_of(obligation), text, by), wakes=True)

    def transfer(
        self, obligation: Obligation | str, to: str, *, why: str = "", by: str | None = None
    ) -> None:
        """Transfer an obligation to a person or party outside. It stays owed, but its run no longer
        waits for it.

        Args:
            obligation: The obligation, or its key.
            to: Name of the new holder.
            why: Reason for it.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: No open obligation has the key.
            InvalidArgument: ``to`` is empty.
        """
        query = obligations.transfer_obligation(key_of(obligation), to, why or None, by)
        self._ask(query, wakes=True)

    def waive(self, obligation: Obligation | str, *, by: str, why: str) -> None:
        """Close an obligation without discharging it.

        Args:
            obligation: The obligation, or its key.
            by: Name of the person or service that asks.
            why: Reason for it.

        Raises:
            RunNotFound: No open obligation has the key.
            InvalidArgument: No reason is given.
        """
        self._ask(obligations.waive_obligation(key_of(obligation), why, by), wakes=True)
