"""Gates: the questions that wait for a person's answer, and the answer.

The page shows exactly the request, and the answer is bound to it by its hash. So an approval counts
for what its sender has seen, even if the request was edited meanwhile. A refused answer leads back
to its form, with everything that was typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.amounts import amount_of
from pgflow.console.backend import Backend
from pgflow.console.gates import ENDS, answer_of, asks, delegate
from pgflow.console.orders import Person, read_json
from pgflow.console.words import literal, quoted, written
from pgflow.errors import GateClosed, InvalidArgument, NotAllowed, PayloadChanged, WrongState
from pgflow.inspect import GateRow, count_gates, database_now, find_gate, list_gates, read_shape
from pgflow.web.forms import INPUT, Field, form_of
from pgflow.web.page import Page, need, principal_of, query, read_form, see
from pgflow.web.principals import Principal
from pgflow.web.slots import ABSENT

PAGE_ROWS = 50
MOST_FIELDS = 20
REFUSALS = {InvalidArgument: 400, NotAllowed: 403, WrongState: 409}
"""Errors of an answer that can be written again, and the status of that page."""
DONE = {
    "approve": "Approved.", "reject": "Rejected.", "escalate": "Escalated.",
    "take_over": "Taken over: the run will not do it again.", "delegate": "Delegated.",
}  # fmt: skip


async def show_gates(backend: Backend, request: Request) -> Page:
    """Show the gates that wait for an answer, the oldest first."""
    principal, given = principal_of(request), request.query_params
    mine, workflow, name = given.get("mine") == "1", given.get("workflow"), given.get("name")
    found = await backend.ask(
        list_gates(
            asks=principal.name if mine else None,
            workflow=workflow or None,
            name=name or None,
            tenant=backend.tenant,
            after=given.get("after"),
            limit=PAGE_ROWS,
        )
    )
    rows = [(gate, backend.clear(gate.request)) for gate in found]
    return Page(
        "gates",
        "Gates",
        {
            "gates": [(gate, asked, amount_of(asked)) for gate, asked in rows],
            "groups": await backend.ask(count_gates(tenant=backend.tenant)),
            "next": found.next,
            "mine": mine,
            "chosen": {"workflow": workflow, "name": name} if workflow and name else {},
            "now": await backend.ask(database_now()),
            "done": DONE.get(given.get("done", ""), ""),
        },
        f"pgflow gates --for {quoted(principal.name)}" if mine else "pgflow gates",
    )


async def show_gate(backend: Backend, request: Request) -> Page:
    """Show a gate: the exact request, and the forms that answer it."""
    return await _page(backend, request, await _find(backend, request))


@dataclass(frozen=True)
class Sent:
    """A form that is shown again.

    Attributes:
        fields: Texts that the user typed.
        add: Pointer of a list that gets a further row.
        trouble: Reason why it was refused; empty for none.
        status: Status of the answer.
        is_late: True if it answers another request than the one that is shown.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    add: str | None = None
    trouble: str = ""
    status: int = 200
    is_late: bool = False

    @property
    def typed(self) -> Mapping[str, str] | None:
        """The fields of the request that the user typed; None for none."""
        has_some = any(name.startswith(INPUT) for name in self.fields)
        return self.fields if has_some and not self.is_late else None


async def _page(
    backend: Backend, request: Request, gate: GateRow, sent: Sent | None = None
) -> Page:
    """Return the page of a gate, with the texts that the user typed."""
    principal, sent = principal_of(request), sent or Sent()
    shown, is_clear = backend.clear(gate.request), backend.reads_everything(gate.request)
    form = await _form(backend, gate, shown, sent.typed, sent.add)
    wrong = form.wrong if form is not None and sent.trouble else []
    for one in form.leaves if form is not None and not sent.trouble else ():
        one.error = ""  # it is still being written
    return Page(
        "gate",
        gate.name,
        {
            "gate": gate,
            "request_": shown,
            "now": await backend.ask(database_now()),
            "on_timeout": ENDS.get(gate.on_timeout, gate.on_timeout),
            "evidence": backend.clear(gate.evidence),
            "answers": [
                {**said, "value": backend.clear(said.get("value"))} for said in gate.answers
            ],
            "json": written(shown),
            "fields": flat(shown) if is_clear else None,
            "is_clear": is_clear,
            "form": form,
            "sent": sent,
            "wrong": wrong,
            "lacks_value": gate.needs_value and not gate.edited,
            "may_answer": principal.may("approve"),
            "asks_me": asks(gate, (principal.name, *principal.acts_as)),
            "for_whom": [
                name for name in gate.approvers if name in (principal.name, *principal.acts_as)
            ],
            "sql": f"select pgflow.answer_gate({literal(gate.gate)}, 'approve', "
            f"payload_hash => {literal(gate.payload_hash)}, by => {literal(principal.name)})",
        },
        f"pgflow approve {quoted(gate.gate)} --hash {gate.payload_hash[:12]}…",
        sent.status,
    )


