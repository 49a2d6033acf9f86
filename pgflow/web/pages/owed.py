"""Debts: effects whose outcome is open, and obligations; and a person's word on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow._console.backend import Backend
from pgflow._console.debts import EFFECT_STATES, OBLIGATION_STATES, SAYS, VERDICTS
from pgflow._console.words import quoted
from pgflow.errors import InvalidArgument, RunNotFound
from pgflow.inspect import (
    EffectRow,
    ObligationRow,
    database_now,
    find_obligation,
    list_effects,
    list_obligations,
)
from pgflow.web.page import Page, need, principal_of, query, read_form, read_json, see

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
    verdicts = VERDICTS.get(debt.state or "", ()) if debt.kind == "effect" else ()
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
            "verdicts": [(one, SAYS[one]) for one in verdicts],
            "may": principal_of(request).may("operate"),
        },
        _command(debt),
        under="/effects" if debt.kind == "effect" else "/obligations",
    )


def _command(debt: ObligationRow) -> str:
    key = quoted(debt.effect or "")
    if debt.kind == "obligation":
        return f"pgflow discharge {key} --evidence JSON"
    verdict = {"uncompensated": "--taken-back", "unknown": "--confirmed JSON"}.get(debt.state or "")
    return f"pgflow settle {key} {verdict}" if verdict else "pgflow owed"


async def _effect(backend: Backend, debt: ObligationRow) -> EffectRow | None:
    if debt.kind != "effect":
        return None
    found = await backend.ask(list_effects(debt.run_id, after=debt.call - 1, limit=1))
    return next((effect for effect in found if effect.call == debt.call), None)


async def close_debt(backend: Backend, request: Request) -> Response:
    """Say what became of an effect or obligation."""
    principal = need(request, "operate")
    form = await read_form(request)
    debt = await _find(backend, request)
    assert debt.effect is not None
    verb = form.get("verb", "")
    why = form.get("why", "").strip()
    if verb == "settle" and debt.kind == "effect":
        verdict = form.get("verdict", "")
        if verdict not in SAYS:
            raise InvalidArgument("say what became of it")
        if not why:
            raise InvalidArgument("say how you know: it is kept in the journal")
        value = _value(form) if verdict == "confirmed" else None
        await backend.call("settle_effect", debt.effect, verdict, value, why=why, by=principal.name)
    elif debt.kind == "obligation" and verb == "discharge":
        await backend.call("discharge", debt.effect, _value(form), by=principal.name)
    elif debt.kind == "obligation" and verb == "transfer":
        to = form.get("to", "").strip()
        await backend.call("transfer", debt.effect, to, why=why, by=principal.name)
    elif debt.kind == "obligation" and verb == "waive":
        await backend.call("waive", debt.effect, by=principal.name, why=why)
    else:
        raise InvalidArgument("this is not owed in that way")
    return see(request, "/effects" if debt.kind == "effect" else "/obligations", done=verb)


def _value(form: Mapping[str, str]) -> Any:
    text = form.get("value", "").strip()
    return read_json(text, "the value") if text else None


async def _find(backend: Backend, request: Request) -> ObligationRow:
    key = query(request, "key")
    debt = await backend.ask(find_obligation(key, tenant=backend.tenant))
    if debt is None or debt.kind == "gate":
        raise RunNotFound(f"nothing is owed under the key {key!r}: it is closed by now")
    return debt
