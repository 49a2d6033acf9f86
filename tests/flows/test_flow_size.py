"""What a call of `work` costs does not grow: with the runs that wait, and with its steps."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from flowkit import begin, make, work
from sqlkit import connect, one, rows

from bench.engines.sqlflows import clone_waiting

Conn = psycopg.Connection[Any]
LOOKED_AT = """select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int
  from pg_stat_user_tables where schemaname = 'pgflow'"""


def looked_at(conn: Conn) -> int:
    """Return how many rows of our tables an idle call looks at."""
    work(conn)  # reads and plans what is read once
    conn.execute("select pg_stat_force_next_flush()")
    before = one(conn, LOOKED_AT)
    work(conn)
    conn.execute("select pg_stat_force_next_flush()")
    return int(one(conn, LOOKED_AT) - before)


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.unsound
def test_runs_that_wait_cost_an_idle_call_nothing(dsn):
    with connect(dsn) as conn:
        make(conn, "w()", "begin wait for word; end")
        begin(conn)
        work(conn)
        few = looked_at(conn)
        clone_waiting(conn, 100_000)
        conn.execute("vacuum analyze")
        assert looked_at(conn) <= few + 20


@pytest.mark.full
def test_a_long_call_needs_no_more_memory(conn):
    make(
        conn,
        "w()",
        """declare i int := 0;
        begin
          while i < 600 loop
            a: i := i + 1;
               if i % 300 = 0 then
                 insert into mark (what) select sum(used_bytes) from pg_backend_memory_contexts;
               end if;
          end loop;
        end""",
    )
    begin(conn)
    work(conn)
    first, last = (int(bytes_) for bytes_ in rows(conn, "select what from mark order by n"))
    assert last - first < 300 * 100
