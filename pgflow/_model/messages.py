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
        message: The number of the message, by which `pgflow messages` knows it.
        ended_as: Status of the run that had ended, so that nobody takes the message; None while it
            is open. Mail that an ended run did not take is kept in ``pgflow.undelivered_messages``,
            and is the run's again if that is rewound or restarted.
        is_new: False if the message had been sent before under its idempotency key: it is that one,
            and nothing was sent now.
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
        state: ``waiting`` in the mailbox; or put aside: the run had ``ended``, or somebody
            ``dropped`` or ``replaced`` it.
        sent_at: Time of sending.
        sent_by: Sender: the name that was given, with the role of the session in brackets.
        why: Of one that waits, why the run's code could not take it; of one that was put aside, the
            reason that was given.
    """

    key: str
    message: int
    signal: str
    payload: Any
    state: Literal["waiting", "ended", "dropped", "replaced"]
    sent_at: datetime
    sent_by: str | None
    why: str | None
