"""A Markdown file as an SOP's reader sees it: its headings, labels, list items and table rows, each
with its place.

What is a heading and what is the text of an example is Markdown's question, not ours: fences in
lists, longer fences around shorter ones, tildes, indented code and comments all hide lines that
look like structure. So a CommonMark parser sorts the lines, with everything inside a line left
alone, and what the sorted lines mean is decided one layer up. Two rules of CommonMark are set
aside, because they are not what authors of SOPs mean: a line above ``---`` is not a heading, and a
bold label at the left margin ends the list item before it.
"""

from __future__ import annotations

import re
from bisect import bisect, bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MARKER: Final = re.compile(r"( *)([-*+]|\d{1,9}[.)])(?: +|$)")
"""Beginning of a list item: its indent, and its bullet or number."""

_LABEL: Final = re.compile(r"( {0,3})(\*\*|__)(?P<name>[^*_\s].*?)\2(?P<after>.*)")
_PLAIN_LABEL: Final = re.compile(r"( {0,3})(?P<name>Constraints):\s*", re.IGNORECASE)
_CLOSING_FENCE: Final = re.compile(r"[ >]*(`{3,}|~{3,})\s*")
_KEY: Final = re.compile(r"[A-Za-z_][\w-]*\s*:|#")
_GLUED_HEADING: Final = re.compile(r"#{2,6}[^\s#]")


@cache
def _parser() -> MarkdownIt:
    """Return the parser, which only runs of other files do without."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").disable(["inline", "lheading", "reference"])


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading at the top level of the file. Lines count from 0 here."""

    line: int
    level: int
    title: str
    column: int


@dataclass(frozen=True, slots=True)
class Label:
    """A line such as ``**Constraints:**``: what follows is of that kind,
    up to the next label or heading.
    """

    line: int
    name: str
    rest: str
    column: int


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a list that is in no other list: its lines ``line`` to ``end``, without the blank
    ones at the end.
    """

    line: int
    end: int
    column: int


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, the cells by the names of their columns."""

    line: int
    column: int
    cells: dict[str, str]


Placed = TypeVar("Placed", Heading, Label, Item, Row)


@dataclass(frozen=True, slots=True)
class Page:
    """The lines of a file and what they are.

    ``hidden`` are lines whose words are an example's or a comment's; ``inside`` are lines that
    belong to a list item.
    """

    lines: tuple[str, ...]
    headings: tuple[Heading, ...]
    labels: tuple[Label, ...]
    items: tuple[Item, ...]
    rows: tuple[Row, ...]
    hidden: frozenset[int]
    inside: frozenset[int]
    unclosed: tuple[int, ...]
    glued: tuple[int, ...]
    front_matter: int

    def text(self, start: int, end: int) -> str:
        """Return the lines from ``start`` to ``end``, without blank ones at either side."""
        return "\n".join(self.lines[start:end]).strip("\n").rstrip()

    def plain(self, number: int) -> bool:
        """True for a line of running text: neither blank, nor of an example, nor of a list."""
        return (
            bool(self.lines[number].strip())
            and number not in self.hidden
            and number not in self.inside
        )


def read_page(text: str) -> Page:
    """Return the structure of a Markdown text whose lines end in line feeds."""
    lines = tuple(text.split("\n"))
    skipped = _front_matter(lines)
    tokens = _parser().parse("\n".join(("",) * skipped + lines[skipped:]))
    hidden = frozenset(_hidden(tokens))
    headings = tuple(_headings(tokens, lines))
    items = tuple(_items(tokens, lines))
    labels = tuple(_labels(lines, skipped, hidden, items, headings))
    items = _cut(items, labels)
    return Page(
        lines=lines,
        headings=tuple(heading for heading in headings if not _is_constraints(heading)),
        labels=labels,
        items=items,
        rows=tuple(_rows(tokens, lines)),
        hidden=hidden,
        inside=frozenset(number for item in items for number in range(item.line, item.end)),
        unclosed=tuple(_unclosed(tokens, lines)),
        glued=tuple(
            n
            for n, line in enumerate(lines)
            if n >= skipped and n not in hidden and _GLUED_HEADING.match(line)
        ),
        front_matter=skipped,
    )


def between(things: Sequence[Placed], start: int, end: int) -> Sequence[Placed]:
    """Return the items, which are sorted by line, on the lines from ``start`` up to but without
    ``end``.
    """
    line = attrgetter("line")
    return things[bisect_left(things, start, key=line) : bisect_left(things, end, key=line)]


def after(things: Sequence[Placed], line: int) -> Iterator[Placed]:
    """Yield the items, which are sorted by line, after a line."""
    return islice(things, bisect(things, line, key=attrgetter("line")), None)


