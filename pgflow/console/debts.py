"""Debts: states of effects and obligations, what they mean, and the orders that each takes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from pgflow.console.backend import Backend
from pgflow.console.orders import WHY, BoundOrder, Field, Person, Typed, call, command, read_json
from pgflow.console.words import quoted
from pgflow.inspect import ObligationRow

EFFECT_STATES = {
    "unknown": "Its outcome is unknown: it may or may not have been done.",
    "uncompensated": "It was done, and its run was ended by force before taking it back.",
    "absent": "It was not done, and will be tried again.",
    "accepted": "The other side has taken it on, and will confirm it.",
    "intended": "It is about to be done, or under way.",
}
"""States of effects, those that need a person first, and their meaning."""
OBLIGATION_STATES = {
    "breached": "It was due and is still open.",
    "open": "It is neither discharged nor waived.",
}

VERDICTS = {
    "unknown": ("confirmed", "failed", "absent"),
    "accepted": ("confirmed", "failed"),
    "uncompensated": ("taken_back", "stands"),
}
"""Verdicts that an effect takes in each state."""
SAYS = {
    "confirmed": "It was done. The run goes on with this result.",
    "failed": "It was not done, and will not be. The run continues with this failure.",
    "absent": "It was not done, and may be tried again.",
    "taken_back": "It was taken back by other means.",
    "stands": "It was done, and need not be taken back.",
}
KEYS = {"confirmed": "c", "failed": "f", "absent": "b", "taken_back": "k", "stands": "s"}
"""Keys of the keyboard for verdicts in the terminal."""


def orders_of_debt(debt: ObligationRow, person: Person) -> list[BoundOrder]:
    """Return the orders that an effect or obligation takes: the verdicts on an effect by its state,
    and the ways to close an obligation.
    """
    if debt.kind == "effect":
        verdicts = VERDICTS.get(debt.state or "", ())
        return [_settle_order(debt.effect or "", verdict, person.name) for verdict in verdicts]
    key, by = debt.effect or "", person.name
    return [
        BoundOrder(
            "discharge",
            "Discharge",
            (),
            "It was done.",
            "Discharged.",
            "d",
            fields=(Field("value", "Evidence, in JSON", "null"),),
            command=lambda t: command("discharge", key, evidence=t.get("value", "JSON")),
            sql=lambda t: call("discharge", key, evidence=t.get("value"), sent_by=by),
            carry_out=lambda backend, t: backend.call(
                "discharge", key, read_json(t.get("value") or "null", "the evidence"), by=by
            ),
        ),
        BoundOrder(
            "transfer",
            "Hand over",
            (),
            "An outside party owes it from now on.",
            "Handed over. It stays owed.",
            "h",
            fields=(Field("to", "To whom", is_needed=True), WHY),
            command=lambda t: command("transfer", key, t.get("to") or "HOLDER", why=t.get("why")),
            sql=lambda t: call(
                "transfer_obligation", key, t.get("to", "HOLDER"), why=t.get("why"), sent_by=by
            ),
            carry_out=lambda backend, t: backend.call(
                "transfer", key, t["to"].strip(), why=t.get("why", "").strip(), by=by
            ),
        ),
        BoundOrder(
            "waive",
            "Waive",
            (),
            "It need not be done.",
            "Waived.",
            "w",
            fields=(Field("why", "Why", is_needed=True),),
            command=lambda t: command("waive", key, why=t.get("why") or "WHY"),
            sql=lambda t: call("waive_obligation", key, t.get("why", "WHY"), sent_by=by),
            carry_out=lambda backend, t: backend.call("waive", key, by=by, why=t["why"].strip()),
        ),
    ]


def _settle_order(key: str, verdict: str, by: str) -> BoundOrder:
    has_value = verdict == "confirmed"
    value = (Field("value", "Its result, in JSON", "null"),) if has_value else ()

    def line(typed: Typed) -> str:
        why = typed.get("why") or "WHY"
        if has_value:
            return command("settle", key, confirmed=typed.get("value", "JSON"), why=why)
        return f"pgflow settle {quoted(key)} --{verdict.replace('_', '-')} --why {quoted(why)}"

    def give(backend: Backend, typed: Typed) -> Awaitable[Any]:
        result = read_json(typed.get("value") or "null", "the result") if has_value else None
        why = typed["why"].strip()
        return backend.call("settle_effect", key, verdict, result, why=why, by=by)

    return BoundOrder(
        verdict,
        f"Settle: {verdict.replace('_', ' ')}",
        (),
        SAYS[verdict],
        "Your verdict on the effect is recorded.",
        KEYS[verdict],
        fields=(*value, Field("why", "How do you know", is_needed=True)),
        command=line,
        sql=lambda typed: call(
            "settle_effect",
            key,
            verdict,
            value=typed.get("value"),
            why=typed.get("why", "WHY"),
            sent_by=by,
        ),
        carry_out=give,
    )
