"""Names as the database takes them."""

from __future__ import annotations

from typing import TypeGuard


def is_name(text: object) -> TypeGuard[str]:
    """Return True if the database can hold this as a name:
    1 to 255 bytes, no NUL, no half of a character.
    """
    try:
        return isinstance(text, str) and 1 <= len(text.encode()) <= 255 and "\0" not in text
    except UnicodeEncodeError:
        return False
