"""The shop's table, and the workflow of an order."""

from __future__ import annotations

import psycopg
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import pgflow


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """Order of a customer; the second migration adds its state."""

    __tablename__ = "orders"
    order_id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="placed")


@pgflow.transaction
def mark_shipped(connection: psycopg.Connection, order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    connection.execute("update orders set state = 'shipped' where order_id = %s", (order_id,))


@pgflow.workflow
def ship(order_id: int) -> None:
    """Ship an order, whatever happens to the worker."""
    mark_shipped(order_id)


app = pgflow.App(include=[ship])
