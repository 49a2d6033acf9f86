"""Messages to runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pgflow._model.kinds import EndedAs


@dataclass(frozen=True)
class Delivery:
    """Result of sending a signal.

    Attributes:
        message: Number of the message, as in ``pgflow messages``.
        ended_as: Status of the run if it had ended and will not take the message; None while it is
            open. The message is kept in ``pgflow.undelivered_messages``, and goes to the run if
            that is rewound or restarted.
        is_new: False if the message was sent before under its idempotency key. Nothing was sent
            now.
    """

    message: int
    ended_as: EndedAs | None = None
    is_new: bool = True

    @property
    def is_delivered(self) -> bool:
        """True if the message is in the mailbox of an open run."""
        return self.ended_as is None


@dataclass(frozen=True)
class Message:
    """A signal that no run has taken.

    Attributes:
        key: The run that it is for.
        message: The number of the message.
        signal: Name of the signal.
        payload: Its payload.
        state: ``waiting`` in the mailbox; or set aside: ``ended`` because the run had ended,
            ``dropped`` or ``replaced``.
        sent_at: Time of sending.
        sent_by: Name of the sender, with the role of the session in brackets.
        why: Reason why the run's code could not take a waiting message, or why it was set aside.
    """

    key: str
    message: int
    signal: str
    payload: Any
    state: Literal["waiting", "ended", "dropped", "replaced"]
    sent_at: datetime
    sent_by: str | None
    why: str | None
