"""What people said and did beside the journal is sealed: an owner who edits, removes or puts in a
row is found, with the row named.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from clikit import pgflow as command
from records import settle
from sealkit import findings, seal, switch_on, tamper
from sqlkit import one, rows

import pgflow
from pgflow import inspect, workflow
from pgflow.testing import Harness

Conn = psycopg.Connection[Any]


@workflow
def ask() -> str:
    return str(pgflow.sync.gate("leave", "ship", approvers=["ann", "desk"], quorum=2))


TABLES = {
    "gate_answer": "gate_answer",
    "gate_refusal": "gate_answer",
    "lock_broken": "lock_broken",
    "policy": "policy",
    "policy_rule": "policy_rule",
    "queue_change": "queue_change",
    "pool_change": "pool_change",
    "schedule_change": "schedule_change",
    "relay_change": "document",
    "dropped_history": "dropped_history",
    "imported": "imported",
    "loss": "loss",
    "loss_closed": "loss",
}
"""Kinds of evidence by their tables."""


def fill(conn: Conn, flow: Harness) -> None:
    """Write some of every kind."""
    run = settle(flow, ask)
    gate = one(conn, "select gate from pgflow.gates")
    conn.execute("select pgflow.delegate_gate(%s, 'desk', 'bob', 'away')", (gate,))
    for by in ("ann", "bob"):
        said = "select pgflow.answer_gate(%s, 'approve', value => %s, reason => 'fine', by => %s, acting_as => '{x}')"
        conn.execute(said, (gate, '"ship"' if by == "ann" else None, by))
    assert "Approved" in run.result()
    conn.execute("select pgflow.take_lock('a', 'one', '1 hour')")
    conn.execute("select pgflow.break_lock('a', 'it hangs')")
    conn.execute(
        """select pgflow.set_policy('[{"needs": "gate", "name": "pay", "timeout": 60}]', 'limits')"""
    )
    conn.execute("""select pgflow.set_queue('q', '{"concurrency": 3}', 'busy')""")
    conn.execute("select pgflow.pause_queue('q', 'night')")
    conn.execute("""select pgflow.set_pool('p', '{"usd": 5}', why => 'start')""")
    conn.execute("""select pgflow.grant_budget('p', '{"usd": 5}', 'more')""")
    conn.execute(
        """select pgflow.set_schedule('s', 'ask', '{"every": 3600}', why => 'each hour')"""
    )
    conn.execute("select pgflow.pause_schedule('s', 'rest')")
    conn.execute("select pgflow.declare_relay('r', '{t}', 'mail')")
    conn.execute("select pgflow.pause_relay('r', 'down')")
    conn.execute("select pgflow.report_loss(1, 'h', 2, 1, 2, 300, 200, 1, 0, '[]')")
    conn.execute("select pgflow.close_loss(1, 'restored')")
    conn.execute(
        "insert into pgflow.dropped_history (dropped_at, ended_before, runs, dropped_by) values "
        "(pgflow.now_(), pgflow.now_(), 0, 'me')"
    )
    conn.execute(
        "insert into pgflow.imported (run_id, imported_at, generation, root, status, imported_by, origin)"
        " select run_id, pgflow.now_(), 1, root, 'completed', 'me', '{}' from pgflow.run"
    )
    conn.execute("update pgflow.gate_answer set refusal = 'it does not fit' where n = 2")
    number = one(conn, "select run_id from pgflow.run")
    for kind, key in (
        ("dropped_history", [1]),
        ("imported", [number]),
        ("gate_refusal", [gate, 2]),
    ):
        of_run = None if kind == "dropped_history" else number
        conn.execute("select pgflow.note_evidence_(%s, %s, %s)", (kind, json.dumps(key), of_run))
    switch_on(conn)
    seal(conn)


def columns(conn: Conn, table: str) -> dict[str, str]:
    found = conn.execute(
        "select attname::text, format_type(atttypid, null) from pg_attribute "
        "where attrelid = %s::regclass and attnum > 0 and not attisdropped",
        (f"pgflow.{table}",),
    )
    return dict(found.fetchall())


OTHER = {
    "text": "coalesce({0}, '') || 'x'",
    "integer": "coalesce({0}, 0) + 1000",
    "bigint": "coalesce({0}, 0) + 1000",
    "numeric": "coalesce({0}, 0) + 1000",
    "double precision": "coalesce({0}, 0) + 1",
    "boolean": "not coalesce({0}, false)",
    "timestamp with time zone": "coalesce({0}, now()) + interval '1 us'",
    "jsonb": "jsonb_build_object('x', {0})",
    "json": "json_build_object('x', {0})",
    "pgflow.run_value": "'\"other\"'",
    "text[]": "coalesce({0}, '{{}}') || '{{x}}'::text[]",
    "uuid": "gen_random_uuid()",
}


def loosen(conn: Conn) -> None:
    """Take away what would keep an edit of one column from being made at all."""
    for table, name in conn.execute(
        "select conrelid::regclass::text, conname from pg_constraint where (contype in ('c', 'f') or conname = 'imported_root_generation_key')"
        " and connamespace = 'pgflow'::regnamespace and conrelid::regclass::text = any(%s)",
        ([f"pgflow.{table}" for table in set(TABLES.values())],),
    ).fetchall():
        conn.execute(f'alter table {table} drop constraint "{name}"')
    for table in set(TABLES.values()):
        for column in conn.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attidentity <> ''",
            (f"pgflow.{table}",),
        ).fetchall():
            conn.execute(f"alter table pgflow.{table} alter {column[0]} drop identity")


def named(conn: Conn) -> list[str]:
    """Return what a verification finds, in words."""
    return [
        f"{found.finding}: {found.detail}"
        for found in inspect.ask(conn, inspect.verify_seals()).findings
    ]


def test_every_edit_of_every_column_every_removal_and_every_insert_is_found_by_name(flow, conn):
    fill(conn, flow)
    assert findings(conn) == []
    found = {kind for (kind,) in conn.execute("select kind from pgflow.evidence_kinds_()")}
    assert found == set(TABLES)
    found = set(rows(conn, "select distinct kind from pgflow.evidence where round is not null"))
    assert found == set(TABLES)
    tried = 0
    with conn.transaction(force_rollback=True):
        loosen(conn)
        for table in sorted(set(TABLES.values())):
            kinds = {kind for kind, of in TABLES.items() if of == table}
            which = "where collection = 'pgflow.relays'" if table == "document" else ""
            one_row = (
                f"where ctid = (select ctid from pgflow.{table} {which} order by ctid desc limit 1)"
            )
            changes = [
                f"update pgflow.{table} set {name} = {OTHER[kind].format(name)} {one_row}"
                for name, kind in columns(conn, table).items()
            ]
            keys = [
                name for name, kind in columns(conn, table).items() if kind in ("bigint", "integer")
            ]
            twin = (
                f"create temp table twin as select * from pgflow.{table} {one_row}; "
                + (
                    f"update twin set {keys[0]} = coalesce({keys[0]}, 0) + 7; "
                    if table not in ("document", "gate_answer")
                    else "update twin set path = path || '{x}'::text[]; "
                    if table == "document"
                    else "update twin set n = n + 100, closes = false, refusal = null; "
                )
                + f"insert into pgflow.{table} select * from twin"
            )
            for change in (*changes, f"delete from pgflow.{table} {one_row}", twin):
                with conn.transaction(force_rollback=True):
                    conn.execute(change)
                    said = named(conn)
                    assert any(
                        line.partition(": ")[2].split(" ")[0] in kinds
                        and line.startswith("evidence_")
                        for line in said
                    ), (change, said)
                    tried += 1
    assert tried > 110
    assert findings(conn) == []


@pytest.mark.parametrize(("change", "code"), [
    ("update pgflow.evidence set hash = sha256('') where kind = 'policy'", "round_changed"),
    ("delete from pgflow.evidence where kind = 'queue_change'", "evidence_added"),
    (("with gone as (delete from pgflow.evidence where kind = 'gate_answer')"
        " delete from pgflow.gate_answer"), "round_changed"),
    ("update pgflow.evidence set round = null where kind = 'policy'", "round_changed"),
    ("update pgflow.evidence set kind = 'x' where kind = 'policy'", "round_changed"),
    ("update pgflow.evidence set key = '[]' where kind = 'policy'", "evidence_missing"),
    ("update pgflow.evidence set key = 'no json' where kind = 'policy'", "evidence_missing"),
    (("update pgflow.evidence e set dropped_at = h.dropped_at from pgflow.dropped_history h"
        " where e.kind = 'gate_answer'"), "evidence_changed"),
    ("update pgflow.gate_answer set value = pgflow.redacted_(value, null) where value is not null",
        "redaction_unrecorded"),
    (("insert into pgflow.gate_answer (gate, n, run_id, answered_at, closes, verdict, answered_by, sent_by)"
        " values ('made-up', 1, -5, now(), true, 'approve', 'ann', 'ann')"), "evidence_added"),
])  # fmt: skip
def test_who_edits_what_was_noted_is_found_too(flow, conn, change, code):
    fill(conn, flow)
    with conn.transaction(force_rollback=True):
        conn.execute(change)  # type: ignore[arg-type]
        assert code in findings(conn)


def test_an_edit_between_two_rounds_is_found_before_it_is_sealed(flow, conn):
    fill(conn, flow)
    conn.execute("select pgflow.pause_queue('other', 'night')")
    with conn.transaction(force_rollback=True):
        conn.execute("update pgflow.queue_change set changed_by = 'eve' where queue = 'other'")
        assert "evidence_changed" in findings(conn)
    assert findings(conn) == []


def test_acts_of_operators_are_sealed_though_no_run_was_started(dsn, conn):
    switch_on(conn)
    conn.execute("select pgflow.pause_queue('q', 'night')")
    assert seal(conn) == 0
    assert one(conn, "select count(*) from pgflow.seal_round") == 1
    anchor = one(conn, "select pgflow.anchor()::text")
    with conn.transaction(force_rollback=True):
        tamper(conn, "update pgflow.queue_change set changed_by = 'eve'")
        tamper(
            conn,
            "update pgflow.evidence set hash = pgflow.evidence_hash_(kind, key);"
            "update pgflow.seal_round set root = pgflow.merkle_root_(pgflow.leaves_(round, runs))",
        )
        assert findings(conn, anchor) == ["anchor_changed"]  # whoever edits all has no anchor
    assert findings(conn, anchor) == []
    tamper(conn, "update pgflow.queue_change set changed_by = 'eve'")
    said = command(dsn, "audit", "verify")
    assert said.code == 1
    assert "queue_change [1] is not as it was noted" in said.out + said.err
    tamper(conn, "update pgflow.queue_change set changed_by = session_user")


def test_evidence_goes_with_the_history_of_its_run(flow, conn):
    run = settle(flow, ask)
    gate = one(conn, "select gate from pgflow.gates")
    switch_on(conn)
    seal(conn)
    conn.execute("select pgflow.answer_gate(%s, 'reject', reason => 'no', by => 'ann')", (gate,))
    run.result()
    seal(conn)
    conn.execute("select pgflow.pause_queue('q', 'night')")
    seal(conn)
    flow.skip(timedelta(days=400))
    conn.execute("select pgflow.drop_history(pgflow.now_(), 1000, 0)")
    seal(conn)
    assert findings(conn) == []
    found = rows(conn, "select kind from pgflow.evidence order by 1")
    assert found == ["dropped_history", "queue_change"]
    assert json.loads(one(conn, "select pgflow.verify_evidence()::text"))["rows"] == 2
