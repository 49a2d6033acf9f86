"""Orders to a relay: what each does, and the states it fits."""

from __future__ import annotations

from pgflow.console.backend import Backend
from pgflow.console.orders import WHY, BoundOrder, Field, Order, Person, Typed, call, command
from pgflow.errors import InvalidArgument, WrongState

ORDERS = {
    order.verb: order
    for order in (
        Order(
            "resume",
            "Resume",
            ("paused", "open"),
            "It takes events again, from where it stopped.",
            "It takes events again.",
        ),
        Order(
            "pause",
            "Pause",
            ("working", "idle", "open"),
            "It takes no more events until it is resumed. Those under way are delivered.",
            "It takes no more events.",
        ),
        Order(
            "redeliver",
            "Try dead events again",
            ("working", "idle", "paused", "open"),
            "Its dead events are tried again, with all their tries, in the order of each key.",
            "They are tried again.",
        ),
        Order(
            "replay",
            "Replay",
            ("working", "idle", "paused", "open"),
            "It goes on from this event: those that it has delivered since come again, under their "
            "numbers. A run that one has started is not started again.",
            "It goes on from there.",
            is_grave=True,
        ),
    )
}


def orders_for(state: str, dead: int) -> list[Order]:
    """Return the orders that mean something to a relay."""
    return [
        order
        for order in ORDERS.values()
        if state in order.fits and (order.verb != "redeliver" or dead)
    ]


def order_to_relay(order: Order, name: str, person: Person, event: str = "") -> BoundOrder:
    """Return an order to the relay of a name.

    Args:
        order: The order.
        name: Name of the relay.
        person: Person who gives it.
        event: Number that the field for an event begins with.
    """
    takes = {
        "replay": Field("event", "From event", event, is_needed=True),
        "redeliver": Field("event", "Event, or all that are dead", event),
    }
    of_event = takes.get(order.verb)
    function = "redeliver_events" if order.verb == "redeliver" else f"{order.verb}_relay"

    def line(typed: Typed) -> str:
        number, why = typed.get("event") or None, typed.get("why") or None
        if order.verb == "replay":
            options = {"from": number or "EVENT", "why": why}
            return command("outbox replay", name, **options)
        return command(f"outbox {order.verb}", name, *([number] if number else []), why=why)

    def sql(typed: Typed) -> str:
        number = typed.get("event", "")
        is_number = number.isascii() and number.isdecimal()
        event = [int(number)] if is_number else ["EVENT"] if order.verb == "replay" else []
        return call(function, name, *event, why=typed.get("why", "WHY"), sent_by=person.name)

    async def give(backend: Backend, typed: Typed) -> None:
        event = () if of_event is None else (_number(typed.get("event", "")),)
        why = typed.get("why", "").strip() or None
        done = await backend.call(function, name, *event, why=why, by=person.name)
        if order.verb == "redeliver" and not done:
            raise WrongState("no such event is dead any more: look again")

    fields = (WHY,) if of_event is None else (of_event, WHY)
    return BoundOrder(**vars(order), fields=fields, command=line, sql=sql, carry_out=give)


def _number(text: str) -> int | None:
    """Return the number of an event; None for no text.

    Raises:
        InvalidArgument: It is not one.
    """
    said = text.strip()
    if said and not (said.isascii() and said.isdecimal() and len(said) < 19):
        raise InvalidArgument(f"an event has a number from 1 on, not {said!r}")
    return int(said) if said else None
