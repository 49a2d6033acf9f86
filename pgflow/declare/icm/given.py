"""The values of a YAML file of a workspace: read by type, with errors that name their place.

`pgflow.declare.text.yamlfile` reads and bounds the text. Here each value knows its position, so the
readers of workflow.yaml and of frontmatter only state what they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from pgflow.declare.graph import Position
from pgflow.declare.icm.findings import Findings
from pgflow.declare.text.spelling import similar
from pgflow.declare.text.times import TIME, due, duration_ms
from pgflow.declare.text.yamlfile import Marked


@dataclass(frozen=True, slots=True)
class Given:
    """A value with its place. ``name`` is what messages call it."""

    marked: Marked
    name: str
    at: Position
    findings: Findings

    @property
    def value(self) -> JsonValue:
        """The plain value."""
        value: JsonValue = self.marked.value
        return value

    def wrong(self, expected: str) -> None:
        """Report that it is not of the expected kind."""
        self.findings.error(f"{self.name} must be {expected}, not {_kind(self.value)}", self.at)

    def text(self) -> str | None:
        """It as a text that says something."""
        if isinstance(self.value, str) and self.value.strip():
            return self.value
        self.wrong("a text")
        return None

    def boolean(self) -> bool | None:
        """It as true or false."""
        if isinstance(self.value, bool):
            return self.value
        self.wrong("true or false")
        return None

    def whole(self, least: int, most: int) -> int | None:
        """It as a whole number within bounds."""
        if (
            isinstance(self.value, int)
            and not isinstance(self.value, bool)
            and least <= self.value <= most
        ):
            return self.value
        self.wrong(f"a whole number from {least} to {most}")
        return None

    def duration_ms(self) -> float | None:
        """It as a duration: a number of seconds, or a text like ``90s``, ``15m``, ``7d`` or
        ``seven days``.
        """
        if (
            isinstance(self.value, int | float)
            and not isinstance(self.value, bool)
            and 0 < self.value < 10**9
        ):
            return float(self.value) * 1_000
        length = duration_ms(self.value) if isinstance(self.value, str) else None
        if length is None:
            self.wrong("a duration: seconds, or a text like 90s, 15m, 2h, 7d or seven days")
        return length

    def time(self) -> str | None:
        """It as a time: seconds, or a text like ``seven days`` or ``tomorrow morning``."""
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            return f"{self.value:g}s" if self.duration_ms() is not None else None
        if isinstance(self.value, str) and due(self.value, _SOME_DAY) is not None:
            return self.value
        self.wrong(TIME)
        return None

    def items(self) -> list[Given]:
        """Return the items of a list; of one value alone, that value."""
        if not isinstance(self.marked.parts, list):
            return [self] if isinstance(self.value, str) else self._no_list()
        return [
            self._part(part, f"{self.name}[{number}]")
            for number, part in enumerate(self.marked.parts)
        ]

    def _no_list(self) -> list[Given]:
        if self.value is not None:
            self.wrong("a list")
        return []

    def fields(self, known: frozenset[str] | None = None) -> dict[str, Given] | None:
        """Return the parts of a mapping by their keys. Report unknown keys and leave them out; None
        keeps all.
        """
        if not isinstance(self.marked.parts, dict):
            self.wrong("a mapping")
            return None
        prefix = "" if self.name in _WHOLE else f"{self.name}."
        found = {
            key: self._part(part, f"{prefix}{key}", key) for key, part in self.marked.parts.items()
        }
        for key in [key for key in found if known is not None and key not in known]:
            guess = similar(key, sorted(known or ()))
            hint = f"Did you mean {' or '.join(map(repr, guess))}?" if guess else ""
            self.findings.warn(f"unknown key {key!r} will be ignored", found.pop(key).at, hint)
        return found

    def _part(self, part: Marked, name: str, key: str | None = None) -> Given:
        """Return a part. The position of a value in a mapping is that of its key."""
        line, column = (self.marked.keys or {}).get(key or "", (part.line, part.column))
        return Given(
            part, name, Position(file=self.at.file, line=line, column=column), self.findings
        )


_SOME_DAY: Final = datetime(2000, 1, 3, tzinfo=UTC)
_WHOLE: Final = frozenset({"workflow.yaml", "frontmatter"})


def each(given: Given, read: Callable[[Given], str | None]) -> Iterator[str]:
    """Yield the readable items of a list, each once."""
    seen: set[str] = set()
    for item in given.items():
        value = read(item)
        if value is not None and value in seen:
            item.findings.warn(f"{value!r} is listed twice in {given.name}", item.at)
        elif value is not None:
            seen.add(value)
            yield value


def _kind(value: JsonValue) -> str:
    """Return a value's kind, or its text, for a message."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
