"""Searches through the newest runs only, so a page costs the same for any number of runs.

No index finds the runs of a workflow, or keys with a common prefix. Such a search has a bound; if
more runs remain, the page has the place to continue from.
"""

from __future__ import annotations

from typing import LiteralString

from pgflow._db.query import Query
from pgflow._model.kinds import ENDED
from pgflow.inspect.listing import After, Listing, parse_place
from pgflow.inspect.question import Steps, question, statement
from pgflow.inspect.runs import EVERY_RUN, RECENT_RUNS, RunFilter, RunRow, list_runs, longest_runs

NEAR_PAGES = 4
"""A page far behind the newest is first looked for among as many runs as would fill so many pages:
of a large part the server would read all newer ones, in the hope to stop soon.
"""
NEAR_RUNS = 200
LONGEST_OF = 5_000
"""Newest runs of which the longest are listed: all of them are read, to be compared."""
RARE = frozenset({"failed", "cancelled"})
"""Statuses of ended runs that have an index each: they are found below any number of others."""
RARE_RUNS = 2_000
"""Most runs of such a status that are searched: each is looked up by its number."""


@question
def search_runs(
    where: RunFilter = EVERY_RUN,
    *,
    after: After = None,
    limit: int | None = 50,
    within: int = RECENT_RUNS,
) -> Steps[Listing[RunRow]]:
    """Ask for a page of runs within reach, the newest first. If more runs remain than were
    searched, ``next`` of the page is set, even if the page is not full.

    Args:
        where: Filter of the runs. Whole keys, labels, open runs, and failed or cancelled ones have
            an index and are found at any depth.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum runs of a page; None for all.
        within: Number of runs to search, by their numbers. Of one status of `RARE`, at most
            `RARE_RUNS` runs of that status.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    place = parse_place(after, int)
    if is_cheap(where) and (place == () or where != RunFilter(tenant=where.tenant)):
        return (yield from list_runs(where, after=after, limit=limit))
    top: int = place[0] if place else (yield _newest()) + 1
    if is_rare(where):
        beyond: int = yield _beyond(where, top, within)
        down_to = beyond + 1 if beyond else None
        page = yield from list_runs(where, after=top, limit=limit, down_to=down_to)
        is_all = page.next is not None or down_to is None
        return page if is_all else Listing(page.items, str(down_to))
    near = [NEAR_PAGES * limit] if place and limit is not None else []
    page = Listing[RunRow]([], None)
    for reach in [*(one for one in near if one < within), within]:
        page = yield from list_runs(where, after=top, limit=limit, down_to=top - reach)
        if page.next is not None:
            return page
        if reach >= top:
            return page
    older: int = yield from _newest_below(top - within)
    return Listing(page.items, str(older + 1) if older else None)


@question
def list_longest(
    where: RunFilter = EVERY_RUN, *, limit: int = 50, within: int = LONGEST_OF
) -> Steps[list[RunRow]]:
    """Ask for the runs within reach that have taken longest from their start, until their end or
    until now.

    Args:
        where: Filter of the runs.
        limit: Maximum runs.
        within: Number of the newest runs to search.
    """
    newest: int = yield _newest()
    down_to = newest - within
    if is_rare(where):
        beyond: int = yield _beyond(where, newest + 1, within)
        down_to = beyond + 1 if beyond else 0
    found: list[RunRow] = yield longest_runs(where, limit, down_to)
    return found


def is_cheap(where: RunFilter) -> bool:
    """Return True if an index finds such runs, or every run is one."""
    keys = [*where.keys, *([] if where.key is None else [where.key])]
    return (
        bool(where.labels)
        or (bool(keys) and not any("*" in key for key in keys))
        or (bool(where.status) and not where.error and not {*ENDED} & {*where.status})
        or where == RunFilter(tenant=where.tenant)
        or (is_rare(where) and where == RunFilter(status=where.status, tenant=where.tenant))
    )


def is_rare(where: RunFilter) -> bool:
    """Return True if the runs are of one status of `RARE`."""
    return len(where.status) == 1 and where.status[0] in RARE


def _beyond(where: RunFilter, below: int, within: int) -> Query[int]:
    """Ask for the number of the first run of the status of a filter that is out of reach; 0 for
    none.
    """
    sql: LiteralString = (
        "select run_id from pgflow.runs where status = any(%s) and run_id < %s "
        "order by run_id desc offset %s limit 1"
    )
    params = (list(where.status), below, min(within, RARE_RUNS))
    return Query(sql, params, lambda rows: int(rows[0][0]) if rows else 0)


@question
def _newest_below(place: int) -> Steps[int]:
    """Ask for the number of the newest run below a place, in a small part first; 0 for none."""
    near: int = yield _newest(place, place - NEAR_RUNS)
    if near:
        return near
    far: int = yield _newest(place - NEAR_RUNS)
    return far


def _newest(below: int | None = None, down_to: int = 0) -> Query[int]:
    """Ask for the number of the newest run of some; 0 for none."""
    bound: LiteralString = "" if below is None else "run_id < %s and"
    return Query(
        statement(
            "select run_id from pgflow.runs where",
            bound,
            "run_id >= %s order by run_id desc limit 1",
        ),
        (down_to,) if below is None else (below, down_to),
        lambda rows: int(rows[0][0]) if rows else 0,
    )
