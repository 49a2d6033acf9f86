"""SQLAlchemy: the commit of the session that adds the order starts a run, and its steps get
sessions too.

``app.using(session)`` takes a ``Session`` or a ``Connection``, and wakes a worker after the
outermost commit. ``SessionProvider`` passes a ``Session`` to each ``@transaction`` that annotates
one, and commits it with the step.

Run it: ``PGFLOW_DSN=postgresql://... python -m examples.embedding.with_sqlalchemy``
"""

from __future__ import annotations

import os

from sqlalchemy import CheckConstraint, ForeignKey, create_engine, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import pgflow
from pgflow.sqlalchemy import SessionProvider


class Base(DeclarativeBase):
    """The shop's tables."""


class Stock(Base):
    """Goods in stock."""

    __tablename__ = "stock"
    __table_args__ = (CheckConstraint("n >= 0"),)
    sku: Mapped[str] = mapped_column(primary_key=True)
    n: Mapped[int]


class Order(Base):
    """Order of a customer."""

    __tablename__ = "orders"
    order_id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str] = mapped_column(ForeignKey(Stock.sku))
    quantity: Mapped[int]
    state: Mapped[str] = mapped_column(default="placed")


@pgflow.transaction
def mark_shipped(session: Session, order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    session.get_one(Order, order_id).state = "shipped"


@pgflow.workflow
def ship(order_id: int) -> str:
    """Ship an order, whatever happens to the worker."""
    mark_shipped(order_id)
    return f"order {order_id} is shipped"


sessions = sessionmaker()
app = pgflow.App(include=[ship], providers=[SessionProvider(sessions)])


def place_order(sku: str, quantity: int) -> pgflow.Run[str]:
    """Add the order, start its run, take the goods, or raise IntegrityError and do none of it."""
    with sessions.begin() as session:
        order = Order(sku=sku, quantity=quantity)
        session.add(order)
        session.flush()
        run = app.using(session).start(ship.options(key=f"order-{order.order_id}"), order.order_id)
        session.get_one(Stock, sku).n -= quantity
    return run


def main() -> None:
    """Place two orders, of which the shop can serve one."""
    engine = create_engine(make_url(os.environ["PGFLOW_DSN"]).set(drivername="postgresql+psycopg"))
    sessions.configure(bind=engine)
    Base.metadata.create_all(engine)
    with sessions.begin() as session:
        session.merge(Stock(sku="lamp", n=3))
    with app, app.worker():
        print(place_order("lamp", 2).result())
        try:
            place_order("lamp", 1000)
        except IntegrityError:
            print("no order and no run: too few lamps")
    engine.dispose()


if __name__ == "__main__":
    main()
