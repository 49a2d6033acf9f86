"""Two runs side by side, such as a fork and its origin: inputs, journals from the first difference
on, and results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from pgflow.console.backend import Backend
from pgflow.console.words import quoted
from pgflow.errors import InvalidArgument
from pgflow.inspect import UnitRow, find_detail, list_units
from pgflow.web.page import Page, query

WINDOW_UNITS = 200
MOST_UNITS = 2_000
"""Units after the cut that are compared."""


UNITS_BEFORE = 3
"""Units that are alike and shown before the first difference."""
UNITS_BESIDE = 40
"""Units that are shown in all."""
UNTOLD = ("operator", "step_started")

Told = tuple[UnitRow, Any] | None
"""A unit with its payload in clear; None behind the last."""


async def show_comparison(backend: Backend, request: Request) -> Page:
    """Show a run beside the one whose journal it begins with, or beside any other."""
    chosen = request.query_params.getlist("chosen")
    if chosen and len(chosen) != 2:
        raise InvalidArgument(f"choose two runs to compare, not {len(chosen)}")
    key, other = chosen or (query(request, "key"), request.query_params.get("with", ""))
    run = await backend.ask(find_detail(key, tenant=backend.tenant))
    if not other and (run.origin_key is None or run.origin_seq is None):
        raise InvalidArgument(f"run {run.key} begins with no journal of another run")
    origin = await backend.ask(find_detail(other or run.origin_key or "", tenant=backend.tenant))
    cut = 0 if other else run.origin_seq or 0
    is_same = origin.key == run.key
    before = run.origin_run_id if is_same and run.origin_run_id is not None else origin.run_id
    alike, sides = await _sides(backend, before, run.run_id, cut)
    return Page(
        "compare",
        f"Compare: {run.key}",
        {
            "run": run,
            "origin": origin,
            "is_same": is_same,
            "are_kin": not other,
            "alike": alike,
            "sides": sides,
            "inputs": []
            if is_same
            else _differences(backend.clear(origin.input), backend.clear(run.input)),
            "results": []
            if is_same
            else [
                ("Status", origin.status, run.status),
                ("Output", backend.clear(origin.output), backend.clear(run.output)),
                ("Error", backend.clear(origin.error), backend.clear(run.error)),
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


async def _sides(
    backend: Backend, origin: int, run: int, cut: int
) -> tuple[int, list[tuple[Told, Told, bool]]]:
    """Return the number of units after the cut that are alike, and the units of both journals from
    a few before the first difference on, each pair with True if it differs; none if all that were
    compared are alike.
    """
    theirs, ours = _units(backend, origin, cut), _units(backend, run, cut)
    alike, sides = 0, deque[tuple[Told, Told, bool]](maxlen=UNITS_BEFORE)
    for _ in range(MOST_UNITS):
        one, other = await anext(theirs, None), await anext(ours, None)
        if one is None and other is None:
            break
        differs = _sense(one) != _sense(other)
        if differs and sides.maxlen == UNITS_BEFORE:
            sides = deque(sides, maxlen=None)
        sides.append((one, other, differs))
        if sides.maxlen is None and len(sides) >= UNITS_BESIDE:
            break
        alike += sides.maxlen is not None
    return alike, list(sides) if sides.maxlen is None else []


async def _units(backend: Backend, run_id: int, after: int) -> AsyncIterator[tuple[UnitRow, Any]]:
    """Yield units with their payloads in clear, without those that have no result."""
    while True:
        page = (await backend.ask(list_units(run_id, after=after, limit=WINDOW_UNITS))).items
        for unit in page:
            after = unit.seq
            if unit.event not in UNTOLD:
                yield unit, None if unit.payload is None else backend.clear(unit.payload)
        if len(page) < WINDOW_UNITS:
            return


def _sense(told: Told) -> Any:
    """Return what of a unit says the same in both journals if the same was done."""
    return None if told is None else (told[0].event, told[0].name, told[1])
