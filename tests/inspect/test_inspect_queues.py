"""Readers of what was said of queues."""

from __future__ import annotations

import asyncio

import psycopg

from pgflow import inspect


def test_changes_are_read_latest_first_in_both_colours(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select pgflow.set_queue('a', '{\"concurrency\": 3}', 'why', 'ann')")
        conn.execute("select pgflow.pause_queue('b')")
        found = inspect.ask(conn, inspect.list_queue_changes())
        assert [(row.queue, row.what, row.why) for row in found] == [
            ("b", "paused", None),
            ("a", "set", "why"),
        ]
        assert inspect.ask(conn, inspect.list_queue_changes("a", limit=5)) == found[1:]
        assert inspect.ask(conn, inspect.list_queue_changes(limit=1)) == found[:1]

    async def ask() -> list[inspect.QueueChangeRow]:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            return await inspect.ask_async(conn, inspect.list_queue_changes())

    assert asyncio.run(ask()) == found
