"""Steps in which an agent talks to the user.

The format has no syntax for a question either: rules say "you MUST ask the user if ..." or "wait
for the user to decide". A step with such a line may ask, and goes on with the answer. Examples,
and prohibitions (``MUST NOT ask``), are no such lines.
"""

from __future__ import annotations

import re
from typing import Final

from pgflow.declare.sop.page import Page

_DOES: Final = (
    "ask(?:s|ing)?|prompt(?:s|ing)?|confirm(?:s|ing)?|wait(?:s|ing)?|engag(?:e|es|ing)"
    "|seek(?:s|ing)?|consult(?:s|ing)?|check(?:s|ing)?|present(?:s|ing)?|clarify(?:ing)?"
    "|discuss(?:es|ing)?|review(?:s|ing)?|request(?:s|ing)?|propos(?:e|es|ing)"
)
_GETS: Final = (
    "confirm(?:s|ation)?|approv(?:e|es|al)|respon(?:se|ses|d|ds)|answers?|input|feedback"
    "|guidance|direction|decides?|decision|chooses?|validation"
)
_ASKS: Final = re.compile(
    rf"\b(?:{_DOES})\b[^.\n]{{0,80}}\busers?\b|\busers?\b[^.\n]{{0,60}}\b(?:{_GETS})\b",
    re.IGNORECASE,
)
_NOT: Final = re.compile(r"\b(?:NOT|NEVER|without)\b")
_LINE_LIMIT: Final = 2000


def asking_lines(page: Page, start: int, end: int) -> list[int]:
    """Return the lines of a step that have its agent ask the user.

    Args:
        page: The file.
        start: The first line.
        end: The line after the last.
    """
    return [number for number in range(start, end) if _asks(page, number)]


def _asks(page: Page, number: int) -> bool:
    line = page.lines[number][:_LINE_LIMIT]
    found = None if number in page.hidden else _ASKS.search(line)
    return found is not None and _NOT.search(line, 0, found.end()) is None
