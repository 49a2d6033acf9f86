"""Blocks with durable words in them, and handlers of their own: as in plpgsql, but steps are taken back by their undo."""

from __future__ import annotations

from typing import Any

import flowkit
import psycopg
import pytest
from flowkit import begin, ended, make, marks, refusal, work
from sqlkit import one, rows

Conn = psycopg.Connection[Any]


def do(step: str) -> str:
    """Return a step that writes its name, with a compensation that says so."""
    row = "insert into mark (what) values"
    return f"{step}: {row} ('{step}'); undo {step}: {row} ('undo {step}');"


def fail(step: str = "bad") -> str:
    return f"{step}: perform 1 / 0;"


def run(conn: Conn, body: str) -> tuple[Any, ...]:
    assert flowkit.run(conn, body) is not None
    assert rows(conn, "select invariant from pgflow.check()") == []
    return ended(conn)


def test_a_handler_of_a_block_takes_back_what_its_block_did(conn):
    body = f"""begin
      {do("a")}
      begin
        {do("b")} {do("c")} {fail()}
      exception when division_by_zero then
        d: insert into mark (what) values ('d ' || sqlstate || ' ' || sqlerrm);
      end;
      {do("e")}
      return 1;
    end"""
    assert run(conn, body) == ("completed", 1, None)
    assert marks(conn) == ["a", "b", "c", "undo c", "undo b", "d 22012 division by zero", "e"]


def test_an_error_that_no_branch_takes_goes_outwards(conn):
    body = f"""begin
      {do("a")}
      begin
        {do("b")}
        begin
          {do("c")} {fail()}
        exception when unique_violation then
          return 'wrong';
        end;
      exception when division_by_zero then
        {do("d")}
      end;
      return error->>'step';
    end"""
    assert run(conn, body) == ("completed", "bad", None)
    assert marks(conn) == ["a", "b", "c", "undo c", "undo b", "d"]


def test_an_error_in_a_handler_goes_outwards_too(conn):
    body = f"""begin
      {do("a")}
      begin
        {do("b")} {fail()}
      exception when others then
        {do("c")} raise;
      end;
      return 'wrong';
    exception when others then
      z: insert into mark (what) values ('z');
      begin
        {fail("worse")}
      exception when others then
        return error->>'step';
      end;
    end"""
    assert run(conn, body) == ("completed", "worse", None)
    assert marks(conn) == ["a", "b", "undo b", "c", "undo c", "undo a", "z"]


def test_after_its_end_a_block_handles_nothing(conn):
    body = f"""begin
      begin {do("a")} exception when others then return 'wrong'; end;
      {fail()}
    end"""
    assert run(conn, body)[0] == "failed"
    assert marks(conn) == ["a", "undo a"]


def test_exit_and_continue_leave_blocks(conn):
    body = f"""declare n int := 0; begin
      loop
        n := n + 1;
        begin
          a: insert into mark (what) values ('a' || n);
          continue when n = 1;
          exit when n = 2;
        exception when others then return 'wrong'; end;
      end loop;
      <<inner>>
      begin
        b: insert into mark (what) values ('b');
        if n = 2 then exit inner; end if;
        return 'wrong';
      exception when others then return 'wrong';
      end inner;
      {fail()}
    exception when division_by_zero then return n; end"""
    assert run(conn, body) == ("completed", 2, None)
    assert marks(conn) == ["a1", "a2", "b"]


def test_a_block_in_a_loop_is_tried_in_each_round(conn):
    body = """declare i int; v jsonb := '[]'; begin
      for i in 1 .. 4 loop
        begin
          a: insert into mark (what) values ('a' || i); v := v || to_jsonb(10 / (i - 2));
        exception when division_by_zero then
          sleep '0 s'; v := v || '"zero"';
        end;
      end loop;
      return v;
    end"""
    assert run(conn, body) == ("completed", [-10, "zero", 10, 5], None)
    assert marks(conn) == ["a1", "a3", "a4"]


def test_a_loop_that_is_broken_off_leaves_no_rows(conn):
    body = f"""declare i int; begin
      begin
        for i in select g from generate_series(1, 3) g loop {fail()} end loop;
      exception when others then
        wait for x;
      end;
      return i;
    end"""
    make(conn, "w()", body)
    begin(conn)
    work(conn)
    assert one(conn, "select count(*) from pgflow.flow_item") == 0
    assert rows(conn, "select invariant from pgflow.check()") == []
    conn.execute("select pgflow.deliver_signal('k', 'x')")
    work(conn)
    assert ended(conn) == ("completed", 1, None)


def test_a_block_has_variables_that_begin_anew(conn):
    body = """declare i int; v jsonb := '[]'; begin
      for i in 1 .. 2 loop
        declare n int := i * 10; m int; begin
          a: m := coalesce(m, 0) + n; sleep '0 s'; v := v || to_jsonb(m);
        end;
      end loop;
      return v;
    end"""
    assert run(conn, body) == ("completed", [10, 20], None)


