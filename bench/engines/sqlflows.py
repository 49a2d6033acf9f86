"""Workflows in SQL, which the database works on itself: steps of one insert, beside a bare loop of
`insert; commit` in a procedure, by turns.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import psycopg

from bench.engines import kit

SETUP = """
create table if not exists sql_app (id bigint generated always as identity primary key, v int);
create or replace procedure bare_loop(n int) language plpgsql as $$
begin
  for i in 1 .. n loop
    insert into sql_app (v) values (i);
    commit;
  end loop;
end $$;
"""
STEPS = 10
FLOW = (
    "begin " + " ".join(f"s{n}: insert into sql_app (v) values (n);" for n in range(STEPS)) + " end"
)
WAYS = {
    "sql_steps_per_second": "call pgflow.work(3600, until_idle => true)",
    "sql_steps_per_second_of_10_a_commit": "call pgflow.work(3600, until_idle => true, steps_per_commit => 10)",
    "sql_steps_per_second_of_10_a_commit_claiming_8": "call pgflow.work(3600, until_idle => true, steps_per_commit => 10, claim => 8)",
}
CLONED = ("run", "parked", "wait", "flow_frame")
"""Tables that have a row of a run in SQL that waits for a signal."""


def measure(bench: kit.Bench) -> kit.Figures:
    """Rates of steps in each way, and what runs that wait cost a call that has nothing to do."""
    taken: dict[str, list[float]] = {}
    runs = bench["runs"]
    with bench.connect() as conn:
        conn.execute(SETUP)
        conn.execute("select pgflow.create_workflow('ten(n int)', %s)", (FLOW,))
        for _ in range(bench["rounds"]):
            _time(
                conn, taken, "sql_steps_per_second_of_bare_loop", f"call bare_loop({runs * STEPS})"
            )
            for name, call in WAYS.items():
                start = "select count(*) from generate_series(1, %s) n, pgflow.start_run('ten', json_build_object('n', n)) s"
                conn.execute(start, (runs,))
                _time(conn, taken, name, call)
        figures = {name: runs * STEPS / statistics.median(found) for name, found in taken.items()}
        bench.check(
            "rows of the steps",
            "select count(*) from sql_app",
            bench["rounds"] * runs * STEPS * (1 + len(WAYS)),
        )
        return figures | {"sql_idle_ms_of_waiting_runs": _waiting(conn, bench["waiting"])}


def _time(
    conn: psycopg.Connection[Any], taken: dict[str, list[float]], name: str, call: str
) -> None:
    conn.execute("checkpoint")
    began = time.perf_counter()
    conn.execute(call.encode())
    taken.setdefault(name, []).append(time.perf_counter() - began)


def _waiting(conn: psycopg.Connection[Any], count: int) -> float:
    """Return by how many milliseconds an idle call takes longer where so many runs wait."""
    conn.execute("select pgflow.create_workflow('waits()', 'begin wait for word; end')")
    conn.execute("select pgflow.start_run('waits')")
    before = _idle_ms(conn)
    clone_waiting(conn, count)
    conn.execute("vacuum analyze")
    return _idle_ms(conn) - before


def clone_waiting(conn: psycopg.Connection[Any], count: int) -> None:
    """Copy the one run in SQL that waits so often."""
    for table in CLONED:
        conn.execute(
            f"""insert into pgflow.{table} select r.* from (
                select to_jsonb(t) as said, t.run_id from pgflow.{table} t join pgflow.flow_frame f using (run_id)
              ) t cross join generate_series(1, %s) n
              cross join lateral jsonb_populate_record(null::pgflow.{table}, t.said
                || (select jsonb_object_agg(k, to_jsonb(t.run_id + n)) from jsonb_object_keys(t.said) k
                  where k in ('run_id', 'chain_id', 'root_run_id'))
                || case '{table}' when 'run' then jsonb_build_object('key', 'w' || n, 'root', gen_random_uuid())
                  else '{{}}' end) r""".encode(),
            (count,),
        )
    conn.execute("select setval('pgflow.run_id_seq', max(run_id)) from pgflow.run")


def _idle_ms(conn: psycopg.Connection[Any]) -> float:
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        conn.execute("call pgflow.work(10, until_idle => true)")
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000
