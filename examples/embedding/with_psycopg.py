"""psycopg: an order and the run that ships it commit together, or not at all.

``app.using(connection)`` works in the open transaction of a connection and never commits it.
psycopg has no hook after a commit: ``app.nudge()`` wakes a worker, which would otherwise find the
run at its next poll.

Run it: ``PGFLOW_DSN=postgresql://... python -m examples.embedding.with_psycopg``
"""

from __future__ import annotations

import psycopg

import pgflow

TABLES = """
create table if not exists stock (sku text primary key, n int not null check (n >= 0));
create table if not exists orders (
  order_id bigint generated always as identity primary key, sku text not null references stock,
  quantity int not null, state text not null default 'placed'
);
insert into stock values ('lamp', 3) on conflict do nothing;
"""


@pgflow.transaction
def mark_shipped(connection: psycopg.Connection, order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    connection.execute("update orders set state = 'shipped' where order_id = %s", (order_id,))


@pgflow.workflow
def ship(order_id: int) -> str:
    """Ship an order, whatever happens to the worker."""
    mark_shipped(order_id)
    return f"order {order_id} is shipped"


app = pgflow.App(include=[ship])


def place_order(connection: psycopg.Connection, sku: str, quantity: int) -> pgflow.Run[str]:
    """Write the order, start its run, take the goods, or raise CheckViolation and do none of it."""
    with connection.transaction():
        insert = "insert into orders (sku, quantity) values (%s, %s) returning order_id"
        [(order_id,)] = connection.execute(insert, (sku, quantity)).fetchall()
        run = app.using(connection).start(ship.options(key=f"order-{order_id}"), order_id)
        connection.execute("update stock set n = n - %s where sku = %s", (quantity, sku))
    app.nudge()
    return run


def main() -> None:
    """Place two orders, of which the shop can serve one."""
    with app, app.worker(), psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(TABLES)
        print(place_order(connection, "lamp", 2).result())
        try:
            place_order(connection, "lamp", 1000)
        except psycopg.errors.CheckViolation:
            print("no order and no run: too few lamps")


if __name__ == "__main__":
    main()
