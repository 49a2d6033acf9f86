"""Messages that a run has not taken, in both colours: listing them, and mending what its code could not take.

A client is one of these; what it can do with a query is the client's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from pgflow._client.rewind import AsyncRewinds, Rewinds, stored_value
from pgflow._db.calls import messages
from pgflow._db.query import Query
from pgflow._model.envelopes import Envelopes, open_value
from pgflow._model.messages import Message

T = TypeVar("T")

PAYLOAD = "the payload of a signal"


def _opened(envelopes: Envelopes | None, found: list[Message]) -> list[Message]:
    """Messages with their payloads in clear."""
    return [replace(m, payload=open_value(envelopes, m.payload, f"message {m.message} of run {m.key!r}")) for m in found]


class Mailbox(Rewinds):
    """The part of a sync client that looks after messages."""

    def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        raise NotImplementedError

    def messages(self, key: str | None = None) -> list[Message]:
        """Lists the messages that wait in mailboxes, and those that no run took.

        Args:
            key: Of this run; None for all.

        Raises:
            CodecError: A payload was encoded with a key that this app does not know.
        """
        return _opened(self._envelopes, self._ask(messages.find_messages(key)))

    def drop_message(self, key: str, message: int, *, why: str = "dropped", by: str | None = None) -> None:
        """Takes a message out of the mailbox of a run; a run that is stuck for want of it goes on.

        Args:
            key: The run.
            message: The number of the message, as :meth:`messages` shows it.
            why: The reason, kept with the message.
            by: Name of whoever says so.

        Raises:
            RunNotFound: The run has no such message.
            WrongState: A worker holds the run, or the message was put aside.
        """
        self._ask(messages.drop_message(key, message, why, sent_by=by), wakes=True)

    def replace_message(self, key: str, message: int, payload: Any, *, why: str = "replaced", by: str | None = None) -> None:
        """Gives a message in the mailbox of a run another payload; a run that is stuck for want of it goes on.

        Args:
            key: The run.
            message: The number of the message, as :meth:`messages` shows it.
            payload: New payload: anything JSON that the type of its signal reads.
            why: The reason, kept with the message as it was.
            by: Name of whoever says so.

        Raises:
            RunNotFound: The run has no such message.
            WrongState: A worker holds the run, or the message was put aside.
        """
        stored = stored_value(self._envelopes, payload, PAYLOAD)
        self._ask(messages.replace_message(key, message, stored, why, sent_by=by), wakes=True)

    def requeue_message(self, key: str, message: int, *, to: str | None = None, why: str = "requeued", by: str | None = None) -> int:
        """Sends a message again, behind the others of its name; a run that is stuck for want of it goes on.

        Args:
            key: The run that it was for.
            message: The number of the message, as :meth:`messages` shows it.
            to: Key of the run that is to have it now; None for the same.
            why: The reason, kept in the run's history.
            by: Name of whoever says so.

        Returns:
            The number that it has now.

        Raises:
            RunNotFound: The run has no such message.
            WrongState: A worker holds the run, or the run that is to have it has ended.
        """
        return self._ask(messages.requeue_message(key, message, to, why, sent_by=by), wakes=True).message_id


class AsyncMailbox(AsyncRewinds):
    """The part of an async client that looks after messages; see :class:`Mailbox`."""

    async def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        raise NotImplementedError

    async def messages(self, key: str | None = None) -> list[Message]:
        """Lists the messages that wait in mailboxes, and those that no run took; see :meth:`Mailbox.messages`."""
        return _opened(self._envelopes, await self._ask(messages.find_messages(key)))

    async def drop_message(self, key: str, message: int, *, why: str = "dropped", by: str | None = None) -> None:
        """Takes a message out of the mailbox of a run; see :meth:`Mailbox.drop_message`."""
        await self._ask(messages.drop_message(key, message, why, sent_by=by), wakes=True)

    async def replace_message(self, key: str, message: int, payload: Any, *, why: str = "replaced", by: str | None = None) -> None:
        """Gives a message in the mailbox of a run another payload; see :meth:`Mailbox.replace_message`."""
        stored = stored_value(self._envelopes, payload, PAYLOAD)
        await self._ask(messages.replace_message(key, message, stored, why, sent_by=by), wakes=True)

    async def requeue_message(self, key: str, message: int, *, to: str | None = None, why: str = "requeued", by: str | None = None) -> int:
        """Sends a message again, behind the others of its name; see :meth:`Mailbox.requeue_message`."""
        return (await self._ask(messages.requeue_message(key, message, to, why, sent_by=by), wakes=True)).message_id
