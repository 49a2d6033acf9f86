"""Words of workflows in SQL for what the engine has: gates, locks, events, budgets."""

from __future__ import annotations

from typing import Any

import flowkit
import psycopg
import pytest
from flowkit import begin, ended, journal, make, marks, work
from sqlkit import one, rows

Conn = psycopg.Connection[Any]


def status(conn: Conn, key: str = "k") -> Any:
    return one(conn, "select status from pgflow.runs where key = %s", key)


REFUND = """declare v jsonb;
begin
  a: insert into mark (what) values ('a');
  undo a: insert into mark (what) values ('undo a');
  ask refund(amount => n * 2) of 'ann', 'bob' quorum q timeout '3 days' into v;
  b: insert into mark (what) values (v->>'verdict');
  return v - 'by';
end"""
ANSWER = "select pgflow.answer_gate(gate, %s, by => %s, reason => %s) from pgflow.gates"


def test_a_gate_waits_for_its_quorum(conn):
    make(conn, "w(n int, q int)", REFUND)
    begin(conn, n=3, q=2)
    work(conn)
    assert rows(
        conn,
        "select g.name, g.approvers, g.quorum, t.payload->'request' from pgflow.gates g join pgflow.timeline t"
        " on t.key = 'k' and t.event = 'gate_asked'",
    ) == [("refund", ["ann", "bob"], 2, {"amount": 6})]
    conn.execute(ANSWER, ("approve", "ann", None))
    work(conn)
    assert (status(conn), marks(conn)) == ("waiting", ["a"])
    conn.execute(ANSWER, ("approve", "bob", None))
    work(conn)
    assert marks(conn) == ["a", "approve"]
    assert ended(conn)[1] == {
        "verdict": "approve", "edited": False, "value": None, "reason": None, "to": None,
        "timed_out": False,
    }  # fmt: skip


def test_a_gate_may_be_rejected(conn):
    make(conn, "w(n int, q int)", REFUND)
    begin(conn, n=3, q=1)
    work(conn)
    conn.execute(ANSWER, ("reject", "bob", "too much"))
    work(conn)
    status, output, _ = ended(conn)
    assert (status, output["verdict"], output["reason"]) == ("completed", "reject", "too much")


def test_a_run_that_is_cancelled_closes_its_gate(conn):
    make(conn, "w(n int, q int)", REFUND)
    begin(conn, n=3, q=1)
    work(conn)
    conn.execute("select pgflow.cancel_run('k', 'no'), pgflow.wake()")
    work(conn)
    assert (ended(conn)[0], marks(conn)) == ("cancelled", ["a", "undo a"])
    assert rows(conn, "select gate from pgflow.gates") == []


def test_each_fork_asks_at_a_gate_of_its_own(conn):
    make(conn, "w(n int, q int)", REFUND)
    begin(conn, n=3, q=1)
    work(conn)
    conn.execute(ANSWER, ("approve", "ann", None))
    work(conn)
    units = one(conn, "select count(*) from pgflow.timeline where key = 'k'")
    for cut in range(1, units):
        key = f"fork {cut}"
        conn.execute(
            "select pgflow.fork_run('k', at_seq => %s, new_key => %s, effects => 'repeat')",
            (cut, key),
        )
        work(conn)
        if status(conn, key) == "waiting":
            conn.execute(ANSWER + " where key = %s", ("reject", "bob", "no", key))
            work(conn)
            assert ended(conn, key)[1]["verdict"] == "reject"
        else:
            assert ended(conn, key)[1]["verdict"] == "approve"


def test_terms_that_no_gate_can_have_fail_the_run(conn):
    make(conn, "w(n int, q int)", REFUND)
    begin(conn, n=3, q=0)
    work(conn)
    found = ended(conn)
    assert found == ("failed", None, "gate 'refund' needs approvers by name, and a quorum of them")


EXCLUSIVE = """begin
  lock 'account ' || n loop
    a: insert into mark (what) values (run->>'key' || ' in');
    undo a: insert into mark (what) values (run->>'key' || ' undo');
    wait for go;
    b: insert into mark (what) values (run->>'key' || ' out');
  end loop;
  c: insert into mark (what) values (run->>'key' || ' after');
exception when sqlstate 'PF025' then
  d: insert into mark (what) values (run->>'key' || ' ' || (error->>'type'));
end"""


