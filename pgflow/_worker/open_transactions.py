"""The transactions that bodies are in,
and the means to cut their connections while somebody waits on them.
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
    """For transactions whose connection nobody else needs."""


class _Open(NamedTuple):
    """A transaction that a body is in: since when, what cuts its connection, and what tells its
    provider that the body is left behind.
    """

    began_at: float
    cut: Callable[[], None]
    leave_behind: Callable[[], None] = _do_nothing


class OpenTransactions(Part):
    """See the module. A call is known here for as long as its transaction is open, by the last body
    that has begun one for it.
    """

    def __init__(self) -> None:
        self._known: dict[StepCall, _Open] = {}

    def begun(self, call: StepCall, transaction: Any) -> None:
        """An async body's transaction is open."""
        self._known[call] = _Open(time.monotonic(), lambda: _cut(transaction))

    def ended(self, call: StepCall) -> None:
        """It is open no more."""
        del self._known[call]

    def cords(self, call: StepCall, transaction: Any) -> Cords:
        """Return the context around what a body in a thread does in its transaction."""
        return Cords(self._known, call, transaction)

    def leave_behind(self, call: StepCall) -> None:
        """Nobody waits for the body any more: it will not commit,
        and what it has locked is free for the next.
        """
        known = self._known.get(call)
        if known is not None:
            known.leave_behind()
            known.cut()

    def leave(self, left_at: float) -> None:
        """Another server is the primary since then: transactions of the old one are lost, and their
        bodies run again.
        """
        for transaction in list(self._known.values()):
            if transaction.began_at < left_at:
                transaction.cut()


class Cords:
    """Means to cut a transaction's connection while its thread waits on it, for as long as the
    transaction is open.

    Args:
        known: Calls under which it is put down, with the time at which the transaction began.
        call: Of the step.
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
        """Return the cord of its connection now; None if its provider does not tell the socket."""
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
            # A body that was left behind comes back when the next try has long begun.
            self._known.pop(self._call, None)
        if self._cord is not None:
            self._cord.close()

    def __exit__(self, *_: object) -> None:
        self._close()


def _cut(transaction: Any) -> None:
    fileno = transactions.socket_of(transaction)
    if fileno is not None:
        cut(fileno)
