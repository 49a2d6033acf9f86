# Made by tools/colours.py from pgflow/_client/_async/updates.py; edit that one.
"""Handles of updates that were sent to a run."""

from __future__ import annotations

from typing import Any, TypeVar

from pgflow._client._sync.session import Session
from pgflow._client.handles import Outcome
from pgflow._client.updates import Reply, is_answered
from pgflow._db.calls import result
from pgflow._flow.updates import BoundUpdate
from pgflow._model.durations import Duration

R = TypeVar("R")


class SentUpdate(Reply[R]):
    """Handle of an update that was sent.

    Attributes:
        update_id: Its id: the same update, sent again under it, gets the same answer.
    """

    def __init__(self, session: Session, outcome: Outcome[Any], update: BoundUpdate[R]) -> None:
        super().__init__(outcome, update)
        self._session = session

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the answer and return the handler's value.

        Args:
            timeout: Longest time to wait. The update itself is not affected.

        Raises:
            UpdateFailed: The handler raised an error, which is the ``__cause__``.
            UpdateRejected: The validator raised, or the handler does not exist. Nothing was done.
            UpdateRefused: The run ended before it answered.
            RunStuck: The run cannot go on without a person.
            RunNotFound: The run or the update does not exist.
            TimeoutError: No answer arrived within ``timeout``.
        """
        key = self._outcome.key
        reply = self._session.ask(self._query())
        if not is_answered(reply):
            chain_id = self._session.ask(result.find_chain(key))
            what = f"update {self.update_id!r} of run {key!r}"
            found = self._session.wait_for(what, chain_id, self._query(), is_answered, timeout)
            if isinstance(found, result.Ended):
                self._outcome.check_end(found)
                raise AssertionError(f"{what} is waited for, and run {key!r} is {found.status}")
            reply = found
        return self._read(reply)
