"""A step with a timeout that takes longer fails, and is tried again as its label says."""

from __future__ import annotations

import threading

import psycopg
from flowkit import begin, ended, journal, make, marks, work
from records import wait_until
from sqlkit import one

import pgflow
from pgflow import App

LATE = "step slow took longer than its timeout of 0.001 s"
SLOW = "insert into mark (what) values ('slow'); perform pg_sleep(0.01);"


@pgflow.workflow
def other() -> None:
    """A workflow, as an app has one."""


def test_a_step_that_is_too_slow_commits_nothing(conn):
    make(conn, "w()", f"begin slow timeout '1 ms': {SLOW} return 1; end")
    begin(conn)
    work(conn)
    assert ended(conn) == ("failed", None, LATE)
    assert marks(conn) == []
    error = one(conn, "select error from pgflow.runs")
    assert (error["type"], error["sqlstate"], error["step"]) == ("StepTimeout", "57014", "slow")


def test_a_step_that_is_fast_enough_is_like_any_other(conn):
    make(conn, "w()", "begin a timeout '1 h' retry 2: insert into mark (what) values ('a'); end")
    begin(conn)
    work(conn)
    assert (ended(conn)[0], marks(conn)) == ("completed", ["a"])
    assert one(conn, "show lock_timeout") == "0"


def test_it_is_tried_again_as_often_as_retry_says(conn):
    make(conn, "w()", f"begin slow timeout '1 ms' retry 2 every '0 s': {SLOW} return 1; end")
    begin(conn)
    work(conn)
    assert ended(conn) == ("failed", None, LATE)
    assert journal(conn) == [("attempt_failed", "slow")] * 2 + [("step_failed", "slow")]


def test_a_handler_and_a_compensation_follow_it(conn):
    make(
        conn,
        "w()",
        f"""begin
          a: insert into mark (what) values ('a');
          undo a: insert into mark (what) values ('undo a');
          slow timeout '1 ms': {SLOW}
        exception when query_canceled then return error->>'type'; end""",
    )
    begin(conn)
    work(conn)
    assert ended(conn) == ("completed", "StepTimeout", None)
    assert marks(conn) == ["a", "undo a"]


def test_a_wait_for_a_lock_is_cut_short_in_work(dsn, conn):
    make(conn, "w()", "begin a timeout '1 ms': update mark set what = 'b'; end")
    conn.execute("insert into mark (what) values ('a')")
    begin(conn)
    with psycopg.connect(dsn) as holder:
        holder.execute("select from mark for update")
        work(conn)
    assert ended(conn)[2] == "step a took longer than its timeout of 0.001 s"


def test_a_cancel_by_others_is_no_timeout(dsn, conn):
    make(
        conn,
        "w()",
        "begin a timeout '1 h': perform pg_advisory_xact_lock(4711); insert into mark (what) values ('a'); end",
    )
    begin(conn)
    called: list[str] = []

    def call() -> None:
        with psycopg.connect(dsn, autocommit=True) as driver:
            try:
                work(driver)
            except psycopg.errors.QueryCanceled as error:
                called.append(str(error.diag.message_primary))

    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(4711)")
        thread = threading.Thread(target=call)
        thread.start()
        cancel = "select pg_cancel_backend(pid) from pg_locks where locktype = 'advisory' and not granted and objid = 4711"
        wait_until(lambda: one(conn, f"select count(*) from ({cancel}) c") > 0, "the step")
        thread.join()
    assert called == ["canceling statement due to user request"]
    work(conn)
    assert (ended(conn)[0], marks(conn)) == ("completed", ["a"])


def test_a_worker_interrupts_it_by_a_statement_timeout(dsn, conn):
    make(
        conn,
        "w()",
        """begin
          a: insert into mark (what) values ('a');
          fast timeout '1 h': insert into mark (what) values ('fast');
          slow timeout '1 ms' retry 1 every '0 s': perform pg_sleep(3600);
        exception when query_canceled then
          z: insert into mark (what) values ('z');
          return error->>'message';
        end""",
    )
    begin(conn)
    with App(dsn, include=[other]) as app, app.worker(poll_seconds=0.02):
        wait_until(lambda: ended(conn)[0] == "completed", "the end")
    assert ended(conn)[1] == LATE
    assert marks(conn) == ["a", "fast", "z"]
    assert one(conn, "select count(*) from pgflow.worker") == 0
