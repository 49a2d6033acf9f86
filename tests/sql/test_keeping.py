"""Rules of retention, legal holds and forgotten subjects: what goes, what stays, and what is recorded of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlkit
from sqlkit import begin, claim_one, commit, count, finish, flush, one, rows, set_clock, start

Conn = psycopg.Connection[Any]
T0 = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def keep(conn: Conn, rule: str, days: float, **conditions: Any) -> None:
    labels = conditions.pop("labels", None)
    conn.execute(
        "select pgflow.set_retention(%s, %s, labels => %s, workflow => %s, status => %s, tenant => %s)",
        (
            rule,
            days * 86400,
            None if labels is None else json.dumps(labels),
            *(conditions.get(name) for name in ("workflow", "status", "tenant")),
        ),
    )


def ended(
    conn: Conn, key: str, status: str = "completed", workflow: str = "demo", **more: Any
) -> None:
    finish(conn, begin(conn, workflow, key=key, **more), status)


def retire(conn: Conn, most: int = 1000) -> int:
    gone, root = 0, 0
    while root is not None:
        runs, root = conn.execute(
            "select runs, last_root from pgflow.retire_runs(%s, %s)", (most, root)
        ).fetchone() or (0, None)
        gone += runs
    return gone


def keys(conn: Conn) -> set[str]:
    return set(rows(conn, "select key from pgflow.runs"))


def test_the_rule_with_the_most_conditions_decides(db):
    set_clock(db, T0)
    ended(db, "plain")
    ended(db, "failed", "failed")
    ended(db, "debug", workflow="debug")
    ended(db, "debug-failed", "failed", workflow="debug")
    ended(db, "audited", labels='{"class": "audit", "x": "y"}')
    ended(db, "acme", tenant="acme")
    start(db, key="open")
    assert retire(db) == 0
    keep(db, "all", 30)
    keep(db, "failed", 180, status="failed")
    keep(db, "debug", 1, workflow="debug")
    keep(db, "audit", 3650, labels={"class": "audit"})
    keep(db, "acme", 7, tenant="acme")
    left = {"plain", "failed", "debug", "debug-failed", "audited", "acme", "open"}
    for days, gone in ((0.9, set()), (2, {"debug"}), (8, {"acme"}), (31, {"plain"})):
        set_clock(db, T0 + days * DAY)
        retire(db, most=2)
        left -= gone
        assert keys(db) == left, days
    set_clock(db, T0 + 181 * DAY)
    assert retire(db) == 2
    assert keys(db) == {"audited", "open"}
    found = dict(
        db.execute("select why, sum(runs) from pgflow.dropped_history group by 1").fetchall()
    )
    assert found == {"debug": 1, "acme": 1, "all": 1, "failed": 2}
    assert one(db, "select pgflow.drop_retention('audit')") is True
    assert one(db, "select pgflow.drop_retention('audit')") is False
    assert retire(db) == 1


def test_a_family_goes_by_the_rule_of_its_head_once_all_have_ended(db):
    set_clock(db, T0)
    keep(db, "parents", 1, workflow="parent")
    head = begin(db, "parent", key="head")
    commit(db, flush(head, children=[sqlkit.child(1, "kid", key="kid", close_policy="a")]))
    head.seq += 1
    finish(db, head)
    set_clock(db, T0 + 10 * DAY)
    assert retire(db) == 0
    finish(db, claim_one(db))
    assert retire(db) == 0
    set_clock(db, T0 + 12 * DAY)
    assert retire(db) == 2
    assert count(db, "run") == 0


def test_a_legal_hold_keeps_a_family_from_every_removal(db):
    set_clock(db, T0)
    keep(db, "all", 1)
    ended(db, "held", labels='{"subject": "ann"}')
    ended(db, "free")
    db.execute("select pgflow.hold_history('held', 'case 17')")
    set_clock(db, T0 + 10 * DAY)
    assert retire(db) == 1
    db.execute("select pgflow.drop_history(%s)", (T0 + 5 * DAY,))
    told = db.execute("select removed, held from pgflow.forget_subject('ann', 'asked')").fetchone()
    assert told == (0, 1)
    with pytest.raises(psycopg.Error, match="under a legal hold"), db.transaction():
        db.execute("select pgflow.redact('held', null, 'asked', what => 'input')")
    assert db.execute("select key, why from pgflow.legal_holds").fetchall() == [("held", "case 17")]
    assert one(db, "select pgflow.release_history('held')") is True
    assert one(db, "select pgflow.release_history('held')") is False
    assert retire(db) == 1


def test_a_subject_is_forgotten_with_all_that_its_runs_came_of(db):
    set_clock(db, T0)
    ended(db, "ann-1", labels='{"subject": "ann"}', key_retention_seconds=10**6)
    ended(db, "bob-1", labels='{"subject": "bob"}')
    head = begin(db, "parent", key="ann-2")
    commit(db, flush(head, children=[sqlkit.child(1, "kid", key="ann-kid", close_policy="a")]))
    head.seq += 1
    finish(db, head)
    kid = claim_one(db)
    db.execute("""update pgflow.run set labels = '{"subject": "ann"}' where key = 'ann-kid'""")
    finish(db, kid)
    start(db, key="ann-open", labels='{"subject": "ann"}')
    forget = "select removed, open, held, owing from pgflow.forget_subject('ann', 'request 4711', is_dry => %s)"
    assert db.execute(forget, (True,)).fetchone() == (3, 1, 0, 0)
    assert len(keys(db)) == 5
    assert db.execute(forget, (False,)).fetchone() == (3, 1, 0, 0)
    assert keys(db) == {"bob-1", "ann-open"}
    finish(db, claim_one(db))
    assert db.execute(forget, (False,)).fetchone() == (1, 0, 0, 0)
    everything = str(
        [
            rows(db, f"select t::text from pgflow.{table} t")
            for table in rows(
                db,
                "select relname from pg_class where relnamespace = 'pgflow'::regnamespace and relkind in ('r', 'p')",
            )
        ]
    )
    assert "ann" not in everything
    assert rows(db, "select why from pgflow.dropped_history") == ["request 4711"] * 2


def test_only_the_runs_of_a_tenant_are_forgotten(db):
    for tenant in ("acme", "beta"):
        ended(db, "one", tenant=tenant, labels='{"customer": "7"}')
    forget = "select removed from pgflow.forget_subject('7', 'asked', 'customer', %s)"
    assert one(db, forget, "acme") == 1
    assert rows(db, "select tenant from pgflow.runs") == ["beta"]


def test_a_rule_that_cannot_be_is_refused(db):
    for given in (
        {"keep_seconds": None},
        {"keep_seconds": -1},
        {"keep_seconds": "Infinity"},
        {"keep_seconds": "NaN"},
        {"keep_seconds": 1, "status": "running"},
        {"keep_seconds": 1, "labels": "[]"},
        {"keep_seconds": 1, "rule": ""},
    ):
        said = {"rule": "r", **given}
        named = ", ".join(f"{name} => %({name})s" for name in said)
        with pytest.raises(psycopg.Error, match="of retention cannot be"), db.transaction():
            db.execute(f"select pgflow.set_retention({named})".encode(), said)
    assert rows(db, "select rule from pgflow.retention_rules") == []
    with pytest.raises(psycopg.Error, match="why"), db.transaction():
        db.execute("select pgflow.hold_history('x', ' ')")


def fill(conn: Conn, runs: int, blobs: int) -> None:
    """Runs of three units that have ended, and blobs that the last of them names."""
    sqlkit.start_many(conn, [(None, "{}")] * runs)
    conn.execute(
        "with gone as (delete from pgflow.ready returning run_id), "
        "units as (insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)"
        " select g.run_id, 1, pgflow.now_(), pgflow.now_(), n, n, 'c', 'step', '1'"
        " from gone g cross join generate_series(1, 3) n) "
        "insert into pgflow.outcome (run_id, token, finished_at, status, output)"
        " select g.run_id, 1, pgflow.now_(), 'completed', 'null' from gone g"
    )
    conn.execute(
        "with made as (insert into pgflow.blob (stored_at, writer, digest, size_bytes)"
        " select pgflow.now_(), pg_current_xact_id(), sha256(sha256(n::text::bytea)), length(n::text)"
        " from generate_series(1, %s) n returning blob_id, digest), "
        "chunks as (insert into pgflow.blob_chunk (blob_id, n, hash, data)"
        " select m.blob_id, 0, sha256(n::text::bytea), n::text::bytea"
        " from made m join generate_series(1, %s) n on m.digest = sha256(sha256(n::text::bytea))) "
        "insert into pgflow.blob_use (blob_id, run_id)"
        " select m.blob_id, (select max(run_id) from pgflow.run) from made m",
        (blobs, blobs),
    )
    while one(conn, "select count(*) from pgflow.blob where is_loose"):
        one(conn, "select pgflow.sweep_keys()")
    conn.execute("vacuum analyze")


def pages_of_a_batch(conn: Conn) -> int:
    query = "explain (analyze, buffers, format json) select pgflow.retire_runs(50)"
    plan = one(conn, query)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_a_batch_reads_as_many_pages_whatever_else_is_kept(conn):
    set_clock(conn, T0)
    keep(conn, "all", 30)

    def batches(runs: int, blobs: int) -> int:
        set_clock(conn, T0)
        fill(conn, runs, blobs)
        set_clock(conn, T0 + 31 * DAY)
        pages_of_a_batch(conn)  # reads the catalog, too
        return max(pages_of_a_batch(conn) for _ in range(2))

    few, many = batches(3000, 0), batches(6000, 5000)
    assert one(conn, "select sum(runs) from pgflow.dropped_history") == 300
    # Before version 17, a scan descends its index once for each run, whatever is there.
    assert few < 50 * (40 if conn.info.server_version >= 170000 else 90), few
    assert many < 1.25 * few, (few, many)


def test_a_look_reads_as_many_pages_however_much_is_too_young_or_open(conn):
    set_clock(conn, T0)
    keep(conn, "all", 30)
    fill(conn, 500, 0)
    pages_of_a_batch(conn)  # reads the catalog, too
    few = pages_of_a_batch(conn)
    fill(conn, 8000, 0)
    sqlkit.start_many(conn, [(None, "{}")] * 3000)
    conn.execute(
        "select pgflow.send_signal(key, 'go', '1') from pgflow.runs where status = 'queued'"
    )
    conn.execute("select pgflow.wake(array_agg(run_id)) from pgflow.ready")
    assert (count(conn, "nudge"), count(conn, "signal"), count(conn, "outcome")) == (0, 3000, 8500)
    conn.execute("vacuum analyze")
    pages_of_a_batch(conn)
    many = pages_of_a_batch(conn)
    assert many < 1.5 * few, (few, many)


def test_runs_of_a_clock_that_was_ahead_hide_none_that_came_after(db):
    keep(db, "all", 30)
    db.execute("select setval('pgflow.run_id_seq', 5000)")
    set_clock(db, T0 + 400 * DAY)
    for number in range(20):
        ended(db, f"ahead-{number}")
    set_clock(db, T0)
    for number in range(20):
        ended(db, f"after-{number}")
    set_clock(db, T0 + 31 * DAY)
    for number in range(20):
        ended(db, f"young-{number}")
    assert retire(db, most=7) == 20
    assert not [key for key in keys(db) if key.startswith("after")]
