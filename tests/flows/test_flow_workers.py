"""Workflows in SQL beside those in Python: workers drive both, and each starts the other as a child."""

from __future__ import annotations

import threading
from typing import Any

import flowkit
import psycopg
import pytest
from flowkit import begin, ended, marks, work
from records import SOON, wait_until
from sqlkit import one, rows

import pgflow
from pgflow import App

Conn = psycopg.Connection[Any]


@pgflow.workflow
def book_courier(order_id: int, express: bool = False) -> str:
    return f"parcel {order_id}{'!' if express else ''}"


@pgflow.workflow
def refuse() -> None:
    raise ValueError("no courier today")


def is_over(conn: Conn, key: str = "k") -> bool:
    return one(conn, "select finished_at is not null from pgflow.runs where key = %s", key)


def test_a_worker_has_the_database_work_on_runs_in_sql(dsn, conn):
    flowkit.make(
        conn,
        "w(n int)",
        "declare v int; begin a: insert into mark (what) values ('a'); wait for x into v; sleep '0.01 s'; return v + n; end",
    )
    begin(conn, n=1)
    app = App(dsn, include=[book_courier])
    with app, app.worker(poll_seconds=0.02):
        wait_until(lambda: marks(conn) == ["a"], "the first step")
        conn.execute("select pgflow.deliver_signal('k', 'x', '4')")
        wait_until(lambda: is_over(conn), "the end")
    assert ended(conn) == ("completed", 5, None)
    assert rows(conn, "select worker_id from pgflow.worker") == []


def test_a_worker_that_stops_in_the_midst_of_a_call_leaves_nothing(dsn, conn):
    flowkit.make(
        conn,
        "w()",
        "begin loop a: insert into mark (what) values ('a'); sleep '0.2 s'; end loop; end",
    )
    begin(conn)
    app = App(dsn, include=[book_courier])
    with app, app.worker(poll_seconds=0.02):
        wait_until(lambda: len(marks(conn)) > 1, "the call, which goes on meanwhile")
    assert rows(conn, "select worker_id from pgflow.worker") == []
    assert rows(conn, "select run_id from pgflow.lease") == []


def test_a_run_in_sql_has_children_in_python(dsn, conn):
    flowkit.make(
        conn,
        "w()",
        """declare a text; v jsonb; begin
          run book_courier(order_id => 7, express => true) into a;
          for each r in select 1 run refuse() into v on failure continue;
          return jsonb_build_array(a, v->0->'error'->'message');
        end""",
    )
    begin(conn)
    app = App(dsn, include=[book_courier, refuse])
    with app, app.worker(poll_seconds=0.02):
        wait_until(lambda: is_over(conn), "the end")
    assert ended(conn) == ("completed", ["parcel 7!", "no courier today"], None)


def test_a_name_is_of_one_workflow(dsn, conn):
    app = App(dsn, include=[book_courier])
    with app, app.worker():
        wait_until(lambda: one(conn, "select count(*) from pgflow.workers") == 1, "a worker")
        with pytest.raises(psycopg.Error, match="a worker has a workflow 'book_courier' in Python"):
            flowkit.make(conn, "book_courier()", "begin end")


@pgflow.workflow
def total(n: int) -> int:
    raise NotImplementedError  # it is in SQL: here are its name and its types


@pgflow.workflow
def parent(n: int) -> int:
    return pgflow.sync.run_child(total, n) + pgflow.sync.run_child(total, n=10)


TOTAL = "begin a: insert into mark (what) values ('total ' || n); return n * 2; end"


def test_a_run_in_python_has_children_in_sql(dsn, conn):
    flowkit.make(conn, "total(n int)", TOTAL)
    app = App(dsn, include=[parent])
    with app, app.worker(poll_seconds=0.02):
        assert app.start(parent, 3).result(SOON) == 26
    assert marks(conn) == ["total 3", "total 10"]


@pgflow.workflow
def till() -> int:
    coins: list[int] = []
    pgflow.sync.serve(coins, until=lambda: bool(coins))
    return coins[0]


@till.update
def put(coins: list[int], coin: int) -> int:
    coins.append(coin)
    return 2 * coin


def test_a_run_in_sql_asks_one_in_python_for_an_update(dsn, conn):
    flowkit.make(
        conn,
        "w(coin int)",
        """declare reply jsonb;
        begin
          ask_for_it: perform pgflow.send_update('till', 'put', json_build_object('coin', coin), run->>'key',
            reply_to => run->>'key', reply_as => 'total');
          wait for total into reply;
          return reply;
        end""",
    )
    with App(dsn, include=[till]) as app, app.worker(poll_seconds=0.02):
        app.start(till.options(key="till"))
        begin(conn, coin=5)
        wait_until(lambda: is_over(conn), "the end")
    assert ended(conn) == ("completed", {"status": "done", "value": 10, "error": None}, None)


def test_a_client_in_python_starts_runs_in_sql_and_has_their_results(dsn, conn):
    flowkit.make(conn, "total(n int)", TOTAL)
    app = App(dsn, include=[parent])
    with app:
        handle = app.start(total, 4)
        work(conn)
        assert handle.result(SOON) == 8


def test_a_reaper_leaves_a_session_alone_in_a_long_step(dsn, conn):
    flowkit.make(
        conn,
        "w()",
        "begin a: perform pg_advisory_lock(4711); perform pg_advisory_unlock(4711); insert into mark (what) values ('a'); end",
    )
    begin(conn)
    with (
        psycopg.connect(dsn, autocommit=True) as other,
        psycopg.connect(dsn, autocommit=True) as holder,
    ):
        holder.execute("select pg_advisory_lock(4711)")
        thread = threading.Thread(
            target=lambda: other.execute("call pgflow.work(seconds => 20, until_idle => true)")
        )
        thread.start()
        wait_until(lambda: one(conn, "select count(*) from pgflow.lease") == 1, "the step")
        reap = "select r.* from pgflow.worker w cross join lateral pgflow.reap_worker(w.worker_id, w.beat) r"
        assert rows(conn, reap) == [(0, [], [])]
        assert one(conn, "select pgflow.reap_sessions()") == 0
        holder.execute("select pg_advisory_unlock(4711)")
        thread.join()
    assert (ended(conn)[0], marks(conn)) == ("completed", ["a"])
