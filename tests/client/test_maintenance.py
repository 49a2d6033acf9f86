"""Verbs of operators: history and events that are removed, locks that are taken away."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from records import SOON
from sqlkit import begin, count, finish, one, rows

import pgflow
from pgflow import App, AsyncApp, workflow
from pgflow.inspect import ask, ask_async, database_now, find_schedule


@workflow
async def greet(name: str) -> str:
    return f"hello {name}"


def test_events_are_removed_in_batches_and_at_most_so_many(dsn, conn):
    conn.execute("select pgflow.publish('orders', '1') from generate_series(1, 3)")
    conn.execute("update pgflow.event set at = at - interval '10 days'")
    with App(dsn) as app:
        assert app.drop_events(timedelta(days=7), at_most=2) == (2, 0)
        assert app.drop_events(timedelta(days=7)) == (1, 0)
        assert app.publish("orders", 1) > 0
    assert count(conn, "event") == 1


def test_history_is_removed_in_batches_and_told_between_them(dsn, conn):
    for _ in range(3):
        finish(conn, begin(conn))
    seen: list[int] = []

    async def remove() -> int:
        async with AsyncApp(dsn) as app:
            now = await ask_async(app, database_now())
            return (await app.drop_history(now, batch=1, progress=seen.append)).runs

    assert asyncio.run(remove()) == 3
    assert seen[-1] >= 2
    assert count(conn, "run") == 0
    with App(dsn) as app:
        assert app.shrink_journal() == []


def test_a_lock_is_taken_from_its_holders(dsn, conn):
    with App(dsn) as app:
        assert app.break_lock("door", why="nobody has it") == 0
        conn.execute("select pgflow.take_lock('door', 'me', '1 minute', false, null, 'secret')")
        assert app.break_lock("door", why="a fire", by="ann") == 1
        assert one(conn, "select count(*) from pgflow.locks") == 0


def test_a_schedule_is_set_by_the_name_of_its_workflow(dsn, conn):
    hourly = pgflow.schedule("@hourly")
    with App(dsn) as app:
        assert app.set_schedule_by_name("s", hourly, "greet", {"name": "Ada"}, priority=3)
        assert not app.set_schedule_by_name("s", hourly, "greet", {"name": "Ada"}, priority=3)
        found = ask(app, find_schedule("s"))
        assert found is not None
        assert (found.workflow, found.input, found.is_declared) == ("greet", {"name": "Ada"}, False)
        assert app.remove_schedule("s") is False
    assert rows(conn, "select name from pgflow.schedules") == []


def test_a_context_that_works_yields_its_worker(dsn):
    async def work() -> tuple[float, int, str]:
        async with AsyncApp(dsn, include=[greet]) as app:
            async with app.worker(dead_after=5, concurrency=3) as worker:
                run = await app.start(greet, "Ada")
                options = worker.options
                return options.rhythm.dead_after, options.concurrency, await run.result(SOON)

    assert asyncio.run(work()) == (5, 3, "hello Ada")
