"""Orders: what a person can do about a run, gate, debt or relay, on pages and in the terminal.

An order is data: what it does, its fields, its command line and SQL statement, and the verb of the
client that carries it out. This module has the orders to runs, and shows nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pgflow import Signal
from pgflow.console.backend import Backend
from pgflow.console.words import literal, quoted
from pgflow.errors import InvalidArgument, WrongState
from pgflow.inspect import RunRow, find_run

OPEN = ("queued", "running", "waiting", "paused", "stuck")

Typed = Mapping[str, str]
"""Texts that a person has typed, by the names of fields."""


@dataclass(frozen=True)
class Person:
    """The person who gives orders.

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


WHY = Field("why", "Why")


@dataclass(frozen=True)
class Order:
    """An order to a run, a gate, a debt, a relay or a schedule.

    Attributes:
        verb: The verb, as it is named in Python, SQL and on the command line.
        title: Words of its button.
        fits: Statuses or states that it applies to; empty if something else decides.
        says: Words for what it does.
        past: Words for what was done.
        key: Key of the keyboard for it in the terminal; empty for none.
        is_grave: True if it cannot be taken back.
    """

    verb: str
    title: str
    fits: tuple[str, ...]
    says: str
    past: str
    key: str = ""
    is_grave: bool = False


@dataclass(frozen=True, kw_only=True)
class BoundOrder(Order):
    """An order to one thing, by one person.

    Attributes:
        fields: Its fields.
        command: Function that returns its command line.
        sql: Function that returns its SQL statement.
        carry_out: Function that carries it out.
    """

    fields: tuple[Field, ...]
    command: Callable[[Typed], str]
    sql: Callable[[Typed], str]
    carry_out: Callable[[Backend, Typed], Awaitable[Any]]

    @property
    def begun(self) -> Typed:
        """The texts that its fields begin with."""
        return {field.name: field.value for field in self.fields if field.value}

    async def give(self, backend: Backend, typed: Typed) -> None:
        """Give it, with what was typed.

        Raises:
            InvalidArgument: A field that is needed is empty.
        """
        for field in self.fields:
            if field.is_needed and not typed.get(field.name, "").strip():
                raise InvalidArgument(f"fill in first: {field.label}")
        await self.carry_out(backend, typed)


def command(verb: str, *given: str, **options: str | None) -> str:
    """Return a command line. Options that are None are left out."""
    words = ["pgflow", verb.replace("_", "-"), *map(quoted, given)]
    for name, value in options.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", quoted(value)]
    return " ".join(words)


def call(function: str, *given: str | int, **named: str | None) -> str:
    """Return the statement that calls a stored function. Arguments that are None are left out."""
    arguments = [literal(one) if isinstance(one, str) else str(one) for one in given]
    arguments += [f"{name} => {literal(one)}" for name, one in named.items() if one is not None]
    return f"select pgflow.{function}({', '.join(arguments)})"


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
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            f'{what} is not JSON: {error}. Put a text in quotation marks: "paid"'
        ) from None


# ---------------------------------------------------------------- runs

ORDERS = {
    order.verb: order
    for order in (
        Order(
            "retry",
            "Retry",
            ("stuck", "failed"),
            "A stuck run goes on with a fresh budget. A failed one goes back to the step that "
            "failed, which runs again under the same idempotency key; one of a workflow file to "
            "all that failed.",
            "The run will try again.",
            "t",
        ),
        Order(
            "resume",
            "Resume",
            ("paused", "stuck"),
            "The run continues where it stopped.",
            "The run will continue.",
            "u",
        ),
        Order(
            "pause",
            "Pause",
            ("queued", "running", "waiting"),
            "Steps that are running finish, and nothing new starts until it is resumed.",
            "The run will pause.",
            "p",
        ),
        Order(
            "signal",
            "Send a signal",
            OPEN,
            "The run takes it by its next wait for a signal of this name.",
            "The signal is in its mailbox.",
            "s",
        ),
        Order(
            "cancel",
            "Cancel",
            OPEN,
            "Its code may clean up first, and take back what it has done. Cancelled is final.",
            "The run will end once its code has cleaned up.",
            "x",
            is_grave=True,
        ),
    )
}


def orders_for(run: RunRow) -> list[Order]:
    """Return the orders that mean something to a run as it is, the most useful first."""
    signalled = getattr(run, "reason_code", None) == "signal"
    found = [order for order in ORDERS.values() if run.status in order.fits]
    return sorted(found, key=lambda order: not (signalled and order.verb == "signal"))


def refusal_of(order: Order, key: str, status: str) -> str:
    """Return the reason why a run does not take an order, before the database finds it."""
    return f"run {key} is {status}: {order.verb} fits {' or '.join(order.fits)}"


def orders_of_run(run: RunRow, person: Person) -> list[BoundOrder]:
    """Return the orders that mean something to a run as it is."""
    waits_for = (getattr(run, "reason_detail", None) or {}).get("signals") or [""]
    return [order_to_run(order, run.key, person, str(waits_for[0])) for order in orders_for(run)]


def order_to_run(
    order: Order, key: str, person: Person, signal: str = "", payload: str = "null"
) -> BoundOrder:
    """Return an order to the run with a key.

    Args:
        order: The order.
        key: Key of the run.
        person: Person who gives it.
        signal: Name of the signal that its field begins with.
        payload: Payload that its field begins with, in JSON.
    """
    by = person.name
    if order.verb == "signal":
        return BoundOrder(
            **vars(order),
            fields=(
                Field("name", "Name of the signal", signal, is_needed=True),
                Field("payload", "Its payload, in JSON", payload, is_needed=True, is_long=True),
            ),
            command=lambda typed: command("signal", key, *_signal(typed)),
            sql=lambda typed: call("send_signal", key, *_signal(typed), sent_by=by),
            carry_out=partial(_tell, order, key, by),
        )
    return BoundOrder(
        **vars(order),
        fields=(WHY,),
        command=lambda typed: command(order.verb, key, why=typed.get("why") or None),
        sql=lambda typed: call(f"{order.verb}_run", key, why=typed.get("why", "WHY"), sent_by=by),
        carry_out=partial(_tell, order, key, by),
    )


def _signal(typed: Typed) -> tuple[str, str]:
    """Return the name and payload of a signal, or words in place of them."""
    return typed.get("name") or "NAME", typed.get("payload") or "JSON"


async def _tell(order: Order, key: str, by: str, backend: Backend, typed: Typed) -> None:
    run = await backend.ask(find_run(key, tenant=backend.tenant))
    if run.status not in order.fits:
        raise WrongState(refusal_of(order, key, run.status))
    if order.verb == "signal":
        payload = read_json(typed["payload"], "the payload")
        await backend.call("send", key, Signal(typed["name"].strip(), object), payload, by=by)
    else:
        why = typed.get("why", "").strip()
        await backend.call(order.verb, key, by=by, **({"why": why} if why else {}))
