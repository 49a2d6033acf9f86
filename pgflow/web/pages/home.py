"""Home: what needs a person now, each with its one next action, and how the work goes."""

from __future__ import annotations

from starlette.requests import Request

from pgflow._console.alerts import LEVELS, find_alerts
from pgflow._console.backend import Backend
from pgflow._console.plots import plot_rates
from pgflow.inspect import database_now, list_queues, list_workers, read_rates
from pgflow.web.page import Page
from pgflow.web.pages.queues import busiest

MOST_QUEUES = 20
PLOT_SECONDS = 10.0
"""Time for which plots are drawn again from what was asked: they show an hour."""


async def show_home(backend: Backend, request: Request) -> Page:
    """Show what needs a person now."""
    del request
    now = await backend.ask(database_now())
    queues = await backend.ask(list_queues())
    found = await find_alerts(backend, queues, now)
    return Page(
        "home",
        "Triage",
        {
            "alerts": [[alert for alert in found if alert.level == level] for level in LEVELS],
            "count": len(found),
            "now": now,
            "queues": busiest(queues, MOST_QUEUES),
            "left_out": max(0, len(queues) - MOST_QUEUES),
            "workers": await backend.ask(list_workers()),
            "plots": plot_rates(await backend.ask_seldom("rates", read_rates(), PLOT_SECONDS)),
        },
        "pgflow doctor",
    )
