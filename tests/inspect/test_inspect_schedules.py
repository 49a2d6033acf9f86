"""Readers of schedules, in both colours."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from schedulekit import at, keep, setting
from sqlkit import set_clock

from pgflow import App, AsyncApp, inspect


def test_both_colours_read_the_same(dsn, conn):
    set_clock(conn, at("03-01 10:30"))
    for name in ("a", "b", "c"):
        setting(conn, name)
    keep(conn)
    keep(conn, at("03-01 11:00"))
    conn.execute("select pgflow.pause_schedule('b', 'a look first')")
    questions = [
        inspect.list_schedules(limit=2),
        inspect.find_schedule("b"),
        inspect.find_schedule("nobody"),
        inspect.list_schedule_changes("b"),
        inspect.count_schedules(),
        inspect.sum_taken([1], at("03-01 10:00")),
    ]

    async def main() -> list[object]:
        async with AsyncApp(dsn) as app:
            return [await inspect.ask_async(app, question) for question in questions]

    with App(dsn) as app:
        found = [inspect.ask(app, question) for question in questions]
    assert found == asyncio.run(main())
    page, paused, nobody, changes, counts, spent = found
    assert [(row.name, row.state, row.fired) for row in page] == [
        ("a", "active", 1),
        ("b", "paused", 1),
    ]
    assert (page.next, nobody, spent) == ("b", None, {})
    assert (paused.why_paused, paused.next_slots(1)) == ("a look first", [at("03-01 12:00")])
    assert [change.what for change in changes] == ["paused", "set"]
    assert [(one.state, one.schedules) for one in counts] == [("active", 2), ("paused", 1)]
    assert paused.late_seconds == 0 and paused.read_at - at("03-01 11:00") == timedelta(0)


def test_a_name_with_a_tilde_is_a_place_in_the_list(conn):
    for name in ("a~1", "a~2"):
        setting(conn, name)
    first = inspect.ask(conn, inspect.list_schedules(limit=1))
    rest = inspect.ask(conn, inspect.list_schedules(after=first.next))
    assert [row.name for row in (*first, *rest)] == ["a~1", "a~2"]
