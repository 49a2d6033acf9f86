"""Runs: those that a search finds, page by page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.requests import Request

from pgflow.console.alerts import FLEET_SECONDS
from pgflow.console.backend import Backend
from pgflow.console.orders import OPEN, ORDERS
from pgflow.console.words import quoted
from pgflow.errors import InvalidArgument
from pgflow.inspect import (
    STATUSES,
    DocumentRow,
    Listing,
    QueueRow,
    RunFilter,
    RunRow,
    database_now,
    list_documents,
    list_longest,
    list_queues,
    list_runs,
    search_runs,
)
from pgflow.inspect.runs import RECENT_RUNS
from pgflow.inspect.searching import LONGEST_OF, RARE_RUNS, is_cheap, is_rare
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
EVERYONE = "*"
"""Folder of the searches that everyone sees; no principal has this name."""
FOLDED_ROWS = 200
"""Runs of a page on which those of schedules are folded."""


async def show_runs(backend: Backend, request: Request) -> Page:
    """Show the runs that a search finds, the newest first or in the order that is asked for."""
    asked, principal = asked_of(request), principal_of(request)
    may_order = principal.may("operate")
    is_wide = request.query_params.get("wide") == "1"
    older = WIDE_ERRORS if asked["error"] else WIDE_RUNS
    where, sort = filter_of(backend, asked), request.query_params.get("sort", "newest")
    if is_rare(where):
        older = RARE_RUNS
    within = older if is_wide or is_rare(where) else RECENT_RUNS
    within = min(within, LONGEST_OF) if sort == "longest" else within
    is_folded = not asked["label"] and sort == "newest"
    rows = FOLDED_ROWS if is_folded and not any(asked.values()) else PAGE_ROWS
    found = await _find(backend, where, sort, request.query_params.get("after"), rows, within)
    has_older = sort == "newest" and found.next is not None and len(found) < rows
    runs, end = _fold(found) if is_folded else ([(run, None) for run in found], found.next)
    queues = await backend.ask_seldom("queues", list_queues(), FLEET_SECONDS)
    return Page(
        "runs",
        "Runs",
        {
            "runs": runs,
            "next": end,
            "asked": asked,
            "sort": sort,
            "reversed": "oldest" if is_cheap(where) else "newest",
            "statuses": STATUSES,
            "counts": _counts(queues, asked),
            "queues": [queue.queue for queue in queues],
            "since": tuple(SINCE),
            "orders": [ORDERS[verb] for verb in ("retry", "resume", "pause", "cancel")]
            if may_order
            else [],
            "filters": await list_filters(backend, principal) if may_order else {},
            "searched": {name: value for name, value in asked.items() if value},
            "is_searched": any(asked.values()),
            "is_later": "after" in request.query_params,
            "has_older": has_older,
            "is_wide": is_wide,
            "most": within,
            "among": f"{asked['status']} " if is_rare(where) else "",
            "more": older,
            "now": await backend.ask(database_now()),
        },
        command_of(asked),
    )


async def _find(
    backend: Backend, where: RunFilter, sort: str, after: str | None, rows: int, within: int
) -> Listing[RunRow]:
    """Return a page of runs in an order.

    Raises:
        InvalidArgument: The order is unknown, or lacks an index that finds these runs.
    """
    if sort == "newest":
        return await backend.ask(search_runs(where, after=after, limit=rows, within=within))
    if sort == "longest":
        return Listing(await backend.ask(list_longest(where, limit=rows, within=within)))
    if sort != "oldest":
        raise InvalidArgument(f"sort {sort!r}: there are newest, oldest, longest")
    if not is_cheap(where):
        raise InvalidArgument("oldest first takes a status of open runs, a label or a whole key")
    return await backend.ask(list_runs(where, after=after, limit=rows, oldest_first=True))


def _counts(queues: list[QueueRow], asked: dict[str, str]) -> dict[str, int]:
    """Return the number of runs in each open status, of the queue that is asked for; nothing if the
    search has other fields, by which no runs are counted.
    """
    if any(value for name, value in asked.items() if name not in ("queue", "status")):
        return {}
    some = [queue for queue in queues if asked["queue"] in ("", queue.queue)]
    return {name: sum(getattr(one, name) for one in some) for name in OPEN}


def _fold(found: Listing[RunRow]) -> tuple[list[tuple[RunRow, int | None]], str | None]:
    """Return a page of runs with None, and in place of many of a schedule that are alike the newest
    of them with their number; and the place at which the next page begins. Those that failed or are
    stuck are never folded.
    """
    rows: dict[Any, list[RunRow]] = {}
    end = found.next
    for place, run in enumerate(found.items):
        schedule = (run.labels or {}).get("schedule")
        is_plain = schedule is not None and run.status not in ("failed", "stuck", "paused")
        row = (schedule, run.status) if is_plain else run.run_id
        if row not in rows and len(rows) == PAGE_ROWS:
            end = str(found.items[place - 1].run_id)
            break
        rows.setdefault(row, []).append(run)
    return [(some[0], len(some) if len(some) > 1 else None) for some in rows.values()], end


async def list_filters(backend: Backend, principal: Principal) -> dict[str, dict[str, str]]:
    """Return the saved searches by their names: those of everyone, then the person's own."""
    found: list[DocumentRow] = []
    for folder in (EVERYONE, principal.name):
        found += await backend.ask(list_documents(COLLECTION, folder=(folder,), limit=MOST_FILTERS))
    return {
        row.path[-1]: value for row in found if isinstance(value := backend.clear(row.value), dict)
    }


def asked_of(request: Request) -> dict[str, str]:
    """Return what a search asks for, by the names of its fields."""
    given = request.query_params
    names = ("key", "status", "workflow", "queue", "label", "since", "error")
    return {name: given.get(name, "").strip() for name in names}


def filter_of(backend: Backend, asked: dict[str, str]) -> RunFilter:
    """Return the filter that a search means.

    Raises:
        InvalidArgument: It means nothing.
    """
    said: dict[str, Any] = {"tenant": backend.tenant}
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
