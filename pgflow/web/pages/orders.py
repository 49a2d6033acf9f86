"""Orders to a run. Each page shows what the order does and its command, asks once, and records the
user.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pgflow import Signal
from pgflow._console.backend import Backend
from pgflow._console.orders import ORDERS, command_of, refusal_of, sql_of
from pgflow.errors import InvalidArgument, WrongState
from pgflow.inspect import find_run
from pgflow.web.page import Page, need, order_of, query, read_form, read_json, see


async def ask_order(backend: Backend, request: Request) -> Page:
    """Show an order to a run, and ask."""
    principal = need(request, "operate")
    order = order_of(request, ORDERS, "a run takes")
    run = await backend.ask(find_run(query(request, "key"), tenant=backend.tenant))
    signal, payload = request.query_params.get("name", ""), request.query_params.get("payload", "")
    return Page(
        "order",
        f"{order.title}: {run.key}",
        {
            "order": order,
            "run": run,
            "signal": signal,
            "payload": payload,
            "fits": run.status in order.fits,
            "sql": sql_of(order, run.key, signal, payload, principal.name),
        },
        command_of(order, run.key, signal, payload, ""),
    )


async def give_order(backend: Backend, request: Request) -> Response:
    """Give an order to a run."""
    principal = need(request, "operate")
    form = await read_form(request)
    order, key = order_of(request, ORDERS, "a run takes"), query(request, "key")
    run = await backend.ask(find_run(key, tenant=backend.tenant))
    if run.status not in order.fits:
        raise WrongState(refusal_of(order, key, run.status))
    why = form.get("why", "").strip()
    if order.verb == "signal":
        name = form.get("name", "").strip()
        if not name:
            raise InvalidArgument("name the signal")
        payload = read_json(form.get("payload", ""), "the payload")
        await backend.call("send", key, Signal(name, object), payload, by=principal.name)
    else:
        said = {"why": why} if why else {}
        await backend.call(order.verb, key, by=principal.name, **said)
    return see(request, "/run", key=key, done=order.verb)
