"""The shop: take the money, book it, hand the parcel to the courier, and wait for the delivery.

Read `fulfil` first. It is ordinary code that survives: if its worker is killed anywhere, another
one replays what is recorded and continues. Steps that ask the other side do so under a key that is
the same on every attempt, so the other side recognizes a repetition. Steps that write the shop's
own book do so in the transaction that records the step.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

import pgflow
from pgflow_cli.shop.provider import Refused, ask

PATIENT = pgflow.Retries(
    max_attempts=30, first_delay=timedelta(milliseconds=50), max_delay=timedelta(seconds=1)
)
"""For answers that get lost: ask again soon."""

delivered = pgflow.Signal("delivered", str)
"""Sent when the courier has delivered; the payload is the name on the receipt."""


@dataclass(frozen=True)
class Order:
    """An order of a customer."""

    number: int
    customer: str
    item: str
    cents: int


@pgflow.step(retries=PATIENT, raises=[Refused])
async def charge(order: Order) -> str:
    """Charge the customer's card. Return the provider's reference."""
    return await ask("charge", order.number, order.cents, pgflow.idempotency_key())


@pgflow.step(retries=PATIENT, raises=[Refused])
async def refund(order: Order) -> str:
    """Return the money. Return the provider's reference."""
    return await ask("refund", order.number, -order.cents, pgflow.idempotency_key())


@pgflow.step(retries=PATIENT, raises=[Refused])
async def call_courier(order: Order) -> str:
    """Hand over the parcel. Return its number."""
    return await ask("parcel", order.number, 0, pgflow.idempotency_key())


@pgflow.transaction
async def book(
    conn: psycopg.AsyncConnection[Any], order: Order, reference: str, cents: int
) -> None:
    """Write a payment into the shop's own book, in the transaction that records this step."""
    await conn.execute(
        "insert into shop.payment (key, order_number, reference, cents) values (%s, %s, %s, %s)",
        (pgflow.run_info().key, order.number, reference, cents),
    )


@pgflow.workflow(queue="shop")
async def fulfil(order: Order) -> str:
    """Fulfil an order. Return how it ended."""
    try:
        paid = await charge(order)
    except Refused:
        return "card declined"
    await book(order, paid, order.cents)
    try:
        parcel = await call_courier(order)
    except Refused:
        await book(order, await refund(order), -order.cents)
        return "refunded"
    pgflow.set_state(parcel=parcel)
    return f"received by {await delivered.wait()}"


app = pgflow.AsyncApp(include=[fulfil])
