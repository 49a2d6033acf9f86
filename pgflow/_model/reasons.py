"""Reasons for unknown outcomes of effects: codes for the journal and for code that branches on
them, and their texts.

A unit ``effect_unknown`` has the code as ``reason``. Older journals have the text itself, as
``why``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


class Unknown:
    """The codes."""

    WORKER_LOST: Final = "worker_lost"
    RAISED: Final = "raised"
    CANCELLED_ITSELF: Final = "cancelled_itself"
    REFUSED: Final = "refused"
    """For acts that must be done, such as compensations, where a refusal is not final."""
    NOT_VERIFIED: Final = "not_verified"
    MISFIT: Final = "misfit"
    STILL_UNKNOWN: Final = "still_unknown"
    ASKING_FAILED: Final = "asking_failed"
    ABSENT_TOO_EARLY: Final = "absent_too_early"
    """Recorded by ``sql/ledgers/effects.sql``, as the next two."""
    ABSENT_WITHOUT_KEY: Final = "absent_without_key"
    KEY_EXPIRED: Final = "key_expired"
    PRECONDITION_FAILED: Final = "precondition_failed"
    EXPECTATION_FAILED: Final = "expectation_failed"
    NO_COMPENSATION: Final = "no_compensation"
    SILENT: Final = "silent"
    """Recorded by ``sql/ledgers/beats.sql``."""
    ACCEPTED: Final = "accepted"
    """The counterparty says of an effect that was silent that it still has it:
    beats count again.
    """
    ACCEPTED_ANEW: Final = "accepted_anew"


NOT_BEGUN: Final = "not_begun"
"""Reason of a unit ``effect_settled`` by which pgflow itself says
that an attempt has done nothing.
"""

WORDS: Final[dict[str, str]] = {
    Unknown.WORKER_LOST: "the worker was lost while it was under way",
    Unknown.RAISED: "it raised",
    Unknown.CANCELLED_ITSELF: "the body cancelled itself",
    Unknown.REFUSED: "it was refused, and must be done",
    Unknown.NOT_VERIFIED: "its verification does not find it",
    Unknown.MISFIT: "what it returned does not fit its annotation",
    Unknown.STILL_UNKNOWN: "the counterparty cannot say yet",
    Unknown.ASKING_FAILED: "asking failed",
    Unknown.ABSENT_TOO_EARLY: "absent, and asked too early to believe it",
    Unknown.ABSENT_WITHOUT_KEY: "absent, and without a key it cannot be tried again",
    Unknown.KEY_EXPIRED: "the counterparty may have forgotten the key",
    Unknown.PRECONDITION_FAILED: "its precondition does not hold any more, and an earlier attempt "
    "may have been done",
    Unknown.EXPECTATION_FAILED: "what it expects has changed, and an earlier attempt may have been "
    "done",
    Unknown.NO_COMPENSATION: "nothing is declared that takes it back: a person must",
    Unknown.SILENT: "it was accepted, and there was no sign of life in time",
    Unknown.ACCEPTED: "the counterparty still has it",
    Unknown.ACCEPTED_ANEW: "it is accepted under another reference",
    NOT_BEGUN: "its worker was too long out of touch to begin it",
}
"""Each code in words. A journal from before the codes has these:
one that is in use is never changed.
"""

_CODES = {words: code for code, words in WORDS.items()}


def reason_of(payload: Mapping[str, Any]) -> str:
    """Return the code of a recorded reason; empty if there is none."""
    return str(payload.get("reason") or _CODES.get(payload.get("why") or "", ""))


OWED_WORDS: Final[dict[str, str]] = {
    "breached": "it was due, and is owed all the same",
    "failed": "its run has failed, and owes it still",
    "cancelled": "its run was cancelled, and owes it still",
}
"""Texts of the reasons of pages about obligations."""


def debt_in_words(detail: Mapping[str, Any]) -> str:
    """Return the text of a page about an obligation: its reason, creditor and due time."""
    parts = [OWED_WORDS.get(detail.get("reason") or "", str(detail.get("reason") or ""))]
    parts += [f"to {detail['to']}"] if detail.get("to") else []
    parts += [f"due at {detail['due_at']}"] if detail.get("due_at") else []
    if detail.get("trouble"):
        parts.append(f"what was agreed on for a breach was refused (SQLSTATE {detail['trouble']})")
    return ", ".join(parts)


def in_words(payload: Mapping[str, Any]) -> str:
    """Return a recorded reason as text: the given one, else that of its code."""
    if payload.get("why"):
        return str(payload["why"])
    if payload.get("reason") == Unknown.SILENT and payload.get("heartbeat_timeout") is not None:
        return f"it was accepted, and sent no heartbeat for {payload['heartbeat_timeout']:g} s"
    return WORDS.get(payload.get("reason") or "", str(payload.get("reason") or ""))
