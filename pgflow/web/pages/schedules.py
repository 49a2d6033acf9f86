"""Schedules: what starts by itself and when, and orders to one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.alerts import SCHEDULE_STATES
from pgflow.console.backend import Backend
from pgflow.console.orders import Order
from pgflow.console.words import literal, quoted, wall
from pgflow.errors import InvalidArgument, ScheduleNotFound
from pgflow.inspect import (
    ScheduleRow,
    count_schedules,
    database_now,
    find_schedule,
    list_schedule_changes,
    list_schedules,
)
from pgflow.web.page import Page, need, order_of, principal_of, query, read_form, see

PAGE_ROWS = 50
CHANGE_ROWS = 20
NEXT_SLOTS = 10
SHOWN_SLOTS = 100
"""Slots of a backfill that are shown one by one."""
LATE_SECONDS = 60.0
"""Seconds after which a slot that has not fired counts as missed."""
SHAPES = {
    "active": "waiting", "paused": "paused", "undeclared": "stuck", "broken": "stuck",
    "over": "completed",
}  # fmt: skip
"""Shapes of the states, as runs have them."""
OVERLAPS = {
    "buffer_all": "One run after the other.",
    "allow": "All at once.",
}


ORDERS = {
    order.verb: order
    for order in (
        Order(
            "resume",
            "Resume",
            (),
            "It goes on with the slots to come. Those that passed meanwhile start nothing.",
            "It goes on.",
        ),
        Order(
            "pause",
            "Pause",
            (),
            "Its slots start no run until it is resumed. Runs that are open go on.",
            "It is paused.",
        ),
        Order(
            "trigger",
            "Trigger",
            (),
            "One run starts now, whatever runs of it are open.",
            "A run is started.",
        ),
        Order(
            "backfill",
            "Backfill",
            (),
            "Slots of a range in the past start their runs. One that has a run gets no second one.",
            "The slots have their runs.",
        ),
    )
}
NOT_CHANGED = "same"
"""Word of an address for an order that has changed nothing."""


async def show_schedules(backend: Backend, request: Request) -> Page:
    """Show schedules by their names, and how many are in each state."""
    state = request.query_params.get("state", "")
    if state and state not in SCHEDULE_STATES:
        raise InvalidArgument(f"state {state!r}: there are {', '.join(SCHEDULE_STATES)}")
    found = await backend.ask(
        list_schedules(
            state=state or None, after=request.query_params.get("after"), limit=PAGE_ROWS
        )
    )
    counts = {count.state: count.schedules for count in await backend.ask(count_schedules())}
    return Page(
        "schedules",
        "Schedules",
        {
            "schedules": found.items,
            "next": found.next,
            "state": state,
            "states": SCHEDULE_STATES,
            "counts": counts,
            "shapes": SHAPES,
            "too_late": LATE_SECONDS,
            "now": await backend.ask(database_now()),
        },
        "pgflow schedules",
    )


async def show_schedule(backend: Backend, request: Request) -> Page:
    """Show a schedule: its next slots, its last run, and its changes."""
    found = await _find(backend, request)
    changes = await backend.ask(
        list_schedule_changes(
            found.name, after=request.query_params.get("after"), limit=CHANGE_ROWS
        )
    )
    done = request.query_params.get("done", "")
    if done == NOT_CHANGED:
        said = "It was so already: nothing has changed."
    else:
        said = ORDERS[done].past if done in ORDERS else ""
    zone = str(found.spec.get("tz", "UTC"))
    return Page(
        "schedule",
        found.name,
        {
            "schedule": found,
            "says": SCHEDULE_STATES[found.state],
            "shape": SHAPES[found.state],
            "is_late": found.state == "active" and found.late_seconds > LATE_SECONDS,
            "zone": zone,
            "slots": [(at, wall(at, zone)) for at in _next_slots(found)],
            "buffered": [(at, wall(at, zone)) for at in found.buffered[:SHOWN_SLOTS]],
            "input": backend.clear(found.input),
            "changes": changes.items,
            "more_changes": changes.next,
            "now": await backend.ask(database_now()),
            "done": said,
            "orders": orders_for(found) if principal_of(request).may("operate") else [],
        },
        f"pgflow schedules show {quoted(found.name)}",
    )


def orders_for(found: ScheduleRow) -> list[Order]:
    """Return the orders that mean something to a schedule as it is."""
    left_out = "pause" if found.paused_at is not None else "resume"
    return [order for order in ORDERS.values() if order.verb != left_out]


def _next_slots(found: ScheduleRow) -> list[datetime]:
    """Return the next slots; none of one whose slots cannot be evaluated."""
    if found.state in ("broken", "over"):
        return []
    try:
        return found.next_slots(NEXT_SLOTS)
    except InvalidArgument:
        return []


async def ask_order(backend: Backend, request: Request) -> Page:
    """Show an order to a schedule, and ask."""
    principal = need(request, "operate")
    order, found = order_of(request, ORDERS, "a schedule takes"), await _find(backend, request)
    zone = str(found.spec.get("tz", "UTC"))
    values: dict[str, Any] = {
        "order": order,
        "schedule": found,
        "shape": SHAPES[found.state],
        "zone": zone,
        "fits": order in orders_for(found),
        "slots": None,
        "overlaps": OVERLAPS,
        "first": request.query_params.get("first", ""),
        "last": request.query_params.get("last", ""),
        "overlap": _overlap(request.query_params.get("overlap", "buffer_all")),
        "sql": f"select pgflow.{order.verb}_schedule({literal(found.name)}, why => 'WHY', "
        f"sent_by => {literal(principal.name)})",
    }
    command = f"pgflow schedules {order.verb} {quoted(found.name)}"
    if order.verb == "backfill":
        values["sql"] = ""
        command += f" {quoted(values['first'] or 'FIRST')} {quoted(values['last'] or 'LAST')}"
        if values["overlap"] != "buffer_all":
            command += f" --overlap {values['overlap']}"
        if values["first"] or values["last"]:
            slots = _slots(found, values["first"], values["last"])
            values["slots"] = [(at, wall(at, zone)) for at in slots]
    return Page(
        "schedule_order",
        f"{order.title}: {found.name}",
        {**values, "shown": SHOWN_SLOTS, "now": found.read_at},
        command,
    )


async def give_order(backend: Backend, request: Request) -> Page | Response:
    """Give an order to a schedule."""
    principal = need(request, "operate")
    form = await read_form(request)
    order, found = order_of(request, ORDERS, "a schedule takes"), await _find(backend, request)
    said: dict[str, Any] = {"by": principal.name, "why": form.get("why", "").strip() or None}
    if order.verb == "trigger":
        slot = form.get("slot", "").strip()
        at = found.parse_moment(slot, "the slot") if slot else None
        started = await backend.call("trigger_schedule", found.name, slot_at=at, **said)
        return see(request, "/run", key=started.run_key)
    if order.verb == "backfill":
        first, last = form.get("first", ""), form.get("last", "")
        begin, end = found.parse_moment(first, "the begin"), found.parse_moment(last, "the end")
        overlap = _overlap(form.get("overlap", ""))
        done = await backend.call(
            "backfill_schedule", found.name, begin, end, overlap=overlap, **said
        )
        zone = str(found.spec.get("tz", "UTC"))
        return Page(
            "backfilled",
            f"Backfilled: {found.name}",
            {
                "schedule": found,
                "slots": [(slot, wall(slot.slot_at, zone)) for slot in done],
                "zone": zone,
                "shown": SHOWN_SLOTS,
                "counts": {
                    state: sum(slot.state == state for slot in done)
                    for state in ("started", "buffered", "there")
                },
            },
        )
    changed = await backend.call(f"{order.verb}_schedule", found.name, **said)
    return see(request, "/schedule", name=found.name, done=order.verb if changed else NOT_CHANGED)


def _overlap(text: str) -> str:
    if text not in OVERLAPS:
        raise InvalidArgument(f"overlap of a backfill is {' or '.join(OVERLAPS)}, not {text!r}")
    return text


def _slots(found: ScheduleRow, first: str, last: str) -> list[datetime]:
    begin, end = found.parse_moment(first, "the begin"), found.parse_moment(last, "the end")
    return found.slots_between(begin, end)


async def _find(backend: Backend, request: Request) -> ScheduleRow:
    name = query(request, "name")
    found = await backend.ask(find_schedule(name))
    if found is None:
        raise ScheduleNotFound(f"schedule {name!r} does not exist")
    return found
