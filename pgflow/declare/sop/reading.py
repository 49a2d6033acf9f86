"""Reading a file to its verdict: bytes that may be anything,
then text, then the SOP, then its graph.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pgflow.declare.graph.problems import Problem, Verdict
from pgflow.declare.sop.chaining import stem
from pgflow.declare.sop.compiling import TooMuchText, compile_outline
from pgflow.declare.sop.lint import remarks
from pgflow.declare.sop.outline import read_outline
from pgflow.declare.sop.page import read_page
from pgflow.declare.sop.steps import NO_NUMBERED_STEPS
from pgflow.declare.suffixes import SOP_SUFFIXES

SIZE_LIMIT_BYTES: Final = 256 * 1024
"""An SOP is handed to a model, nearly all of it at every step. The largest known one has 95 KiB."""

LINE_LIMIT: Final = 20_000

_NO_TEXT: Final = re.compile(r"[\0\ud800-\udfff]")
_STEPS_LIMIT: Final = 1000
_SIBLINGS_LIMIT: Final = 10_000


def read_file(path: str | os.PathLike[str]) -> Verdict:
    """Read an Agent SOP and compile it.

    Other SOPs that it names are searched in its own directory.

    Args:
        path: The file: ``name.sop.md``, or ``name.script.md`` of the format's first versions.

    Returns:
        The graph, and remarks on what to fix; or the error.
    """
    file = os.fspath(path)
    content = _bytes(Path(path))
    text = content if isinstance(content, Problem) else _text(content)
    if isinstance(text, Problem):
        return Verdict(file, (text,))
    return read_text(text, file, siblings=_siblings(Path(path).parent))


def read_text(text: str, file: str, *, siblings: Collection[str] | None = None) -> Verdict:
    """Compile the text of an Agent SOP.

    Args:
        text: The text. Lines may end in any of the three ways.
        file: The name of its file, for the SOP's own name and for positions; it is not read.
        siblings: The names of the SOP files beside it; None if they are not known.

    Returns:
        The graph, and remarks on what to fix; or the error.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if (problem := _unreadable(text)) is not None:
        return Verdict(file, (problem,))
    outline = read_outline(read_page(text))
    name = stem(Path(file).name)
    problems = [*outline.problems, *remarks(outline, Path(file).name)]
    graph = None
    if not outline.steps:
        problems.append(
            Problem(NO_NUMBERED_STEPS, hint="without steps there is nothing to carry out")
        )
    elif len(outline.steps) > _STEPS_LIMIT:
        problems.append(
            Problem(f"{len(outline.steps)} steps: more than {_STEPS_LIMIT} are not read")
        )
    else:
        try:
            graph = compile_outline(outline, name, file, siblings, problems)
        except TooMuchText:
            problems.append(
                Problem(
                    "The prompts would be too large together",
                    hint="each prompt contains all text outside the steps",
                )
            )
    return Verdict(
        file,
        tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))),
        graph,
    )


def _bytes(path: Path) -> bytes | Problem:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return _read_error("Not a file")
        with path.open("rb") as opened:
            content = opened.read(SIZE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a NUL in it is a ValueError
        return _read_error(f"The file cannot be read: {getattr(error, 'strerror', None) or error}")
    return content if len(content) <= SIZE_LIMIT_BYTES else _too_large()


def _text(content: bytes) -> str | Problem:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        return Problem(
            f"Not UTF-8: byte 0x{content[error.start]:02x}",
            *place,
            hint="save the file as UTF-8",
            kind="read_error",
        )


def _unreadable(text: str) -> Problem | None:
    """Return the reason why no SOP can be read from a text, or None."""
    if len(text) > SIZE_LIMIT_BYTES:
        return _too_large()
    if text.count("\n") >= LINE_LIMIT:
        return _read_error(f"The file has more than {LINE_LIMIT} lines")
    if not text.strip():
        return Problem("The file is empty", kind="parse_error")
    if found := _NO_TEXT.search(text):
        line, column = (
            text.count("\n", 0, found.start()) + 1,
            found.start() - text.rfind("\n", 0, found.start()),
        )
        message = f"A character that no text has: U+{ord(found[0]):04X}"
        return Problem(message, line, column, hint="is this a text file?", kind="parse_error")
    return None


def _too_large() -> Problem:
    return _read_error(f"The file is larger than {SIZE_LIMIT_BYTES // 1024} KiB")


def _read_error(message: str) -> Problem:
    return Problem(message, kind="read_error")


def _siblings(directory: Path) -> Collection[str] | None:
    """Return the names of the SOP files in a directory; None if it cannot be listed."""
    try:
        with os.scandir(directory) as entries:
            names = frozenset(entry.name for entry in entries if entry.name.endswith(SOP_SUFFIXES))
    except OSError:
        return None
    return names if len(names) <= _SIBLINGS_LIMIT else None
