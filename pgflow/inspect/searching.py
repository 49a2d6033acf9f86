"""Searches of runs that look through the newest ones only: a page costs the same however many there
are.

No index helps to find the runs of a workflow, or keys that begin alike. Such a search is told how
far it may look. If that is not all, the page says where to go on.
"""

from __future__ import annotations

from pgflow._db.query import Query
from pgflow._model.kinds import ENDED
from pgflow.inspect.listing import After, Listing, parse_place
from pgflow.inspect.question import Steps, question
from pgflow.inspect.runs import EVERY_RUN, RECENT_RUNS, RunFilter, RunRow, list_runs


@question
def search_runs(
    where: RunFilter = EVERY_RUN,
    *,
    after: After = None,
    limit: int | None = 50,
    within: int = RECENT_RUNS,
) -> Steps[Listing[RunRow]]:
    """Ask for a page of runs, the newest first, of those that are within reach. Where more runs
    remain than were looked through, ``next`` of the page leads on, though the page is not full.

    Args:
        where: Filter that chooses them. What an index finds is found wherever it is: whole keys,
            labels, and runs that have not ended.
        after: ``next`` of the page before; None for the first.
        limit: Most runs of a page; None for all.
        within: Number of runs that are looked through, by their numbers.

    Raises:
        InvalidArgument: The limit leaves no row, or ``after`` is no place.
    """
    if _is_cheap(where):
        return (yield from list_runs(where, after=after, limit=limit))
    place = parse_place(after, int)
    top: int = place[0] if place else (yield _newest_below(None)) + 1
    page: Listing[RunRow] = yield from list_runs(
        where, after=top, limit=limit, down_to=top - within
    )
    if page.next is not None:
        return page
    older: int = yield _newest_below(top - within)
    return Listing(page.items, str(older + 1) if older else None)


def _is_cheap(where: RunFilter) -> bool:
    """Return True if an index finds such runs, or every run is one."""
    keys = [*where.keys, *([] if where.key is None else [where.key])]
    return (
        bool(where.labels)
        or (bool(keys) and not any("*" in key for key in keys))
        or (bool(where.status) and not where.error and not {*ENDED} & {*where.status})
        or where == RunFilter(tenant=where.tenant)
    )


def _newest_below(place: int | None) -> Query[int]:
    """Ask for the number of the newest run below a place; 0 for none."""
    return Query(
        "select run_id from pgflow.runs where run_id < coalesce(%s, 9223372036854775807)"
        " order by run_id desc limit 1",
        (place,),
        lambda rows: int(rows[0][0]) if rows else 0,
    )
