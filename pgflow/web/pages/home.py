"""Home: what needs a person now, each with its one next action."""

from __future__ import annotations

from starlette.requests import Request

from pgflow._desk.alert import LEVELS, total
from pgflow._desk.alerts import FLEET_SECONDS, find_alerts
from pgflow._desk.desk import Desk
from pgflow.inspect import database_now, list_queues
from pgflow.web.page import Page

TITLES = {
    "bad": "Needs repair",
    "ask": "Needs your answer",
    "look": "Worth a look",
    "auto": "pgflow is asking the other side",
}


async def show_home(desk: Desk, request: Request) -> Page:
    """Show what needs a person now."""
    del request
    now = await desk.ask(database_now())
    queues = await desk.ask_seldom("queues", list_queues(), FLEET_SECONDS)
    found = await find_alerts(desk, queues, now)
    return Page(
        "home",
        "Triage",
        {
            "parts": [
                (level, TITLES[level], total(some), some)
                for level in LEVELS
                if (some := [alert for alert in found if alert.level == level])
            ],
            "count": total(alert for alert in found if alert.level != "auto"),
            "now": now,
            "is_used": bool(queues),
        },
        "pgflow doctor",
    )
