"""Children in Python of the random workflows in SQL (`tests.flowprograms`)."""

from __future__ import annotations

import psycopg

import pgflow


@pgflow.transaction
def trace(conn: psycopg.Connection, key: str, what: str) -> None:
    conn.execute("insert into trace (key, what) values (%s, %s)", (key, what))


@pgflow.workflow
def pyleaf(n: int) -> int:
    key = pgflow.run_info().key
    trace(key, "l1")
    trace(key, "l2")
    if n % 7 == 3:
        raise ValueError("leaf")
    return n * 2 + 1


app = pgflow.App(include=[pyleaf])
