"""Debts: effects whose outcome is open, and obligations; and a person's word on them."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.backend import Backend
from pgflow.console.debts import EFFECT_STATES, OBLIGATION_STATES, orders_of_debt
from pgflow.errors import InvalidArgument, RunNotFound
from pgflow.inspect import (
    EffectRow,
    ObligationRow,
    database_now,
    find_obligation,
    list_effects,
    list_obligations,
)
from pgflow.web.page import Page, need, person_of, principal_of, query, read_form, see

PAGE_ROWS = 50
FIRST_ROWS = 15

DONE = {
    "settle": "Your word on the effect is recorded.",
    "discharge": "Discharged.", "transfer": "Handed over. It stays owed.", "waive": "Waived.",
}  # fmt: skip


async def show_effects(backend: Backend, request: Request) -> Page:
    """Show effects whose outcome is open, unknown ones first."""
    return await _show(backend, request, "effect", EFFECT_STATES)


async def show_obligations(backend: Backend, request: Request) -> Page:
    """Show obligations, breached ones first."""
    return await _show(backend, request, "obligation", OBLIGATION_STATES)


async def _show(backend: Backend, request: Request, kind: str, states: Mapping[str, str]) -> Page:
    state, after = request.query_params.get("state", ""), request.query_params.get("after")
    if state and state not in states:
        raise InvalidArgument(f"state {state!r}: there are {', '.join(states)}")
    parts = []
    for one in [state] if state else states:
        found = await backend.ask(
            list_obligations(
                state=one,
                kind=kind,
                tenant=backend.tenant,
                after=after if state else None,
                limit=PAGE_ROWS if state else FIRST_ROWS,
            )
        )
        if found.items or state:
            parts.append((one, states[one], found.items, found.next))
    return Page(
        "owed",
        f"{kind.capitalize()}s",
        {
            "kind": kind,
            "parts": parts,
            "state": state,
            "states": tuple(states),
            "now": await backend.ask(database_now()),
            "done": DONE.get(request.query_params.get("done", ""), ""),
        },
        "pgflow owed" + (f" --state {state}" if state else ""),
    )


async def show_debt(backend: Backend, request: Request) -> Page:
    """Show one effect or obligation, and the forms that close it."""
    debt = await _find(backend, request)
    effect = await _effect(backend, debt)
    orders = orders_of_debt(debt, person_of(request))
    return Page(
        "debt",
        debt.name,
        {
            "debt": debt,
            "effect": effect,
            "now": await backend.ask(database_now()),
            "detail": backend.clear(debt.detail),
            "beat": backend.clear(debt.beat_details),
            "args": backend.clear(effect.request) if effect else None,
            "says": {**EFFECT_STATES, **OBLIGATION_STATES}.get(debt.state or "", ""),
            "orders": orders,
            "may": principal_of(request).may("operate"),
        },
        orders[0].command({}) if orders else "pgflow owed",
        under="/effects" if debt.kind == "effect" else "/obligations",
    )


async def _effect(backend: Backend, debt: ObligationRow) -> EffectRow | None:
    if debt.kind != "effect":
        return None
    found = await backend.ask(list_effects(debt.run_id, after=debt.call - 1, limit=1))
    return next((effect for effect in found if effect.call == debt.call), None)


async def close_debt(backend: Backend, request: Request) -> Response:
    """Say what became of an effect or obligation."""
    need(request, "operate")
    form, debt = await read_form(request), await _find(backend, request)
    verb = form.get("verb", "")
    given = form.get("verdict") if verb == "settle" else verb
    for order in orders_of_debt(debt, person_of(request)):
        if order.verb == given:
            await order.give(backend, form)
            return see(request, "/effects" if debt.kind == "effect" else "/obligations", done=verb)
    raise InvalidArgument("this is not owed in that way")


async def _find(backend: Backend, request: Request) -> ObligationRow:
    key = query(request, "key")
    debt = await backend.ask(find_obligation(key, tenant=backend.tenant))
    if debt is None or debt.kind == "gate":
        raise RunNotFound(f"nothing is owed under the key {key!r}: it is closed by now")
    return debt
