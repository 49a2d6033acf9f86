"""Makes the sync twins of async modules: a part of `python -m tools.generate`.

Async code is what is written: the modules of folders named ``_async``, and those whose own name
begins so. Each has a twin, ``_sync``, that is the same text without ``async`` and ``await``, and
with the names of the other colour: ``AsyncRun`` is ``Run`` there, and ``run_async`` is ``run``. So
what differs in more than that has no place in such a module. What needs no colour does not either:
it stands once, beside the two.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LINE_LENGTH = 100
PATTERNS = ("pgflow/**/_async/*.py", "pgflow/**/_async_*.py")

RENAMED = (
    (r"Async(?=[A-Z])|\basync(?=contextmanager\b)", ""),
    (r"(?<=\w)_async\b", ""),
    (r"(?<!\w)_async(?=_|\b)", "_sync"),
    (r"\bAwaitable\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1"),
)
"""Patterns of what is not the same in both, and what stands there in sync code, in docstrings and
comments too.
"""


def of_the_other_colour(text: str) -> str:
    """Return a text with the names of the sync colour: of an annotation, a docstring or a path as
    well as of code.
    """
    for pattern, name in RENAMED:
        text = re.sub(pattern, name, text)
    return text


def _without_waits(source: str) -> str:
    """Drop each ``async`` and ``await`` that is a keyword, and the blanks behind it."""
    lines = source.splitlines(keepends=True)
    words = [
        t
        for t in tokenize.generate_tokens(io.StringIO(source).readline)
        if t.type == tokenize.NAME and t.string in ("async", "await")
    ]
    for word in reversed(words):
        (row, start), (_, end) = word.start, word.end
        line = lines[row - 1]
        lines[row - 1] = line[:start] + line[end:].lstrip(" ")
    return "".join(lines)


def _sorted_import(found: re.Match[str]) -> str:
    """The same import, in the order that the linter wants, without what only async code needs."""
    names = set(re.findall(r"\w+", found[2])) - {"Awaitable"}
    ordered = sorted(
        names, key=lambda name: (not name.isupper(), not name[0].isupper(), name.lower())
    )
    line = f"from {found[1]} import {', '.join(ordered)}"
    if len(line) <= LINE_LENGTH:
        return line
    return f"from {found[1]} import (\n" + "".join(f"    {name},\n" for name in ordered) + ")"


_BROKEN = re.compile(
    r"^(?P<head>(?P<indent> *)\S.*[(\[{])\n(?P<body>(?:(?P=indent) {4,}[^#\"\n]+(?<![,(\[{])\n)+)"
    r"(?P<tail>(?P=indent)[)\]}].*)$",
    re.MULTILINE,
)
"""Brackets around one thing that stands on lines of its own, with no comma behind it."""


def _joined(found: re.Match[str]) -> str:
    """The same on fewer lines, where they are short enough now: as the formatter would have it."""
    body = " ".join(found["body"].split())
    line = f"{found['head']}{body}{found['tail'].lstrip()}"
    inner = f"{found['indent']}    {body}"
    if len(line) <= LINE_LENGTH:
        return line
    if len(inner) <= LINE_LENGTH:
        return f"{found['head']}\n{inner}\n{found['tail']}"
    return found[0]


def twin_of(source: str, where: str) -> str:
    """Return the text of a sync twin.

    Args:
        source: Text of the async module.
        where: Its path in the repository.

    Raises:
        SyntaxError: The twin is not Python: it awaits in an f-string, which Python 3.11 does not
            look into, or has a name like ``is``.
    """
    text = of_the_other_colour(_without_waits(source))
    text = re.sub(
        r"^from (\S+) import (\([\w,\s]+\)|[\w, ]+)$", _sorted_import, text, flags=re.MULTILINE
    )
    text = _BROKEN.sub(_joined, text)
    compile(text, f"the sync twin of {where}", "exec")
    return f"# Made by tools/colours.py from {where}; edit that one.\n{text}"


def sources(root: Path = REPOSITORY) -> list[Path]:
    """Return the async modules that have such a twin."""
    return sorted({path for pattern in PATTERNS for path in root.glob(pattern)})


def twins(root: Path = REPOSITORY) -> dict[Path, str | None]:
    """Return the text that each sync twin should have; None for one that nothing makes any more."""
    left = {path for pattern in PATTERNS for path in root.glob(of_the_other_colour(pattern))}
    places = {source: source.relative_to(root).as_posix() for source in sources(root)}
    made = {
        root / of_the_other_colour(place): twin_of(source.read_text(), place)
        for source, place in places.items()
    }
    return {**dict.fromkeys(left), **made}
