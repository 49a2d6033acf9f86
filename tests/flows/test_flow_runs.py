"""Runs of workflows in SQL: waits, failures, children, people, versions. Nothing here knows of Python workers."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import flowkit
import psycopg
import pytest
from flowkit import begin, ended, journal, make, marks, work
from poolers import bouncer
from sqlkit import T0, connect, one, rows, set_clock

Conn = psycopg.Connection[Any]


def wake(conn: Conn) -> None:
    conn.execute("select pgflow.wake()")


def status(conn: Conn, key: str = "k") -> Any:
    return one(conn, "select status from pgflow.runs where key = %s", key)


def test_the_end_of_a_run_is_in_the_transaction_of_its_last_step(conn):
    said = flowkit.run(
        conn,
        "begin a: insert into mark (what) values ('a'); b: insert into mark (what) values ('b');"
        " return pg_current_xact_id(); end",
    )
    first, last = rows(conn, "select tx::text from mark order by n")
    assert first != last
    assert said == ("completed", last, None)


def test_an_order_waits_for_its_payment_and_ships(conn):
    make(
        conn,
        "courier(n int)",
        "begin book: insert into mark (what) values ('book ' || n); return n + 1; end",
    )
    make(
        conn,
        "w(n int)",
        """declare amount int; parcel int;
        begin
          reserve: insert into mark (what) values ('reserve');
          undo reserve: insert into mark (what) values ('release');
          wait for paid timeout '3 days' into amount;
          if timed_out then
            expire: insert into mark (what) values ('expire');
            return 'not paid in time';
          end if;
          run courier(n => n + amount) into parcel;
          ship: insert into mark (what) values ('ship ' || parcel);
          return 'shipped';
        end""",
    )
    begin(conn, n=1)
    work(conn)
    assert (status(conn), marks(conn)) == ("waiting", ["reserve"])
    conn.execute("select pgflow.deliver_signal('k', 'paid', '40')")
    work(conn)
    assert ended(conn) == ("completed", "shipped", None)
    assert marks(conn) == ["reserve", "book 41", "ship 42"]
    assert journal(conn) == [
        ("step_completed", "reserve"), ("timer_started", "paid"), ("signal_received", "paid"),
        ("step_started", "courier"), ("child_started", "courier"), ("child_finished", "courier"),
        ("step_completed", "ship"),
    ]  # fmt: skip


def test_a_wait_times_out_by_the_clock_of_the_database(conn):
    make(
        conn,
        "w()",
        "declare v jsonb := '1'; begin wait for x timeout '3 days' into v; return jsonb_build_array(timed_out, v); end",
    )
    set_clock(conn, T0)
    begin(conn)
    work(conn)
    set_clock(conn, T0 + timedelta(days=2, hours=23))
    work(conn)
    assert status(conn) == "waiting"
    set_clock(conn, T0 + timedelta(days=3, seconds=1))
    work(conn)
    assert ended(conn) == ("completed", [True, None], None)


def test_a_run_that_nobody_works_on_says_so(conn):
    make(conn, "w()", "begin end")
    begin(conn)
    reason = "select reason, reason_code from pgflow.runs"
    assert rows(conn, reason) == [("no worker or pgflow.work() serves queue default", "no_worker")]


def test_a_signal_that_came_before_is_there(conn):
    make(conn, "w()", "declare v int; begin a: null; wait for x into v; return v; end")
    begin(conn)
    conn.execute("select pgflow.send_signal('k', 'x', '7')")
    work(conn)
    assert ended(conn) == ("completed", 7, None)


def test_a_step_is_tried_again_as_often_as_it_says(conn):
    make(
        conn,
        "w()",
        """begin a retry 2 every '0 s':
          insert into mark (what) values ('gone'); perform nextval('tries'); raise exception 'no % luck', 'more' using errcode = 'XX123', detail = 'd';
        end""",
    )
    conn.execute("create sequence tries")
    begin(conn)
    work(conn)
    assert one(conn, "select last_value from tries") == 3
    assert marks(conn) == []  # what a step that failed has written is gone
    assert one(
        conn,
        "select error::jsonb - 'mro' from pgflow.runs where key = 'k'",
    ) == {
        "type": "SqlError", "message": "no more luck", "sqlstate": "XX123", "detail": "d", "step": "a", "line": 2,
    }  # fmt: skip
    assert [event for event, _ in journal(conn)] == ["attempt_failed"] * 2 + ["step_failed"]


def test_a_retry_waits_as_long_as_it_says(conn):
    make(
        conn, "w()", "begin a retry 1 every '1 hour': perform nextval('tries'); perform 1 / 0; end"
    )
    conn.execute("create sequence tries")
    set_clock(conn, T0)
    begin(conn)
    work(conn)
    set_clock(conn, T0 + timedelta(minutes=59))
    work(conn)
    assert one(conn, "select last_value from tries") == 1
    set_clock(conn, T0 + timedelta(minutes=61))
    work(conn)
    assert (one(conn, "select last_value from tries"), status(conn)) == (2, "failed")


def test_what_says_nothing_of_the_step_is_tried_again_uncounted(conn):
    make(
        conn,
        "w()",
        """begin a:
          if nextval('tries') < 4 then raise exception using errcode = '40001'; end if;
          insert into mark (what) values ('done'); end""",
    )
    conn.execute("create sequence tries")
    begin(conn)
    work(conn)
    assert (ended(conn)[0], marks(conn)) == ("completed", ["done"])


SAGA = """
declare i int;
begin
  a: insert into mark (what) values ('a');
  undo a: insert into mark (what) values ('undo a');
  for i in 1 .. 2 loop
    b: insert into mark (what) values ('b' || i);
    undo b: begin insert into mark (what) values ('undo b' || i); end;
  end loop;
  {}
