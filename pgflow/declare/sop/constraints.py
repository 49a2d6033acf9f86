"""The rules of an SOP: the bullets under ``**Constraints:**``, each with its RFC 2119 level and its
reason.

A rule is one bullet of the outermost list, with everything under it. Its level is the first keyword
of its own sentence; the keywords of nested bullets only count where that sentence has none. Words
in back-ticks are quotations, not orders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from pgflow.declare.sop.page import MARKER, Item, Label, Page, between

Level = Literal["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"]

_LEVELS: Final[dict[str, Level]] = {
    "MUST": "MUST", "REQUIRED": "MUST", "SHALL": "MUST",
    "MUST NOT": "MUST NOT", "MUST NEVER": "MUST NOT",
    "SHALL NOT": "MUST NOT", "SHALL NEVER": "MUST NOT", "NEVER": "MUST NOT",
    "SHOULD": "SHOULD", "RECOMMENDED": "SHOULD",
    "SHOULD NOT": "SHOULD NOT", "SHOULD NEVER": "SHOULD NOT", "NOT RECOMMENDED": "SHOULD NOT",
    "MAY": "MAY", "OPTIONAL": "MAY",
}  # fmt: skip
_KEYWORD: Final = re.compile(
    r"\b(?:(?:MUST|SHALL|SHOULD) (?:NOT|NEVER)|NOT "
    r"RECOMMENDED|MUST|REQUIRED|SHALL|SHOULD|RECOMMENDED|MAY|OPTIONAL|NEVER)\b"
)
_REASON: Final = re.compile(
    r"(?:\b[Bb]ecause\b|\bsince\b(?! (?:(?:the )?last|then)\b)|\bas\b(?= "
    r"(?:this|that|these|those|it|they|doing)\b)"
    r"|, as\b(?! (?:well|an?|the)\b)|\bdue to\b|(?=\bto (?:avoid|prevent)\b)|(?=\bso that\b))[ "
    r":,]*(?P<reason>.+)"
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_QUOTED: Final = re.compile(r"(`{1,3}).+?\1", re.DOTALL)
_NESTED: Final = re.compile(r"\s*(?:$|```|~~~|(?:[-*+]|\d{1,9}[.)]) )")
_MARKS: Final = re.compile(r"\*\*|__")


@dataclass(frozen=True, slots=True)
class Rule:
    """A bullet under a label of constraints: lines ``start`` to ``end``,
    without its own marker in ``text``.
    """

    start: int
    end: int
    column: int
    text: str
    level: Level | None
    because: str

    @property
    def is_negative(self) -> bool:
        """True for what is not to be done."""
        return self.level in ("MUST NOT", "SHOULD NOT")


@dataclass(frozen=True, slots=True)
class Block:
    """A label of constraints and its rules, lines ``start`` to ``end``."""

    start: int
    end: int
    column: int
    rules: tuple[Rule, ...]

    @property
    def in_order(self) -> tuple[Rule, ...]:
        """The rules, the strictest first.
        One that names no level stays with the rule it follows.
        """
        ranked, rank = [], 0
        for rule in self.rules:
            rank = _rank(rule.level) if rule.level else rank
            ranked.append((rank, rule))
        return tuple(rule for _, rule in sorted(ranked, key=lambda pair: pair[0]))


def is_constraints(label: Label) -> bool:
    """True for a label whose bullets are constraints on the work."""
    return label.name.startswith("constraint")


def is_acquisition(label: Label) -> bool:
    """Return True if a label among the parameters has bullets on how to get them."""
    return is_constraints(label) or "acquisition" in label.name


def read_block(page: Page, label: Label, end: int) -> Block:
    """Return the rules under a label.

    Args:
        page: The file.
        label: Label at which they begin.
        end: The line before which they end at the latest: the next label, heading, or the end of
            the file.

    Returns:
        The block. It ends early, before a line of running text that follows its list.
    """
    items = between(page.items, label.line + 1, end)
    if not items:
        return Block(label.line, end, label.column, tuple(_inline_rule(label)))
    end = next((number for number in range(items[0].end, end) if page.plain(number)), end)
    items = between(items, 0, end)
    ends = [item.line for item in items[1:]] + [end]
    return Block(
        label.line,
        end,
        label.column,
        tuple(_rule(page, item, until) for item, until in zip(items, ends, strict=True)),
    )


def read_blocks(
    page: Page, start: int, end: int, wanted: Callable[[Label], bool]
) -> Iterator[Block]:
    """Yield the blocks of constraints between two lines, each up to the next label or heading."""
    labels = between(page.labels, start, end)
    stops = sorted(
        {label.line for label in labels}
        | {heading.line for heading in between(page.headings, start, end)}
        | {end}
    )
    following = dict(pairwise(stops))
    for label in labels:
        if wanted(label):
            yield read_block(page, label, following[label.line])


def read_rule(text: str) -> tuple[Level | None, str]:
    """Return the level of a rule and the reason it gives, from its text without a marker."""
    own, nested = _sentence(text)
    level = next(_levels(own), None) or next(_levels(nested), None)
    return level, _reason(own)


def _inline_rule(label: Label) -> Iterator[Rule]:
    """Yield the rule on the line of the label itself, if it has one."""
    level, because = read_rule(label.rest)
    if level:
        yield Rule(label.line, label.line + 1, label.column, label.rest, level, because)


def _rule(page: Page, item: Item, until: int) -> Rule:
    """Return a rule with what follows it at the margin: an example in a fence ends the list for
    Markdown, not for its author.
    """
    end = next(
        (number + 1 for number in range(until - 1, item.end - 1, -1) if page.lines[number].strip()),
        item.end,
    )
    text = without_marker(page.lines[item.line : end])
    return Rule(item.line, end, item.column, text, *read_rule(text))


def without_marker(lines: tuple[str, ...]) -> str:
    """Return the text of a list item, its marker and its indent taken away."""
    found = MARKER.match(lines[0])
    width = len(found[0]) if found else 0
    rest = (line[min(width, len(line) - len(line.lstrip(" "))) :] for line in lines[1:])
    return "\n".join([lines[0][width:], *rest]).strip()


def _sentence(text: str) -> tuple[str, str]:
    """Return a rule's own words as one line, and the text nested in it."""
    lines = text.split("\n")
    cut = next(
        (number for number, line in enumerate(lines) if number and _NESTED.match(line)), len(lines)
    )
    return " ".join(" ".join(lines[:cut]).split()), "\n".join(lines[cut:])


def _levels(text: str) -> Iterator[Level]:
    for found in _KEYWORD.finditer(_MARKS.sub("", _QUOTED.sub(" ", text))):
        yield _LEVELS[found[0]]


def _reason(sentence: str) -> str:
    found = _REASON.search(sentence)
    return _SENTENCE_END.split(found["reason"], maxsplit=1)[0].strip() if found else ""


def _rank(level: Level) -> int:
    return {"MUST": 0, "MUST NOT": 0, "SHOULD": 1, "SHOULD NOT": 1, "MAY": 2}[level]
