"""A fork beside its origin: its input, the first difference, and its result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from pgflow._desk.desk import Desk
from pgflow._desk.words import quoted
from pgflow.errors import InvalidArgument
from pgflow.inspect import UnitRow, find_detail, list_units
from pgflow.web.page import Page, query

WINDOW_UNITS = 200
MOST_UNITS = 2_000
"""Units after the cut that are compared."""


UNTOLD = ("operator", "step_started")

Told = tuple[UnitRow, Any] | None
"""A unit with its payload in clear; None behind the last."""


async def show_comparison(desk: Desk, request: Request) -> Page:
    """Show a run beside the one whose journal it begins with."""
    run = await desk.ask(find_detail(query(request, "key"), tenant=desk.tenant))
    if run.origin_run_id is None or run.origin_key is None or run.origin_seq is None:
        raise InvalidArgument(f"run {run.key} begins with no journal of another run")
    origin = await desk.ask(find_detail(run.origin_key, tenant=desk.tenant))
    is_same = run.origin_key == run.key
    found = await _first_difference(desk, run.origin_run_id, run.run_id, run.origin_seq)
    return Page(
        "compare",
        f"Compare: {run.key}",
        {
            "run": run,
            "origin": origin,
            "is_same": is_same,
            "difference": found,
            "inputs": []
            if is_same
            else _differences(desk.clear(origin.input), desk.clear(run.input)),
            "results": []
            if is_same
            else [
                ("Status", origin.status, run.status),
                ("Output", desk.clear(origin.output), desk.clear(run.output)),
                ("Error", desk.clear(origin.error), desk.clear(run.error)),
            ],
            "most": MOST_UNITS,
        },
        f"pgflow show {quoted(run.key)}",
        under="/runs",
    )


def _differences(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """Return name and both values of each argument that differs."""
    old, new = ({} if value is None else value for value in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [("", old, new)]
    names = dict.fromkeys([*old, *new])
    sides = [(name, old.get(name), new.get(name)) for name in names]
    return [(name, one, other) for name, one, other in sides if one != other]


async def _first_difference(
    desk: Desk, origin: int, fork: int, cut: int
) -> tuple[int, Told, Told] | None:
    """Return the number of units after the cut that are alike, and of each journal the first one
    that is not; None if all that were compared are alike.
    """
    theirs, ours = _units(desk, origin, cut), _units(desk, fork, cut)
    for alike in range(MOST_UNITS):
        one, other = await anext(theirs, None), await anext(ours, None)
        if one is None and other is None:
            return None
        if _sense(one) != _sense(other):
            return alike, one, other
    return None


async def _units(desk: Desk, run_id: int, after: int) -> AsyncIterator[tuple[UnitRow, Any]]:
    """Yield units with their payloads in clear, without those that have no result."""
    while True:
        page = (await desk.ask(list_units(run_id, after=after, limit=WINDOW_UNITS))).items
        for unit in page:
            after = unit.seq
            if unit.event not in UNTOLD:
                yield unit, None if unit.payload is None else desk.clear(unit.payload)
        if len(page) < WINDOW_UNITS:
            return


def _sense(told: Told) -> Any:
    """Return what of a unit says the same in both journals if the same was done."""
    return None if told is None else (told[0].event, told[0].name, told[1])
