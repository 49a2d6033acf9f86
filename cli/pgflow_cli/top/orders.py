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
from pgflow._console import orders as run_orders
from pgflow._console.backend import Backend
from pgflow._console.debts import SAYS, VERDICTS
from pgflow._console.words import literal, quoted
from pgflow.authority import Answer, Approve, Escalate, Reject, TakeOver
from pgflow.errors import InvalidArgument, WrongState
from pgflow_cli.look.output import dump

Typed = Mapping[str, str]
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
    command: Callable[[Typed], str]
    sql: Callable[[Typed], str]
    give: Callable[[Backend, Typed], Awaitable[Any]]
    past: str


def check(order: Order, typed: Typed) -> None:
    """Refuse what is not whole.

    Raises:
        InvalidArgument: A field that is needed is empty.
    """
    for field in order.fields:
        if field.is_needed and not typed[field.name].strip():
            raise InvalidArgument(f"fill in first: {field.label}")


def call(function: str, *given: str, **named: str | None) -> str:
    """Return the statement that calls a stored function. Arguments that are None are left out."""
    arguments = [literal(one) for one in given]
    arguments += [f"{name} => {literal(one)}" for name, one in named.items() if one is not None]
    return f"select pgflow.{function}({', '.join(arguments)})"


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
    return [_run_order(order, run, person) for order in run_orders.orders_for(run)]


def _run_order(order: run_orders.Order, run: inspect.RunRow, person: Person) -> Order:
    waits_for = (getattr(run, "reason_detail", None) or {}).get("signals") or [""]
    signal = (
        Field("name", "Name of the signal", str(waits_for[0]), is_needed=True),
        Field("payload", "Its payload, in JSON", "null", is_needed=True),
    )

    def said(typed: Typed) -> tuple[run_orders.Order, str, str, str]:
        return order, run.key, typed.get("name", ""), typed.get("payload", "")

    return Order(
        RUN_KEYS[order.verb],
        order.title,
        order.says,
        signal if order.verb == "signal" else (WHY,),
        lambda typed: run_orders.command_of(*said(typed), typed.get("why", "")),
        lambda typed: run_orders.sql_of(*said(typed), person.name).replace(
            "'WHY'", literal(typed.get("why", ""))
        ),
        partial(_tell_run, order, run.key, person),
        order.past,
    )


