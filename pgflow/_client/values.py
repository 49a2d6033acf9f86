"""Values between a client and the database: encode arguments for storage, and open stored ones."""

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
    """Return a JSON value as it is stored.

    Args:
        envelopes: Envelopes of the app.
        value: The value.
        what: Name of it in an error.
        about: Purpose of the comparison, if the database compares the value with others.
    """
    text = encode_by_class(value, what)
    if envelopes is None:
        return text
    return (
        envelopes.seal(text, what) if about is None else envelopes.seal_compared(text, what, about)
    )


def stored_edit(envelopes: Envelopes | None, value: Any, about: str | None = None) -> str | None:
    """Return the result that replaces a recorded one; None if it stays unchanged."""
    return (
        None if value is UNCHANGED else stored_value(envelopes, value, "the edited result", about)
    )


def stored_new_input(
    envelopes: Envelopes | None, value: dict[str, Any] | None, about: str | None = None
) -> str | None:
    """Return the input that replaces a recorded one; None if it stays unchanged."""
    return None if value is None else stored_value(envelopes, value, "the input", about)


def opened(envelopes: Envelopes | None, found: list[Message]) -> list[Message]:
    """Return messages with their payloads in clear."""
    return [
        replace(
            m, payload=open_value(envelopes, m.payload, f"message {m.message} of run {m.key!r}")
        )
        for m in found
    ]
