"""Gates: what waits for somebody's answer, and the answer.

What is shown is exactly what is asked, and the answer is bound to it by its hash. So whoever
approves has seen it, even if somebody else edits it meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow._desk.desk import Desk
from pgflow._desk.gates import ENDS, asks
from pgflow._desk.words import literal, quoted
from pgflow._model.gates import Answer, Approve, Escalate, Reject, TakeOver
from pgflow.errors import GateClosed, InvalidArgument
from pgflow.inspect import GateRow, database_now, find_gate, list_gates
from pgflow.web.page import Page, need, principal_of, query, read_form, read_json, see
from pgflow.web.principals import Principal

PAGE_ROWS = 50
MOST_FIELDS = 20
DONE = {
    "approve": "Approved.", "reject": "Rejected.", "escalate": "Escalated.",
    "take_over": "Taken over: the run will not do it again.", "delegate": "Delegated.",
}  # fmt: skip


async def show_gates(desk: Desk, request: Request) -> Page:
    """Show the gates that wait for an answer, the oldest first."""
    principal = principal_of(request)
    mine = request.query_params.get("mine") == "1"
    found = await desk.ask(
        list_gates(
            asks=principal.name if mine else None, tenant=desk.tenant,
            after=request.query_params.get("after"), limit=PAGE_ROWS,
        )
    )  # fmt: skip
    return Page(
        "gates",
        "Gates",
        {
            "gates": [(gate, desk.clear(gate.request)) for gate in found], "next": found.next,
            "mine": mine, "now": await desk.ask(database_now()),
            "done": DONE.get(request.query_params.get("done", ""), ""),
        },
        f"pgflow gates --for {quoted(principal.name)}" if mine else "pgflow gates",
    )  # fmt: skip


async def show_gate(desk: Desk, request: Request) -> Page:
    """Show a gate: the exact request, and the forms that answer it."""
    gate, principal = await _find(desk, request), principal_of(request)
    shown = desk.clear(gate.request)
    is_clear = desk.reads_everything(gate.request)
    return Page(
        "gate",
        gate.name,
        {
            "gate": gate, "request_": shown, "now": await desk.ask(database_now()),
            "on_timeout": ENDS.get(gate.on_timeout, gate.on_timeout),
            "evidence": desk.clear(gate.evidence),
            "answers": [{**said, "value": desk.clear(said.get("value"))} for said in gate.answers],
            "json": json.dumps(shown, ensure_ascii=False, indent=2),
            "fields": fields_of(shown) if is_clear else None, "is_clear": is_clear,
            "may_answer": principal.may("approve"),
            "asks_me": asks(gate, (principal.name, *principal.acts_as)),
            "for_whom": [
                name for name in gate.approvers if name in (principal.name, *principal.acts_as)
            ],
            "sql": f"select pgflow.answer_gate({literal(gate.gate)}, 'approve', "
            f"payload_hash => {literal(gate.payload_hash)}, by => {literal(principal.name)})",
        },
        f"pgflow approve {quoted(gate.gate)} --hash {gate.payload_hash[:12]}…",
    )  # fmt: skip


def fields_of(shown: Any) -> list[tuple[str, str, Any]] | None:
    """Return name, kind and value of each field of a request that a form can have; None if it is
    too rich for that, and is edited as JSON.
    """
    if not isinstance(shown, dict) or not 0 < len(shown) <= MOST_FIELDS:
        return None
    found: list[tuple[str, str, Any]] = []
    for name, value in shown.items():
        if isinstance(value, bool):
            found.append((name, "choice", value))
        elif isinstance(value, (int, float)):
            found.append((name, "number", json.dumps(value)))
        elif isinstance(value, str):
            found.append((name, "lines" if "\n" in value or len(value) > 80 else "text", value))
        else:
            return None
    return found


def read_fields(form: Mapping[str, str], shown: Any) -> Any:
    """Return a request as somebody has edited it, field by field.

    Raises:
        InvalidArgument: A field is missing, or is no number.
    """
    edited: dict[str, Any] = {}
    for name, kind, _ in fields_of(shown) or ():
        text = form.get(f"field.{name}")
        if text is None:
            raise InvalidArgument(f"the field {name!r} is missing")
        if kind == "number":
            edited[name] = read_json(text.strip(), f"{name!r} of the request")
            if isinstance(edited[name], bool) or not isinstance(edited[name], (int, float)):
                raise InvalidArgument(f"{name!r} of the request is a number, not {text!r}")
        else:
            edited[name] = text == "true" if kind == "choice" else text
    return edited


async def answer_gate(desk: Desk, request: Request) -> Response:
    """Answer a gate."""
    principal = need(request, "approve")
    form = await read_form(request)
    gate = await _find(desk, request)
    verdict = form.get("verdict", "")
    why = form.get("why", "").strip()
    if verdict == "delegate":
        await _delegate(desk, gate, principal, form, why)
    else:
        answer = _answer(verdict, form, why, desk.clear(gate.request))
        await desk.tell(
            "answer", gate.gate, answer, by=principal.name, payload_hash=form.get("hash", ""),
            acting_as=list(principal.acts_as),
        )  # fmt: skip
    return see(request, "/gates", done="approve" if verdict == "edit" else verdict)


def _answer(verdict: str, form: Mapping[str, str], why: str, shown: Any) -> Answer:
    """Return the answer that a form holds.

    Raises:
        InvalidArgument: It holds none, or not all of it.
    """
    match verdict:
        case "approve":
            return Approve(comment=why)
        case "edit":
            has_fields = any(name.startswith("field.") for name in form)
            edit = (
                read_fields(form, shown)
                if has_fields
                else read_json(form.get("edit", ""), "the edit")
            )
            if edit is None:
                raise InvalidArgument("null is no edit: approve, or reject")
            return Approve(edit=edit, comment=why)
        case "reject":
            if not why:
                raise InvalidArgument("say why you reject: the run is told")
            return Reject(why)
        case "escalate":
            return Escalate(_named(form))
        case "take_over":
            return TakeOver(read_json(form.get("result") or "null", "the result"), comment=why)
    raise InvalidArgument(f"a gate takes no answer {verdict!r}")


async def _delegate(
    desk: Desk, gate: GateRow, principal: Principal, form: Mapping[str, str], why: str
) -> None:
    """Let another answer in place of the principal, or of a role of theirs.

    Raises:
        InvalidArgument: They are not that one, or name nobody.
    """
    place = form.get("for", principal.name)
    if place not in (principal.name, *principal.acts_as):
        raise InvalidArgument(f"{principal.name} does not stand in the place of {place!r}")
    said = why if place == principal.name else f"{principal.name}: {why or 'delegated'}"
    await desk.tell("delegate_gate", gate.gate, _named(form), by=place, why=said)


def _named(form: Mapping[str, str]) -> str:
    name = form.get("to", "").strip()
    if not name:
        raise InvalidArgument("say to whom")
    return name


async def _find(desk: Desk, request: Request) -> GateRow:
    gate = await desk.ask(find_gate(query(request, "gate"), tenant=desk.tenant))
    if gate is None:
        raise GateClosed(
            "this gate asks nothing any more: somebody has answered, its time is over, or its run "
            "does not want an answer"
        )
    return gate
