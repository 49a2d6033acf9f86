"""The parameters of an SOP: ``- **name** (required|optional[, default: value]): description``, and
variants of it.

The original finds parameters with one regular expression, which misses back-ticked defaults,
closing brackets in defaults and further words after ``required``. Here the bracket is parsed: words
about whether the parameter is needed, perhaps a default, perhaps a note. Where no list declares
any, lines of that form without a bullet do, and rows of a table with a column for the name.

A default is a value where it looks like one: quoted text, ``true``, ``3``, ``none``. Other words
(``current directory``, ``same directory as plan_path``) are for the agent to understand, and reach
it unchanged; so do the names of other parameters in braces (``.agents/{project_name}``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from pgflow.declare.graph.problems import Problem
from pgflow.declare.sop.constraints import Block, without_marker
from pgflow.declare.sop.page import Item, Page, Row, bare, between, last_before, name_of

_NAME: Final = re.compile(
    r"(?:(\*\*|__)\s*`?(?P<bold>[^*`]+?)`?\s*:?\s*\1|`(?P<code>[^`]+)`|(?P<plain>[A-Za-z_][\w-]*)(?=\s*\())\s*"
)
_LINE: Final = re.compile(r"\*\*`?[\w.-]+`?\*\*\s*\([^)]*\b(?:required|optional)\b", re.IGNORECASE)
_ONE_WORD: Final = re.compile(r"[\w.-]+")
_SNAKE_CASE: Final = re.compile(r"[a-z][a-z0-9_]*")
_DEFAULT: Final = re.compile(
    r"(?:^|[\s,;(])defaults?\b\s*(?:to\b|is\b)?\s*[:=]?\s*(?P<value>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_CONDITION: Final = re.compile(
    r"\brequired\b(?:\s+\w+)?\s+(?:unless|if|when|except)\b|\b(?:if|when|unless)\b.*\brequired\b",
    re.IGNORECASE,
)
_NEEDED: Final = re.compile(r"(?P<not>\bnot\s+)?\b(?:required|mandatory|yes)\b|✅|✔", re.IGNORECASE)
_NUMBER: Final = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_QUOTES: Final = {'"': '"', "'": "'", "`": "`", "\u201c": "\u201d", "\u2018": "\u2019"}
_DASHES: Final = "-\u2013\u2014"
_BRACKET_LIMIT: Final = 2000
_WORDS: Final[dict[str, JsonValue]] = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as declared. ``default`` counts only with ``has_default``."""

    name: str
    required: bool
    default: JsonValue
    has_default: bool
    description: str
    line: int
    column: int


def read_parameters(
    page: Page, start: int, end: int, others: Iterable[Block], problems: list[Problem]
) -> Iterator[Parameter]:
    """Yield the parameters of a section.

    Args:
        page: The file.
        start: The section's heading.
        end: The line before which it ends.
        others: The blocks of it whose bullets are not parameters.
        problems: Gets what is doubtful.

    Returns:
        The parameters in their order.
    """
    spoken_for = {number for block in others for number in range(block.start, block.end)}
    items = [item for item in between(page.items, start, end) if item.line not in spoken_for]
    listed = [
        parameter
        for item in (*items, *(() if items else _lines(page, start, end, spoken_for)))
        if (parameter := _from_item(page, item, _group(page, start, item.line), problems))
        is not None
    ]
    yield from listed
    for row in between(page.rows, start, end) if not listed else ():
        if (parameter := _from_row(row, problems)) is not None:
            yield parameter


def _lines(page: Page, start: int, end: int, spoken_for: set[int]) -> Iterator[Item]:
    """Yield lines that declare a parameter without a bullet, each with the text below it."""
    begun = [
        number
        for number in range(start + 1, end)
        if number not in spoken_for and page.plain(number) and _LINE.match(page.lines[number])
    ]
    for number, following in zip(begun, (*begun[1:], end), strict=False):
        last = next((at for at in range(number, following) if not page.plain(at)), following)
        yield Item(number, last, 1)


def is_snake_case(name: str) -> bool:
    """True for a name in the form that the format asks for."""
    return _SNAKE_CASE.fullmatch(name) is not None


