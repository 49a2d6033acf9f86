"""A report that is made once a day, by a job of GitHub Actions that may be late, killed, dropped or
doubled.
"""

from __future__ import annotations

import asyncio
from datetime import date, timedelta

import pgflow

SOURCES = ("orders", "refunds", "visits")


@pgflow.step(retries=pgflow.Retries(5, first_delay=timedelta(seconds=1)))
async def count(source: str, day: date) -> int:
    """Ask one source; a real one would be a request under `pgflow.idempotency_key()`."""
    return sum(map(ord, f"{source} {day}")) % 1000


@pgflow.step
async def publish(day: date, counts: dict[str, int]) -> str:
    """Deliver the report once, whatever happens to the runner."""
    return f"{day}: " + ", ".join(f"{n} {source}" for source, n in counts.items())


@pgflow.schedule("0 5 * * *", tz="Europe/Berlin", catch_up="latest")
@pgflow.workflow
async def daily(slot: pgflow.Slot) -> str:
    """Make the report of the previous day, each morning, in the first tick."""
    return await pgflow.run_child(report, slot.at.date() - timedelta(days=1))


@pgflow.workflow
async def report(day: date) -> str:
    """Count every source in parallel, and publish."""
    counts = await asyncio.gather(*(count(source, day) for source in SOURCES))
    return await publish(day, dict(zip(SOURCES, counts, strict=True)))


app = pgflow.AsyncApp(include=[daily, report])
