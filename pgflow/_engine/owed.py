"""Obligations of a run, from its journal: notes of its code, and marks by others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from pgflow._model.kinds import Kind
from pgflow._model.units import Unit


class Closing:
    """Verdicts of a unit ``obligation_closed``."""

    DISCHARGED: Final = "discharged"
    WAIVED: Final = "waived"
    TRANSFERRED: Final = "transferred"


@dataclass
class Owed:
    """An obligation that the run has opened or inherited."""

    key: str
    what: str
    to: str
    call: int
    holds: bool
    """True if the run may not complete before it is closed."""
    is_open: bool = True
    is_dropped: bool = False
    """True if a dropped part of the journal opened it: the code may open it again."""

    def close(self, verdict: str) -> None:
        """Close it, or record that it was transferred outside the run."""
        self.holds = False
        self.is_open = self.is_open and verdict == Closing.TRANSFERRED


def read_obligation(obligations: dict[str, Owed], unit: Unit) -> None:
    """Apply a mark on an obligation."""
    if unit.kind == Kind.OBLIGATION_BREACHED:
        return
    mark = json.loads(unit.payload or "{}")
    key = mark["key"]
    if unit.kind == Kind.OBLIGATION_OPENED:
        obligations[key] = Owed(
            key,
            unit.name or "",
            mark["to"] or "",
            unit.call,
            not mark["outlives"],
            is_dropped=mark["carried"] == "again",
        )
    elif key in obligations:
        obligations[key].close(mark["verdict"])