def last_before(things: Sequence[Placed], line: int) -> Placed | None:
    """Return the last of a page's things that begins before a line."""
    place = bisect_left(things, line, key=attrgetter("line"))
    return things[place - 1] if place else None


def bare(text: str) -> str:
    """Return a title or a name without the marks around all of it."""
    text = text.strip()
    for mark in ("**", "__", "*", "_", "`"):
        inner = text.removeprefix(mark).removesuffix(mark)
        if len(inner) == len(text) - 2 * len(mark) and mark not in inner:
            text = inner.strip()
    return text


def name_of(text: str) -> str:
    """Return a heading or a label as it is compared: without marks, colon and capitals."""
    return bare(bare(text).rstrip(":")).casefold()


def _front_matter(lines: tuple[str, ...]) -> int:
    """Return the number of lines of a YAML block at the head of the file, its fences included."""
    if lines[0].rstrip() != "---" or len(lines) < 2 or not _KEY.match(lines[1]):
        return 0
    return next(
        (
            number + 1
            for number, line in enumerate(lines)
            if number and line.rstrip() in ("---", "...")
        ),
        0,
    )


def _span(token: Token) -> tuple[int, int]:
    assert token.map is not None, "block tokens know their lines"
    return token.map[0], token.map[1]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _hidden(tokens: list[Token]) -> Iterator[int]:
    for token in tokens:
        if token.type in ("fence", "code_block", "html_block"):
            yield from range(*_span(token))


def _headings(tokens: list[Token], lines: tuple[str, ...]) -> Iterator[Heading]:
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0:
            line = _span(token)[0]
            yield Heading(line, int(token.tag[1]), bare(inline.content), _indent(lines[line]) + 1)


def _items(tokens: list[Token], lines: tuple[str, ...]) -> Iterator[Item]:
    for token in tokens:
        if token.type == "list_item_open" and token.level == 1:
            start, end = _span(token)
            while end > start + 1 and not lines[end - 1].strip():
                end -= 1
            yield Item(start, end, _indent(lines[start]) + 1)


def _cut(items: tuple[Item, ...], labels: tuple[Label, ...]) -> tuple[Item, ...]:
    """Return the items, each ending before a label that CommonMark takes for the rest of its
    sentence.
    """
    return tuple(
        replace(
            item,
            end=min(item.end, next((label.line for label in after(labels, item.line)), item.end)),
        )
        for item in items
    )


def _is_constraints(heading: Heading) -> bool:
    """True for ``#### Constraints``: some write the label as a heading."""
    return heading.level > 2 and name_of(heading.title).startswith("constraints")


def _labels(
    lines: tuple[str, ...],
    skipped: int,
    hidden: frozenset[int],
    items: tuple[Item, ...],
    headings: tuple[Heading, ...],
) -> Iterator[Label]:
    inside = {number for item in items for number in range(item.line, item.end)}
    written_as_headings = {
        heading.line: heading for heading in headings if _is_constraints(heading)
    }
    for number, line in enumerate(lines):
        if (heading := written_as_headings.get(number)) is not None:
            yield Label(number, name_of(heading.title), "", heading.column)
        elif number >= skipped and number not in hidden:
            label = _label(number, line)
            if label is not None and (
                number not in inside or label.column == 1
            ):  # deeper ones belong to their item
                yield label


def _label(number: int, line: str) -> Label | None:
    """Return the label on a line: bold, with a colon or nothing else on the line."""
    found = _LABEL.fullmatch(line) or _PLAIN_LABEL.fullmatch(line)
    if found is None:
        return None
    name, after = found["name"], (found.groupdict().get("after") or "").strip()
    if not (name.endswith(":") or after.startswith(":") or not after):
        return None
    return Label(number, name_of(name), after.removeprefix(":").strip(), len(found[1]) + 1)


def _rows(tokens: list[Token], lines: tuple[str, ...]) -> Iterator[Row]:
    columns: list[str] = []
    cells: list[str] = []
    line = 0
    for place, token in enumerate(tokens):
        match token.type:
            case "tr_open":
                cells, line = [], _span(token)[0]
            case "th_open" | "td_open":
                cells.append(tokens[place + 1].content.strip())
            case "thead_close":
                columns = [name_of(cell) for cell in cells]
            case "tr_close" if columns:
                yield Row(line, _indent(lines[line]) + 1, dict(zip(columns, cells, strict=False)))
            case "table_close":
                columns = []


def _unclosed(tokens: list[Token], lines: tuple[str, ...]) -> Iterator[int]:
    """Yield the lines of fences that nothing closes: all that follows them is theirs."""
    for token in tokens:
        if token.type == "fence":
            start, end = _span(token)
            closing = _CLOSING_FENCE.fullmatch(lines[end - 1]) if end - 1 > start else None
            if closing is None or not closing[1].startswith(token.markup):
                yield start
