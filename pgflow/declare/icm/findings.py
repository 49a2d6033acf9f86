"""Findings on a workspace, collected while it is read: reading goes on after the first.

A workspace is many files and has one verdict, so a message begins with the file that it is about,
as the workspace's own documents would name it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pgflow.declare.graph import Position
from pgflow.declare.graph.problems import Problem

_MOST_OF_A_KIND = 200  # a verdict is read by people; one that is longer says less


@dataclass(slots=True)
class Findings:
    """The problems of one workspace, in the order in which they were found."""

    problems: list[Problem] = field(default_factory=list)
    in_one_file: bool = False

    def error(self, message: str, at: Position | None = None, hint: str = "") -> None:
        """Say that something keeps the workspace from being used."""
        self._add("error", message, at, hint)

    def warn(self, message: str, at: Position | None = None, hint: str = "") -> None:
        """Say that something will be ignored, or is likely a slip."""
        self._add("warning", message, at, hint)

    @property
    def failed(self) -> bool:
        """True if an error was found."""
        return any(p.severity == "error" for p in self.problems)

    def _add(
        self, severity: Literal["error", "warning"], message: str, at: Position | None, hint: str
    ) -> None:
        if at is not None and not self.in_one_file:
            message = f"{at.file}: {message}"
        if sum(p.severity == severity for p in self.problems) < _MOST_OF_A_KIND:
            self.problems.append(
                Problem(message, at.line if at else None, at.column if at else None, hint, severity)
            )
