"""Counterparties of the agents, by name, in the folder ``AGENTS_FOLDER``."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from examples.agents.counterparty import Counterparty
from pgflow import Retries

OFTEN = Retries(
    max_attempts=200, first_delay=timedelta(milliseconds=50), max_delay=timedelta(seconds=1)
)
"""Retries of asking how an attempt ended; a day of real counterparties would have longer
intervals.
"""

ATTEMPT = timedelta(milliseconds=400)
"""Longest time for one attempt here."""

_known: dict[str, Counterparty] = {}


def counterparty(name: str) -> Counterparty:
    """Return the counterparty of this name, the same one for every caller in this process."""
    folder = Path(os.environ.get("AGENTS_FOLDER", "."))
    return _known.setdefault(f"{folder}/{name}", Counterparty(folder / f"{name}.book"))
