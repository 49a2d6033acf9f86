"""Texts as they can be drawn: harmless, of a known width, and broken into lines that fit.

The reader's font is unknown, so no font is read here. A width is that of DejaVu Sans or wider, the
widest of the usual sans serif fonts, so that a box made for it holds the text in Helvetica, Segoe
UI or San Francisco as well.
"""

from __future__ import annotations

import unicodedata
from html import escape

from pgflow.texts import JOINERS

ELLIPSIS = "…"

MONOSPACED_EM = 0.61
"""Menlo, Consolas, DejaVu Sans Mono and Liberation Mono are 0.55 to 0.602 em wide."""

_EM = {
    **dict.fromkeys("iljI|!.,:;'`", 0.34),
    **dict.fromkeys(' "()[]{}/\\-*frt', 0.47),
    **dict.fromkeys("mwMW@%", 1.01),
    **dict.fromkeys("#+<=>^~", 0.85),
}


def markup(text: str) -> str:
    """Return a text as content or attribute of XML."""
    return escape(text, quote=True)


def width_of(text: str, size_px: float, *, monospaced: bool = False, bold: bool = False) -> float:
    """Return the room in pixels that a text may take."""
    em = sum(_char_em(char, MONOSPACED_EM if monospaced else None) for char in text)
    return em * size_px * (1.08 if bold and not monospaced else 1.0)


def _char_em(char: str, fixed: float | None) -> float:
    if char in JOINERS or unicodedata.category(char) in ("Mn", "Me"):
        return 0.0
    if unicodedata.east_asian_width(char) in "WF":
        return 1.25  # an emoji may be wider than a square
    if fixed is not None:
        return fixed if char.isascii() else 1.05
    return _EM.get(char, 0.65 if char.isascii() and not char.isupper() else 0.8)


def shorten(
    text: str, room_px: float, size_px: float, *, monospaced: bool = False, bold: bool = False
) -> str:
    """Return the text, or as much of its beginning as there is room for, and an ellipsis."""
    if (
        width_of(text[:400], size_px, monospaced=monospaced, bold=bold) <= room_px
        and len(text) <= 400
    ):
        return text
    room = room_px - width_of(ELLIPSIS, size_px, monospaced=monospaced, bold=bold)
    taken = 0.0
    for number, char in enumerate(text):
        taken += width_of(char, size_px, monospaced=monospaced, bold=bold)
        if taken > room:
            return text[:number].rstrip() + ELLIPSIS
    return text


def wrap(
    text: str, room_px: float, size_px: float, *, lines: int, monospaced: bool = False
) -> list[str]:
    """Return the text broken between words into so many lines at most; what does not fit ends in an
    ellipsis.
    """
    words = text.split()
    broken: list[str] = []
    while words and len(broken) < lines - 1:
        taken = _words_that_fit(words, room_px, size_px, monospaced=monospaced)
        broken.append(shorten(" ".join(words[:taken]), room_px, size_px, monospaced=monospaced))
        words = words[taken:]
    if words:
        broken.append(shorten(" ".join(words), room_px, size_px, monospaced=monospaced))
    return broken


def _words_that_fit(words: list[str], room_px: float, size_px: float, *, monospaced: bool) -> int:
    """Return the number of first words that fit on a line: one in any case."""
    used = 0.0
    for number, word in enumerate(words):
        used += width_of(f" {word}" if number else word, size_px, monospaced=monospaced)
        if number and used > room_px:
            return number
    return len(words)
