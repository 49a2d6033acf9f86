"""A run: its status and the reason, the orders that it takes, and all that it did.

A journal may be long. The page shows a window of it, the newest units unless you ask for another,
so a run of a hundred thousand steps shows as fast as one of ten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pgflow.console.backend import Backend
from pgflow.console.graphs import STANDINGS
from pgflow.console.orders import ORDERS, orders_for
from pgflow.console.traces import logs_of
from pgflow.console.waterfall import draw
from pgflow.console.words import advice, quoted, whole, why
from pgflow.errors import InvalidArgument, RunNotFound
from pgflow.inspect import (
    ChildRow,
    DecisionRow,
    EffectRow,
    Listing,
    NodeState,
    RunDetail,
    UnitRow,
    database_now,
    describe_error,
    find_detail,
    find_key,
    fold,
    last_seq,
    list_children,
    list_debts,
    list_decisions,
    list_effects,
    list_gates,
    list_messages,
    list_orders,
    list_units,
    read_event_kinds,
    read_progress,
    read_state,
    read_trace,
    sum_charges,
)
from pgflow.texts import visible
from pgflow.web.page import Page, principal_of, query

log = logging.getLogger("pgflow")

WINDOW_UNITS = 200
MOST_ROWS = 50
"""Children, effects and decisions of a run that its page shows."""

ENDED = ("completed", "failed", "cancelled")

AGAIN = {
    "rewind": "It goes on from there, as its next generation.",
    "fork": "This is the fork.",
}
FAILURES = ("attempt_failed", "step_failed", "effect_failed", "effect_unknown")


async def show_run(backend: Backend, request: Request) -> Page:
    """Show a run."""
    key = query(request, "key")
    run = await backend.ask(find_detail(key, tenant=backend.tenant))
    now = await backend.ask(database_now())
    done = request.query_params.get("done", "")
    journal, kinds = await _journal(backend, request, run, now)
    return Page(
        "run",
        key,
        {
            "run": run,
            "now": now,
            "why": why(run),
            "advice": advice(run),
            "done": ORDERS[done].past if done in ORDERS else AGAIN.get(done, ""),
            "may_order": principal_of(request).may("operate"),
            "orders": orders_for(run) if principal_of(request).may("operate") else [],
            "logs": await _logs(backend, run),
            "values": _values(backend, run),
            "clear": backend.clear,
            "graph": await _graph(backend, run),
            "standings": STANDINGS,
            **journal,
            **await _kin(backend, run, kinds),
            **await _ledgers(backend, run, kinds),
        },
        f"pgflow show {quoted(key)}",
    )


async def _logs(backend: Backend, run: RunDetail) -> str:
    """Return the address of the logs of a run."""
    return backend.logs and logs_of(
        backend.logs, run.key, await backend.ask(read_trace(run.run_id))
    )


async def _graph(backend: Backend, run: RunDetail) -> Sequence[NodeState] | None:
    """Return the nodes of a run whose workflow plays a graph; None for others, and where its drawer
    fails: the rest of the page is needed all the more then.
    """
    drawer = backend.graphs.get(run.workflow)
    if drawer is None:
        return None
    progress = await backend.ask(read_progress(run.run_id, drawer.stream))
    progress = replace(progress, told=tuple(backend.clear(said) for said in progress.told))
    draw = partial(drawer, backend.clear(run.input), progress, has_ended=run.status in ENDED)
    try:
        return await asyncio.to_thread(draw)
    except Exception:
        log.exception("the graph of run %s cannot be drawn", visible(run.key))
        return None


def _values(backend: Backend, run: RunDetail) -> list[tuple[str, str, Any]]:
    """Return the values of a run by their names, with what a raw page calls them."""
    found: list[tuple[str, str, Any]] = [("Input", "input", backend.clear(run.input))]
    if run.status == "completed":
        found.append(("Output", "output", backend.clear(run.output)))
    if run.error:
        error = backend.clear(run.error)
        found.append(("Error", "error", error))
        trace = error.get("traceback") if isinstance(error, dict) else None
        if trace:
            text = trace if isinstance(trace, str) else "\n".join(map(str, trace))
            found.append(("Traceback", "", text))
    return found


async def _journal(
    backend: Backend, request: Request, run: RunDetail, now: datetime
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a window of the journal, to draw and to list, and the kinds of all its events, which
    decide what else to read.
    """
    last = await backend.ask(last_seq(run.run_id))
    newest = max(0, last - WINDOW_UNITS)
    after = _place(request, newest)
    window = await backend.ask(list_units(run.run_id, after=after, limit=WINDOW_UNITS))
    units = window.items
    begins = units[0].at if units and after else run.created_at
    entries = fold(units, begins)
    is_newest = after >= newest
    goes_on = is_newest and run.status not in ENDED
    kinds = (
        await backend.ask(read_event_kinds(run.run_id))
        if window.next or after
        else frozenset(unit.event for unit in units)
    )
    found = {
        "waterfall": draw(entries, begins, now if goes_on else None) if entries else None,
        "units": [_told(backend, unit) for unit in units],
        "last": last,
        "after": after,
        "is_newest": is_newest,
        "earlier": max(0, after - WINDOW_UNITS) if after else None,
        "later": None if is_newest else min(after + WINDOW_UNITS, newest),
    }
    return found, kinds


