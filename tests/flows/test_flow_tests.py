"""Unit tests of workflows in SQL: a run is played to its end, and nothing is left of it."""

from __future__ import annotations

from typing import Any

import flowkit
import psycopg
import pytest
from flowkit import marks
from sqlkit import one, rows

Conn = psycopg.Connection[Any]

ORDER = """declare amount int; parcel text;
begin
  reserve: insert into mark (what) values ('reserve'); undo reserve: insert into mark (what) values ('release');
  wait for paid timeout '3 days' into amount;
  if timed_out then return 'expired'; end if;
  run courier(amount => amount) into parcel;
  ship retry 2 every '1 hour': insert into mark (what) values ('ship ' || parcel); if amount < 0 then raise exception 'refused'; end if;
  return 'shipped';
end"""


def play(conn: Conn, options: str) -> Any:
    return one(conn, f"select pgflow.test_run('w', {options})")


def test_a_run_is_played_to_its_end(conn):
    flowkit.make(conn, "w()", ORDER)
    paid = """signals => '{"paid": 5}', children => '{"courier": "p1"}'"""
    assert play(conn, paid) == {
        "status": "completed", "output": "shipped", "error": None, "waits": None, "steps": ["reserve", "ship"],
    }  # fmt: skip
    left = "select (select count(*) from pgflow.run) + (select count(*) from pgflow.lane) + (select count(*) from mark)"
    assert one(conn, left) == 0


def test_time_passes_when_nothing_else_can_go_on(conn):
    flowkit.make(conn, "w()", ORDER)
    assert play(conn, "'{}'")["output"] == "expired"
    refused = play(conn, """signals => '{"paid": [-5]}', children => '{"courier": "p1"}'""")
    assert (refused["status"], refused["error"]["message"]) == ("failed", "refused")
    assert refused["steps"] == ["reserve", "undo reserve"]


def test_what_steps_have_written_may_be_kept_to_look_at(conn):
    flowkit.make(conn, "w()", ORDER)
    with conn.transaction(force_rollback=True):
        play(conn, """signals => '{"paid": 5}', children => '{"courier": "p1"}', keep => true""")
        assert marks(conn) == ["reserve", "ship p1"]
    assert marks(conn) == []
    with pytest.raises(psycopg.Error, match="cannot be committed"):
        play(conn, "'{}', keep => true")
    assert marks(conn) == []


def test_a_child_that_is_not_in_sql_needs_a_result(conn):
    flowkit.make(conn, "w()", ORDER)
    with pytest.raises(psycopg.Error, match="the child courier is not in SQL"):
        play(conn, """signals => '{"paid": 5}'""")


def test_a_run_that_waits_for_ever_says_for_what(conn):
    flowkit.make(conn, "w()", "begin wait for x; end")
    flowkit.begin(conn, "w", "other")  # of no concern
    assert play(conn, "'{}'") == {
        "status": "waiting", "output": None, "error": None, "steps": [], "waits": "signal x",
    }  # fmt: skip
    assert rows(conn, "select key, status from pgflow.runs") == [("other", "queued")]
