"""Orders to a relay. Each page shows what the order does and its command, asks once, and records
the user.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.backend import Backend
from pgflow.console.relays import ORDERS, order_to_relay, orders_for
from pgflow.web.page import Page, need, order_of, person_of, read_form, see
from pgflow.web.pages.orders import page_of
from pgflow.web.pages.outbox import SHAPES, find_relay


async def ask_order(backend: Backend, request: Request) -> Page:
    """Show an order to a relay, and ask."""
    need(request, "operate")
    order, relay = order_of(request, ORDERS, "a relay takes"), await find_relay(backend, request)
    event = request.query_params.get("event", "").strip()
    bound = order_to_relay(order, relay.name, person_of(request), event)
    trouble = ""
    if order not in orders_for(relay.state, relay.dead):
        none_dead = ", and none of its events is dead" if order.verb == "redeliver" else ""
        trouble = f"The relay is {relay.state}{none_dead}, so this changes nothing."
    named, shape = {"name": relay.name}, SHAPES[relay.state]
    return page_of(bound, "/relay", named, relay.state, shape, "", trouble)


async def give_order(backend: Backend, request: Request) -> Response:
    """Give an order to a relay."""
    need(request, "operate")
    form, relay = await read_form(request), await find_relay(backend, request)
    order = order_of(request, ORDERS, "a relay takes")
    await order_to_relay(order, relay.name, person_of(request)).give(backend, form)
    return see(request, "/relay", name=relay.name, done=order.verb)