def _group(page: Page, start: int, line: int) -> str:
    """Return the heading or label above a list, which speaks of all its parameters:
    ``**Required:**``, ``### Optional``.
    """
    heading, label = last_before(page.headings, line), last_before(page.labels, line)
    if label is not None and label.line > max(start, heading.line if heading else 0):
        return label.name
    return name_of(heading.title) if heading is not None and heading.line > start else ""


def _from_item(page: Page, item: Item, group: str, problems: list[Problem]) -> Parameter | None:
    text = without_marker(page.lines[item.line : item.end])
    found = _NAME.match(text)
    name = bare(found["bold"] or found["code"] or found["plain"]).rstrip(":") if found else ""
    if found is None or not _ONE_WORD.fullmatch(name):
        problems.append(
            _doubt(
                item,
                "Not a parameter (format: - **name** (required|optional[, "
                "default: value]): description)",
            )
        )
        return None
    requirement, description = _bracket(text[found.end() :])
    return _parameter(name, requirement or group, description, item, problems)


def _from_row(row: Row, problems: list[Problem]) -> Parameter | None:
    columns = list(row.cells)
    named = _cell(row, "param", "name", "argument", "input")
    if named is None:
        return None
    name = bare(named)
    if not _ONE_WORD.fullmatch(name):
        problems.append(_doubt(row, f"Not a parameter: {name!r}"))
        return None
    requirement = _cell(row, "required", "optional") or ""
    default = _cell(row, "default") or ""
    if bare(default).strip(_DASHES):
        requirement += f", default: {default}"
    return _parameter(
        name,
        requirement,
        _cell(row, "description", "meaning", "purpose") or row.cells[columns[-1]],
        row,
        problems,
    )


def _cell(row: Row, *words: str) -> str | None:
    """Return the cell of the first column whose name has one of the words."""
    return next(
        (cell for column, cell in row.cells.items() if any(word in column for word in words)), None
    )


def _parameter(
    name: str, requirement: str, description: str, place: Item | Row, problems: list[Problem]
) -> Parameter:
    found = _DEFAULT.search(requirement)
    default, has_default = (_value(found["value"]), True) if found else (None, False)
    words = " ".join(
        (requirement[: found.start()] if found else requirement)[:_BRACKET_LIMIT].split()
    )
    needed = _NEEDED.search(words)
    required = needed is not None and not needed["not"] and not _CONDITION.search(words)
    if needed and _CONDITION.search(words):
        hint = "it is not asked for before the run; the prompts of the steps have the condition"
        problems.append(
            _doubt(place, f"Parameter '{name}' is required only under a condition: {words}", hint)
        )
        description = f"{description} ({words})".strip()
    elif not needed and "optional" not in words.casefold() and not has_default:
        hint = "it is taken as optional; write (required) or (optional)"
        problems.append(_doubt(place, f"Parameter '{name}' is neither required nor optional", hint))
    return Parameter(name, required, default, has_default, description, place.line, place.column)


def _bracket(text: str) -> tuple[str, str]:
    """Return the text in the brackets after a name, and the description after them."""
    if not text.startswith("("):
        return "", text.lstrip(_DASHES + ": ").strip()
    depth, closing = 0, ""
    for place, char in enumerate(text[:_BRACKET_LIMIT]):
        if closing:
            closing = "" if char == closing else closing
        elif char in '"`\u201c' and text.find(_QUOTES[char], place + 1, _BRACKET_LIMIT) > 0:
            closing = _QUOTES[char]
        elif char in "()":
            depth += 1 if char == "(" else -1
            if not depth:
                return text[1:place], text[place + 1 :].lstrip(_DASHES + ": ").strip()
    return "", text.strip()


def _value(text: str) -> JsonValue:
    """Return a default as a value. What follows a quoted one is a note about it."""
    text = text.strip()
    closing = _QUOTES.get(text[:1])
    if closing and closing in text[1:]:
        quoted = text[1 : text.index(closing, 1)]
        return _value(quoted) if closing == "`" else quoted
    if text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return " ".join(text.split())


def _doubt(place: Item | Row, message: str, hint: str = "") -> Problem:
    return Problem(message, place.line + 1, place.column, hint=hint, severity="warning")
