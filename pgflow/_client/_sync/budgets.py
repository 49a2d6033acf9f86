# Made by tools/colours.py from pgflow/_client/_async/budgets.py; edit that one.
"""Client methods for pools: set, grant and revoke."""

from __future__ import annotations

from collections.abc import Mapping

from pgflow._client._sync.rewind import Rewinds
from pgflow._db.calls import budgets
from pgflow._model.budgets import Amount, Pool, amounts_of


class Budgets(Rewinds):
    """Budget methods of a client."""

    def set_pool(self, pool: Pool, *, why: str | None = None, by: str | None = None) -> None:
        """Create a pool, or set the limits of an existing one. Use it for pools that you do not
        know when you write the code, such as one for each user.

        Args:
            pool: The pool.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: No pool has the name of its parent.
            WrongState: It has another parent, or open calls have reserved more than a limit.
        """
        self._ask(budgets.set_pool(pool, why, by))

    def grant_budget(
        self,
        pool: str,
        amounts: Mapping[str, Amount],
        *,
        why: str | None = None,
        by: str | None = None,
    ) -> None:
        """Raise the limits of a pool for its current period.

        Args:
            pool: Its name.
            amounts: Amounts by unit, such as ``{"usd": 10}``, beyond its limits.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: The pool does not exist.
            InvalidArgument: It has no limit of a unit.
        """
        given = amounts_of(amounts, "grant_budget()")
        self._ask(budgets.grant_budget(pool, given, why, by), once=True)

    def revoke_pool(
        self, pool: str, *, why: str | None = None, by: str | None = None, restore: bool = False
    ) -> None:
        """Stop a pool, and every pool that draws on it, from admitting calls. Calls in progress
        continue.

        Args:
            pool: Its name.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.
            restore: True to admit calls again.

        Raises:
            RunNotFound: The pool does not exist.
        """
        self._ask(budgets.revoke_pool(pool, why, by, restore=restore))