def test_a_block_without_a_handler_is_only_a_block(conn):
    body = f"begin begin {do('a')} begin sleep '0 s'; {do('b')} end; end; return 1; end"
    assert run(conn, body) == ("completed", 1, None)
    assert marks(conn) == ["a", "b"]


def test_a_handler_takes_the_failure_of_a_child(conn):
    make(conn, "child()", "begin raise exception 'no'; end")
    body = "begin begin run child(); exception when others then return sqlerrm; end; end"
    assert run(conn, body) == ("completed", "no", None)


def test_a_lock_of_a_block_that_failed_is_given_back(conn):
    body = f"""begin
      lock 'outer' loop
        begin
          lock 'inner' loop {do("a")} {fail()} end loop;
        exception when others then
          wait for x;
        end;
        {do("b")}
      end loop;
      return 1;
    end"""
    make(conn, "w()", body)
    begin(conn)
    work(conn)
    assert rows(conn, "select key from pgflow.lock") == ["outer"]
    conn.execute("select pgflow.deliver_signal('k', 'x')")
    work(conn)
    assert ended(conn) == ("completed", 1, None)
    assert (marks(conn), rows(conn, "select key from pgflow.lock")) == (["a", "undo a", "b"], [])


def test_a_gate_of_a_block_is_withdrawn_when_the_run_is_cancelled(conn):
    body = f"""begin
      {do("a")}
      begin {do("b")} ask g(a => 1) of 'ann'; exception when others then return 'wrong'; end;
    end"""
    make(conn, "w()", body)
    begin(conn)
    work(conn)
    assert one(conn, "select status from pgflow.runs") == "waiting"
    conn.execute("select pgflow.cancel_run('k')")
    conn.execute("select pgflow.wake()")
    work(conn)
    assert ended(conn)[0] == "cancelled"
    assert marks(conn) == ["a", "b", "undo b", "undo a"]
    assert one(conn, "select count(*) from pgflow.gate") == 0


def test_a_failing_statement_between_steps_returns_from_its_handler(conn):
    body = """begin
      begin
        insert into mark (what) values ('a'); perform 1 / 0;
      exception when division_by_zero then
        return 'rolled back';
      end;
    end"""
    assert run(conn, body) == ("completed", "rolled back", None)
    assert marks(conn) == []


def test_a_run_is_forked_out_of_a_block(conn):
    body = f"""begin
      begin {do("a")} wait for x; {do("b")} {fail()} exception when others then {do("c")} end;
      wait for y; return 1;
    end"""
    make(conn, "w()", body)
    begin(conn)
    work(conn)
    for signal in ("x", "y"):
        conn.execute("select pgflow.deliver_signal('k', %s)", (signal,))
        work(conn)
    assert ended(conn) == ("completed", 1, None)
    units = one(conn, "select count(*) from pgflow.timeline where key = 'k'")
    for cut in range(1, units):
        conn.execute(
            "select pgflow.fork_run('k', at_seq => %s, new_key => %s, effects => 'repeat')",
            (cut, f"f{cut}"),
        )
        for signal in ("x", "y"):
            conn.execute("select pgflow.send_signal(%s, %s)", (f"f{cut}", signal))
    conn.execute("select pgflow.wake()")
    work(conn)
    for cut in range(1, units):
        assert (cut, ended(conn, f"f{cut}")) == (cut, ("completed", 1, None))
    assert rows(conn, "select invariant from pgflow.check()") == []


WRONG = {
    "declare a2 int; begin declare a2 int; begin sleep '0 s'; end; end": "line 1, column 23: the variable a2 is declared twice",
    "begin begin sleep '0 s'; end loop; end": "line 1, column 26: end loop closes nothing",
    "begin begin sleep '0 s'; exception when others then sleep '0 s'; exception when others then null; end; end": "line 1, column 66: exception stands at the end of a block, once",
    "begin begin sleep '0 s'; exception when others then get stacked diagnostics a = message_text; sleep '0 s'; end; end": "line 1, column 53: a handler between steps has no diagnostics",
    "begin begin sleep '0 s'; raise; end; end": "line 1, column 26: raise alone is for the handler of an exception",
    "begin begin sleep '0 s'; when others then null; end; end": "line 1, column 26: when belongs to no case",
    "begin begin sleep '0 s'; ": "line 1, column 7: block is not closed by end",
    "begin <<b>> begin continue b; sleep '0 s'; end; end": "line 1, column 19: continue stands in no loop with the label b",
}  # fmt: skip


@pytest.mark.parametrize("body", WRONG)
def test_blocks_that_are_not_sound_are_refused(conn, body):
    assert refusal(conn, body) == WRONG[body]


def test_a_handler_raises_again_what_is_no_error_of_sql(conn):
    make(conn, "child()", "begin wait for word; end")
    make(conn, "w()", "begin begin run child(); exception when others then raise; end; end")
    begin(conn)
    work(conn)
    conn.execute("select pgflow.cancel_run(key) from pgflow.runs where workflow = 'child'")
    work(conn)
    assert ended(conn) == ("failed", None, "child child was cancelled")
