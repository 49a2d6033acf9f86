"""The examples in `examples/sql` do what they say."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import servers
from flowkit import begin, ended, work
from sqlkit import one, rows

Conn = psycopg.Connection[Any]
EXAMPLES = servers.REPOSITORY / "examples" / "sql"


def use(conn: Conn, name: str) -> None:
    conn.execute("set client_min_messages = warning")
    conn.execute((EXAMPLES / f"{name}.sql").read_bytes())


def play(
    conn: Conn, workflow: str, data: dict[str, Any], signals: dict[str, Any] | None = None
) -> Any:
    query = "select pgflow.test_run(%s, %s, signals => %s)"
    return one(conn, query, workflow, json.dumps(data), json.dumps(signals or {}))


def test_events_are_loaded_in_batches(conn):
    use(conn, "load_events")
    conn.execute("insert into staging select i, 'x' from generate_series(1, 25) i")
    begin(conn, "load_events", batch=10)
    work(conn)
    assert ended(conn) == ("completed", 25, None)
    assert one(conn, "select count(*) from events") == 25


def test_a_report_has_a_child_for_each_customer(conn):
    use(conn, "nightly_report")
    conn.execute(
        "insert into customers select g, g <> 2 from generate_series(1, 3) g; insert into sales values (1, '2026-01-31', 5), (1, '2026-01-31', 6)"
    )
    begin(conn, "nightly_report", day="2026-01-31")
    work(conn)
    asked = rows(
        conn, "select payload->>'run' from pgflow.events where topic = 'reports' order by event_id"
    )
    for key in asked:
        conn.execute("select pgflow.deliver_signal(%s, 'delivered')", (key,))
    work(conn)
    assert ended(conn) == ("completed", [11, 0], None)


def test_an_invoice_is_approved_or_expires(conn):
    use(conn, "approval")
    yes = play(conn, "approve_invoice", {"invoice_id": 1}, {"decision": {"ok": True, "by": "ann"}})
    assert (yes["output"], yes["steps"]) == ("ann", ["opened", "closed"])
    found = play(conn, "approve_invoice", {"invoice_id": 1})["steps"]
    assert found == ["opened", "remind", "remind", "closed"]


def test_a_transfer_happens_as_a_whole_or_not(conn):
    use(conn, "transfer")
    conn.execute("insert into account values (1, 100), (2, 0)")
    for key, target, amount in (("good", 2, 30), ("poor", 2, 1000), ("lost", 3, 10)):
        begin(conn, "transfer", key, source=1, target=target, amount=amount)
    work(conn)
    found = [ended(conn, key)[1] for key in ("good", "poor", "lost")]
    assert found == ["done", "not done", "not done"]
    assert rows(conn, "select balance from account order by id") == [70, 30]
    found = rows(conn, "select account, sum(amount) from booking group by 1 order by 1")
    assert found == [(1, -30), (2, 30)]


def test_documents_are_embedded_batch_by_batch(conn):
    use(conn, "embeddings")
    conn.execute("insert into document select i, 'x' from generate_series(1, 3) i")
    vectors = [{"1": [1, 2], "2": [0.5]}, {"3": []}]
    done = play(conn, "embed", {"batch": 2}, {"vectors": vectors})
    assert done["steps"] == ["choose", "keep", "choose", "keep", "choose"]
