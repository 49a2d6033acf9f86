"""The outbox in SQL: what is published, and what relays take of it in which order."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlkit
from outboxkit import ME, OTHER, take
from sqlkit import T0, one, rows, set_clock


def settle(
    conn: psycopg.Connection[Any],
    upto: int | None,
    *results: tuple[Any, ...],
    name: str = "r",
    token: int = ME,
) -> bool:
    return one(  # type: ignore[no-any-return]
        conn,
        "select pgflow.settle_events(%s, %s, %s, %s)",
        name,
        token,
        upto,
        json.dumps([list(result) for result in results]),
    )


def publish(
    conn: psycopg.Connection[Any], topic: str = "orders", payload: Any = 1, key: str | None = None
) -> int:
    return one(  # type: ignore[no-any-return]
        conn, "select pgflow.publish(%s, %s, %s)", topic, json.dumps(payload), key
    )


def relay(conn: psycopg.Connection[Any], *topics: str, name: str = "r") -> None:
    one(conn, "select pgflow.declare_relay(%s, %s)", name, list(topics or ("orders",)))


def drained(conn: psycopg.Connection[Any]) -> list[int]:
    """Numbers of all events that there are for the relay, each delivered."""
    found: list[int] = []
    while (taken := take(conn)).events:
        found += taken.numbers
        assert settle(conn, taken.numbers[-1], *[(number, "ok") for number in taken.numbers])
    return found


def test_an_event_is_there_if_its_transaction_commits(conn):
    relay(conn)
    with conn.transaction(force_rollback=True):
        publish(conn)
    with conn.transaction():
        published = publish(conn, payload={"a": 1}, key="k")
    found = rows(conn, "select event_id, topic, key, payload from pgflow.events")
    assert found == [(published, "orders", "k", {"a": 1})]
    assert drained(conn) == [published]


def test_events_of_a_slow_transaction_are_not_skipped(dsn, conn):
    relay(conn)
    with sqlkit.connect(dsn) as slow, slow.transaction():
        first = publish(slow)
        second = publish(conn)
        assert take(conn).state == "behind"
        assert take(conn).state == "behind"
    assert drained(conn) == [first, second]


def test_writers_that_wait_for_each_other_are_heard_in_that_order_whatever_their_transactions(
    dsn, conn
):
    relay(conn)
    conn.execute("create table t (x int)")
    with sqlkit.connect(dsn) as old, sqlkit.connect(dsn) as slow:
        with old.transaction():
            old.execute("insert into t values (1)")  # the older transaction
            with slow.transaction():
                slow.execute("insert into t values (2)")
                with conn.transaction():
                    before = publish(conn, key="k")  # of the newest transaction, and committed
                after = publish(old, key="k")
                old.execute("commit; begin")
                # By the order of transactions the second would be due now, and the first not yet.
                assert take(conn).events == []
            old.execute("rollback; begin")
    assert drained(conn) == [before, after]


def test_only_what_a_relay_listens_to_is_brought_in_the_order_of_all_its_topics(conn):
    relay(conn, "a", "b")
    numbers = {topic: publish(conn, topic) for topic in ("b", "c", "a")}
    last = publish(conn, "b")
    assert drained(conn) == [numbers["b"], numbers["a"], last]


def test_one_worker_at_a_time_has_a_relay_and_whoever_has_lost_it_settles_nothing(conn):
    set_clock(conn, T0)
    relay(conn)
    number = publish(conn)
    assert take(conn).numbers == [number]
    found = take(conn, token=OTHER)
    assert (found.state, found.wait_seconds) == ("leased", 30)
    set_clock(conn, T0 + timedelta(seconds=31))
    assert take(conn, token=OTHER).numbers == [number]
    assert not settle(conn, number, (number, "ok"))
    assert not one(conn, "select pgflow.hold_relay('r', %s, 30)", ME)
    assert settle(conn, number, (number, "ok"), token=OTHER)
    assert take(conn, token=OTHER).state == "idle"


def test_an_event_that_fails_holds_up_its_key_and_nothing_else(conn):
    set_clock(conn, T0)
    relay(conn)
    a1, b1, a2 = (publish(conn, key=key) for key in "aba")
    assert take(conn).numbers == [a1, b1, a2]
    assert settle(conn, a2, (a1, "failed", "no", 60), (b1, "ok"), (a2, "behind"))
    a3, b2 = publish(conn, key="a"), publish(conn, key="b")
    taken = take(conn)
    assert [(event[0], event[8]) for event in taken.events] == [(a3, True), (b2, False)]
    assert settle(conn, b2, (a3, "behind"), (b2, "ok"))
    assert take(conn).events == []
    set_clock(conn, T0 + timedelta(seconds=61))
    taken = take(conn)
    found = [(event[0], event[6], event[7]) for event in taken.events]
    assert found == [(a1, 1, False), (a2, 0, False), (a3, 0, False)]
    assert settle(conn, None, *[(number, "ok") for number in taken.numbers])
    assert rows(conn, "select 1 from pgflow.deliveries") == []


def test_a_dead_event_lets_its_key_go_on_and_comes_again_when_somebody_says_so(conn):
    relay(conn)
    first = publish(conn, payload="poison", key="k")
    take(conn)
    assert settle(conn, first, (first, "dead", "never"))
    second = publish(conn, key="k")
    taken = take(conn)
    assert [(event[0], event[8]) for event in taken.events] == [(second, False)]
    assert settle(conn, second, (second, "ok"))
    found = rows(conn, "select state, payload, error from pgflow.deliveries")
    assert found == [("dead", "poison", "never")]
    assert one(conn, "select pgflow.redeliver_events('r', %s)", second) == 0
    assert one(conn, "select pgflow.redeliver_events('r')") == 1
    assert take(conn).numbers == [first]


def test_a_circuit_opens_after_failures_in_a_row_and_one_event_tries_it(conn):
    set_clock(conn, T0)
    relay(conn)
    numbers = [publish(conn) for _ in range(10)]
    take(conn, most=5)
    assert settle(conn, numbers[4], *[(number, "failed", "down", 1) for number in numbers[:5]])
    assert one(conn, "select state from pgflow.relays") == "open"
    set_clock(conn, T0 + timedelta(seconds=29))
    assert take(conn)[:2] == ("open", 1)
    set_clock(conn, T0 + timedelta(seconds=31))
    assert take(conn).numbers == [numbers[0]]
    assert settle(conn, None, (numbers[0], "failed", "down", 1))
    assert take(conn)[:2] == ("open", 60)  # twice as long
    set_clock(conn, T0 + timedelta(seconds=92))
    assert take(conn).numbers == [numbers[0]]
    assert settle(conn, None, (numbers[0], "ok"))
    assert take(conn).numbers == numbers[1:]


def test_a_relay_is_paused_resumed_replayed_and_dropped(conn):
    relay(conn)
    numbers = [publish(conn) for _ in range(3)]
    assert drained(conn) == numbers
    assert one(conn, "select pgflow.replay_relay('r', %s)", numbers[1]) == 2
    one(conn, "select pgflow.pause_relay('r')")
    assert take(conn).state == "paused"
    assert one(conn, "select news from pgflow.relay_news('{r}', 1)") == []
    one(conn, "select pgflow.resume_relay('r')")
    assert one(conn, "select news from pgflow.relay_news('{r}', 1)") == ["r"]
    assert drained(conn) == numbers[1:]
    one(conn, "select pgflow.drop_relay('r')")
    with pytest.raises(psycopg.Error, match="relay 'r' does not exist") as refused:
        one(conn, "select pgflow.drop_relay('r')")
    assert refused.value.sqlstate == "PF028"


def test_a_replay_takes_the_relay_from_whoever_delivers_just_now(conn):
    relay(conn)
    numbers = [publish(conn) for _ in range(2)]
    assert take(conn).numbers == numbers
    one(conn, "select pgflow.replay_relay('r', 1)")
    assert not settle(conn, numbers[-1], *[(number, "ok") for number in numbers])
    assert drained(conn) == numbers


def test_a_new_relay_begins_with_the_oldest_event_or_behind_the_newest(conn):
    first = publish(conn)
    one(conn, "select pgflow.declare_relay('late', '{orders}', '', 'newest')")
    relay(conn)
    second = publish(conn)
    assert take(conn).numbers == [first, second]
    assert take(conn, "late").numbers == [second]


def test_news_says_when_the_next_delivery_is_due(conn):
    set_clock(conn, T0)
    relay(conn)
    assert rows(conn, "select * from pgflow.relay_news('{r}', 1)") == [([], None)]
    number = publish(conn)
    take(conn)
    settle(conn, number, (number, "failed", "no", 12))
    assert rows(conn, "select * from pgflow.relay_news('{r}', %s)", ME) == [([], 12)]
    assert rows(conn, "select * from pgflow.relay_news('{r}', %s)", OTHER) == [([], 30)]


def test_what_every_relay_has_taken_is_removed_by_rows_and_by_partitions(conn):
    set_clock(conn, T0)
    relay(conn)
    for number in range(4):
        conn.execute(f"drop table pgflow.event_{number}")
    conn.execute("select pgflow.add_event_partitions(3, 10)")
    numbers = [publish(conn) for _ in range(25)]
    publish(conn, "nobody listens")
    set_clock(conn, T0 + timedelta(days=8))
    removed = "select events, partitions from pgflow.drop_events('7 days')"
    assert rows(conn, removed) == [(1, 0)]  # the relay has taken none
    assert drained(conn) == numbers
    assert rows(conn, "select events, partitions from pgflow.drop_events('9 days')") == [(0, 0)]
    assert rows(conn, removed) == [(16, 1)]
    assert rows(conn, "select 1 from pgflow.events") == []
    assert publish(conn) == 27


def test_a_database_from_a_dump_goes_on_though_its_transactions_begin_anew(dsn, conn):
    relay(conn)
    number = publish(conn)
    conn.execute("update pgflow.relay set seen_id = 1, seen_xid = '999999999999'")
    assert drained(conn) == [number]


def test_a_reader_must_not_have_written_in_its_transaction(conn):
    relay(conn)
    with pytest.raises(psycopg.Error, match="first to write"), conn.transaction():
        publish(conn)
        take(conn)


@pytest.mark.parametrize(
    "said",
    ["publish('')", "publish(null)", "publish(repeat('x', 256))", "publish('t', '1', '')",
     "declare_relay('r', '{}')", "declare_relay('', '{t}')", "declare_relay('r', '{t}', '', 'x')",
     "drop_events('-1 day')", "drop_events(null)"],
)  # fmt: skip
def test_what_cannot_be_is_refused(conn, said):
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(f"select pgflow.{said}")
    assert refused.value.sqlstate == "PF003"
