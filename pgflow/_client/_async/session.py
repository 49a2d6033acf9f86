"""Interface of the session, as a client's handles need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pgflow._db.calls import result
from pgflow._db.query import Query
from pgflow._model.durations import Duration

T = TypeVar("T")


class AsyncSession(Protocol):
    """See the module."""

    async def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """Run a query. With ``wakes``, it sends a message and returns the chains to wake."""

    async def wait(self, key: str, chain_id: int, timeout: Duration | None) -> result.Ended:
        """Wait until a chain has ended."""

    async def wait_for(
        self,
        what: str,
        chain_id: int,
        query: Query[T],
        is_there: Callable[[T], bool],
        timeout: Duration | None,
    ) -> T | result.Ended:
        """Ask until an answer is there, after each news of the chain; or until the chain is stuck
        or gone.
        """