async def _form(
    backend: Backend,
    gate: GateRow,
    shown: Any,
    typed: Mapping[str, str] | None,
    add: str | None = None,
) -> Field | None:
    """Return the form for the value of an approval; None if it is written as JSON."""
    if gate.needs_value and not gate.edited:
        return form_of(await backend.ask(read_shape(gate.gate)), ABSENT, typed, add)
    if not backend.reads_everything(gate.request):
        return None
    return form_of(await backend.ask(read_shape(gate.gate)), shown, typed, add)


def flat(shown: Any) -> list[tuple[str, str]] | None:
    """Return the names and values of a request that is a list of them; None if it is more."""
    if not isinstance(shown, dict) or not 0 < len(shown) <= MOST_FIELDS:
        return None
    if any(isinstance(value, (dict, list)) for value in shown.values()):
        return None
    return [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in shown.items()
    ]


async def answer_gate(backend: Backend, request: Request) -> Page | Response:
    """Answer a gate; show it again, with what was written, if that cannot be an answer."""
    principal = need(request, "approve")
    form = await read_form(request)
    gate = await _find(backend, request)
    if "turn" in form:
        return await _page(backend, request, gate, Sent(form, form["turn"]))
    try:
        await _tell(backend, gate, principal, form)
    except PayloadChanged as error:
        sent = Sent(form, trouble=f"Something else is asked now: {error}", status=409, is_late=True)
        return await _page(backend, request, await _find(backend, request), sent)
    except (InvalidArgument, NotAllowed, WrongState) as error:
        status = next(code for cls, code in REFUSALS.items() if isinstance(error, cls))
        return await _page(backend, request, gate, Sent(form, trouble=str(error), status=status))
    verdict = form.get("verdict", "")
    return see(request, "/gates", done="approve" if verdict == "edit" else verdict)


async def _tell(
    backend: Backend, gate: GateRow, principal: Principal, form: Mapping[str, str]
) -> None:
    """Answer or delegate a gate as the form asks."""
    verdict = form.get("verdict", "")
    if verdict == "delegate":
        person = Person(principal.name, tuple(principal.acts_as))
        await delegate(backend, gate.gate, person, form.get("for"), form)
        return
    edit = await _edit(backend, gate, form) if verdict == "edit" else None
    await backend.call(
        "answer",
        gate.gate,
        answer_of(verdict, form, edit),
        by=principal.name,
        payload_hash=form.get("hash", ""),
        acting_as=list(principal.acts_as),
    )


async def _edit(backend: Backend, gate: GateRow, form: Mapping[str, str]) -> Any:
    """Return the value that the user entered, in fields or as JSON.

    Raises:
        PayloadChanged: Its fields are those of another request than the present one.
        InvalidArgument: It is not a value.
    """
    if not any(name.startswith(INPUT) for name in form):
        return read_json(form.get("edit", ""), "the edit")
    if form.get("hash") != gate.payload_hash:
        raise PayloadChanged("the request has been edited, or it is of another gate")
    filled = await _form(backend, gate, backend.clear(gate.request), form)
    if filled is None:
        raise InvalidArgument("this value is written as JSON")
    if filled.wrong:
        count = len(filled.wrong)
        raise InvalidArgument(f"{count} field{'s' * (count != 1)} cannot be as written")
    return None if filled.result is ABSENT else filled.result


async def _find(backend: Backend, request: Request) -> GateRow:
    gate = await backend.ask(find_gate(query(request, "gate"), tenant=backend.tenant))
    if gate is None:
        raise GateClosed(
            "this gate is closed: it was answered, it expired, or its run no longer wants an answer"
        )
    return gate
