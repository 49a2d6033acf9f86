# Made by tools/colours.py from pgflow/_client/_async/budgets.py; edit that one.
"""Pools that runs draw on: setting them, granting more, and revoking them."""

from __future__ import annotations

from collections.abc import Mapping

from pgflow._client._sync.rewind import Rewinds
from pgflow._db.calls import budgets
from pgflow._model.budgets import Amount, Pool, amounts_of


class Budgets(Rewinds):
    """The part of a client that looks after budgets."""

    def set_pool(self, pool: Pool, *, why: str | None = None, by: str | None = None) -> None:
        """Makes a pool, or sets its limits anew: for pools that are not known when the code is
        written, such as one for each user.

        Args:
            pool: The pool.
            why: The reason, kept with the change.
            by: Name of whoever says so.

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
        """Allows more of a pool in its current period.

        Args:
            pool: Its name.
            amounts: Amounts by unit, such as ``{"usd": 10}``, beyond its limits.
            why: The reason, kept with the change.
            by: Name of whoever says so.

        Raises:
            RunNotFound: There is no such pool.
            InvalidArgument: It has no limit of a unit.
        """
        given = amounts_of(amounts, "grant_budget()")
        self._ask(budgets.grant_budget(pool, given, why, by), once=True)

    def revoke_pool(
        self, pool: str, *, why: str | None = None, by: str | None = None, restore: bool = False
    ) -> None:
        """Has a pool, and every pool that draws on it, admit nothing from now on; what is under way
        goes on.

        Args:
            pool: Its name.
            why: The reason, kept with the change.
            by: Name of whoever says so.
            restore: True to let it admit again.

        Raises:
            RunNotFound: There is no such pool.
        """
        self._ask(budgets.revoke_pool(pool, why, by, restore=restore))
