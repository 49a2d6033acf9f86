"""Locks: their holders, and the number of waiting runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgflow.inspect.listing import After, Listing, page
from pgflow.inspect.question import Question, select


@dataclass(frozen=True)
class LockRow:
    """A holder of a lock. A row of the view ``pgflow.locks``.

    Attributes:
        key: Name of the lock.
        fence: The number of this time that it was won: greater than that of every holder before.
        holder: Key of the run that holds it, or the name that plain code gave.
        is_shared: True if others may hold it too that share it.
        since: Time at which it was won.
        expires_at: Time at which it expires; None as long as its run holds it.
        waiters: Number of runs and of plain code that wait for it.
        run_id: The number of the run; None for plain code.
    """

    key: str
    fence: int
    holder: str
    is_shared: bool
    since: datetime
    expires_at: datetime | None
    waiters: int
    run_id: int | None


_LOCKS: LiteralString = select(LockRow, "from pgflow.locks where (%s::text is null or key = %s)")


def list_locks(
    key: str | None = None, *, after: After = None, limit: int | None = 50
) -> Question[Listing[LockRow]]:
    """Ask for a page of the holders of locks, in the order in which they won them.

    Args:
        key: Name of the lock; None for all.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    return page(LockRow, _LOCKS, (key, key), {"fence": int}, after, limit)