def go(conn: Conn, key: str) -> None:
    conn.execute("select pgflow.deliver_signal(%s, 'go')", (key,))
    work(conn)


def test_one_run_at_a_time_holds_a_lock(conn):
    make(conn, "w(n int)", EXCLUSIVE)
    for key in ("k1", "k2", "k3"):
        begin(conn, key=key, n=7)
    begin(conn, key="other", n=8)
    work(conn)
    assert marks(conn) == ["k1 in", "other in"]
    found = rows(conn, "select key, holder, waiters from pgflow.locks order by key")
    assert found == [("account 7", "k1", 2), ("account 8", "other", 0)]
    for key in ("k1", "k2", "other", "k3"):
        go(conn, key)
    assert [mark for mark in marks(conn) if not mark.startswith("other")] == [
        f"{key} {what}" for key in ("k1", "k2", "k3") for what in ("in", "out", "after")
    ]
    assert rows(conn, "select key from pgflow.locks") == []


def test_a_lock_that_is_taken_away_ends_the_block(conn):
    make(conn, "w(n int)", EXCLUSIVE)
    begin(conn, key="k1", n=7)
    begin(conn, key="k2", n=7)
    work(conn)
    conn.execute("select pgflow.break_lock('account 7', 'it hangs')")
    work(conn)
    go(conn, "k1")
    go(conn, "k2")
    assert marks(conn) == [
        "k1 in", "k2 in", "k1 undo", "k1 LockLost", "k2 out", "k2 after",
    ]  # fmt: skip


def test_a_step_does_not_commit_under_a_lock_that_is_lost(conn):
    make(
        conn,
        "w()",
        """begin lock 'k' loop
          a: perform pgflow.break_lock('k', 'on purpose'); insert into mark (what) values ('a');
        end loop; end""",
    )
    begin(conn)
    work(conn)
    status, _, message = ended(conn)
    assert (status, marks(conn)) == ("failed", [])
    assert "does not hold the lock any more" in message


def test_a_lock_that_is_not_had_in_time_is_passed_over(conn):
    make(
        conn,
        "w()",
        """begin
          lock 'k' timeout '0 s' loop a: insert into mark (what) values ('a'); end loop;
          if timed_out then return 'busy'; end if;
          return 'done';
        end""",
    )
    fence = one(conn, "select pgflow.take_lock('k', 'somebody', '1 hour', secret => 's')")
    begin(conn, key="k1")
    work(conn)
    conn.execute("select pgflow.release_lock('k', %s, secret => 's')", (fence,))
    begin(conn, key="k2")
    work(conn)
    assert (ended(conn, "k1")[1], ended(conn, "k2")[1], marks(conn)) == ("busy", "done", ["a"])


def test_runs_that_wait_for_each_other_are_found(conn):
    make(
        conn,
        "w(first text, second text)",
        """begin
          lock first loop
            wait for go;
            lock second loop a: insert into mark (what) values (run->>'key'); end loop;
          end loop;
        end""",
    )
    begin(conn, key="k1", first="x", second="y")
    begin(conn, key="k2", first="y", second="x")
    work(conn)
    go(conn, "k1")
    go(conn, "k2")
    assert ended(conn, "k2")[0] == "failed"
    assert "would never be had" in ended(conn, "k2")[2]
    assert (ended(conn, "k1")[0], marks(conn)) == ("completed", ["k1"])


@pytest.mark.parametrize(
    "ending", ["pgflow.cancel_run('k1', 'no')", "pgflow.cancel_run('k1', 'no', force => true)"]
)
def test_a_run_that_is_cancelled_gives_its_lock_back(conn, ending):
    make(conn, "w(n int)", EXCLUSIVE)
    begin(conn, key="k1", n=7)
    begin(conn, key="k2", n=7)
    work(conn)
    conn.execute(f"select {ending}, pgflow.wake()")
    work(conn)
    assert ended(conn, "k1")[0] == "cancelled"
    assert one(conn, "select holder from pgflow.locks") == "k2"


