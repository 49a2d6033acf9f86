"""Overview: whether the system is healthy, in one line, and how its work went of late."""

from __future__ import annotations

from starlette.requests import Request

from pgflow.console.alerts import FLEET_SECONDS, SILENT_SECONDS, find_alerts, verdict_of
from pgflow.console.backend import Backend
from pgflow.console.plots import plot_rates
from pgflow.errors import InvalidArgument
from pgflow.inspect import database_now, list_queues, list_workers, read_rates
from pgflow.web.page import Page
from pgflow.web.pages.queues import busiest

MOST_QUEUES = 20
PLOT_SECONDS = 10.0
"""Time for which plots are drawn again from what was asked: their parts are a minute at least."""
RANGES = {"1h": (60, 1), "6h": (72, 5), "24h": (72, 20)}
"""Times that plots go back: the number of their parts, and the minutes of each."""


async def show_overview(backend: Backend, request: Request) -> Page:
    """Show whether the system is healthy, and how its work went."""
    chosen = request.query_params.get("range", "1h")
    if chosen not in RANGES:
        raise InvalidArgument(f"range {chosen!r}: there are {', '.join(RANGES)}")
    now = await backend.ask(database_now())
    queues = await backend.ask_seldom("queues", list_queues(), FLEET_SECONDS)
    workers = await backend.ask(list_workers())
    living = [one for one in workers if (now - one.beat_at).total_seconds() <= SILENT_SECONDS]
    rates = await backend.ask_seldom(f"rates {chosen}", read_rates(*RANGES[chosen]), PLOT_SECONDS)
    return Page(
        "overview",
        "Overview",
        {
            "verdict": verdict_of(await find_alerts(backend, queues, now), queues, workers),
            "now": now,
            "queues": busiest(queues, MOST_QUEUES),
            "left_out": max(0, len(queues) - MOST_QUEUES),
            "workers": workers,
            "silent": len(workers) - len(living),
            "running": sum(worker.running for worker in living),
            "concurrency": sum(worker.concurrency for worker in living),
            "plots": plot_rates(rates, sum(one.queued for one in queues)),
            "ranges": tuple(RANGES),
            "chosen": chosen,
        },
        "pgflow top --once",
    )
