"""The open transactions of bodies, and the means to cut their connections while a thread or task
waits on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from pgflow._db.deadlines import Cord, cut
from pgflow._engine.calls import StepCall
from pgflow._transactions import protocol as transactions
from pgflow._worker.parts import Part


def _do_nothing() -> None:
    """Leave-behind callback for transactions whose connection is not shared."""


class _Open(NamedTuple):
    """An open transaction of a body: its start, the function that cuts its connection, and the one
    that notifies its provider of an abandoned body.
    """

    began_at: float
    cut: Callable[[], None]
    leave_behind: Callable[[], None] = _do_nothing


class OpenTransactions(Part):
    """Tracks the open transaction of each call: the one that its last body has begun."""

    def __init__(self) -> None:
        self._known: dict[StepCall, _Open] = {}

    def begun(self, call: StepCall, transaction: Any) -> None:
        """Track the transaction of an async body."""
        self._known[call] = _Open(time.monotonic(), lambda: _cut(transaction))

    def ended(self, call: StepCall) -> None:
        """Stop tracking the transaction of an async body."""
        del self._known[call]

    def cords(self, call: StepCall, transaction: Any) -> Cords:
        """Return a context that tracks the transaction of a body in a thread."""
        return Cords(self._known, call, transaction)

    def leave_behind(self, call: StepCall) -> None:
        """Cut the transaction of an abandoned body: it cannot commit, and its locks are free for
        the next attempt.
        """
        known = self._known.get(call)
        if known is not None:
            known.leave_behind()
            known.cut()

    def leave(self, left_at: float) -> None:
        """Cut transactions on the old primary. They are lost, and their bodies run again."""
        for transaction in list(self._known.values()):
            if transaction.began_at < left_at:
                transaction.cut()


class Cords:
    """Cuts a transaction's connection while its thread waits on it, for as long as the transaction
    is open.

    Args:
        known: Open transactions by call; this one is entered with its start time.
        call: Call of the step.
        transaction: May change its connection until its first statement has been executed.
    """

    def __init__(self, known: dict[StepCall, _Open], call: StepCall, transaction: Any) -> None:
        self._known = known
        self._call = call
        self._transaction = transaction
        self._began = time.monotonic()
        self._cord: Cord | None = None
        self._connection: Any = None
        self._open: _Open | None = None

    def __enter__(self) -> Self:
        self.current()
        return self

    def current(self) -> Cord | None:
        """Return the cord of the current connection; None if its provider does not expose the
        socket.
        """
        connection = getattr(self._transaction, "driver_connection", None)
        if self._cord is None or connection is not self._connection:
            fileno = transactions.socket_of(self._transaction)
            if fileno is not None:
                self._close()
                self._cord, self._connection = Cord(fileno), connection
                left = getattr(self._transaction, "leave_behind", _do_nothing)
                self._open = self._known[self._call] = _Open(self._began, self._cord.cut, left)
        return self._cord

    def _close(self) -> None:
        if self._known.get(self._call) is self._open:
            # An abandoned body may return late: the entry of the next attempt must stay.
            self._known.pop(self._call, None)
        if self._cord is not None:
            self._cord.close()

    def __exit__(self, *_: object) -> None:
        self._close()


def _cut(transaction: Any) -> None:
    fileno = transactions.socket_of(transaction)
    if fileno is not None:
        cut(fileno)
