"""Orders to a relay. Each page shows what the order does and its command, asks once, and records
the user.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow._console.backend import Backend
from pgflow._console.relays import ORDERS, command_of, orders_for, sql_of
from pgflow.errors import InvalidArgument, WrongState
from pgflow.web.page import Page, need, order_of, read_form, see
from pgflow.web.pages.outbox import SHAPES, find_relay


async def ask_order(backend: Backend, request: Request) -> Page:
    """Show an order to a relay, and ask."""
    principal = need(request, "operate")
    order, relay = order_of(request, ORDERS, "a relay takes"), await find_relay(backend, request)
    event = request.query_params.get("event", "").strip()
    return Page(
        "relay_order",
        f"{order.title}: {relay.name}",
        {
            "order": order,
            "relay": relay,
            "shape": SHAPES[relay.state],
            "event": event,
            "fits": order in orders_for(relay.state, relay.dead),
            "sql": sql_of(order, relay.name, event, principal.name),
        },
        command_of(order, relay.name, event),
    )


async def give_order(backend: Backend, request: Request) -> Response:
    """Give an order to a relay."""
    principal = need(request, "operate")
    form = await read_form(request)
    order, relay = order_of(request, ORDERS, "a relay takes"), await find_relay(backend, request)
    said: dict[str, Any] = {"by": principal.name, "why": form.get("why", "").strip() or None}
    event = _number(form.get("event", ""))
    if order.verb == "replay":
        if event is None:
            raise InvalidArgument("say from which event it goes on: a number from 1 on")
        await backend.call("replay_relay", relay.name, event, **said)
    elif order.verb == "redeliver":
        if not await backend.call("redeliver_events", relay.name, event, **said):
            raise WrongState("no such event is dead any more: look again")
    else:
        await backend.call(f"{order.verb}_relay", relay.name, **said)
    return see(request, "/relay", name=relay.name, done=order.verb)


def _number(text: str) -> int | None:
    said = text.strip()
    if not said:
        return None
    if not (said.isascii() and said.isdecimal() and len(said) < 19):
        raise InvalidArgument(f"an event has a number from 1 on, not {said!r}")
    return int(said)