def _place(request: Request, newest: int) -> int:
    said = request.query_params.get("from")
    if said is None:
        return newest
    if not (said.isascii() and said.isdecimal() and len(said) < 10):
        raise InvalidArgument("from= of a run is a place in its journal: a number")
    return min(int(said), newest)


def _told(backend: Backend, unit: UnitRow) -> tuple[UnitRow, Any, str]:
    """Return a unit with its payload in clear, and words for that if it is an error."""
    payload = None if unit.payload is None else backend.clear(unit.payload)
    is_error = unit.event in FAILURES and isinstance(payload, dict)
    return unit, payload, describe_error(payload) if is_error else ""


async def _kin(backend: Backend, run: RunDetail, kinds: frozenset[str]) -> dict[str, Any]:
    parent = None if run.parent_run_id is None else await backend.ask(find_key(run.parent_run_id))
    children: Listing[ChildRow] = Listing([], None)
    if "child_started" in kinds:
        children = await backend.ask(list_children(run.run_id, limit=MOST_ROWS))
    return {"parent": parent, "children": children.items, "more_children": children.next}


async def _ledgers(backend: Backend, run: RunDetail, kinds: frozenset[str]) -> dict[str, Any]:
    """Return the ledger entries of a run, and its published state."""
    effects: Listing[EffectRow] = Listing([], None)
    if any(kind.startswith("effect_") for kind in kinds):
        effects = await backend.ask(list_effects(run.run_id, limit=MOST_ROWS))
    decisions: Listing[DecisionRow] = Listing([], None)
    if "decision_recorded" in kinds:
        decisions = await backend.ask(list_decisions(run.run_id, limit=MOST_ROWS))
    state, spent = None, None
    if "state_set" in kinds:
        state = backend.clear(await backend.ask(read_state(run.key, tenant=backend.tenant)))
    if "budget_charged" in kinds:
        spent = await backend.ask(sum_charges("run", run_id=run.run_id))
    messages = await backend.ask(list_messages(run.key, tenant=backend.tenant, limit=MOST_ROWS))
    return {
        "gates": (await backend.ask(list_gates(run.key, tenant=backend.tenant))).items,
        "effects": effects.items,
        "saga": saga_of(effects.items),
        "more_effects": effects.next,
        "decisions": [
            (
                one,
                backend.clear(one.value),
                backend.clear(one.evidence),
                backend.clear(one.alternatives),
            )
            for one in decisions
        ],
        "more_decisions": decisions.next,
        "debts": [
            debt for debt in await backend.ask(list_debts(run.run_id)) if debt.kind != "gate"
        ],
        "asked": await backend.ask(list_orders(run.key, tenant=backend.tenant)),
        "messages": messages.items,
        "state": state or {},
        "spent": spent or [],
        "error_words": describe_error(backend.clear(run.error)) if run.error else "",
    }


def saga_of(effects: Sequence[EffectRow]) -> dict[str, list[Any]]:
    """Return which effects were taken back, each with the effect that did it, and which were done
    and not taken back, the newest first: in that order a saga would.
    """
    undone = {effect.compensates: effect for effect in effects if effect.compensates}
    return {
        "taken_back": [(one, undone[one.effect]) for one in effects if one.effect in undone],
        "stands": [
            one
            for one in reversed(effects)
            if one.status == "confirmed" and one.effect not in undone and not one.compensates
        ],
    }


async def show_value(backend: Backend, request: Request) -> Response:
    """Show a value of a run in full, as plain text."""
    run = await backend.ask(find_detail(query(request, "key"), tenant=backend.tenant))
    name = query(request, "value")
    values = {"input": run.input, "output": run.output, "error": run.error}
    if name in values:
        value = values[name]
    elif name.isascii() and name.isdecimal() and 0 < len(name) < 10:
        units = await backend.ask(list_units(run.run_id, after=int(name) - 1, limit=1))
        if not units.items or units.items[0].seq != int(name):
            raise RunNotFound(f"run {run.key!r} has no unit {name}")
        value = units.items[0].payload
    else:
        raise InvalidArgument("value= is input, output, error, or the number of a unit")
    return PlainTextResponse(whole(backend.clear(value)) + "\n")
