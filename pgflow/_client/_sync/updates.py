# Made by tools/colours.py from pgflow/_client/_async/updates.py; edit that one.
"""Updates that were sent to a run, for whoever waits for the answer."""

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
        """Waits for the answer, and returns what the handler returned.

        Args:
            timeout: Longest time to wait. The update stays where it is.

        Raises:
            UpdateFailed: The handler raised; its error is the ``__cause__``.
            UpdateRejected: The validator raised, or there is no such handler: nothing was done.
            UpdateRefused: The run ended before it was answered.
            RunStuck: The run cannot go on without a person.
            RunNotFound: There is no such run or update.
            TimeoutError: There is no answer in time.
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
