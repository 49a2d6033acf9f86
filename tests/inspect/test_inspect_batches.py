"""Readers of batches, in both colours."""

from __future__ import annotations

import asyncio

from sqlkit import start

from pgflow import App, AsyncApp, inspect


def test_both_colours_read_the_same_of_batches(dsn, conn):
    with conn.transaction():
        start(conn, key="b")
        member = start(conn, "load").run_id
        conn.execute("select pgflow.fill_batch('b', 'demo', %s, is_whole => true)", ([member],))

    async def other() -> list[inspect.BatchRow]:
        async with AsyncApp(dsn) as app:
            return await inspect.ask_async(app, inspect.list_batches())

    with App(dsn) as app:
        found = inspect.ask(app, inspect.list_batches())
    assert found == asyncio.run(other())
    (batch,) = found
    assert (batch.key, batch.workflow, batch.is_whole, batch.runs) == ("b", "demo", True, 1)
    theirs = conn.execute("select * from pgflow.batches").description
    assert {column.name for column in theirs or ()} >= set(vars(batch))
