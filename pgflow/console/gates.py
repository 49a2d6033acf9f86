"""Gates: their approvers, what happens at their time limit, and the answers that they take."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Any

from pgflow.authority import Answer, Approve, Escalate, Reject, TakeOver
from pgflow.console.backend import Backend
from pgflow.console.orders import (
    WHY,
    BoundOrder,
    Field,
    Person,
    Typed,
    array_of,
    call,
    command,
    read_json,
)
from pgflow.console.words import quoted, written
from pgflow.errors import InvalidArgument
from pgflow.inspect import GateRow

ENDS = {
    "expire": "expires", "reject": "is rejected", "approve": "is approved",
    "escalate": "is escalated",
}  # fmt: skip
"""Words for what becomes of a gate when its time is over."""


def asks(gate: GateRow, names: Collection[str]) -> bool:
    """Return True if a gate asks one of these names and roles, or names no approvers."""
    return not gate.approvers or any(name in gate.approvers for name in names)


def answer_of(verdict: str, typed: Typed, edit: Any = None) -> Answer:
    """Return the answer that was typed.

    Args:
        verdict: Verdict of the answer.
        typed: Texts of the other fields.
        edit: The request as it should be, of an edit.

    Raises:
        InvalidArgument: It is none, or not all of it.
    """
    why, to = typed.get("why", "").strip(), typed.get("to", "").strip()
    match verdict:
        case "approve":
            return Approve(comment=why)
        case "edit":
            if edit is None:
                raise InvalidArgument("an edit cannot be null: approve or reject instead")
            return Approve(edit=edit, comment=why)
        case "reject":
            if not why:
                raise InvalidArgument("give a reason for the rejection: the run receives it")
            return Reject(why)
        case "escalate":
            if not to:
                raise InvalidArgument("say to whom")
            return Escalate(to)
        case "take_over":
            return TakeOver(read_json(typed.get("result") or "null", "the result"), comment=why)
    raise InvalidArgument(f"a gate takes no answer {verdict!r}")


async def delegate(
    backend: Backend, gate: str, person: Person, place: str | None, typed: Typed
) -> None:
    """Have another person answer in someone's place.

    Args:
        backend: The backend.
        gate: Key of the gate.
        person: Person who delegates.
        place: Role of theirs in whose place it is; None for themselves.
        typed: Name of the other person, and the reason.

    Raises:
        InvalidArgument: They do not have that role, or name no delegate.
    """
    place, why = place or person.name, typed.get("why", "").strip()
    if place not in (person.name, *person.roles):
        raise InvalidArgument(f"{person.name} does not stand in the place of {place!r}")
    if not (to := typed.get("to", "").strip()):
        raise InvalidArgument("say to whom")
    kept = why if place == person.name else f"{person.name}: {why or 'delegated'}"
    await backend.call("delegate_gate", gate, to, by=place, why=kept)


COMMENT = Field("why", "Comment")
TO = Field("to", "To whom", is_needed=True)


def orders_of_gate(
    gate: GateRow, shown: Any, *, is_clear: bool, person: Person
) -> list[BoundOrder]:
    """Return the answers that a gate takes.

    Args:
        gate: The gate.
        shown: Its request, in clear.
        is_clear: True if all of the request could be read, and so can be edited.
        person: Person who answers.
    """
    edit = Field("edit", "The request, as it should be", written(shown), True, True)
    result = Field("result", "Its result, in JSON", "null", True)
    reason = Field("why", "Why", is_needed=True)
    done = "You have done it yourself: the run will not."
    answers = (
        ("a", "approve", "Approve", "It is done exactly as it is shown.", (COMMENT,)),
        ("e", "edit", "Edit, then approve", "It is done as you say.", (edit, COMMENT)),
        ("j", "reject", "Reject", "It is not done. The run receives your reason.", (reason,)),
        ("k", "take_over", "Take over", done, (result, COMMENT)),
        ("l", "escalate", "Escalate", "Another person must decide.", (TO,)),
    )
    left_out = {"approve"} if gate.needs_value else set()
    left_out |= set() if is_clear else {"edit"}
    orders = [_answer_order(gate, person, *one) for one in answers if one[1] not in left_out]
    return [*orders, _delegate_order(gate, person)]


def _answer_order(
    gate: GateRow, person: Person, key: str, verb: str, title: str, says: str, fields: Any
) -> BoundOrder:
    def give(backend: Backend, typed: Typed) -> Awaitable[Any]:
        edit = read_json(typed["edit"], "the edit") if verb == "edit" else None
        return backend.call(
            "answer",
            gate.gate,
            answer_of(verb, typed, edit),
            payload_hash=gate.payload_hash,
            by=person.name,
            acting_as=list(person.roles),
        )

    def line(typed: Typed) -> str:
        given = [typed[name] for name in ("edit", "result") if name in typed]
        options = {"to": typed.get("to"), "hash": gate.payload_hash}
        roles = "".join(f" --as {quoted(role)}" for role in person.roles)
        why = f" --why {quoted(typed['why'])}" if typed.get("why") else ""
        return command(verb, gate.gate, *given, **options) + roles + why

    def sql(typed: Typed) -> str:
        return call(
            "answer_gate",
            gate.gate,
            "approve" if verb == "edit" else verb,
            payload_hash=gate.payload_hash,
            value=typed.get("edit", typed.get("result")),
            reason=typed.get("why"),
            by=person.name,
            acting_as=array_of(person.roles),
            hand_to=typed.get("to"),
        )

    past = f"{title}: your answer is recorded."
    return BoundOrder(
        verb, title, (), says, past, key, fields=fields, command=line, sql=sql, carry_out=give
    )


def _delegate_order(gate: GateRow, person: Person) -> BoundOrder:
    mine = (person.name, *person.roles)
    place = next((name for name in gate.approvers if name in mine), person.name)
    return BoundOrder(
        "delegate",
        "Delegate",
        (),
        "Another may answer in your place.",
        "Delegated.",
        "g",
        fields=(TO, WHY),
        command=lambda typed: command(
            "delegate", gate.gate, to=typed.get("to") or "NAME", by=place
        ),
        sql=lambda typed: call(
            "delegate_gate", gate.gate, place, typed.get("to", "NAME"), reason=typed.get("why")
        ),
        carry_out=lambda backend, typed: delegate(backend, gate.gate, person, place, typed),
    )
