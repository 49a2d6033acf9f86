"""PgBouncer in transaction mode: a session lasts for one transaction, and so do LISTEN and prepared
statements.

``listen=False`` polls instead, ``prepare_threshold=None`` prepares nothing. pgflow needs nothing
else from a session, so app, worker and steps all go through the pooler. A worker with a direct
connection string to the server may listen; it learns of a run at once, where a poll takes up to a
second.

Run it: ``PGFLOW_DSN=postgresql://...:6432/... python -m examples.embedding.with_pgbouncer``
"""

from __future__ import annotations

import psycopg

import pgflow
from examples.embedding.with_psycopg import TABLES


@pgflow.transaction
def mark_shipped(connection: psycopg.Connection, order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    connection.execute("update orders set state = 'shipped' where order_id = %s", (order_id,))


@pgflow.workflow
def ship(order_id: int) -> str:
    """Ship an order, whatever happens to the worker."""
    mark_shipped(order_id)
    return f"order {order_id} is shipped"


app = pgflow.App(include=[ship], listen=False, prepare_threshold=None)


def place_order(connection: psycopg.Connection, sku: str, quantity: int) -> pgflow.Run[str]:
    """Write the order, start its run, take the goods, or raise CheckViolation and do none of it."""
    with connection.transaction():
        insert = "insert into orders (sku, quantity) values (%s, %s) returning order_id"
        [(order_id,)] = connection.execute(insert, (sku, quantity)).fetchall()
        run = app.using(connection).start(ship.options(key=f"order-{order_id}"), order_id)
        connection.execute("update stock set n = n - %s where sku = %s", (quantity, sku))
    return run


def main() -> None:
    """Place two orders, of which the shop can serve one."""
    with (
        app,
        app.worker(poll_seconds=0.2),
        psycopg.connect(app.dsn, autocommit=True, prepare_threshold=None) as connection,
    ):
        connection.execute(TABLES)
        print(place_order(connection, "lamp", 2).result())
        try:
            place_order(connection, "lamp", 1000)
        except psycopg.errors.CheckViolation:
            print("no order and no run: too few lamps")


if __name__ == "__main__":
    main()
