"""Home: what needs a person now, each with its one next action."""

from __future__ import annotations

from starlette.requests import Request

from pgflow.console.alert import LEVELS, total
from pgflow.console.alerts import FLEET_SECONDS, find_alerts
from pgflow.console.backend import Backend
from pgflow.inspect import database_now, list_queues
from pgflow.web.page import Page

TITLES = {
    "bad": "Needs repair",
    "ask": "Needs your answer",
    "look": "Worth a look",
    "auto": "pgflow is asking the other side",
}


async def show_home(backend: Backend, request: Request) -> Page:
    """Show what needs a person now."""
    del request
    now = await backend.ask(database_now())
    queues = await backend.ask_seldom("queues", list_queues(), FLEET_SECONDS)
    found = await find_alerts(backend, queues, now)
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
        "pgflow top --once",
    )
