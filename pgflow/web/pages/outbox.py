"""The outbox: relays, how far each has come, and the events that one could not deliver."""

from __future__ import annotations

from starlette.requests import Request

from pgflow.console.backend import Backend
from pgflow.console.relays import ORDERS, orders_for
from pgflow.console.words import quoted
from pgflow.errors import InvalidArgument, RelayNotFound
from pgflow.inspect import (
    RelayRow,
    database_now,
    list_deliveries,
    list_relay_changes,
    list_relays,
    list_triggers,
)
from pgflow.web.page import Page, principal_of, query

PAGE_ROWS = 50
MOST_LAG = 10_000
"""Most events of a lag that are counted; more are shown as this many or more."""
STATES = {
    "working": "A worker delivers its events.",
    "idle": "No worker has it, or it has nothing to do.",
    "paused": "It takes no events until it is resumed.",
    "open": "Its target has failed again and again: it is left alone for a while.",
}
SHAPES = {"working": "running", "idle": "waiting", "paused": "paused", "open": "stuck"}
"""Shapes of the states, as runs have them."""
DELIVERIES = {"dead": "not tried again until you redeliver them", "waiting": "tried again"}
"""States of events that could not be delivered at once, those that need a person first."""


async def show_outbox(backend: Backend, request: Request) -> Page:
    """Show relays, and the triggers that publish or start."""
    del request
    return Page(
        "outbox",
        "Outbox",
        {
            "relays": await backend.ask(list_relays()),
            "triggers": await backend.ask(list_triggers()),
            "shapes": SHAPES,
            "most_lag": MOST_LAG,
            "now": await backend.ask(database_now()),
        },
        "pgflow outbox",
    )


async def show_relay(backend: Backend, request: Request) -> Page:
    """Show a relay, and the events that it could not deliver."""
    relay = await find_relay(backend, request)
    state = request.query_params.get("state") or ("dead" if relay.dead else "waiting")
    if state not in DELIVERIES:
        raise InvalidArgument(f"state {state!r}: there are {', '.join(DELIVERIES)}")
    may_order = principal_of(request).may("operate")
    done = request.query_params.get("done", "")
    found = await backend.ask(
        list_deliveries(
            relay.name, state=state, after=request.query_params.get("after"), limit=PAGE_ROWS
        )
    )
    return Page(
        "relay",
        relay.name,
        {
            "relay": relay,
            "says": STATES[relay.state],
            "shape": SHAPES[relay.state],
            "state": state,
            "counts": {"dead": relay.dead, "waiting": relay.retrying},
            "states": DELIVERIES,
            "next": found.next,
            "most_lag": MOST_LAG,
            "orders": orders_for(relay.state, relay.dead) if may_order else [],
            "may_order": may_order,
            "done": ORDERS[done].past if done in ORDERS else "",
            "changes": await backend.ask(list_relay_changes(relay.name)),
            "deliveries": [(one, backend.clear(one.payload)) for one in found],
            "now": await backend.ask(database_now()),
        },
        f"pgflow outbox show {quoted(relay.name)}",
    )


async def find_relay(backend: Backend, request: Request) -> RelayRow:
    """Return the relay that an address names.

    Raises:
        RelayNotFound: It does not exist.
    """
    name = query(request, "name")
    found = next((relay for relay in await backend.ask(list_relays()) if relay.name == name), None)
    if found is None:
        raise RelayNotFound(f"relay {name!r} does not exist")
    return found
