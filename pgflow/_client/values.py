"""Values between a client and the database: what it says, as that is stored,
and what it reads, in clear.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pgflow._model.codecs import encode_by_class
from pgflow._model.envelopes import Envelopes, open_value
from pgflow._model.messages import Message


class _Unchanged:
    """The type of :data:`UNCHANGED`."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = _Unchanged()
"""In place of a result: leave the recorded one as it is. ``None`` is a result."""


def stored_value(
    envelopes: Envelopes | None, value: Any, what: str, about: str | None = None
) -> str:
    """Anything JSON that a client says, as it is stored.

    Args:
        envelopes: Those of the app.
        value: The value.
        what: Name of it in an error.
        about: Of a value that the database compares with others: what for.
    """
    text = encode_by_class(value, what)
    if envelopes is None:
        return text
    return (
        envelopes.seal(text, what) if about is None else envelopes.seal_compared(text, what, about)
    )


def stored_edit(envelopes: Envelopes | None, value: Any, about: str | None = None) -> str | None:
    """The result that is to stand in place of a recorded one; None if that is left as it is."""
    return (
        None if value is UNCHANGED else stored_value(envelopes, value, "the edited result", about)
    )


def stored_new_input(
    envelopes: Envelopes | None, value: dict[str, Any] | None, about: str | None = None
) -> str | None:
    """The input that is to stand in place of a recorded one; None if that is left as it is."""
    return None if value is None else stored_value(envelopes, value, "the input", about)


def opened(envelopes: Envelopes | None, found: list[Message]) -> list[Message]:
    """Messages with their payloads in clear."""
    return [
        replace(
            m, payload=open_value(envelopes, m.payload, f"message {m.message} of run {m.key!r}")
        )
        for m in found
    ]
