"""One answer to many gates. The gates are looked up once, shown with their requests, and ticked.
Exactly the ticked ones are answered, each with the hash of the request that was shown: a gate that
opens meanwhile is not among them, and a request that is edited meanwhile refuses the answer.
"""

from __future__ import annotations

from starlette.requests import Request

from pgflow.console.amounts import amount_of
from pgflow.console.backend import Backend
from pgflow.console.gates import answer_of, asks
from pgflow.errors import GateClosed, InvalidArgument, NotAllowed, PayloadChanged, WrongState
from pgflow.inspect import count_gates, database_now, list_gates
from pgflow.web.page import Page, need, read_form
from pgflow.web.pages.bulk import told

MOST_GATES = 100
TICKED = "hash:"
"""Beginning of the name of a tick, before the key of its gate; its value is the shown hash."""
VERDICTS = {"approve": "approved", "reject": "rejected"}
REFUSALS = (GateClosed, InvalidArgument, NotAllowed, PayloadChanged, WrongState)


async def ask_answers(backend: Backend, request: Request) -> Page:
    """Show the gates that would be answered, and ask."""
    principal, given = need(request, "approve"), request.query_params
    names = (principal.name, *principal.acts_as)
    workflow, name, chosen = given.get("workflow"), given.get("name"), given.getlist("gate")
    if not chosen and not (workflow and name):
        raise InvalidArgument("choose gates first, or one name of gates")
    found = await backend.ask(
        list_gates(
            gates=chosen[:MOST_GATES] if chosen else None,
            workflow=workflow,
            name=name,
            tenant=backend.tenant,
            limit=MOST_GATES,
        )
    )
    groups = await backend.ask(count_gates(tenant=backend.tenant))
    in_all = sum(one.gates for one in groups if (one.workflow, one.name) == (workflow, name))
    return Page(
        "answers",
        "Answer many gates",
        {
            "gates": [
                (gate, backend.clear(gate.request), amount_of(backend.clear(gate.request)))
                for gate in found
                if not gate.needs_value or gate.edited
            ],
            "need_value": [gate for gate in found if gate.needs_value and not gate.edited],
            "mine": {gate.gate for gate in found if asks(gate, names)},
            "left_out": max(len(chosen) if chosen else in_all, len(found)) - len(found),
            "most": MOST_GATES,
            "ticked": TICKED,
            "now": await backend.ask(database_now()),
        },
        under="/gates",
    )


async def give_answers(backend: Backend, request: Request) -> Page:
    """Answer the gates that were ticked."""
    principal = need(request, "approve")
    form = await read_form(request)
    ticked = {
        name.removeprefix(TICKED): seen for name, seen in form.items() if name.startswith(TICKED)
    }
    verdict = form.get("verdict", "")
    if not 0 < len(ticked) <= MOST_GATES or verdict not in VERDICTS:
        raise InvalidArgument(f"tick 1 to {MOST_GATES} gates, and approve or reject them")
    answer = answer_of(verdict, form)
    open_now = await backend.ask(list_gates(gates=list(ticked), tenant=backend.tenant, limit=None))
    gates = {gate.gate: gate for gate in open_now}
    refused = []
    for key, seen in ticked.items():
        gate = gates.get(key)
        try:
            if gate is None:
                raise GateClosed(f"gate {key} is closed")
            await backend.call(
                "answer",
                key,
                answer,
                by=principal.name,
                payload_hash=seen,
                acting_as=list(principal.acts_as),
            )
        except REFUSALS as error:
            refused.append(("" if gate is None else gate.key, str(error)))
    return told("Gates", "gate", VERDICTS[verdict], len(ticked), refused, "/gates")
