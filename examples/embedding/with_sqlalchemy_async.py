"""SQLAlchemy with asyncio: like ``with_sqlalchemy``, with an ``AsyncApp``, an ``AsyncSession`` and
coroutines.

``app.using(session)`` takes an ``AsyncSession`` or an ``AsyncConnection``. The tables are those of
``with_sqlalchemy``.

Run it: ``PGFLOW_DSN=postgresql://... python -m examples.embedding.with_sqlalchemy_async``
"""

from __future__ import annotations

import asyncio
import os

from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import pgflow
from examples.embedding.with_sqlalchemy import Base, Order, Stock
from pgflow.sqlalchemy.asyncio import AsyncSessionProvider


@pgflow.transaction
async def mark_shipped(session: AsyncSession, order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    (await session.get_one(Order, order_id)).state = "shipped"


@pgflow.workflow
async def ship(order_id: int) -> str:
    """Ship an order, whatever happens to the worker."""
    await mark_shipped(order_id)
    return f"order {order_id} is shipped"


sessions = async_sessionmaker()
app = pgflow.AsyncApp(include=[ship], providers=[AsyncSessionProvider(sessions)])


async def place_order(sku: str, quantity: int) -> pgflow.AsyncRun[str]:
    """Add the order, start its run, take the goods, or raise IntegrityError and do none of it."""
    async with sessions.begin() as session:
        order = Order(sku=sku, quantity=quantity)
        session.add(order)
        await session.flush()
        run = await app.using(session).start(
            ship.options(key=f"order-{order.order_id}"), order.order_id
        )
        (await session.get_one(Stock, sku)).n -= quantity
    return run


async def main() -> None:
    """Place two orders, of which the shop can serve one."""
    engine = create_async_engine(
        make_url(os.environ["PGFLOW_DSN"]).set(drivername="postgresql+psycopg")
    )
    sessions.configure(bind=engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions.begin() as session:
        await session.merge(Stock(sku="lamp", n=3))
    async with app, app.worker():
        print(await (await place_order("lamp", 2)).result())
        try:
            await place_order("lamp", 1000)
        except IntegrityError:
            print("no order and no run: too few lamps")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
