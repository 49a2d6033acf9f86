"""Moments as files write them: ISO 8601, with the zone, since a run may go on anywhere."""

from __future__ import annotations

from datetime import datetime
from typing import Final

MOMENT: Final = "a time with its zone, such as 2026-12-01T09:00:00Z"
"""Form of a moment, for errors."""


def moment(text: str) -> datetime | None:
    """Return the moment that a text says; None if it says none, or no zone."""
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return None if parsed.tzinfo is None else parsed
