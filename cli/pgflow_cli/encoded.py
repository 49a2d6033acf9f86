"""Values that the codec of an app has encoded, as people are shown them: no command knows the key, so each says which one does."""

from __future__ import annotations

from typing import Any


def encoded(value: dict[str, Any]) -> str:
    """Return the words for a value that the codec of an app has encoded; an empty text for others."""
    return f"<encoded with key {value['$codec']}>" if "$codec" in value and "data" in value else ""


def readable(value: Any) -> Any:
    """A value with a word in place of each part that the codec of an app has encoded."""
    if isinstance(value, dict):
        return encoded(value) or {name: readable(part) for name, part in value.items()}
    return [readable(part) for part in value] if isinstance(value, list) else value