async def _tell_run(
    order: run_orders.Order, key: str, person: Person, backend: Backend, typed: Typed
) -> None:
    run = await backend.ask(inspect.find_run(key, tenant=backend.tenant))
    if run.status not in order.fits:
        raise WrongState(run_orders.refusal_of(order, key, run.status))
    if order.verb == "signal":
        signal = Signal(typed["name"].strip(), object)
        payload = read_json(typed["payload"], "the payload")
        await backend.call("send", key, signal, payload, by=person.name)
    else:
        why = {"why": typed["why"].strip()} if typed["why"].strip() else {}
        await backend.call(order.verb, key, by=person.name, **why)


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
    done = "You have done it yourself: the run will not."
    answers = (
        ("a", "approve", "Approve", "It is done exactly as it is shown.", (COMMENT,)),
        ("e", "edit", "Edit, then approve", "It is done as you say.", (edit, COMMENT)),
        ("j", "reject", "Reject", "It is not done. The run receives your reason.", (reason,)),
        ("k", "take_over", "Take over", done, (result, COMMENT)),
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
    bound = {"payload_hash": gate.payload_hash, "by": person.name}

    def give(backend: Backend, typed: Typed) -> Awaitable[Any]:
        roles = list(person.roles)
        return backend.call("answer", gate.gate, answer_of(verb, typed), acting_as=roles, **bound)

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

    return Order(key, title, says, fields, line, sql, give, f"{title}: your answer is recorded.")


def answer_of(verb: str, typed: Typed) -> Answer:
    """Return the answer that was typed.

    Raises:
        InvalidArgument: The text is not JSON, or null for an edit.
    """
    why = typed.get("why", "").strip()
    if verb == "edit" and (edit := read_json(typed["edit"], "the edit")) is None:
        raise InvalidArgument("an edit cannot be null: approve or reject instead")
    answers: dict[str, Callable[[], Answer]] = {
        "approve": lambda: Approve(comment=why),
        "edit": lambda: Approve(edit=edit, comment=why),
        "reject": lambda: Reject(why),
        "escalate": lambda: Escalate(typed["to"].strip()),
        "take_over": lambda: TakeOver(read_json(typed["result"], "the result"), comment=why),
    }
    return answers[verb]()


def _delegate_order(gate: inspect.GateRow, person: Person) -> Order:
    mine = (person.name, *person.roles)
    place = next((name for name in gate.approvers if name in mine), person.name)

    def give(backend: Backend, typed: Typed) -> Awaitable[Any]:
        why = typed["why"].strip()
        kept = why if place == person.name else f"{person.name}: {why or 'delegated'}"
        return backend.call("delegate_gate", gate.gate, typed["to"].strip(), by=place, why=kept)

    return Order(
        "g",
        "Delegate",
        "Another may answer in your place.",
        (Field("to", "To whom", is_needed=True), WHY),
        lambda typed: command("delegate", gate.gate, to=typed["to"] or "NAME", by=place),
        lambda typed: call("delegate_gate", gate.gate, place, typed["to"], reason=typed["why"]),
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

    evidence, to = (
        Field("value", "Evidence, in JSON", "null"),
        Field("to", "To whom", is_needed=True),
    )
    return [
        Order(
            "d",
            "Discharge",
            "It was done.",
            (evidence,),
            lambda t: command("discharge", key, evidence=t["value"]),
            lambda t: call("discharge", key, evidence=t["value"], sent_by=by),
            lambda backend, t: backend.call(
                "discharge", key, read_json(t["value"] or "null", "the evidence"), by=by
            ),
            "Discharged.",
        ),
        Order(
            "h",
            "Hand over",
            "An outside party owes it from now on.",
            (to, WHY),
            lambda t: command("transfer", key, t["to"] or "HOLDER", why=t["why"]),
            lambda t: call("transfer_obligation", key, t["to"], why=t["why"], sent_by=by),
            lambda backend, t: backend.call(
                "transfer", key, t["to"].strip(), why=t["why"].strip(), by=by
            ),
            "Handed over. It stays owed.",
        ),
        Order(
            "w",
            "Waive",
            "It need not be done.",
            (Field("why", "Why", is_needed=True),),
            lambda t: command("waive", key, why=t["why"] or "WHY"),
            lambda t: call("waive_obligation", key, t["why"], sent_by=by),
            lambda backend, t: backend.call("waive", key, by=by, why=t["why"].strip()),
            "Waived.",
        ),
    ]


def _settle_order(debt: inspect.ObligationRow, verdict: str, person: Person) -> Order:
    key, has_value = debt.effect or "", verdict == "confirmed"
    value = (Field("value", "Its result, in JSON", "null", is_needed=True),) if has_value else ()

    def line(typed: Typed) -> str:
        why = typed["why"] or "WHY"
        if has_value:
            return command("settle", key, confirmed=typed["value"], why=why)
        return f"pgflow settle {quoted(key)} --{verdict.replace('_', '-')} --why {quoted(why)}"

    def sql(typed: Typed) -> str:
        given, why = typed.get("value"), typed["why"]
        return call("settle_effect", key, verdict, value=given, why=why, sent_by=person.name)

    def give(backend: Backend, typed: Typed) -> Awaitable[Any]:
        result = read_json(typed["value"], "the result") if has_value else None
        why = typed["why"].strip()
        return backend.call("settle_effect", key, verdict, result, why=why, by=person.name)

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
