"""Texts of somebody else, shown without what a terminal, a log or a page would obey.

Keys, labels, names and inputs come from anywhere. An escape sequence in one moves the cursor, a
reversal of the writing direction hides half of it,
and a newline makes a second line of a log out of one.
"""

from __future__ import annotations

import unicodedata

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"


def visible(text: str) -> str:
    """A text on one line with no character in it that a reader cannot see: no controls, no
    reversals, no halves of pairs.
    """
    return " ".join(printable(text).split())


def printable(text: str, *, keep: str = "") -> str:
    """The same without joining what spaces divide: each kind of space is one space.

    Args:
        text: Anything.
        keep: Characters that stay, as a newline may.
    """
    kept = text
    for char in keep:
        kept = kept.replace(char, "")
    if kept.isprintable():
        return text
    return "".join(char if char in keep else _seen(char) for char in text)


def _seen(char: str) -> str:
    if char.isspace():
        return " "
    is_hidden = unicodedata.category(char)[0] == "C" and char not in JOINERS
    return REPLACEMENT if is_hidden else char
