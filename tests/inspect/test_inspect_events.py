"""Readers of the outbox and of the policy, in both colours."""

from __future__ import annotations

import asyncio
import json

import psycopg
from outboxkit import take
from schedulekit import setting
from sqlkit import one

from pgflow import App, AsyncApp, inspect


def test_both_colours_read_the_same_of_events_and_rules(dsn, conn):
    one(conn, "select pgflow.declare_relay('mailer', array['orders'])")
    for n in range(3):
        one(conn, "select pgflow.publish('orders', %s, 'k')", json.dumps({"id": n}))
    first = take(conn, "mailer", most=1).numbers[0]
    one(
        conn,
        "select pgflow.settle_events('mailer', 11, %s, %s)",
        first,
        json.dumps([[first, "dead", "gone"]]),
    )
    rules = [{"name": "refund", "amount": "$.cents", "above": 1000}]
    setting(conn, "hourly")
    conn.execute("select pgflow.set_policy(%s, 'limits')", (json.dumps(rules),))
    questions = [
        inspect.list_relays(),
        inspect.list_events("orders", limit=2),
        inspect.list_events("orders", after=str(first + 1)),
        inspect.list_deliveries("mailer"),
        inspect.list_deliveries("mailer", state="waiting"),
        inspect.list_triggers(),
        inspect.judge_act("refund", "irreversible", {"cents": 5000}),
    ]

    async def main() -> list[object]:
        async with AsyncApp(dsn) as app:
            return [await inspect.ask_async(app, question) for question in questions]

    with App(dsn) as app:
        found = [inspect.ask(app, question) for question in questions]
        for state, names in (("active", ["hourly"]), ("paused", [])):
            listed = inspect.ask(app, inspect.list_schedules(state=state))
            assert [row.name for row in listed] == names
    assert found == asyncio.run(main())
    relays, page, rest, deliveries, waiting, triggers, judged = found
    assert [(row.name, row.topics, row.dead) for row in relays] == [("mailer", ["orders"], 1)]
    assert [row.payload["id"] for row in page] == [0, 1]
    assert (page.next, [row.payload["id"] for row in rest]) == (str(first + 1), [2])
    assert [(row.event_id, row.state, row.error) for row in deliveries] == [(first, "dead", "gone")]
    assert waiting.items == []
    assert triggers == []
    assert [(row.rule, row.needs, row.counts) for row in judged] == [(1, "gate", True)]


def test_orders_to_a_relay_are_read_latest_first(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select pgflow.declare_relay('mailer', array['orders'])")
        conn.execute("select pgflow.pause_relay('mailer', 'why', 'ann')")
        conn.execute("select pgflow.resume_relay('mailer')")
        found = inspect.ask(conn, inspect.list_relay_changes("mailer"))
        assert [(row.what, row.why) for row in found] == [
            ("resumed", None),
            ("paused", "why"),
            ("declared", None),
        ]
        assert inspect.ask(conn, inspect.list_relay_changes("mailer", limit=1)) == found[:1]
        assert inspect.ask(conn, inspect.list_relay_changes("other")) == []
