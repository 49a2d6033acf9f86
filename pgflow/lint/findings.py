"""Findings of a check: a rule that was broken, and the place."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Finding:
    """One place that breaks one rule.

    Attributes:
        file: Path as it was found.
        line: Line, from 1.
        column: Column in characters, from 1.
        code: Code of the rule, as in ``PF101``.
        message: Finding, reason why that goes wrong, and advice.
        last_line: Last line of the code; a comment that ignores it may be on any line from ``line``
            to here.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    last_line: int = field(default=0, compare=False)


class Unreadable(Exception):
    """A file that cannot be checked; the message says why, and begins with the place."""

    def __init__(self, file: str, line: int | None, column: int | None, why: str) -> None:
        place = "".join(f":{number}" for number in (line, column) if number is not None)
        super().__init__(f"{file}{place}: {why}")


class Place:
    """Turns nodes of a syntax tree into places that people count in: characters, from 1."""

    def __init__(self, file: str, lines: Sequence[str]) -> None:
        self.file = file
        self._lines = lines

    def of(self, node: ast.AST, code: str, message: str) -> Finding:
        """Return a finding at a node; of a function, at its first decorator."""
        first = min(_decorators(node), key=lambda found: found.lineno, default=node)
        line, last_line = _lines_of(node, first)
        return Finding(
            self.file, line, self._column(line, _offset_of(first, node)), code, message, last_line
        )

    def _column(self, line: int, offset_bytes: int) -> int:
        """Return the column in characters: the parser counts bytes of UTF-8."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        if text.isascii():
            return offset_bytes + 1
        return (
            len(text.encode("utf-8", "surrogatepass")[:offset_bytes].decode("utf-8", "ignore")) + 1
        )


def _decorators(node: ast.AST) -> list[ast.expr]:
    return list(getattr(node, "decorator_list", ()))


def _lines_of(node: ast.AST, first: ast.AST) -> tuple[int, int]:
    line: int = first.lineno  # type: ignore[attr-defined]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return line, max(node.lineno, node.body[0].lineno - 1)
    if isinstance(node, ast.ExceptHandler):
        return line, line
    return line, getattr(node, "end_lineno", None) or line


def _offset_of(first: ast.AST, node: ast.AST) -> int:
    offset: int = first.col_offset  # type: ignore[attr-defined]
    return offset - 1 if first is not node else offset  # the @ before it
