# Made by tools/colours.py from pgflow/_client/_async/obligations.py; edit that one.
"""Word of clients on obligations, whether their runs go on or have ended."""

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
        """Closes an obligation: it was done. Also the debt of an effect that a run ended by force
        has left uncompensated: somebody has taken it back.

        Args:
            obligation: The obligation, or its key.
            evidence: Proof that it was done; anything JSON.
            by: Name of whoever says so.

        Raises:
            RunNotFound: Nothing that is owed has the key.
            WrongState: It is the key of an effect that is to be settled.
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
        """Hands an obligation to somebody outside: it stays owed, and its run need not wait for it.

        Args:
            obligation: The obligation, or its key.
            to: Name of who holds it from now on.
            why: Reason for it.
            by: Name of whoever says so.

        Raises:
            RunNotFound: No open obligation has the key.
            InvalidArgument: Nobody is named.
        """
        query = obligations.transfer_obligation(key_of(obligation), to, why or None, by)
        self._ask(query, wakes=True)

    def waive(self, obligation: Obligation | str, *, by: str, why: str) -> None:
        """Closes an obligation that need not be done.

        Args:
            obligation: The obligation, or its key.
            by: Name of who says so.
            why: Reason for it.

        Raises:
            RunNotFound: No open obligation has the key.
            InvalidArgument: No reason is given.
        """
        self._ask(obligations.waive_obligation(key_of(obligation), why, by), wakes=True)
