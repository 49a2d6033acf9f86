"""Spending: recent charges, added up by day, run, model and tool."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from pgflow.console.backend import Backend
from pgflow.inspect import ChargesBy, SpentRow, sum_charges_by

NEWEST_CHARGES = 3_000
"""Charges that are looked through; there may be millions."""
MOST_ROWS = 20
SINCE = timedelta(days=30)
KEPT_SECONDS = 10.0
WAYS: dict[ChargesBy, str] = {"day": "Day", "run": "Run", "model": "Model", "step": "Step or tool"}
"""Ways to add charges up, and what a row of each is."""


@dataclass(frozen=True)
class Part:
    """An amount of a way to add up.

    Attributes:
        row: The amount.
        share: Part of the largest amount of its unit, in per cent.
    """

    row: SpentRow
    share: float


async def read_spending(
    backend: Backend, pool: str | None = None, since: datetime | timedelta = SINCE
) -> dict[str, list[Part]]:
    """Return what was spent since a time, among the newest charges: by day the newest first, in
    the other ways the largest amounts first. Nothing if nothing was.

    Args:
        backend: The backend to ask at.
        pool: Only what was drawn on this pool, directly or by way of those below it.
        since: That time, or so long ago.
    """
    question = sum_charges_by(
        list(WAYS), pool=pool, since=since, newest=NEWEST_CHARGES, tenant=backend.tenant
    )
    found = await backend.ask_seldom(f"spent {pool} {since}", question, KEPT_SECONDS)
    return {by: _parts(by, rows) for by, rows in found.items() if rows}


def _parts(by: ChargesBy, rows: list[SpentRow]) -> list[Part]:
    most: dict[str, Decimal] = {}
    for row in rows:
        most[row.unit] = max(row.amount, most.get(row.unit, row.amount))
    ordered = (
        sorted(rows, key=lambda row: row.name or "", reverse=True)
        if by == "day"
        else sorted(rows, key=lambda row: (row.unit != "usd", row.unit, -row.amount))
    )
    return [
        Part(row, round(float(100 * row.amount / most[row.unit]), 2) if most[row.unit] else 0.0)
        for row in ordered[:MOST_ROWS]
    ]
