"""A partition of the journal that a few rows keep is shrunk to them: nothing is lost, and nobody
waits for long.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlkit
from catalog import dump_catalog
from clikit import pgflow
from records import SOON, count, recover, settle, wait_until
from servers import HANG_SECONDS
from sqlkit import (
    T0,
    Actor,
    Claim,
    begin,
    claim,
    commit,
    connect,
    flush,
    one,
    rows,
    set_clock,
    start_many,
    unit,
)

from pgflow import Signal, step, workflow

Conn = psycopg.Connection[Any]

MINUTE = timedelta(minutes=1)
SHRINK = "select partition, bytes_before, bytes_after, units from pgflow.shrink_journal()"
OLD_UNITS = 12
JOURNAL = "select seq, call, kind, name, payload::text, token from pgflow.unit where run_id = %s order by seq"


def fill(conn: Conn) -> None:
    """Runs that ended, with 9 MiB of units."""
    start_many(conn, [(f"ended-{n}", "{}") for n in range(72)], "ended")
    while ended := claim(
        conn, 100, lanes=rows(conn, "select lane_id from pgflow.lane where workflow = 'ended'")
    ):
        for run in ended:
            sqlkit.finish(conn, run)
    conn.execute(
        "insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, payload) "
        "select o.run_id, 1, o.finished_at, o.finished_at, n, n, 'w', to_json((select "
        "string_agg(md5(random()::text || g), '') from generate_series(1, 58) g)) "
        "from pgflow.outcome o join pgflow.run r using (run_id) cross join generate_series(1, 64) n"
    )


def leave_behind(conn: Conn, *, vacuum: bool = True) -> None:
    """Removes the runs that ended, of a partition that lies behind."""
    conn.execute("select setval('pgflow.run_id_seq', 10000001)")
    conn.execute("select pgflow.add_unit_partitions()")
    root: int | None = 0
    while root is not None:
        root = one(conn, "select last_root from pgflow.drop_history(pgflow.now_(), 1000, %s)", root)
    if vacuum:
        conn.execute("vacuum pgflow.unit_0")


def open_run(conn: Conn, units: int = OLD_UNITS) -> Claim:
    run = begin(conn, "old", key="old")
    commit(
        conn, flush(run, *(unit("c", n, f"step-{n}", f'"result {n}"') for n in range(1, units + 1)))
    )
    return run


@pytest.fixture
def old(conn: Conn) -> Claim:
    """An open run in a partition from which all others have been removed."""
    set_clock(conn, T0)
    fill(conn)
    run = open_run(conn)
    set_clock(conn, T0 + MINUTE)
    leave_behind(conn)
    return run


def size(conn: Conn) -> int:
    return one(conn, "select bytes from pgflow.partitions where partition = 'unit_0'")


def kept_large(conn: Conn) -> list[Any]:
    return rows(
        conn,
        "select partition, kept_large, units, tries from pgflow.partitions where kept_large is not "
        "null",
    )


@pytest.mark.full
def test_a_partition_that_an_open_run_keeps_is_shrunk_to_it(conn, old):
    journal, catalog, before = (
        rows(conn, JOURNAL, old.run_id),
        dump_catalog(conn, with_server_details=True),
        size(conn),
    )
    assert before > 8 << 20
    ((partition, bytes_before, bytes_after, units),) = rows(conn, SHRINK)
    assert (partition, bytes_before, bytes_after, units) == (
        "unit_0", before, size(conn), OLD_UNITS,
    )  # fmt: skip
    assert bytes_after <= 64 << 10
    assert rows(conn, JOURNAL, old.run_id) == journal
    assert dump_catalog(conn, with_server_details=True) == catalog
    assert rows(conn, "select indexrelid::regclass::text from pg_index where indisclustered") == []
    assert rows(conn, SHRINK) == [], "once is enough"
    commit(conn, flush(old, unit("c", OLD_UNITS + 1)))
    sqlkit.finish(conn, old)
    assert sqlkit.unsound(conn) == set()


def test_whoever_reads_with_a_snapshot_from_before_finds_the_journal(dsn, conn, old):
    with (
        connect(dsn, "-c default_transaction_isolation=repeatable\\ read") as reader,
        reader.transaction(),
    ):
        one(reader, "select count(*) from pgflow.run_key")
        assert len(rows(conn, SHRINK)) == 1
        found = one(reader, "select count(*) from pgflow.unit where run_id = %s", old.run_id)
        assert found == OLD_UNITS


@pytest.mark.full
def test_a_commit_of_the_run_that_is_moved_waits_and_counts(dsn, conn, old):
    with connect(dsn) as mover, Actor(dsn) as worker:
        with mover.transaction():
            assert len(rows(mover, SHRINK)) == 1
            sent = worker.do(commit, flush(old, unit("c", OLD_UNITS + 1, "late")))
            worker.until_waiting(conn)
        sent.result(HANG_SECONDS)
    found = [row[3] for row in rows(conn, JOURNAL, old.run_id)]
    assert found == [*(f"step-{n}" for n in range(1, OLD_UNITS + 1)), "late"]
    assert old.seq == OLD_UNITS + 1


@pytest.mark.full
def test_a_lock_that_is_not_to_be_had_is_tried_again_less_and_less_often(dsn, conn, old):
    backing_off = "select partition from pgflow.shrink_journal(backing_off => true)"
    at = T0 + MINUTE
    with connect(dsn) as worker:
        with worker.transaction():
            commit(worker, flush(old, unit("c", OLD_UNITS + 1, "late")))
            waits = []
            for tries in range(1, 9):
                assert rows(conn, backing_off) == []
                assert kept_large(conn) == [("unit_0", "busy", OLD_UNITS, tries)]
                assert rows(conn, backing_off) == [], "not its turn"
                assert kept_large(conn) == [("unit_0", "busy", OLD_UNITS, tries)]
                next_at = one(
                    conn, "select next_try_at from pgflow.partitions where partition = 'unit_0'"
                )
                waits.append((next_at - at) // MINUTE)
                at = next_at
                set_clock(conn, at)
            assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
            assert rows(conn, backing_off) == []
        assert rows(conn, backing_off) == [], "not its turn"
    assert [row[0] for row in rows(conn, SHRINK)] == ["unit_0"], (
        "who asks for it does not wait for its turn"
    )
    assert kept_large(conn) == []
    assert len(rows(conn, JOURNAL, old.run_id)) == OLD_UNITS + 1


@pytest.mark.full
def test_a_mover_that_is_killed_leaves_the_old_file(dsn, conn, old):
    before = size(conn)
    mover = connect(dsn)
    mover.execute("begin")
    assert len(rows(mover, SHRINK)) == 1
    assert one(conn, "select pg_terminate_backend(%s, 20000)", mover.info.backend_pid)
    mover.close()
    assert size(conn) == before
    assert len(rows(conn, JOURNAL, old.run_id)) == OLD_UNITS
    assert len(rows(conn, SHRINK)) == 1
    assert size(conn) < before
    assert len(rows(conn, JOURNAL, old.run_id)) == OLD_UNITS


@pytest.mark.full
def test_two_movers_do_not_wait_for_each_other(dsn, conn, old):
    with connect(dsn) as first, connect(dsn) as second, first.transaction():
        assert len(rows(first, SHRINK)) == 1
        assert rows(second, SHRINK) == []
    assert len(rows(conn, JOURNAL, old.run_id)) == OLD_UNITS


@pytest.mark.full
def test_more_rows_than_may_be_moved_stay_and_the_doctor_says_so(dsn, conn, old):
    before = size(conn)
    few = f"select partition from pgflow.shrink_journal(max_units => {OLD_UNITS - 1})"
    assert rows(conn, few) == []
    assert (kept_large(conn), size(conn)) == ([("unit_0", "units", OLD_UNITS, 0)], before)
    answer = pgflow(dsn, "doctor", "--json")
    (found,) = [row for row in answer.data if row["check"] == "journal"]
    assert (answer.code, found["level"]) == (1, "warn")
    assert f"for {OLD_UNITS} units: too many" in found["found"]
    assert f"max_units => {OLD_UNITS}" in found["do"]
    prune = ("prune", "--older-than", "0s", "--yes")
    assert pgflow(dsn, *prune, "--move-at-most", str(OLD_UNITS - 1)).data["shrunk"] == 0
    got = pgflow(dsn, *prune, tty=True).out.strip()
    assert got == "0 runs removed, and 1 partition of the journal shrunk"
    (found,) = [row for row in pgflow(dsn, "doctor", "--json").data if row["check"] == "journal"]
    assert (found["level"], kept_large(conn)) == ("ok", [])


def test_an_index_that_is_larger_than_its_table_is_shrunk_too(conn):
    set_clock(conn, T0)
    old = open_run(conn, 2)  # in front of all others: vacuum gives the table's room back itself
    fill(conn)
    set_clock(conn, T0 + MINUTE)
    leave_behind(conn)
    assert one(
        conn, "select pg_relation_size('pgflow.unit_0') < pg_relation_size('pgflow.unit_0_pkey')"
    )
    found = rows(conn, "select partition from pgflow.shrink_journal(min_bytes => 65536)")
    assert found == ["unit_0"]
    assert one(conn, "select pg_relation_size('pgflow.unit_0_pkey')") <= 16384
    assert len(rows(conn, JOURNAL, old.run_id)) == 2


@pytest.mark.full
def test_units_of_more_bytes_than_may_be_moved_stay(conn, old):
    large = f'"{"x" * (1 << 20)}"'
    conn.execute("alter table pgflow.unit_0 alter column payload set storage external")
    commit(conn, flush(old, unit("c", OLD_UNITS + 1, payload=large)))
    conn.execute(
        "insert into pgflow.unit select run_id, token, at, recorded_at, due_at, args_hash, seq + "
        "n, call + n, kind, name, key, payload, starts "
        "from pgflow.unit cross join generate_series(1, 64) n where run_id = %s and seq = %s",
        (old.run_id, OLD_UNITS + 1),
    )
    old.seq += 64
    conn.execute("vacuum pgflow.unit_0")
    assert rows(conn, SHRINK) == []
    assert kept_large(conn) == [("unit_0", "units", OLD_UNITS + 65, 0)]
    found = rows(conn, "select partition from pgflow.shrink_journal(max_bytes => null)")
    assert found == ["unit_0"]
    assert len(rows(conn, JOURNAL, old.run_id)) == OLD_UNITS + 65


@pytest.mark.full
def test_rows_that_are_not_vacuumed_are_not_read_under_a_lock(dsn, conn):
    set_clock(conn, T0)
    fill(conn)
    old = open_run(conn)
    conn.execute("vacuum pgflow.unit_0")
    set_clock(conn, T0 + MINUTE)
    with connect(dsn) as holder, holder.transaction():
        holder.execute("set transaction isolation level repeatable read")
        one(holder, "select count(*) from pgflow.run_key")
        leave_behind(conn)  # vacuum comes by, and must leave what this snapshot sees
        assert rows(conn, SHRINK) == []
        ((partition, why, _, _),) = kept_large(conn)
        assert (partition, why) == ("unit_0", "vacuum")
        (found,) = [
            row for row in pgflow(dsn, "doctor", "--json").data if row["check"] == "journal"
        ]
        assert found["do"].startswith("vacuum pgflow.unit_0")
    conn.execute("vacuum pgflow.unit_0")
    assert len(rows(conn, SHRINK)) == 1
    assert len(rows(conn, JOURNAL, old.run_id)) == OLD_UNITS


def test_a_partition_in_which_history_is_kept_is_left_alone(conn):
    set_clock(conn, T0)
    fill(conn)
    conn.execute("select setval('pgflow.run_id_seq', 10000001)")
    conn.execute("select pgflow.add_unit_partitions()")
    conn.execute("vacuum pgflow.unit_0")
    assert (rows(conn, SHRINK), kept_large(conn)) == ([], [])
    conn.execute(
        "set pgflow.rewrites = 'on'; "
        "delete from pgflow.unit; delete from pgflow.outcome; delete from pgflow.run_key; delete "
        "from pgflow.run"
    )


def test_a_partition_into_which_runs_may_still_come_is_left_alone(conn, old):
    conn.execute("select setval('pgflow.run_id_seq', 9999998)")
    assert rows(conn, SHRINK) == []
    assert old.run_id < 100


@pytest.mark.parametrize("arguments", [
    "max_units => 0", "max_units => null", "max_bytes => 0", "min_bytes => -1", "min_bytes => null",
])  # fmt: skip
def test_bounds_that_make_no_sense_are_refused(conn, arguments):
    with pytest.raises(psycopg.Error, match="must be greater than zero") as error:
        conn.execute(f"select pgflow.shrink_journal({arguments})")
    assert error.value.sqlstate == "PF003"


go = Signal("go", int)


@step
async def double(n: int) -> int:
    return 2 * n


@workflow
async def waits() -> list[int]:
    first = await double(1)
    return [first, await double(await go.wait())]


@pytest.mark.full
def test_a_worker_shrinks_what_an_open_run_keeps_and_the_run_goes_on(flow, conn):
    flow.include(waits)
    fill(conn)
    run = settle(flow, waits)
    leave_behind(conn)
    before = size(conn)
    recover(flow)  # the next worker looks at its start, as it does once a minute
    wait_until(lambda: size(conn) < before, "a worker that shrinks the partition")
    run.send(go, 4)
    assert run.result(SOON) == [2, 8]
    assert count(conn, "pgflow.sparse_partition") == 0
