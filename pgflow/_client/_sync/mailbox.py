# Made by tools/colours.py from pgflow/_client/_async/mailbox.py; edit that one.
"""Client methods for messages that a run has not taken: list, drop, replace and requeue."""

from __future__ import annotations

from typing import Any

from pgflow._client._sync.rewind import Rewinds
from pgflow._client.values import opened, stored_value
from pgflow._db.calls import messages
from pgflow._model.messages import Message


class Mailbox(Rewinds):
    """Mailbox methods of a client."""

    def messages(self, key: str | None = None) -> list[Message]:
        """List the messages in mailboxes, and those that no run took.

        Args:
            key: Of this run; None for all.

        Raises:
            CodecError: A payload was encoded with a key that this app does not know.
        """
        return opened(self._envelopes, self._ask(messages.find_messages(key)))

    def drop_message(
        self, key: str, message: int, *, why: str = "dropped", by: str | None = None
    ) -> None:
        """Remove a message from the mailbox of a run. A run that is stuck on the message continues.

        Args:
            key: The run.
            message: Number of the message, from :meth:`messages`.
            why: The reason, kept with the message.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: The run has no such message.
            WrongState: A worker holds the run, or the message was set aside.
        """
        self._ask(messages.drop_message(key, message, why, sent_by=by), wakes=True)

    def replace_message(
        self, key: str, message: int, payload: Any, *, why: str = "replaced", by: str | None = None
    ) -> None:
        """Replace the payload of a message in the mailbox of a run. A run that is stuck on the
        message continues.

        Args:
            key: The run.
            message: Number of the message, from :meth:`messages`.
            payload: New payload: anything JSON that the type of its signal reads.
            why: The reason, kept with the original message.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: The run has no such message.
            WrongState: A worker holds the run, or the message was set aside.
        """
        stored = stored_value(self._envelopes, payload, "the payload of a signal")
        self._ask(messages.replace_message(key, message, stored, why, sent_by=by), wakes=True)

    def requeue_message(
        self,
        key: str,
        message: int,
        *,
        to: str | None = None,
        why: str = "requeued",
        by: str | None = None,
    ) -> int:
        """Send a message again, behind the others of its name. A run that is stuck on the message
        continues.

        Args:
            key: The run that it was for.
            message: Number of the message, from :meth:`messages`.
            to: Key of the run to send it to; None for the same run.
            why: The reason, kept in the run's history.
            by: Name of the person or service that asks.

        Returns:
            The new number of the message.

        Raises:
            RunNotFound: The run has no such message.
            WrongState: A worker holds the run, or the receiving run has ended.
        """
        sent = self._ask(messages.requeue_message(key, message, to, why, sent_by=by), wakes=True)
        return sent.message_id
