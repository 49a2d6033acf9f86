"""Orders: what you can do about a run, a gate or a debt, with the texts to confirm it.

An order is data: its fields, its command line and SQL statement, and the method of the client that
carries it out. This module shows nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pgflow import Signal, inspect
from pgflow._desk import orders as told
from pgflow._desk.debts import SAYS, VERDICTS
from pgflow._desk.desk import Desk
from pgflow._desk.words import literal, quoted
from pgflow.authority import Answer, Approve, Escalate, Reject, TakeOver
from pgflow.errors import InvalidArgument, WrongState
from pgflow_cli.look.output import dump

Said = Mapping[str, str]
"""Texts that a person has typed, by the names of fields."""

RUN_KEYS = {"retry": "t", "resume": "u", "pause": "p", "signal": "s", "cancel": "x"}
VERDICT_KEYS = {"confirmed": "c", "failed": "f", "absent": "b", "taken_back": "k", "stands": "s"}


@dataclass(frozen=True)
class Person:
    """The user at the terminal.

    Attributes:
        name: Name that is recorded with every order.
        roles: Roles of theirs that gates ask for.
    """

    name: str
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Field:
    """A field of an order.

    Attributes:
        name: Its name.
        label: Words for it.
        value: Text that it begins with.
        is_needed: True if it may not be empty.
        is_long: True for a text of several lines.
    """

    name: str
    label: str
    value: str = ""
    is_needed: bool = False
    is_long: bool = False


@dataclass(frozen=True)
class Order:
    """An order.

    Attributes:
        key: Key of the keyboard for it.
        title: Words for it.
        says: Words for what it does.
        fields: Its fields.
        command: Function that returns its command line.
        sql: Function that returns its SQL statement.
        give: Function that carries it out.
        past: Words for what was done.
    """

    key: str
    title: str
    says: str
    fields: tuple[Field, ...]
    command: Callable[[Said], str]
    sql: Callable[[Said], str]
    give: Callable[[Desk, Said], Awaitable[Any]]
    past: str


def check(order: Order, said: Said) -> None:
    """Refuse what is not whole.

    Raises:
        InvalidArgument: A field that is needed is empty.
    """
    for field in order.fields:
        if field.is_needed and not said[field.name].strip():
            raise InvalidArgument(f"fill in first: {field.label}")


def call(function: str, *given: str, **named: str | None) -> str:
    """Return the statement that calls a stored function. Arguments that are None are left out."""
    said = [literal(one) for one in given]
    said += [f"{name} => {literal(one)}" for name, one in named.items() if one is not None]
    return f"select pgflow.{function}({', '.join(said)})"


def command(verb: str, *given: str, **options: str | None) -> str:
    """Return a command line. Options that are None are left out."""
    words = ["pgflow", verb.replace("_", "-"), *map(quoted, given)]
    for name, value in options.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", quoted(value)]
    return " ".join(words)


def array_of(names: Collection[str]) -> str | None:
    """Return names as the text of an array; None for none."""
    escaped = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return "{" + ",".join(f'"{name}"' for name in escaped) + "}" if names else None


def read_json(text: str, what: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidArgument: It is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgument(
            f'{what} is not JSON: {error}. Put a text in quotes: "paid"'
        ) from None


# ---------------------------------------------------------------- runs

WHY = Field("why", "Why")


def orders_of_run(run: inspect.RunRow, person: Person) -> list[Order]:
    """Return the orders that mean something to a run as it is."""
    return [_run_order(order, run, person) for order in told.orders_for(run)]


def _run_order(order: told.Order, run: inspect.RunRow, person: Person) -> Order:
    is_signal = order.verb == "signal"
    waits_for = (getattr(run, "reason_detail", None) or {}).get("signals") or [""]
    fields = (
        (
            Field("name", "Name of the signal", str(waits_for[0]), is_needed=True),
            Field("payload", "Its payload, in JSON", "null", is_needed=True),
        )
        if is_signal
        else (WHY,)
    )
    return Order(
        RUN_KEYS[order.verb],
        order.title,
        order.says,
        fields,
        lambda said: told.command_of(
            order, run.key, said.get("name", ""), said.get("payload", ""), said.get("why", "")
        ),
        lambda said: told.sql_of(
            order, run.key, said.get("name", ""), said.get("payload", ""), person.name
        ).replace("'WHY'", literal(said.get("why", ""))),
        partial(_tell_run, order, run.key, person),
        order.past,
    )


async def _tell_run(order: told.Order, key: str, person: Person, desk: Desk, said: Said) -> None:
    run = await desk.ask(inspect.find_run(key, tenant=desk.tenant))
    if run.status not in order.fits:
        raise WrongState(told.refusal_of(order, key, run.status))
    if order.verb == "signal":
        payload = read_json(said["payload"], "the payload")
        await desk.call("send", key, Signal(said["name"].strip(), object), payload, by=person.name)
        return
    why = said["why"].strip()
    await desk.call(order.verb, key, by=person.name, **({"why": why} if why else {}))


# ---------------------------------------------------------------- gates

COMMENT = Field("why", "Comment")


def orders_of_gate(
    gate: inspect.GateRow, shown: Any, *, is_clear: bool, person: Person
) -> list[Order]:
    """Return the answers that a gate takes.

    Args:
        gate: The gate.
        shown: Its request, in clear.
        is_clear: True if all of the request could be read, and so can be edited.
        person: Person who answers.
    """
    edit = Field("edit", "The request, as it should be", dump(shown, indent=2), True, True)
    result = Field("result", "Its result, in JSON", "null", True)
    reason, to = Field("why", "Why", is_needed=True), Field("to", "To whom", is_needed=True)
    answers = (
        ("a", "approve", "Approve", "It is done exactly as it is shown.", (COMMENT,)),
        ("e", "edit", "Edit, then approve", "It is done as you say.", (edit, COMMENT)),
        ("j", "reject", "Reject", "It is not done. The run receives your reason.", (reason,)),
        (
            "k",
            "take_over",
            "Take over",
            "You have done it yourself: the run will not.",
            (result, COMMENT),
        ),
        ("l", "escalate", "Escalate", "Another person must decide.", (to,)),
    )
    left_out = {"a"} if gate.needs_value else set()
    left_out |= set() if is_clear else {"e"}
    orders = [_answer_order(gate, person, *one) for one in answers if one[0] not in left_out]
    return [*orders, _delegate_order(gate, person)]


def _answer_order(
    gate: inspect.GateRow,
    person: Person,
    key: str,
    verb: str,
    title: str,
    says: str,
    fields: tuple[Field, ...],
) -> Order:
    async def give(desk: Desk, said: Said) -> None:
        await desk.call(
            "answer",
            gate.gate,
            answer_of(verb, said),
            by=person.name,
            payload_hash=gate.payload_hash,
            acting_as=list(person.roles),
        )

    def line(said: Said) -> str:
        given = [said[name] for name in ("edit", "result") if name in said]
        options = {"to": said.get("to"), "hash": gate.payload_hash}
        roles = "".join(f" --as {quoted(role)}" for role in person.roles)
        why = f" --why {quoted(said['why'])}" if said.get("why") else ""
        return command(verb, gate.gate, *given, **options) + roles + why

    def sql(said: Said) -> str:
        return call(
            "answer_gate",
            gate.gate,
            "approve" if verb == "edit" else verb,
            payload_hash=gate.payload_hash,
            value=said.get("edit", said.get("result")),
            reason=said.get("why"),
            by=person.name,
            acting_as=array_of(person.roles),
            hand_to=said.get("to"),
        )

    return Order(key, title, says, fields, line, sql, give, f"{title}: your answer is recorded.")


def answer_of(verb: str, said: Said) -> Answer:
    """Return the answer that was typed.

    Raises:
        InvalidArgument: The text is not JSON, or null for an edit.
    """
    why = said.get("why", "").strip()
    if verb == "edit":
        edit = read_json(said["edit"], "the edit")
        if edit is None:
            raise InvalidArgument("an edit cannot be null: approve or reject instead")
        return Approve(edit=edit, comment=why)
    if verb == "reject":
        return Reject(why)
    if verb == "escalate":
        return Escalate(said["to"].strip())
    if verb == "take_over":
        return TakeOver(read_json(said["result"], "the result"), comment=why)
    return Approve(comment=why)


def _delegate_order(gate: inspect.GateRow, person: Person) -> Order:
    mine = (person.name, *person.roles)
    place = next((name for name in gate.approvers if name in mine), person.name)

    async def give(desk: Desk, said: Said) -> None:
        why = said["why"].strip()
        kept = why if place == person.name else f"{person.name}: {why or 'delegated'}"
        await desk.call("delegate_gate", gate.gate, said["to"].strip(), by=place, why=kept)

    return Order(
        "g",
        "Delegate",
        "Another may answer in your place.",
        (Field("to", "To whom", is_needed=True), WHY),
        lambda said: command("delegate", gate.gate, to=said["to"] or "NAME", by=place),
        lambda said: call("delegate_gate", gate.gate, place, said["to"], reason=said["why"]),
        give,
        "Delegated.",
    )


# ---------------------------------------------------------------- debts


def orders_of_debt(debt: inspect.ObligationRow, person: Person) -> list[Order]:
    """Return the orders that an effect or obligation takes."""
    if debt.kind == "effect":
        return [
            _settle_order(debt, verdict, person) for verdict in VERDICTS.get(debt.state or "", ())
        ]
    key, by = debt.effect or "", person.name

    async def discharge(desk: Desk, said: Said) -> None:
        await desk.call("discharge", key, read_json(said["value"] or "null", "the evidence"), by=by)

    async def transfer(desk: Desk, said: Said) -> None:
        await desk.call("transfer", key, said["to"].strip(), why=said["why"].strip(), by=by)

    async def waive(desk: Desk, said: Said) -> None:
        await desk.call("waive", key, by=by, why=said["why"].strip())

    return [
        Order(
            "d",
            "Discharge",
            "It was done.",
            (Field("value", "Evidence, in JSON", "null"),),
            lambda said: command("discharge", key, evidence=said["value"]),
            lambda said: call("discharge", key, evidence=said["value"], sent_by=by),
            discharge,
            "Discharged.",
        ),
        Order(
            "h",
            "Hand over",
            "An outside party owes it from now on.",
            (Field("to", "To whom", is_needed=True), WHY),
            lambda said: command("transfer", key, said["to"] or "HOLDER", why=said["why"]),
            lambda said: call("transfer_obligation", key, said["to"], why=said["why"], sent_by=by),
            transfer,
            "Handed over. It stays owed.",
        ),
        Order(
            "w",
            "Waive",
            "It need not be done.",
            (Field("why", "Why", is_needed=True),),
            lambda said: command("waive", key, why=said["why"] or "WHY"),
            lambda said: call("waive_obligation", key, said["why"], sent_by=by),
            waive,
            "Waived.",
        ),
    ]


def _settle_order(debt: inspect.ObligationRow, verdict: str, person: Person) -> Order:
    key, has_value = debt.effect or "", verdict == "confirmed"
    value = (Field("value", "Its result, in JSON", "null", is_needed=True),) if has_value else ()

    def line(said: Said) -> str:
        why = said["why"] or "WHY"
        if has_value:
            return command("settle", key, confirmed=said["value"], why=why)
        return f"pgflow settle {quoted(key)} --{verdict.replace('_', '-')} --why {quoted(why)}"

    def sql(said: Said) -> str:
        given, why = said.get("value"), said["why"]
        return call("settle_effect", key, verdict, value=given, why=why, sent_by=person.name)

    async def give(desk: Desk, said: Said) -> None:
        result = read_json(said["value"], "the result") if has_value else None
        why = said["why"].strip()
        await desk.call("settle_effect", key, verdict, result, why=why, by=person.name)

    return Order(
        VERDICT_KEYS[verdict],
        f"Settle: {verdict.replace('_', ' ')}",
        SAYS[verdict],
        (*value, Field("why", "How do you know", is_needed=True)),
        line,
        sql,
        give,
        "Your verdict on the effect is recorded.",
    )
