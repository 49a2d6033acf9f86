"""Problems of a file, worded so that its author can fix them: one line each, with the place and the
remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pgflow.declare.graph import Graph


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or (a warning) that will be ignored.

    Args:
        message: Mistake, in the original's words where it has them.
        line: Line of the file, from 1; None where the file as a whole is meant.
        column: Column, from 1.
        hint: Remedy, if the message does not say it.
        severity: Warnings do not keep a file from being used.
        kind: For errors of a load: which of the loader's stages found it.
    """

    message: str
    line: int | None = None
    column: int | None = None
    hint: str = ""
    severity: Literal["error", "warning"] = "error"
    kind: Literal["read_error", "parse_error", "validation_error"] = "validation_error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one file (or one workspace): its problems and, if it has no errors, its graph.

    A file may be valid and still have no graph here: ``unresolved`` names what it takes from
    missing files.
    """

    file: str
    problems: tuple[Problem, ...] = field(default=())
    graph: Graph | None = None
    unresolved: tuple[Problem, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """True if nothing is wrong that keeps it from being used."""
        return not self.errors

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that keep it from being used."""
        return tuple(p for p in self.problems if p.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Parts that will be ignored, and likely slips."""
        return tuple(p for p in self.problems if p.severity == "warning")
