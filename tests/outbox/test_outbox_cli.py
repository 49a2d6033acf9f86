"""`pgflow outbox prune`: it deletes what is old and taken, and nothing without a word from you."""

from __future__ import annotations

import psycopg
import pytest
from clikit import pgflow


@pytest.fixture
def old_events(conn: psycopg.Connection) -> psycopg.Connection:
    """Three events: two are ten days old."""
    for key in ("a", "b", "c"):
        conn.execute("select pgflow.publish('orders', '{}', %s)", (key,))
    conn.execute("update pgflow.event set at = at - interval '10 days' where key <> 'c'")
    return conn


def count(conn: psycopg.Connection) -> int:
    return conn.execute("select count(*) from pgflow.event").fetchone()[0]  # type: ignore[index]


def test_a_dry_run_counts_and_removes_nothing(dsn, old_events):
    said = pgflow(dsn, "outbox", "prune", "--older-than", "7d", "--dry-run", "--json")
    assert (said.code, said.data) == (0, {"events": 2, "partitions": 0, "removed": False})
    assert count(old_events) == 3


def test_it_asks_and_where_nobody_is_there_to_answer_it_refuses(dsn, old_events):
    said = pgflow(dsn, "outbox", "prune", "--older-than", "7d")
    assert (said.code, "pass --yes" in said.err) == (2, True), said
    denied = pgflow(dsn, "outbox", "prune", "--older-than", "7d", tty=True, typed="n\n")
    assert (denied.code, count(old_events)) != (0, 1)
    assert count(old_events) == 3
    agreed = pgflow(dsn, "outbox", "prune", "--older-than", "7d", tty=True, typed="y\n")
    assert (agreed.code, count(old_events)) == (0, 1), agreed


def test_with_yes_what_is_older_goes(dsn, old_events):
    said = pgflow(dsn, "outbox", "prune", "--older-than", "7d", "--yes", "--json")
    assert (said.code, said.data) == (0, {"events": 2, "partitions": 0, "removed": True})
    assert count(old_events) == 1
