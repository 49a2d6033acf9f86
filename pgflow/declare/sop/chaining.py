"""Mentions of other SOPs in an SOP.

The format has no syntax for one SOP to start another: texts say "run `code-assist` on each task",
and the agent or its user does so. A mention is recorded as something that a step refers to, with
its line; it makes no edge and starts nothing. A mention is a file's name (``code-assist.sop.md``),
or the name of an SOP in the same directory in back-ticks, before the word SOP or script, or written
with its hyphens. A name of one plain word could be any word, and is not a mention.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pgflow.declare.graph.problems import Problem
from pgflow.declare.sop.page import Page
from pgflow.declare.suffixes import SOP_SUFFIXES

_FILE: Final = re.compile(
    r"(?<![\w/.{}*<>-])(?:\./)?(?P<name>[\w@.-]{1,100}?)(?P<suffix>\.(?:sop|script)\.md)\b"
)
_TICKED: Final = re.compile(r"`(?P<name>[\w@.-]{1,100})`")
_SPOKEN: Final = re.compile(r"(?<![\w/.`{-])(?P<name>[\w@-]{1,100})(?= (?:SOP|sop|script)\b)")
_HYPHENED: Final = re.compile(
    r"(?<![\w/.`{-])(?P<name>[A-Za-z0-9@]+(?:-[A-Za-z0-9@]+)+)(?![\w/-]|\.\w)"
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A place where an SOP names another one: the file it is, if that is known."""

    name: str
    file: str
    line: int
    column: int
    sentence: str


def stem(file: str) -> str:
    """Return the name of the SOP in a file: that of the file, without ``.sop.md``."""
    return next(
        (file.removesuffix(suffix) for suffix in (*SOP_SUFFIXES, ".md") if file.endswith(suffix)),
        file,
    )


def by_name(files: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """SOP files by the names of the SOPs, in small letters."""
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted(files):
        found[stem(file).casefold()] = (*found.get(stem(file).casefold(), ()), file)
    return found


def mentions(
    page: Page,
    lines: Iterable[int],
    own: Iterable[str],
    siblings: Mapping[str, tuple[str, ...]] | None,
    problems: list[Problem],
) -> Iterator[Mention]:
    """Yield the other SOPs that some lines name, each once.

    Args:
        page: The file.
        lines: The numbers of the lines.
        own: The names of the SOP itself, which do not count as a mention.
        siblings: The SOP files in its directory, as `by_name` has them; None if they are not known.
        problems: Gets names of files that are not there, and names that could be either of two.

    Returns:
        The mentions, examples left out.
    """
    seen = {name.casefold() for name in own}
    for number in lines:
        if number in page.hidden:
            continue
        for name, column, is_file in sorted(
            _names(page.lines[number], siblings or {}), key=lambda found: found[1]
        ):
            if name.casefold() in seen:
                continue
            seen.add(name.casefold())
            file = _file(name, siblings, number + 1, column, problems)
            if file or is_file:
                yield Mention(
                    name,
                    file or f"{name}{SOP_SUFFIXES[0]}",
                    number,
                    column,
                    page.lines[number].strip(),
                )


def _names(line: str, siblings: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, int, bool]]:
    """Names in a line, with their columns: those that are files' for certain, and those that a
    sibling has.
    """
    for found in _FILE.finditer(line):
        yield found["name"], found.start("name") + 1, True
    for pattern in (_TICKED, _SPOKEN, _HYPHENED):
        for found in pattern.finditer(line):
            if found["name"].casefold() in siblings:
                yield found["name"], found.start("name") + 1, False


def _file(
    name: str,
    siblings: Mapping[str, tuple[str, ...]] | None,
    line: int,
    column: int,
    problems: list[Problem],
) -> str | None:
    """Return the sibling of that name; report a problem if there are two, or none."""
    if siblings is None:
        return None
    alike = siblings.get(name.casefold(), ())
    files = tuple(file for file in alike if stem(file) == name) or alike
    if len(files) == 1:
        return files[0]
    message = (
        f"'{name}' could be {' or '.join(files)}"
        if files
        else f"SOP '{name}' is not in the same directory"
    )
    problems.append(
        Problem(
            message, line, column, hint="the step refers to it by name only", severity="warning"
        )
    )
    return None
