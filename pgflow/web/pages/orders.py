"""Orders to a run. Each page shows what the order does and its command, asks once, and records the
user.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.backend import Backend
from pgflow.console.orders import ORDERS, BoundOrder, order_to_run
from pgflow.inspect import find_run
from pgflow.web.page import Page, need, order_of, person_of, query, read_form, see


async def ask_order(backend: Backend, request: Request) -> Page:
    """Show an order to a run, and ask."""
    need(request, "operate")
    order, given = order_of(request, ORDERS, "a run takes"), request.query_params
    run = await backend.ask(find_run(query(request, "key"), tenant=backend.tenant))
    signal, payload = given.get("name", ""), given.get("payload") or "null"
    bound = order_to_run(order, run.key, person_of(request), signal, payload)
    refused = f"The run is {run.status} now, so this will be refused."
    trouble = "" if run.status in order.fits else refused
    return page_of(bound, "/run", {"key": run.key}, run.status, run.status, run.workflow, trouble)


def page_of(
    order: BoundOrder,
    path: str,
    named: dict[str, Any],
    status: str,
    shape: str,
    about: str,
    trouble: str,
) -> Page:
    """Return the page that asks about an order.

    Args:
        order: The order.
        path: Path of the page of the thing that takes it.
        named: Name of the thing, as the address of its page has it.
        status: Status of the thing.
        shape: Shape of that status.
        about: Further words on the thing.
        trouble: Words on an order that does not fit now; empty if it does.
    """
    (name,) = named.values()
    return Page(
        "order",
        f"{order.title}: {name}",
        {
            "order": order,
            "path": path,
            "named": named,
            "name": name,
            "status_": status,
            "shape": shape,
            "about": about,
            "trouble": trouble,
            "sql": order.sql(order.begun),
        },
        order.command(order.begun),
    )


async def give_order(backend: Backend, request: Request) -> Response:
    """Give an order to a run."""
    need(request, "operate")
    form, key = await read_form(request), query(request, "key")
    order = order_of(request, ORDERS, "a run takes")
    await order_to_run(order, key, person_of(request)).give(backend, form)
    return see(request, "/run", key=key, done=order.verb)