end"""


def test_compensations_run_backwards_and_then_the_run_has_failed(conn):
    assert flowkit.run(conn, SAGA.format("c: raise exception 'no';")) == ("failed", None, "no")
    assert marks(conn) == ["a", "b1", "b2", "undo b2", "undo b1", "undo a"]


def test_a_handler_comes_after_compensations(conn):
    body = SAGA.format(
        "c: raise exception 'no'; exception d: insert into mark (what) values (error->>'message'); undo d: insert"
        " into mark (what) values ('undo d'); if (error->>'step') = 'c' then raise; end if;"
    )
    assert flowkit.run(conn, body) == ("failed", None, "no")
    assert marks(conn) == ["a", "b1", "b2", "undo b2", "undo b1", "undo a", "no", "undo d"]


def test_a_compensation_that_cannot_be_done_waits_for_a_person(conn):
    make(
        conn,
        "w()",
        "begin a: null; undo a: insert into late values (1); b: raise exception 'no'; end",
    )
    begin(conn)
    set_clock(conn, T0)
    for count in range(22):
        set_clock(conn, T0 + timedelta(seconds=2 * count))
        work(conn)
    assert (status(conn), one(conn, "select reason from pgflow.runs where key = 'k'")) == (
        "stuck",
        "undo",
    )
    conn.execute("create table late (x int)")
    conn.execute("select pgflow.retry_run('k')")
    wake(conn)
    work(conn)
    assert (ended(conn), rows(conn, "select x from late")) == (("failed", None, "no"), [1])


def test_a_cancel_takes_back_what_was_done(conn):
    make(conn, "w()", SAGA.format("wait for x; exception d: null;"))
    begin(conn)
    work(conn)
    conn.execute("select pgflow.cancel_run('k', why => 'changed')")
    wake(conn)
    work(conn)
    assert rows(conn, "select status, reason from pgflow.runs") == [("cancelled", "changed")]
    assert marks(conn)[-3:] == ["undo b2", "undo b1", "undo a"]


def test_a_cancel_by_force_leaves_no_frame(conn):
    make(conn, "w()", "declare n int; begin for n in select 1 loop wait for x; end loop; end")
    begin(conn)
    work(conn)
    conn.execute("select pgflow.force_cancel_run('k', why => 'now')")
    wake(conn)
    assert (status(conn), rows(conn, "select run_id from pgflow.flow_frame")) == ("cancelled", [])


def test_a_paused_run_goes_on_where_it_was(conn):
    make(conn, "w()", "begin a: null; wait for x; return 1; end")
    begin(conn)
    work(conn)
    conn.execute("select pgflow.pause_run('k', why => 'look')")
    wake(conn)
    conn.execute("select pgflow.deliver_signal('k', 'x')")
    work(conn)
    assert status(conn) == "paused"
    conn.execute("select pgflow.resume_run('k')")
    wake(conn)
    work(conn)
    assert ended(conn)[:2] == ("completed", 1)


LEAF = "begin a: insert into mark (what) values ('leaf ' || n); if n = 2 then raise exception 'two'; end if; return n * 10; end"


def test_a_fan_out_starts_no_more_than_it_says_and_keeps_the_order(conn):
    make(conn, "leaf(n int)", LEAF)
    make(
        conn,
        "w()",
        """declare results jsonb;
        begin
          for each r in select g from generate_series(3, 7) g run leaf(n => r.g) at most 2 into results;
          return results;
        end""",
    )
    begin(conn)
    work(conn, claim=1)
    assert ended(conn) == ("completed", [30, 40, 50, 60, 70], None)
    most = "select count(*) filter (where kind = 'k') over w - count(*) filter (where kind = 'K') over w from pgflow.unit window w as (partition by run_id order by seq)"
    assert max(rows(conn, most)) == 2


def test_a_failed_child_fails_its_parent_and_the_others_are_cancelled(conn):
    make(conn, "leaf(n int)", LEAF)
    make(
        conn,
        "slow(n int)",
        "begin if n = 2 then raise exception 'two'; end if; wait for never; end",
    )
    body = """begin a: null; undo a: insert into mark (what) values ('undo');
      for each r in select g from generate_series(1, 3) g run slow(n => r.g); end"""
    assert flowkit.run(conn, body) == ("failed", None, "two")
    assert marks(conn) == ["undo"]
    assert sorted(rows(conn, "select status from pgflow.runs")) == [
        "cancelled", "cancelled", "failed", "failed",
    ]  # fmt: skip


def test_failures_of_children_are_results_where_it_says_so(conn):
    make(conn, "leaf(n int)", LEAF)
    body = """declare v jsonb; begin
      for each r in select g from generate_series(1, 3) g run leaf(n => r.g) into v on failure continue;
      return jsonb_build_array(v->0, v->1->'error'->'message', v->1->'status', v->2); end"""
    assert flowkit.run(conn, body) == ("completed", [10, "two", "failed", 30], None)


def test_a_fan_out_over_nothing_has_no_results(conn):
    body = "declare v jsonb; begin for each r in select 1 where false run leaf(n => 1) into v; return v; end"
    assert flowkit.run(conn, body) == ("completed", [], None)


def test_a_cancel_reaches_the_children(conn):
    make(
        conn,
        "leaf()",
        "begin a: null; undo a: insert into mark (what) values ('undo leaf'); wait for x; end",
    )
    make(conn, "w()", "begin run leaf(); end")
    begin(conn)
    work(conn)
    conn.execute("select pgflow.cancel_run('k')")
    wake(conn)
    work(conn)
    assert (rows(conn, "select status from pgflow.runs"), marks(conn)) == (
        ["cancelled"] * 2,
        ["undo leaf"],
    )


def test_an_input_must_fit_the_parameters(conn):
    make(conn, "w(a int, b int = 2, c text default 'x')", "begin return a || '/' || b || c; end")
    for key, arguments in {"k1": {"a": 1}, "k2": {"a": 1, "b": None}, "k3": {}, "k4": {"a": 1, "d": 1}, "k5": {"a": "x"}}.items():  # fmt: skip
        begin(conn, key=key, **arguments)
    work(conn)
    assert ended(conn, "k1") == ("completed", "1/2x", None)
    assert ended(conn, "k2") == ("completed", None, None)
    assert ended(conn, "k3")[2] == "w(a int, b int = 2, c text default 'x') needs the parameter 'a'"
    assert ended(conn, "k4")[2] == "w(a int, b int = 2, c text default 'x') has no parameter 'd'"
    assert ended(conn, "k5")[2] == 'invalid input syntax for type integer: "x"'


VALUES = {
    "smallint": [1, "2", None], "int": [-3, "4", None], "bigint": [2**60, None],
    "real": [0.1, "nan", None], "double precision": [1e300, "-infinity", None],
    "numeric": [1.50, "2.500", None], "boolean": [True, "off", None],
    "text": ["", "null", 1, True, {"a": [1, None]}, None], "date": ["2026-02-28", None],
    "timestamptz": ["2026-02-28 01:02:03.000004+05", None],
    "uuid": ["123E4567-e89b-12d3-a456-426614174000", None],
    "jsonb": [[], {"a": None}, "null", 0, None], "json": [[], {"a": None}, None],
    "numeric(4, 1)": [1.26, None], "varchar(3)": ["abc", None], "int[]": [[1, None], "{2,3}", None],
}  # fmt: skip
"""Values of variables, by type."""


@pytest.mark.parametrize("path", ["public", "public, pg_catalog"])
def test_a_variable_has_the_value_that_postgres_reads_from_json(conn, path):
    given = [
        {f"v{n}": values[min(k, len(values) - 1)] for n, values in enumerate(VALUES.values())}
        for k in range(max(map(len, VALUES.values())))
    ]
    columns = ", ".join(f"v{n} {kind}" for n, kind in enumerate(VALUES))
    pairs = ", ".join(f"'v{n}', v{n}" for n in range(len(VALUES)))
    conn.execute(f"set search_path = {path}")
    make(
        conn,
        f"w({columns})",
        f"begin a: perform 1; b: perform 2; return jsonb_build_object({pairs}); end",
    )
    conn.execute("reset search_path")
    for n, values in enumerate(given):
        begin(conn, key=f"k{n}", **values)
    work(conn)
    for n, values in enumerate(given):
        read = one(
            conn,
            f"select jsonb_build_object({pairs}) from jsonb_to_record(%s) as r ({columns})",
            json.dumps(values),
        )
        assert ended(conn, f"k{n}") == ("completed", read, None)
    assert rows(conn, "select invariant from pgflow.check()") == []


def test_a_value_beyond_the_limit_fails_its_step_alone(conn):
    assert flowkit.run(
        conn, "declare t text; begin a: t := repeat('x', 1100000); end"
    ) == ("failed", None, "what a step makes of its variables is 1100043 bytes long; the limit is 1 MiB")  # fmt: skip


def test_a_step_that_commits_fails(conn):
    status, _, message = flowkit.run(conn, "begin a: do $x$ begin commit; end $x$; end")
    assert (status, message) == ("failed", "invalid transaction termination")


@pytest.mark.parametrize("body", [
    "a: assert false, 'no';", "sleep (case when refuse() then '1 s' end)::interval;",
    "if refuse() then a: perform 1; end if;",
], ids=["step", "wait", "condition"])  # fmt: skip
def test_an_assertion_that_fails_fails_its_run_and_no_other(conn, body):
    """`when others` does not catch it."""
    conn.execute(
        "create function refuse() returns boolean language plpgsql as $$begin assert false, 'no'; end$$"
    )
    make(conn, "other()", "begin return 1; end")
    make(conn, "w()", f"begin {body} end")
    begin(conn)
    begin(conn, "other", "behind")
    work(conn)
    assert (ended(conn)[0], ended(conn)[2]) == ("failed", "no")
    assert ended(conn, "behind")[0] == "completed"


def test_a_cancelled_step_ends_the_call_and_is_tried_again(conn):
    make(
        conn,
        "w()",
        "begin a: if nextval('tries') = 1 then perform pg_cancel_backend(pg_backend_pid()), pg_sleep(1000); end if; insert into mark (what) values ('a'); end",
    )
    conn.execute("create sequence tries")
    begin(conn)
    with pytest.raises(psycopg.errors.QueryCanceled):
        work(conn)
    assert rows(conn, "select worker_id from pgflow.worker") == []
    work(conn)
    assert (ended(conn)[0], marks(conn)) == ("completed", ["a"])


def test_a_step_that_kills_its_session_again_and_again_is_stuck(dsn, conn):
    make(conn, "w()", "begin a: perform pg_terminate_backend(pg_backend_pid()); end")
    begin(conn)
    for _ in range(5):
        with psycopg.connect(dsn, autocommit=True) as session:
            with pytest.raises(psycopg.OperationalError):
                work(session)
    work(conn)
    assert rows(conn, "select status, reason from pgflow.runs") == [("stuck", "poison")]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_sessions_may_have_another_level_by_default(conn, level):
    make(
        conn,
        "w()",
        SAGA.format("c: set default_transaction_isolation = 'serializable'; wait for x;"),
    )
    conn.execute(f"set default_transaction_isolation = '{level}'")
    begin(conn)
    work(conn)
    conn.execute("select pgflow.send_signal('k', 'x')")
    work(conn)
    assert ended(conn)[0] == "completed"
    assert one(conn, "show default_transaction_isolation") == level


def test_several_steps_may_go_in_one_commit(conn):
    make(
        conn,
        "w()",
        "begin for i in 1 .. 10 loop a: insert into mark (what) values (i::text); end loop; end",
    )
    begin(conn)
    work(conn, steps_per_commit=5)
    assert len(rows(conn, "select distinct tx::text from mark")) == 2
    assert ended(conn)[0] == "completed"


def test_a_call_ends_in_time_and_gives_its_run_back(conn):
    make(conn, "w()", "begin loop a: insert into mark (what) values ('x'); end loop; end")
    begin(conn)
    work(conn, seconds=0.05, until_idle=False)
    assert marks(conn) and status(conn) == "queued"
    conn.execute("select pgflow.cancel_run('k')")
    wake(conn)
    work(conn)


def test_a_call_may_be_of_one_step(conn):
    make(conn, "w()", "begin a: insert into mark (what) values ('a'); b: perform 1; end")
    for key in ("k", "l"):
        begin(conn, key=key)
    found = []
    for _ in range(4):
        work(conn, steps=1, claim=2, steps_per_commit=5)
        found.append([one(conn, "select count(*) from mark"), status(conn), status(conn, "l")])
    assert found == [
        [1, "queued", "queued"],
        [1, "completed", "queued"],
        [2, "completed", "queued"],
        [2, "completed", "completed"],
    ]


@pytest.mark.full
def test_calls_go_through_a_pooler_in_transaction_mode(dsn, conn):
    make(conn, "w(n int)", "begin a: insert into mark (what) values (n); b: perform 1; end")
    for n in range(6):
        begin(conn, key=str(n), n=n)
    with (
        bouncer(dsn, "transaction") as address,
        connect(address) as first,
        connect(address) as second,
    ):
        first.prepare_threshold = second.prepare_threshold = None
        while marks(conn) != [str(n) for n in range(6)]:
            for session in (first, second):
                work(session, steps=1)
        work(first)
        assert one(first, "select count(*) from pg_locks where locktype = 'advisory'") == 0
    assert one(conn, "select count(*) from pgflow.runs where status = 'completed'") == 6
    assert one(conn, "select count(*) from pgflow.worker") == 0


def test_work_says_that_it_must_be_alone(conn):
    make(conn, "w()", "begin end")
    with pytest.raises(psycopg.errors.InvalidTransactionTermination), conn.transaction():
        conn.execute("call pgflow.work()")


def test_runs_in_flight_keep_their_version(conn):
    body = "begin a: null; wait for x; return {}; end"
    assert make(conn, "w()", body.format(1)) == "w is version 1"
    begin(conn, key="k1")
    work(conn)
    assert make(conn, "w()", body.format(1)) == "w is version 1 already"
    assert make(conn, "w()", body.format(2)) == "w is version 2"
    begin(conn, key="k2")
    work(conn)
    open_runs = "select version, is_current, open_runs from pgflow.workflows order by version"
    assert rows(conn, open_runs) == [(1, False, 1), (2, True, 1)]
    for key in ("k1", "k2"):
        conn.execute("select pgflow.deliver_signal(%s, 'x')", (key,))
    work(conn)
    assert (ended(conn, "k1")[1], ended(conn, "k2")[1]) == (1, 2)


def test_new_runs_may_begin_with_the_version_before(conn):
    make(conn, "w()", "begin return 1; end")
    make(conn, "w()", "begin return 2; end")
    conn.execute("select pgflow.alter_workflow('w', version => 1)")
    begin(conn)
    work(conn)
    assert ended(conn)[1] == 1
    with pytest.raises(psycopg.Error, match="has no version 7"):
        conn.execute("select pgflow.alter_workflow('w', version => 7)")


def test_a_workflow_is_dropped_once_no_run_needs_it(conn):
    make(conn, "w()", "begin wait for x; end")
    begin(conn)
    work(conn)
    with pytest.raises(psycopg.Error, match="workflow 'w' has 1 open runs"):
        conn.execute("select pgflow.drop_workflow('w')")
    conn.execute("select pgflow.deliver_signal('k', 'x')")
    work(conn)
    conn.execute("select pgflow.drop_workflow('w')")
    assert rows(conn, "select proname from pg_proc where proname like 'w@%'") == []
    found = rows(conn, "select body from pgflow.workflows where dropped_at is not null")
    assert found == ["begin wait for x; end"]
    assert make(conn, "w()", "begin wait for y; end") == "w is version 2"
    with pytest.raises(psycopg.Error, match="there is no workflow 'v' in SQL"):
        conn.execute("select pgflow.drop_workflow('v')")


LONG = """
declare n int; v jsonb; t int := 0;
begin
  a: t := 1; insert into mark (what) values ('a');
  for n in select g from generate_series(1, 3) g loop
    b: t := t + n; insert into mark (what) values ('b' || n);
  end loop;
  for each r in select g from generate_series(1, 3) g run leaf(n => r.g + 2) at most 2 into v;
  wait for x timeout '1 hour';
  c: insert into mark (what) values (t || v::text);
  return t;
