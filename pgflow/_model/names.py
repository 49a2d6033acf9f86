"""Names as the database takes them."""

from __future__ import annotations


def is_name(text: str) -> bool:
    """Return True if the database can hold this as a name:
    1 to 255 bytes, no NUL, no half of a character.
    """
    try:
        return 1 <= len(text.encode()) <= 255 and "\0" not in text
    except UnicodeEncodeError:
        return False
