"""A transaction that somebody holds open keeps the rows of all runs since: what a claim reads must
not grow with them.

What is counted are pages, which do not depend on how busy the machine is; `python -m bench` has the
milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
import sqlkit

Conn = psycopg.Connection[Any]

CHURNED = 16_000
LEFT = 600


def pages(conn: Conn, after: tuple[int, int] | None) -> int:
    """Return the number of pages that a claim of ten reads."""
    query = "explain (analyze, buffers, format json) select * from pgflow.claim_runs(%s, %s, 10, %s, true, %s)"
    params = (
        sqlkit.register(conn),
        sqlkit.all_lanes(conn),
        sqlkit.tokens(10),
        None if after is None else list(after),
    )
    with conn.transaction(force_rollback=True):
        (found,) = conn.execute(query, params).fetchone() or ()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    assert plan["Actual Rows"] == 10
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def churn(conn: Conn, worker: int) -> tuple[int, int]:
    """Has runs claimed; where the last of them stood."""
    last = 0
    for _ in range(CHURNED // 200):
        last = max(claimed.run_id for claimed in sqlkit.claim(conn, 200, worker=worker))
    return 0, last


@pytest.mark.full
@pytest.mark.parametrize("workflows", [("a",), ("a", "b", "c")], ids=["one lane", "three lanes"])
def test_claims_that_read_on_read_no_more_pages_while_a_snapshot_is_held(dsn, conn, workflows):
    for workflow in workflows:
        sqlkit.start_many(conn, [(None, "{}")] * ((CHURNED + LEFT) // len(workflows)), workflow)
    conn.execute("vacuum analyze")
    worker = sqlkit.register(conn)
    pages(conn, None)
    at_first = pages(conn, None)
    with psycopg.connect(dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pgflow.run")
        last = churn(conn, worker)
        conn.execute("vacuum pgflow.ready")
        from_head, reading_on = pages(conn, None), pages(conn, last)
        assert reading_on <= 1.5 * at_first, (
            "what a claim reads has grown with what was claimed since"
        )
        assert from_head > 2 * at_first, "the snapshot holds nothing back: this test shows nothing"
    conn.execute("vacuum pgflow.ready")
    pages(
        conn, None
    )  # finds the dead rows, which nobody needs any more, and marks them in the index
    assert pages(conn, None) <= 1.2 * reading_on
