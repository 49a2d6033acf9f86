"""The shape of a stage's contract as text: headings, and below them tables, lists and paragraphs,
each with its line.

markdown-it-py finds the blocks, because a Markdown library knows best where a table, a list or a
fenced example begins and ends (a table inside a fence or a comment is an example, not a
declaration). The cells of a table are split here: the library silently pads short rows and cuts
long ones, and does not accept a table whose ruler does not fit its header. Nothing that an author
wrote may be lost, so such rows are kept and reported as malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_PIPE = re.compile(r"(?<!\\)\|")
_RULER = re.compile(r"\|?(\s*:?-+:?\s*\|)*\s*:?-+:?\s*\|?")
_CONDITIONAL = re.compile(r"\{\{[?/][^{}]*\}\}")


@cache
def _parser() -> MarkdownIt:
    """Return the parser: the texts of blocks are read as they are written."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: its cells by the header's names in small letters,
    and what is odd about it.
    """

    cells: dict[str, str]
    line: int
    column: int
    oddity: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a list with what is nested in it. ``number`` is what an ordered list shows."""

    text: str
    line: int
    column: int
    number: int | None = None
    children: tuple[Item, ...] = ()

    @property
    def whole(self) -> str:
        """The item's text and that of everything nested in it, in one line."""
        return " ".join([self.text, *(child.whole for child in self.children)])


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, a paragraph, a table or a list."""

    kind: Literal["heading", "paragraph", "table", "list"]
    line: int
    text: str = ""
    level: int = 0
    header: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    items: tuple[Item, ...] = ()
    oddity: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """The blocks of a file from top to bottom."""

    blocks: tuple[Block, ...] = field(default=())

    @property
    def title(self) -> Block | None:
        """The first heading, if it is of the first level."""
        first = next((b for b in self.blocks if b.kind == "heading"), None)
        return first if first is not None and first.level == 1 else None

    def headings(self) -> Iterator[Block]:
        """Return every heading but the title."""
        title = self.title
        alone = sum(b.kind == "heading" and b.level == 1 for b in self.blocks) == 1
        return (b for b in self.blocks if b.kind == "heading" and not (b is title and alone))

    def section(self, names: frozenset[str]) -> tuple[Block, tuple[Block, ...]] | None:
        """Return the first section whose heading is one of the names: its heading and its blocks,
        those of subsections too.
        """
        heading = next((h for h in self.headings() if h.text.casefold() in names), None)
        if heading is None:
            return None
        below = self.blocks[self.blocks.index(heading) + 1 :]
        end = next(
            (n for n, b in enumerate(below) if b.kind == "heading" and b.level <= heading.level),
            len(below),
        )
        return heading, below[:end]

    def introduction(self) -> str:
        """Return the first paragraph below the title."""
        for block in self.blocks:
            if block.kind == "paragraph" and not _CONDITIONAL.fullmatch(block.text):
                return block.text
            if block.kind == "heading" and block.level > 1:
                break
        return ""


def parse(text: str, first_line: int = 1) -> Document:
    """Read a Markdown text.

    Args:
        text: The text, with line feeds at the ends of lines.
        first_line: The number of its first line in the file.

    Returns:
        Its blocks; fenced and indented code, quotations and HTML are left out.
    """
    lines = text.split("\n")
    tokens = _parser().parse(text)
    return Document(tuple(_blocks(tokens, lines, first_line)))


def _blocks(tokens: Sequence[Token], lines: list[str], first: int) -> Iterator[Block]:
    """Yield the blocks of the outermost level."""
    for place, token in enumerate(tokens):
        if token.level != 0 or token.map is None:
            continue
        start, end = token.map
        if token.type == "heading_open":
            yield Block(
                "heading", start + first, tokens[place + 1].content.strip(), int(token.tag[1:])
            )
        elif token.type == "paragraph_open":
            yield _paragraph(tokens[place + 1].content, lines[start:end], start + first)
        elif token.type == "table_open":
            yield _table(lines[start:end], start + first)
        elif token.type in {"bullet_list_open", "ordered_list_open"}:
            yield Block("list", start + first, items=_items(tokens, place, lines, first))


def _paragraph(content: str, lines: list[str], line: int) -> Block:
    """Return a paragraph, or the table that it was meant to be."""
    if len(lines) > 1 and all(text.lstrip().startswith("|") for text in lines):
        return _table(
            lines,
            line,
            "is not a Markdown table: its second line must have one `---` for each column",
        )
    return Block("paragraph", line, " ".join(content.split()))


def _table(lines: list[str], line: int, oddity: str = "") -> Block:
    """Return a table with all its rows, well formed or not."""
    header = tuple(_plain(cell).casefold() for cell in split_cells(lines[0]))
    body = [
        (number, text)
        for number, text in enumerate(lines[1:], line + 1)
        if not _RULER.fullmatch(text.strip())
    ]
    rows = tuple(_row(header, text, number) for number, text in body)
    return Block("table", line, header=header, rows=rows, oddity=oddity)


def _row(header: tuple[str, ...], text: str, line: int) -> Row:
    """Return a row whose cells are as many as the header's: what is too much stays in the last
    one.
    """
    cells = split_cells(text)
    oddity = (
        ""
        if len(cells) == len(header)
        else f"row has {len(cells)} cells, its header has {len(header)}"
    )
    if len(cells) > len(header):
        cells = [*cells[: len(header) - 1], " | ".join(cells[len(header) - 1 :])]
    cells += [""] * (len(header) - len(cells))
    return Row(_by_name(header, cells), line, len(text) - len(text.lstrip()) + 1, oddity)


def _by_name(header: tuple[str, ...], cells: list[str]) -> dict[str, str]:
    """Return cells by their header. A header that appears twice keeps both."""
    named: dict[str, str] = {}
    for name, cell in zip(header, cells, strict=True):
        named[name] = f"{named[name]} {cell}".strip() if name in named else cell
    return named


def split_cells(text: str) -> list[str]:
    """Return the cells of a line of a table: between bars that no backslash protects."""
    inner = text.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.strip().replace("\\|", "|") for cell in _PIPE.split(inner)]


def _plain(text: str) -> str:
    """Return a header without emphasis."""
    return text.strip("*_` ")


def _items(tokens: Sequence[Token], opening: int, lines: list[str], first: int) -> tuple[Item, ...]:
    """Return the items of the list that opens there."""
    level, found, place = tokens[opening].level, [], opening + 1
    while tokens[place].level > level:
        if tokens[place].type == "list_item_open" and tokens[place].level == level + 1:
            found.append(_item(tokens, place, lines, first))
        place += 1
    return tuple(found)


def _item(tokens: Sequence[Token], opening: int, lines: list[str], first: int) -> Item:
    """One item: its paragraphs in one line, and the lists in it."""
    token, place = tokens[opening], opening + 1
    texts: list[str] = []
    children: list[Item] = []
    while tokens[place].level > token.level:
        inside = tokens[place]
        if inside.type == "inline" and inside.level == token.level + 2:
            texts.append(" ".join(inside.content.split()))
        elif (
            inside.type in {"bullet_list_open", "ordered_list_open"}
            and inside.level == token.level + 1
        ):
            children.extend(_items(tokens, place, lines, first))
        place += 1
    start = token.map[0] if token.map else 0
    column = len(lines[start]) - len(lines[start].lstrip()) + 1
    number = int(token.info) if token.info.isascii() and token.info.isdigit() else None
    return Item(" ".join(texts), start + first, column, number, tuple(children))
