"""Flask: a request's connection comes from a pool, and its commit starts the run. The worker is
another process.

``pool.connection()`` commits at its end, or rolls back on an error. ``create_web`` is a factory, so
that each server process has its own pool.

Run it: ``PGFLOW_DSN=postgresql://... flask --app examples.embedding.with_flask:create_web run``,
and beside it ``pgflow workers examples.embedding.with_flask``
"""

from __future__ import annotations

import os

import psycopg
from flask import Flask, request
from psycopg_pool import ConnectionPool

import pgflow
from examples.embedding.with_psycopg import TABLES


@pgflow.transaction
def mark_shipped(connection: psycopg.Connection, order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    connection.execute("update orders set state = 'shipped' where order_id = %s", (order_id,))


@pgflow.workflow
def ship(order_id: int) -> None:
    """Ship an order, whatever happens to the worker."""
    mark_shipped(order_id)


app = pgflow.App(include=[ship])


def create_web() -> Flask:
    """Return the web application; pgflow's app connects at the first request."""
    web = Flask(__name__)
    pool = web.extensions["pool"] = ConnectionPool(os.environ["PGFLOW_DSN"], open=True)
    with pool.connection() as connection:
        connection.execute(TABLES)

    @web.post("/orders")
    def place_order() -> tuple[dict[str, str], int]:
        wanted = request.get_json()
        with pool.connection() as connection:
            insert = "insert into orders (sku, quantity) values (%s, %s) returning order_id"
            [(order_id,)] = connection.execute(
                insert, (wanted["sku"], wanted["quantity"])
            ).fetchall()
            run = app.using(connection).start(ship.options(key=f"order-{order_id}"), order_id)
            connection.execute(
                "update stock set n = n - %s where sku = %s", (wanted["quantity"], wanted["sku"])
            )
        app.nudge()
        return {"run": run.key}, 201

    @web.errorhandler(psycopg.errors.CheckViolation)
    def refuse(_: Exception) -> tuple[dict[str, str], int]:
        return {"error": "not enough in stock"}, 409

    return web
