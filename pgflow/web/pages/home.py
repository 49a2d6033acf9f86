"""Home: what needs a person now, each with its one next action, and how the work goes."""

from __future__ import annotations

from starlette.requests import Request

from pgflow._desk.alerts import LEVELS, find_alerts
from pgflow._desk.desk import Desk
from pgflow._desk.plots import plot_rates
from pgflow.inspect import database_now, list_queues, list_workers, read_rates
from pgflow.web.page import Page
from pgflow.web.pages.queues import busiest

MOST_QUEUES = 20
PLOT_SECONDS = 10.0
"""Time for which plots are drawn again from what was asked: they show an hour."""


async def show_home(desk: Desk, request: Request) -> Page:
    """Show what needs a person now."""
    del request
    now = await desk.ask(database_now())
    queues = await desk.ask(list_queues())
    found = await find_alerts(desk, queues, now)
    return Page(
        "home",
        "Triage",
        {
            "alerts": [[alert for alert in found if alert.level == level] for level in LEVELS],
            "count": len(found),
            "now": now,
            "queues": busiest(queues, MOST_QUEUES),
            "left_out": max(0, len(queues) - MOST_QUEUES),
            "workers": await desk.ask(list_workers()),
            "plots": plot_rates(await desk.ask_seldom("rates", read_rates(), PLOT_SECONDS)),
        },
        "pgflow doctor",
    )
