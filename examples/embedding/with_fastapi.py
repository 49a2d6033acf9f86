"""FastAPI: each request is a transaction, and the run that it starts is part of it.

The server and the worker are two processes. Both need the engine of SQLAlchemy: the server opens it
in its lifespan, and ``app.on_start`` opens it in the worker. One dependency opens the transaction,
another provides pgflow's client in it. ``scope="function"`` commits before the answer is sent:
without it a client may get "created" for an order whose commit then fails.

Run it, with ``PGFLOW_DSN=postgresql://...`` in the environment of both::

    uvicorn examples.embedding.with_fastapi:web
    pgflow workers examples.embedding.with_fastapi:app

To run a worker on the server's own event loop, write ``async with app, app.worker():`` in the
lifespan. The console is mounted at ``/pgflow``, for users whom the proxy in front has logged in.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from starlette.requests import HTTPConnection

import pgflow
import pgflow.web
from examples.embedding.with_sqlalchemy import Base, Order, Stock
from pgflow.sqlalchemy.asyncio import AsyncSessionProvider


@pgflow.transaction
async def mark_shipped(session: AsyncSession, order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    (await session.get_one(Order, order_id)).state = "shipped"


@pgflow.workflow
async def ship(order_id: int) -> None:
    """Ship an order, whatever happens to the server."""
    await mark_shipped(order_id)


sessions = async_sessionmaker()
app = pgflow.AsyncApp(include=[ship], providers=[AsyncSessionProvider(sessions)])


@app.on_start
async def connect() -> None:
    """Open the engine: pgflow calls this in every worker process, before the first claim."""
    sessions.configure(
        bind=create_async_engine(
            make_url(os.environ["PGFLOW_DSN"]).set(drivername="postgresql+psycopg")
        )
    )


@app.on_stop
async def disconnect() -> None:
    """Close its connections, once the worker has ended."""
    await sessions.kw["bind"].dispose()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Open the resources of the requests."""
    await connect()
    async with sessions.kw["bind"].begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with app:
        yield
    await disconnect()


async def open_transaction() -> AsyncIterator[AsyncSession]:
    """Yield the transaction of a request: commit on success, roll back on an error."""
    async with sessions.begin() as session:
        yield session


Transaction = Annotated[AsyncSession, Depends(open_transaction, scope="function")]


def flows_of(session: Transaction) -> pgflow.AsyncClient:
    """Return a client that starts and sends in the transaction of the request."""
    return app.using(session)


Flows = Annotated[pgflow.AsyncClient, Depends(flows_of)]

web = FastAPI(lifespan=lifespan)


def staff(request: HTTPConnection) -> pgflow.web.Principal | None:
    """Return the principal of a request, from a header that only the proxy can set."""
    name = request.headers.get("x-forwarded-user")
    return None if name is None else pgflow.web.Principal(name, ["view"])


web.mount("/pgflow", pgflow.web.asgi(app, auth=staff))


class Wanted(BaseModel):
    """Order in a request."""

    sku: str
    quantity: int


@web.post("/orders", status_code=201)
async def place_order(wanted: Wanted, session: Transaction, flows: Flows) -> dict[str, str]:
    """Add the order, start its run, take the goods: all of it, or none."""
    order = Order(sku=wanted.sku, quantity=wanted.quantity)
    session.add(order)
    await session.flush()
    run = await flows.start(ship.options(key=f"order-{order.order_id}"), order.order_id)
    (await session.get_one(Stock, wanted.sku)).n -= wanted.quantity
    return {"run": run.key}


@web.get("/orders/{order_id}")
async def show_order(order_id: int, session: Transaction) -> dict[str, str]:
    """Return the order and the status of its run."""
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404)
    return {"state": order.state, "run": await app.get(f"order-{order_id}", ship).status()}


@web.exception_handler(IntegrityError)
async def refuse(*_: object) -> JSONResponse:
    """Answer a constraint violation: the transaction is rolled back, with its run."""
    return JSONResponse({"detail": "not enough in stock"}, 409)
