"""Old history goes by families, in batches, and leaves books that balance."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlkit
from clikit import pgflow
from sqlkit import (
    claim,
    claim_one,
    commit,
    connect,
    count,
    finish,
    flush,
    one,
    rows,
    send,
    set_clock,
    start,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HISTORY = ("run", "outcome", "unit", "run_key", "undelivered", "signal", "nudge")

Conn = psycopg.Connection[Any]


def drop(conn: Conn, before: datetime, most: int = 1000) -> int:
    """Calls `drop_history` until there is nothing left to look at; how many runs went."""
    gone, root = 0, 0
    while root is not None:
        runs, _, root = one(
            conn,
            "select runs, partitions, last_root from pgflow.drop_history(%s, %s, %s)",
            before,
            most,
            root,
        )
        gone += runs
    return gone


def end_all(conn: Conn) -> None:
    while claimed := claim(conn, 10):
        for run in claimed:
            finish(conn, run)


def keys(conn: Conn) -> set[str]:
    return set(rows(conn, "select key from pgflow.runs"))


def test_runs_that_ended_long_ago_go_with_all_that_is_known_of_them(db):
    set_clock(db, T0)
    for n in range(5):
        start(db, key=f"old-{n}")
    send(db, "old-1", "nobody")
    end_all(db)
    set_clock(db, T0 + 10 * DAY)
    start(db, key="new")
    end_all(db)
    start(db, key="open")
    set_clock(db, T0 + 20 * DAY)
    assert drop(db, T0 + 5 * DAY, most=2) == 5
    assert keys(db) == {"new", "open"}
    found = {table: count(db, table) for table in HISTORY}
    assert found == {**dict.fromkeys(HISTORY, 0), "run": 2, "outcome": 1, "run_key": 2}
    assert sum(rows(db, "select runs from pgflow.dropped_history")) == 5
    assert start(db, key="old-1").is_new


def test_every_table_has_a_key_by_which_a_publication_names_its_rows(db):
    """Without one, the first update or delete after `create publication ... for all tables` fails."""
    query = """
        select c.relname from pg_class c where c.relnamespace = 'pgflow'::regnamespace and c.relkind in ('r', 'p')
          and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
    """
    assert rows(db, query) == []


@pytest.mark.filterwarnings("default")  # the server says that its wal_level publishes nothing
def test_old_runs_go_though_a_publication_has_all_tables(conn, dsn):
    conn.execute("create publication everything for all tables")
    for n in range(3):
        start(conn, key=f"old-{n}")
    send(conn, "old-1", "nobody")
    end_all(conn)
    done = pgflow(dsn, "prune", "--older-than", "0s", "--yes", "--json")
    assert done.code == 0, done
    assert (done.data["runs"], count(conn, "run")) == (3, 0)
    conn.execute("drop publication everything")


@pytest.mark.parametrize("kin", ["child", "generation"])
def test_a_run_stays_until_all_that_came_of_it_has_ended(db, kin):
    set_clock(db, T0)
    start(db, key="root")
    root = claim_one(db)
    if kin == "child":
        commit(db, flush(root, children=[sqlkit.child(1, "kid", key="kid", close_policy="a")]))
        root.seq += 1
        finish(db, root)
    else:
        commit(db, flush(root, **{"continue": "{}"}))
    set_clock(db, T0 + 10 * DAY)
    assert drop(db, T0 + 5 * DAY) == 0
    finish(db, claim_one(db))
    set_clock(db, T0 + 20 * DAY)
    assert drop(db, T0 + 5 * DAY) == 0
    assert drop(db, T0 + 15 * DAY) == 2
    assert {table: count(db, table) for table in HISTORY} == dict.fromkeys(HISTORY, 0)


def test_families_that_stay_do_not_hold_up_those_behind_them(db):
    set_clock(db, T0)
    for n in range(3):
        start(db, key=f"parent-{n}")
        parent = claim_one(db)
        commit(
            db, flush(parent, children=[sqlkit.child(1, "kid", key=f"kid-{n}", close_policy="a")])
        )
        parent.seq += 1
        finish(db, parent)
        kid = claim_one(db)
        commit(db, sqlkit.wait_for(kid, "never"))
    start(db, key="behind")
    end_all(db)
    set_clock(db, T0 + 10 * DAY)
    assert drop(db, T0 + DAY, most=2) == 1
    assert "behind" not in keys(db)


def test_a_key_that_is_kept_longer_keeps_its_history(db):
    set_clock(db, T0)
    start(db, key="kept", key_retention_seconds=30 * 86400)
    end_all(db)
    set_clock(db, T0 + 20 * DAY)
    assert drop(db, T0 + 10 * DAY) == 0
    set_clock(db, T0 + 31 * DAY)
    assert drop(db, T0 + 10 * DAY) == 1


def test_a_time_to_come_is_refused(db):
    for moment in ("now() + interval '1 hour'", "null"):
        with (
            pytest.raises(psycopg.Error, match="must be a time that has passed") as error,
            db.transaction(),
        ):
            db.execute(f"select pgflow.drop_history({moment})")
        assert error.value.sqlstate == "PF003"


def test_a_message_to_a_run_that_is_just_removed_is_removed_too(dsn, conn):
    set_clock(conn, T0)
    start(conn, key="old")
    end_all(conn)
    set_clock(conn, T0 + 10 * DAY)
    with connect(dsn) as sender:
        with sender.transaction():
            send(sender, "old", "late")
            assert drop(conn, T0 + DAY) == 1
    assert drop(conn, T0 + DAY) == 0
    assert count(conn, "signal") == count(conn, "nudge") == 0


def test_a_partition_of_which_no_run_is_left_is_dropped(conn):
    partitions = "select count(*) from pg_inherits where inhparent = 'pgflow.unit'::regclass"
    set_clock(conn, T0)
    before = one(conn, partitions)
    upper = one(
        conn,
        "select max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO "
        "\\(''(\\d+)'''))[1]::bigint) from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where i.inhparent = 'pgflow.unit'::regclass",
    )
    start(conn)
    run = claim_one(conn)
    commit(conn, flush(run, sqlkit.unit()))
    run.seq += 1
    finish(conn, run)
    conn.execute("select setval('pgflow.run_id_seq', %s)", (upper,))
    conn.execute("select pgflow.add_unit_partitions(1)")
    start(conn, key="new")
    set_clock(conn, T0 + 10 * DAY)
    assert drop(conn, T0 + DAY) == 1
    assert one(conn, partitions) < before + 2
    new = claim_one(conn)
    commit(conn, flush(new, sqlkit.unit()))
    new.seq += 1
    finish(conn, new)
    assert one(conn, "select units from (select count(*) as units from pgflow.unit) u") == 1


def test_a_partition_that_is_in_use_is_left_for_the_next_time(dsn, conn):
    upper = one(
        conn,
        "select max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO "
        "\\(''(\\d+)'''))[1]::bigint) from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where i.inhparent = 'pgflow.unit'::regclass",
    )
    conn.execute("select setval('pgflow.run_id_seq', %s)", (upper,))
    with connect(dsn) as reader:
        with reader.transaction():
            reader.execute("select count(*) from pgflow.unit")
            assert one(conn, "select partitions from pgflow.drop_history(now())") == 0
    assert one(conn, "select partitions from pgflow.drop_history(now())") > 0


def test_prune_asks_removes_and_says_how_many(dsn, conn):
    for n in range(3):
        start(conn, key=f"done-{n}")
    end_all(conn)
    look = pgflow(dsn, "prune", "--older-than", "0s", "--dry-run", "--json")
    assert (look.code, json.loads(look.out)["runs"], json.loads(look.out)["removed"]) == (
        0,
        3,
        False,
    )
    nobody = pgflow(dsn, "prune", "--older-than", "0s")
    assert (nobody.code, nobody.err.count("\n")) == (2, 1)
    assert "pass --yes" in nobody.err
    refused = pgflow(dsn, "prune", "--older-than", "0s", tty=True, typed="n\n")
    assert (refused.code, count(conn, "run")) == (1, 3)
    done = pgflow(dsn, "prune", "--older-than", "0s", "--yes", "--batch", "2", tty=True)
    assert (done.code, done.out.strip()) == (0, "3 runs removed")
    assert count(conn, "run") == 0


@pytest.mark.parametrize("arguments", [["--older-than", "soon"], []])
def test_prune_without_an_age_does_nothing(dsn, conn, arguments):
    answer = pgflow(dsn, "prune", "--yes", *arguments)
    assert answer.code == 2
    assert "--older-than" in answer.err