def test_a_lock_goes_on_with_a_run_that_is_rewound(conn):
    make(conn, "w(n int)", EXCLUSIVE)
    begin(conn, n=7)
    work(conn)
    units = one(conn, "select count(*) from pgflow.timeline where key = 'k'")
    conn.execute("select pgflow.rewind_run('k', to_seq => %s, effects => 'repeat')", (units - 1,))
    work(conn)
    go(conn, "k")
    assert marks(conn)[-2:] == ["k out", "k after"]


PAID = """declare e jsonb;
begin
  a: insert into mark (what) values ('a');
  wait for event 'payments' matching jsonb_build_object('order', n) timeout '3 days' into e;
  if timed_out then return 'never'; end if;
  b: insert into mark (what) values (e->'payload'->>'amount');
  return e->'key';
end"""


def test_an_event_that_fits_brings_a_run_on(conn):
    make(conn, "w(n int)", PAID)
    begin(conn, n=7)
    work(conn)
    conn.execute("select pgflow.publish('payments', '{\"order\": 8, \"amount\": 5}', key => 'p1')")
    work(conn)
    assert status(conn) == "waiting"
    conn.execute("select pgflow.publish('payments', '{\"order\": 7, \"amount\": 6}', key => 'p2')")
    work(conn)
    assert (*ended(conn), marks(conn)) == ("completed", "p2", None, ["a", "6"])


def test_a_wait_for_an_event_that_is_over_is_forgotten(conn):
    make(
        conn,
        "w(n int)",
        PAID.replace("'3 days'", "'0 s'").replace("return 'never'", "wait for other"),
    )
    begin(conn, n=7)
    work(conn)
    assert one(conn, "select count(*) from pgflow.event_wait") == 0
    conn.execute("select pgflow.cancel_run('k', 'no'), pgflow.wake()")
    work(conn)
    make(conn, "w(n int)", PAID)
    begin(conn, "w", "k3", n=7)
    work(conn)
    assert one(conn, "select count(*) from pgflow.event_wait") == 1
    conn.execute("select pgflow.cancel_run('k3', 'no'), pgflow.wake()")
    work(conn)
    assert one(conn, "select count(*) from pgflow.event_wait") == 0


def test_a_published_event_names_its_run(conn):
    flowkit.run(conn, "begin publish jsonb_build_object('n', 1) to 'orders' key 'o1'; end")
    assert rows(
        conn,
        "select e.topic, e.key, e.payload, r.key from pgflow.event e join pgflow.runs r on r.run_id = e.run_id",
    ) == [("orders", "o1", {"n": 1}, "k")]


BUYS = """declare n int := 0;
begin
  loop
    spend jsonb_build_object('usd', 2);
    a: n := n + 1;
  end loop;
exception when others then
  return jsonb_build_array(n, error->>'type', error->>'reason');
end"""


def test_a_budget_decides_before_it_is_spent(conn):
    make(conn, "w()", BUYS)
    conn.execute("select pgflow.set_pool('p', '{\"usd\": 5}')")
    conn.execute("select pgflow.start_run('w', '{}', key => 'k', pool => 'p')")
    work(conn)
    assert ended(conn) == ("completed", [2, "BudgetRefused", "used_up"], None)
    assert rows(conn, "select charged, reserved from pgflow.spend where pool = 'p'") == [(4, 0)]
    assert [name for event, name in journal(conn) if event == "budget_refused"] == ["spend"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "spend '{\"usd\": -1}'",
            "what is spent: the unit 'usd' must be a name in lower case with an amount of 0 to 10^15",
        ),
        ("spend '{}'", "what is spent must be an object of amounts by unit"),
        ("spend null", "what is spent must be an object of amounts by unit"),
        ("lock repeat('x', 256) loop a: null; end loop", "the key of a lock"),
        ("lock null loop a: null; end loop", "the key of a lock"),
        ("wait for event ''", "a topic"),
        ("publish 1 to null", "a topic"),
        ("set state '[]'::jsonb", "the state of a run is an object"),
    ],
)
def test_what_cannot_be_asked_for_fails_the_run_alone(conn, statement, message):
    status, _, said = flowkit.run(conn, f"begin {statement}; end")
    assert (status, message in said) == ("failed", True), said


def test_the_longest_terms_of_a_gate_wait(conn):
    make(conn, "w()", f"""begin ask "{"g" * 150}"() timeout '5000 years'; end""")
    begin(conn)
    work(conn)
    assert status(conn) == "waiting"
