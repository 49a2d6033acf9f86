"""Readable forms of recorded values and errors.

Values that a codec has encoded stay encoded in the database, and readers here have no keys. So a
placeholder replaces each such part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgflow._model.blobs import blob_words
from pgflow._model.envelopes import is_redacted, key_of
from pgflow._model.reasons import in_words


def encoded(value: dict[str, Any]) -> str:
    """Return the words for a value that the codec of an app has encoded, or that was redacted; an
    empty text for others.
    """
    if is_redacted(value):
        return f"<redacted, sha256 {value['redacted'][:12]}...>"
    return f"<encoded with key {key_of(value)}>" if "$codec" in value and "data" in value else ""


def readable(value: Any) -> Any:
    """Return a value with words in place of each part that the codec of an app has encoded, and of
    each large value; and without the names of the fields that its models were not given.
    """
    if isinstance(value, dict):
        return (
            encoded(value)
            or blob_words(value)
            or {
                name: readable(part)
                for name, part in value.items()
                if name != "$pgflow" or not isinstance(part, list)
            }
        )
    return [readable(part) for part in value] if isinstance(value, list) else value


def describe_error(payload: Any) -> str:
    """Return a recorded error on one line: ``ValueError: no 7``.

    Args:
        payload: The error of a run, step or effect as a row has it,
            or the payload of a unit that records one.
    """
    if not isinstance(payload, dict):
        return str(payload)
    if "reason" in payload or "why" in payload:  # of an effect whose outcome is unknown
        return f"unknown: {in_words(payload)}" + (
            f" ({describe_error(payload['error'])})" if payload.get("error") else ""
        )
    name = str(payload.get("type") or "error").rpartition(".")[2]
    message = encoded(payload) or " ".join(str(payload.get("message") or "").split())
    return f"{name}: {message}" if message else name


def describe_reason(payload: Mapping[str, Any]) -> str:
    """Return the reason that an outcome of an effect was recorded with, in words."""
    return in_words(payload)
