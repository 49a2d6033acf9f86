"""Orders to a run: what each does, the statuses it fits, and its command and SQL statement."""

from __future__ import annotations

from dataclasses import dataclass

from pgflow._console.words import literal, quoted
from pgflow.inspect import RunRow

OPEN = ("queued", "running", "waiting", "paused", "stuck")


@dataclass(frozen=True)
class Order:
    """An order to a run, a relay or a schedule.

    Attributes:
        verb: The verb, as it is named in Python, SQL and on the command line.
        title: Words of its button.
        fits: Statuses or states that it applies to; empty if something else decides.
        says: Words for what it does.
        past: Words for what was done.
        is_grave: True if it cannot be taken back.
    """

    verb: str
    title: str
    fits: tuple[str, ...]
    says: str
    past: str
    is_grave: bool = False


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
        ),
        Order(
            "resume",
            "Resume",
            ("paused", "stuck"),
            "The run continues where it stopped.",
            "The run will continue.",
        ),
        Order(
            "pause",
            "Pause",
            ("queued", "running", "waiting"),
            "Steps that are running finish, and nothing new starts until it is resumed.",
            "The run will pause.",
        ),
        Order(
            "signal",
            "Send a signal",
            OPEN,
            "The run takes it by its next wait for a signal of this name.",
            "The signal is in its mailbox.",
        ),
        Order(
            "cancel",
            "Cancel",
            OPEN,
            "Its code may clean up first, and take back what it has done. Cancelled is final.",
            "The run will end once its code has cleaned up.",
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


def command_of(order: Order, key: str, signal: str, payload: str, why: str) -> str:
    """Return the command line of an order."""
    if order.verb == "signal":
        return f"pgflow signal {quoted(key)} {quoted(signal or 'NAME')} {quoted(payload or 'JSON')}"
    reason = f" --why {quoted(why)}" if why else ""
    return f"pgflow {order.verb} {quoted(key)}{reason}"


def sql_of(order: Order, key: str, signal: str, payload: str, by: str) -> str:
    """Return the SQL statement of an order."""
    if order.verb == "signal":
        return (
            f"select pgflow.send_signal({literal(key)}, {literal(signal or 'NAME')}, "
            f"{literal(payload or 'JSON')}, sent_by => {literal(by)})"
        )
    return f"select pgflow.{order.verb}_run({literal(key)}, why => 'WHY', sent_by => {literal(by)})"
