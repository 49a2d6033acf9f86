# Made by tools/colours.py from pgflow/_client/_async/mailbox.py; edit that one.
"""Messages that a run has not taken: listing them, and mending what its code could not take."""

from __future__ import annotations

from typing import Any

from pgflow._client._sync.rewind import Rewinds
from pgflow._client.values import opened, stored_value
from pgflow._db.calls import messages
from pgflow._model.messages import Message


class Mailbox(Rewinds):
    """The part of a client that looks after messages."""

    def messages(self, key: str | None = None) -> list[Message]:
        """Lists the messages that wait in mailboxes, and those that no run took.

        Args:
            key: Of this run; None for all.

        Raises:
            CodecError: A payload was encoded with a key that this app does not know.
        """
        return opened(self._envelopes, self._ask(messages.find_messages(key)))

    def drop_message(
        self, key: str, message: int, *, why: str = "dropped", by: str | None = None
    ) -> None:
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

    def replace_message(
        self, key: str, message: int, payload: Any, *, why: str = "replaced", by: str | None = None
    ) -> None:
        """Gives a message in the mailbox of a run another payload;
        a run that is stuck for want of it goes on.

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
        """Sends a message again, behind the others of its name;
        a run that is stuck for want of it goes on.

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
        sent = self._ask(messages.requeue_message(key, message, to, why, sent_by=by), wakes=True)
        return sent.message_id
