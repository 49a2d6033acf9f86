"""Signals by which an agent ends a loop: a word, in tags around it, at the end of its output, or on
a line of its own.

The original takes the word at the end of the output even where it is the tail of another word, so
that "INCOMPLETE" ends a loop that waits for COMPLETE. Here a word begins where a word begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from pgflow.declare.text.javascript import SPACE, WHITE_SPACE, trim

_LINE_ENDS = "\n\r\u2028\u2029"
_BLANKS = WHITE_SPACE.translate({ord(end): None for end in _LINE_ENDS})
_AFTER_SIGNAL = WHITE_SPACE + ".,;:!?"
_CLOSING = rf"{SPACE}*</([a-zA-Z][a-zA-Z0-9_-]*)>"
_PROMISE = re.compile("<promise>", re.IGNORECASE)
_PROMISE_END = re.compile("</promise>", re.IGNORECASE)


def has_signal(output: str, signal: str) -> bool:
    """Return True if an output says that the work is done.

    Args:
        output: Text of the agent.
        signal: The word agreed upon. Case matters, except within tags (``<done>complete</done>``).

    Returns:
        True if the signal is wrapped in a pair of tags, ends the output (punctuation may follow),
        or has a line for itself.
    """
    return (
        next(_tagged(output, signal), None) is not None
        or _ends_with(output, signal)
        or _has_line(output, signal)
    )


def without_signal_tags(output: str, signal: str | None = None) -> str:
    """Return the output without ``<promise>…</promise>`` and without the signal in tags, trimmed.

    Args:
        output: Text of the agent.
        signal: The word agreed upon, if there is one.
    """
    rest = _without(output, _promises(output))
    return trim(_without(rest, _tagged(rest, signal)) if signal else rest)


def _without(text: str, spans: Iterator[tuple[int, int]]) -> str:
    """Return the text with the spans cut out."""
    cuts = [0, *(edge for span in spans for edge in span), len(text)]
    return "".join(text[start:end] for start, end in list(pairwise(cuts))[::2])


def _promises(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of promises, from tag to tag."""
    place = 0
    while (opening := _PROMISE.search(text, place)) and (
        closing := _PROMISE_END.search(text, opening.end())
    ):
        place = closing.end()
        yield opening.start(), place


def _tagged(text: str, signal: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the signal in a pair of tags of one name, from ``<`` to ``>``.

    An expression for this would be short and, on hostile text, slow: from each ``<`` it would look
    for a ``>`` to the end. So the signal and the closing tag are looked for first, and the opening
    tag backwards from there.
    """
    wrapped = re.compile(re.escape(signal) + _CLOSING, re.IGNORECASE)
    found, free = wrapped.search(text), 0
    while found:
        start = _opening_tag(text, found.start(), found[1], free)
        if start is None:
            found = wrapped.search(text, found.start() + 1)
            continue
        yield start, found.end()
        free = found.end()
        found = wrapped.search(text, free)


def _opening_tag(text: str, end: int, name: str, free: int) -> int | None:
    """Return the start of the tag ``<name …>`` right before ``end``, blanks aside; None if it is
    not there.
    """
    while end > free and text[end - 1] in WHITE_SPACE:
        end -= 1
    if end <= free or text[end - 1] != ">":
        return None
    start = max(text.rfind(">", free, end - 1) + 1, free)
    opening = re.compile(f"<{re.escape(name)}", re.IGNORECASE).search(text, start, end - 1)
    return opening.start() if opening else None


def _ends_with(output: str, signal: str) -> bool:
    """Return True if the signal is the last word, whatever punctuation follows."""
    end = len(output.rstrip(_AFTER_SIGNAL))
    at = output.rfind(signal)
    return at >= 0 and at + len(signal) >= end and _begins_word(output, at, signal)


def _begins_word(output: str, at: int, signal: str) -> bool:
    """Return True if the signal at that place is not the tail of a longer word."""
    return at == 0 or not (_is_word(output[at - 1]) and _is_word(signal[0]))


def _is_word(character: str) -> bool:
    """Return True if a character is part of words."""
    return character.isalnum() or character == "_"


def _has_line(output: str, signal: str) -> bool:
    """Return True if the signal has a line for itself, blanks aside."""
    at = output.find(signal)
    while at >= 0:
        if _is_line_edge(output, at - 1, -1) and _is_line_edge(output, at + len(signal), 1):
            return True
        at = output.find(signal, at + len(signal))
    return False


def _is_line_edge(output: str, place: int, step: int) -> bool:
    """Return True if there are only blanks from there to the line's edge."""
    while 0 <= place < len(output) and output[place] in _BLANKS:
        place += step
    return not 0 <= place < len(output) or output[place] in _LINE_ENDS
