"""Shared parts of updates: build the query, and read the answer."""

from __future__ import annotations

import uuid
from typing import Any, Generic, TypeVar

from pgflow._client.handles import Outcome
from pgflow._db.calls import updates as calls
from pgflow._db.query import Query
from pgflow._flow.updates import BoundUpdate, UpdateHandler, read_reply
from pgflow._model.envelopes import is_hiding
from pgflow._model.exceptions import ErrorClasses

R = TypeVar("R")


def bound(
    handler: UpdateHandler[Any, R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BoundUpdate[R]:
    """An update with its arguments, and an id: so it can be sent again."""
    return BoundUpdate(handler, args, kwargs, handler.update_id or str(uuid.uuid4()))


def update_query(outcome: Outcome[Any], update: BoundUpdate[Any]) -> Query[calls.Sent]:
    """Return the query that sends an update."""
    handler = update.handler
    text = handler.encode_args(update.args, update.kwargs, is_hidden=is_hiding(outcome.envelopes))
    if outcome.envelopes is not None:
        what = f"the arguments of update {handler.name}"
        text = outcome.envelopes.seal_compared(text, what, update.update_id)
    return calls.send_update(outcome.key, handler.name, text, update.update_id)


class Reply(Generic[R]):
    """Reader of the answer to an update.

    Attributes:
        update_id: Id of the update.
    """

    def __init__(self, outcome: Outcome[Any], update: BoundUpdate[R]) -> None:
        self.update_id = update.update_id
        self._outcome = outcome
        self._handler = update.handler

    def __repr__(self) -> str:
        """As in logs."""
        return f"<{type(self).__name__} {self._handler.name} {self.update_id!r}>"

    def _query(self) -> Query[calls.Reply]:
        return calls.update_reply(self._outcome.key, self.update_id)

    def _read(self, reply: calls.Reply) -> R:
        """The handler's value, or the error that the answer raises."""
        outcome = self._outcome
        return read_reply(
            self._handler, outcome.key, reply, outcome.envelopes, ErrorClasses(*outcome.errors)
        )


def is_answered(reply: calls.Reply) -> bool:
    """Return True if an update has its answer."""
    return reply.status != "waiting"
