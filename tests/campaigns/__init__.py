"""Campaigns: promises put to faults on real workers and a real server, for what no other layer of
the proof reaches.

A campaign is a function of a `Ground` that answers Evidence; each file here is a theme. How much of
a campaign is done follows from the number of rounds; what must at least happen for it to count is
in `Findings.fired`. Nothing is judged by how long it took, but by order, beats and the database's
time. `python -m tests.campaigns DSN [--rounds N] [--seed S] [--only G4,G7]` runs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.kits.evidence import Findings

# The helpers of the tests know each other by bare names.
ROOMS = [str(Path(__file__).parents[1] / room) for room in ("", "kits", "apps")]
sys.path[:0] = [path for path in ROOMS if path not in sys.path]


def prove(
    server_dsn: str,
    amount: int,
    seed: int,
    only: frozenset[str] = frozenset(),
    tell: Callable[[str], object] | None = None,
) -> Findings:
    """Runs so many rounds of every campaign, or those of the guarantees named; see `tests.campaigns.plan.prove`."""
    from tests.campaigns import plan

    return plan.prove(server_dsn, amount, seed, only, tell)