end"""


def finish(conn: Conn, key: str) -> None:
    work(conn)
    if status(conn, key) == "waiting":
        conn.execute("select pgflow.deliver_signal(%s, 'x')", (key,))
        work(conn)


def test_a_run_is_forked_and_rewound_at_every_unit(conn):
    make(conn, "leaf(n int)", LEAF)
    make(conn, "w()", LONG)
    begin(conn)
    finish(conn, "k")
    assert ended(conn) == ("completed", 7, None)
    units = one(conn, "select count(*) from pgflow.timeline where key = 'k'")
    for cut in range(units + 1):
        conn.execute(
            "select pgflow.fork_run('k', at_seq => %s, new_key => %s, effects => 'repeat')",
            (cut, f"fork {cut}"),
        ) if cut else None
    for cut in range(1, units):
        finish(conn, f"fork {cut}")
        assert ended(conn, f"fork {cut}") == ("completed", 7, None), cut
    assert marks(conn).count("7[30, 40, 50]") >= units - 1


def test_a_fork_hears_of_children_in_the_order_in_which_they_ended(conn):
    make(conn, "leaf(n int)", "begin if n = 1 then wait for x; end if; a: perform 1 / (n - 2); end")
    make(conn, "w()", "begin for each r in values (1), (2) run leaf(n => r.column1); end")
    begin(conn)
    work(conn)
    assert ended(conn) == ("failed", None, "division by zero")
    conn.execute("select pgflow.fork_run('k', at_seq => 3, new_key => 'f', effects => 'repeat')")
    work(conn)
    assert ended(conn, "f") == ("failed", None, "division by zero")


def test_a_run_that_has_ended_is_rewound(conn):
    make(conn, "leaf(n int)", LEAF)
    make(conn, "w()", LONG)
    begin(conn)
    finish(conn, "k")
    for cut in (1, 3, 6):
        with pytest.raises(psycopg.Error, match="is one of a workflow in SQL"):
            conn.execute("select pgflow.rewind_run('k', to_seq => %s, effects => 'reuse')", (cut,))
        conn.execute("select pgflow.rewind_run('k', to_seq => %s, effects => 'repeat')", (cut,))
        finish(conn, "k")
        assert ended(conn) == ("completed", 7, None)


def test_a_restart_begins_with_the_newest_version(conn):
    make(conn, "w()", "begin a: perform 1 / 0; end")
    begin(conn)
    work(conn)
    make(conn, "w()", "begin a: null; return 'mended'; end")
    conn.execute("select pgflow.restart_run('k', why => 'mended', effects => 'repeat')")
    work(conn)
    assert ended(conn) == ("completed", "mended", None)


def test_a_run_is_retried_from_the_step_that_failed(conn):
    make(
        conn, "w()", "declare n int; begin a: n := 4; b: insert into late values (n); return n; end"
    )
    begin(conn)
    work(conn)
    assert ended(conn)[0] == "failed"
    conn.execute("create table late (x int)")
    conn.execute("select pgflow.retry_run('k', from_step => 'b', why => 'the table is there')")
    work(conn)
    assert (ended(conn), rows(conn, "select x from late")) == (("completed", 4, None), [4])


def test_a_run_says_what_it_does(conn):
    make(
        conn,
        "w()",
        """begin
          for i in 1 .. 2 loop
            set state jsonb_build_object('at', i);
            emit 'line ' || i to "log lines";
          end loop;
          wait for x;
          set state '[]'::jsonb;
        end""",
    )
    begin(conn)
    work(conn)
    assert one(conn, "select pgflow.run_state('k')") == {"at": 2}
    emitted = "select payload #>> '{}' from pgflow.timeline where key = 'k' and event = 'emitted' and name = 'log lines'"
    assert rows(conn, emitted) == ["line 1", "line 2"]
    for cut in range(1, 9):
        conn.execute("select pgflow.fork_run('k', at_seq => %s, new_key => %s)", (cut, f"f{cut}"))
    work(conn)
    assert rows(
        conn, "select distinct s::jsonb->>'at' from pgflow.runs r, pgflow.run_state(r.key) s"
    ) == ["2"]
    conn.execute("select pgflow.deliver_signal('k', 'x')")
    work(conn)
    assert ended(conn)[2] == "the state of a run is an object: set state jsonb_build_object(...)"


def test_a_child_by_the_name_of_nothing_waits_for_a_worker(conn):
    make(conn, "w()", "begin run nobody(); end")
    begin(conn)
    work(conn)
    found = rows(conn, "select workflow, status from pgflow.runs order by run_id")
    assert found == [("w", "waiting"), ("nobody", "queued")]


def test_the_input_of_a_start_is_json_of_any_client(conn):
    make(conn, "w(a jsonb)", "begin return a; end")
    begin(conn, a={"x": [1, None, "é"]})
    work(conn)
    assert json.dumps(ended(conn)[1]) == json.dumps({"x": [1, None, "é"]})
