"""Orders to a relay: what each does, the states it fits, and its command and SQL statement."""

from __future__ import annotations

from pgflow._console.orders import Order
from pgflow._console.words import literal, quoted

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


def command_of(order: Order, name: str, event: str) -> str:
    """Return the command line of an order."""
    options = {"replay": f" --from {quoted(event or 'EVENT')}", "redeliver": f" {quoted(event)}"}
    return f"pgflow outbox {order.verb} {quoted(name)}" + (
        options[order.verb] if order.verb == "replay" or (event and order.verb in options) else ""
    )


def sql_of(order: Order, name: str, event: str, by: str) -> str:
    """Return the SQL statement of an order."""
    number = event if event.isascii() and event.isdecimal() else ""
    rest = f"why => 'WHY', sent_by => {literal(by)})"
    if order.verb == "replay":
        return f"select pgflow.replay_relay({literal(name)}, {number or 'EVENT'}, {rest}"
    if order.verb == "redeliver":
        one = f", {number}" if number else ""
        return f"select pgflow.redeliver_events({literal(name)}{one}, {rest}"
    return f"select pgflow.{order.verb}_relay({literal(name)}, {rest}"
