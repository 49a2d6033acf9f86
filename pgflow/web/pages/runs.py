"""Runs: those that a search finds, page by page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.requests import Request

from pgflow._desk.desk import Desk
from pgflow._desk.orders import ORDERS
from pgflow._desk.words import quoted
from pgflow.errors import InvalidArgument
from pgflow.inspect import (
    STATUSES,
    RunFilter,
    database_now,
    list_documents,
    list_queue_names,
    search_runs,
)
from pgflow.inspect.runs import RECENT_RUNS
from pgflow.web.page import Page, principal_of
from pgflow.web.principals import Principal

PAGE_ROWS = 50
WIDE_RUNS = 50_000
"""Runs that a page looks through of those that are older than the newest ones."""
WIDE_ERRORS = 3_000
"""So many for the text of an error, for which each end is read."""
SINCE = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
}
"""Times that a search may go back, by what its address calls them."""


COLLECTION = "pgflow.console.filters"
"""Collection of the documents that keep searches, a folder for each person."""
MOST_FILTERS = 30


async def show_runs(desk: Desk, request: Request) -> Page:
    """Show the runs that a search finds, the newest first."""
    asked, principal = asked_of(request), principal_of(request)
    may_order = principal.may("operate")
    is_wide = request.query_params.get("wide") == "1"
    older = WIDE_ERRORS if asked["error"] else WIDE_RUNS
    within = older if is_wide else RECENT_RUNS
    after = request.query_params.get("after")
    found = await desk.ask(
        search_runs(filter_of(desk, asked), after=after, limit=PAGE_ROWS, within=within)
    )
    has_older = found.next is not None and len(found) < PAGE_ROWS
    return Page(
        "runs",
        "Runs",
        {
            "runs": found.items,
            "next": found.next,
            "asked": asked,
            "statuses": STATUSES,
            "queues": await desk.ask(list_queue_names()),
            "since": tuple(SINCE),
            "orders": [ORDERS[verb] for verb in ("retry", "resume", "pause", "cancel")]
            if may_order
            else [],
            "filters": await list_filters(desk, principal) if may_order else {},
            "searched": {name: value for name, value in asked.items() if value},
            "is_searched": any(asked.values()),
            "is_later": "after" in request.query_params,
            "has_older": has_older,
            "is_wide": is_wide,
            "most": within,
            "more": older,
            "now": await desk.ask(database_now()),
        },
        command_of(asked),
    )


async def list_filters(desk: Desk, principal: Principal) -> dict[str, dict[str, str]]:
    """Return the saved searches, by their names."""
    found = await desk.ask(list_documents(COLLECTION, folder=(principal.name,), limit=MOST_FILTERS))
    return {
        row.path[-1]: value for row in found if isinstance(value := desk.clear(row.value), dict)
    }


def asked_of(request: Request) -> dict[str, str]:
    """Return what a search asks for, by the names of its fields."""
    given = request.query_params
    names = ("key", "status", "workflow", "queue", "label", "since", "error")
    return {name: given.get(name, "").strip() for name in names}


def filter_of(desk: Desk, asked: dict[str, str]) -> RunFilter:
    """Return the filter that a search means.

    Raises:
        InvalidArgument: It means nothing.
    """
    said: dict[str, Any] = {"tenant": desk.tenant}
    for name in ("status", "workflow", "queue"):
        if asked[name]:
            said[name] = [asked[name]]
    if asked["key"]:
        said["keys"] = [asked["key"]]
    if asked["error"]:
        said["error"] = asked["error"]
    if asked["label"]:
        name, equals, value = asked["label"].partition("=")
        if not equals or not name:
            raise InvalidArgument(f"label {asked['label']!r}: write NAME=VALUE")
        said["labels"] = {name: value}
    if asked["since"]:
        if asked["since"] not in SINCE:
            raise InvalidArgument(f"since {asked['since']!r}: there are {', '.join(SINCE)}")
        said["since"] = SINCE[asked["since"]]
    return RunFilter(**said)


def command_of(asked: dict[str, str], verb: str = "list") -> str:
    """Return the command line of a search, or of an order to the runs that it finds."""
    words = [f"pgflow {verb}"]
    for name, value in asked.items():
        if value:
            is_key = name == "key" and verb == "list"
            words.append(quoted(value) if is_key else f"--{name} {quoted(value)}")
    return " ".join(words)
