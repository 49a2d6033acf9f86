"""Seals: what was recorded is sealed behind everybody's back, all of it and nothing twice."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from records import launch, settle, wait_until
from sealkit import adding, findings, paying, seal, switch_on, tamper
from servers import HANG_SECONDS
from sqlkit import T0, connect, one, rows, set_clock

from pgflow import App, Signal, workflow
from pgflow.errors import InvalidArgument, WrongState

go = Signal("go", str)


@workflow
def waiting() -> str:
    return go.sync.wait()


def test_nothing_is_sealed_until_somebody_asks_for_it(conn, flow):
    settle(flow, adding, 1)
    assert one(conn, "select * from pgflow.seal_units(at_once => true)") == (0, False, None)
    assert rows(conn, "select * from pgflow.seal") == []
    assert rows(conn, "select * from pgflow.seal_pending") == []
    assert one(conn, "select is_on, last_round from pgflow.seal_lag") == (False, None)


@pytest.mark.full
def test_what_has_ended_is_sealed_as_a_whole_and_once(conn, flow):
    flow.include(adding, paying)
    for n in range(3):
        flow.start(adding, n)
    settle(flow, paying, 2)
    switch_on(conn)
    assert seal(conn) == 4
    units = "select max(seq) from pgflow.unit group by run_id order by run_id"
    assert rows(conn, "select upto_seq from pgflow.seals order by run_id") == rows(conn, units)
    assert rows(conn, "select distinct has_ended from pgflow.seals") == [True]
    assert rows(conn, "select * from pgflow.seal_pending") == []
    assert seal(conn) == 0
    assert findings(conn) == []
    lag = one(conn, "select is_on, runs_behind, behind_since, runs_pending from pgflow.seal_lag")
    assert lag == (True, 0, None, 0)


@pytest.mark.full
def test_an_open_run_is_sealed_as_far_as_it_is_and_again_when_it_has_grown(conn, flow):
    run_ = settle(flow, waiting)
    switch_on(conn)
    seal(conn)
    assert rows(conn, "select count(*) from pgflow.seal_pending") == [1]
    before = len(rows(conn, "select * from pgflow.seal"))
    run_.send(go, "now")
    flow.until_idle()
    assert seal(conn) == 1
    assert len(rows(conn, "select * from pgflow.seal")) == before + 1
    assert one(conn, "select has_ended from pgflow.seals order by round desc") is True
    assert rows(conn, "select * from pgflow.seal_pending") == []
    assert findings(conn) == []


@pytest.mark.full
def test_a_long_journal_is_sealed_in_parts(conn, flow):
    settle(flow, adding, 1)
    # As a run of 2,500 emitted values would have it.
    with conn.transaction():
        conn.execute("alter table pgflow.unit disable trigger user")
        conn.execute(
            "insert into pgflow.unit (run_id, seq, call, kind, name, payload, token, at, recorded_at)"
            " select o.run_id, 4 + n, 0, 'e', 'x', '1', 0, o.finished_at, o.finished_at"
            " from pgflow.outcome o cross join generate_series(1, 2500) n"
        )
        conn.execute("alter table pgflow.unit enable trigger user")
    switch_on(conn)
    assert seal(conn) == 3
    found = rows(conn, "select upto_seq, has_ended from pgflow.seals order by round")
    assert found == [(1000, False), (2000, False), (2504, True)]
    assert findings(conn) == []


@pytest.mark.full
def test_a_run_whose_start_is_not_committed_yet_is_not_passed(dsn, conn, flow):
    flow.include(adding)
    flow.start(adding, 0)  # so that nobody waits for the first to name the workflow
    flow.until_idle()
    switch_on(conn)
    seal(conn)
    with connect(dsn) as slow, slow.transaction():
        slow.execute("select pgflow.start_run('adding', input => '{\"x\": 1}', key => 'slow')")
        settle(flow, adding, 2)
        seal(conn)
        assert one(conn, "select passed_run_id from pgflow.seal_state") == 1
    flow.until_idle()
    for _ in range(2):
        seal(conn)
    found = rows(conn, "select run_id, has_ended from pgflow.seals order by run_id")
    assert found == [(1, True), (2, True), (3, True)]
    assert findings(conn) == []


def test_a_run_that_took_its_number_long_before_its_transaction_wrote_is_not_passed(
    dsn, conn, flow
):
    """A number is drawn before the transaction has one of its own."""
    switch_on(conn)
    with connect(dsn) as slow:
        with slow.transaction():
            slow.execute("select nextval('pgflow.run_id_seq')")
            seal(conn)
            seal(conn)
            assert one(conn, "select passed_run_id from pgflow.seal_state") == 0
        seal(conn)
        assert one(conn, "select passed_run_id from pgflow.seal_state") == 1


def test_whoever_looks_at_the_sequence_holds_nobody_up(dsn, conn):
    switch_on(conn)
    conn.execute("select nextval('pgflow.run_id_seq')")
    with connect(dsn) as reader, reader.transaction():
        reader.execute("select last_value from pgflow.run_id_seq")
        seal(conn)
    assert one(conn, "select passed_run_id from pgflow.seal_state") == 1


def test_what_is_said_of_an_ended_run_that_owes_is_sealed_too(conn, flow):
    settle(flow, paying, 1)
    me = one(conn, "select run_id from pgflow.run")
    # As a run ended by force that still owes what its journal has opened.
    conn.execute(
        "insert into pgflow.unit (run_id, seq, call, kind, name, payload, token, at, recorded_at)"
        " select run_id, 1 + (select max(seq) from pgflow.unit), 900, 'o', 'owed', '{}', 0, finished_at, finished_at"
        " from pgflow.outcome"
    )
    conn.execute(
        "insert into pgflow.owed (run_id, call, opened_at, kind, name, detail)"
        ' values (%s, 900, now(), \'effect\', \'pay\', \'{"state": "uncompensated", "key": "k"}\')',
        (me,),
    )
    switch_on(conn)
    seal(conn)
    assert rows(conn, "select run_id from pgflow.seal_pending") == [me]
    conn.execute("select pgflow.settle_effect('k', 'stands')")
    assert findings(conn) == []
    assert seal(conn) == 1
    assert rows(conn, "select run_id from pgflow.seal_pending") == []
    assert findings(conn) == []


def test_a_rewind_after_the_end_is_no_change_of_history(conn, flow):
    run_ = settle(flow, adding, 1)
    switch_on(conn)
    seal(conn)
    flow.app.restart(run_.key, effects="repeat", why="again")
    flow.until_idle()
    assert findings(conn) == []
    assert seal(conn) == 2
    found = rows(conn, "select generation, has_ended from pgflow.seals order by generation, round")
    assert found == [(1, True), (1, True), (2, True)]
    assert findings(conn) == []
    # But nobody else may say of a run that it was continued.
    with conn.transaction(force_rollback=True):
        conn.execute("insert into pgflow.seal_pending values (2)")
        conn.execute(
            "update pgflow.outcome set status = 'continued', output = null where run_id = 2"
        )
        assert findings(conn) == ["outcome_changed"]
        seal(conn)
        assert findings(conn) == ["outcome_changed"]


def test_a_day_gets_its_root_once_it_is_over(conn, flow):
    flow.include(adding)
    set_clock(conn, T0)
    switch_on(conn)
    for day in range(3):
        set_clock(conn, T0 + timedelta(days=2 * day, hours=3))
        settle(flow, adding, day)
        seal(conn)
    days = "select day::text, first_round, last_round from pgflow.seal_day order by day"
    assert rows(conn, days) == [("2030-01-01", 1, 1), ("2030-01-03", 2, 2)]
    assert findings(conn) == []
    # The clock goes back: what is sealed then belongs to the last day, not to one that is closed.
    set_clock(conn, T0 + timedelta(hours=4))
    settle(flow, adding, 9)
    seal(conn)
    assert one(conn, "select day::text from pgflow.seal_round order by round desc") == "2030-01-05"
    assert findings(conn) == []


@pytest.mark.full
def test_removed_history_leaves_the_roots_and_no_findings(conn, flow):
    flow.include(adding)
    switch_on(conn)
    for n in range(4):
        settle(flow, adding, n)
        if n != 2:
            seal(conn)
    anchor = one(conn, "select pgflow.anchor()::text")
    assert len(rows(conn, "select * from pgflow.seal_round")) == 3
    conn.execute("select pgflow.drop_history(clock_timestamp(), max => 1)")
    conn.execute("select pgflow.drop_history(clock_timestamp(), max => 1, after => 1)")
    conn.execute("select pgflow.drop_history(clock_timestamp(), max => 1, after => 2)")
    found = rows(conn, "select key is null, dropped_at is null from pgflow.seals order by run_id")
    assert found == [(True, False), (False, True)]
    assert rows(conn, "select cardinality(runs) from pgflow.seal_round order by round") == [0, 0, 2]
    assert findings(conn, anchor) == []
    with conn.transaction(force_rollback=True):
        conn.execute("delete from pgflow.dropped_history")
        found = findings(conn, anchor)
        assert found == ["evidence_missing", "round_changed", "run_missing"]


def test_one_seals_at_a_time_and_the_others_do_not_wait(dsn, conn, flow):
    settle(flow, adding, 1)
    switch_on(conn)
    with connect(dsn) as other, other.transaction():
        other.execute("select pgflow.seal_units()")
        assert one(conn, "select sealed, wait_seconds from pgflow.seal_units()") == (0, 5)
    assert one(conn, "select sealed from pgflow.seal_units()") == 0
    assert rows(conn, "select run_id from pgflow.seal") == [1]


def test_a_round_reads_no_table_from_end_to_end(conn, flow):
    launch(flow, waiting, beside=[adding])
    for n in range(5):
        flow.start(adding, n)
    flow.until_idle()
    switch_on(conn)
    with conn.transaction():
        conn.execute("select pgflow.seal_units()")
        conn.execute("select pgflow.verify_runs()")
        whole = rows(
            conn,
            "select relname from pg_stat_xact_user_tables where schemaname = 'pgflow' and"
            " seq_scan > 0 and relname ~ '^(run|outcome|unit|seal|owed)' order by relname",
        )
    assert [name for name in whole if name != "seal_state"] == []


def test_sealing_needs_a_fresh_look_with_each_statement(conn):
    switch_on(conn)
    with pytest.raises(psycopg.Error, match="read committed"), conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select pgflow.seal_units()")


@pytest.mark.full
def test_a_worker_seals_what_it_has_done(dsn, conn):
    switch_on(conn)
    app = App(dsn, include=[adding])
    with app, app.worker(grace_seconds=1):
        assert app.start(adding, 1).result(HANG_SECONDS) == 4
        wait_until(lambda: rows(conn, "select has_ended from pgflow.seals") == [True], "sealed")
    assert findings(conn) == []


def test_the_journal_is_append_only_for_its_owner(dsn, conn):
    partition = one(
        conn,
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'pgflow.unit'::regclass",
    )
    for table in ("pgflow.unit", partition):
        for statement in (
            f"update {table} set call = 1",
            f"delete from {table}",
            f"truncate {table}",
        ):
            with pytest.raises(psycopg.Error, match="append only") as refused:
                conn.execute(statement)
            assert refused.value.sqlstate == WrongState.sqlstate
    conn.execute("select setval('pgflow.run_id_seq', 20000001)")
    assert one(conn, "select pgflow.add_unit_partitions()") > 0
    unguarded = (
        "select count(*) from pg_inherits i where inhparent = 'pgflow.unit'::regclass"
        " and not exists (select from pg_trigger t where t.tgrelid = i.inhrelid and tgname = 'append_only')"
    )
    assert one(conn, unguarded) == 0


@pytest.mark.unsound
def test_the_audit_misses_a_guard_that_somebody_took_away(conn):
    conn.execute("alter table pgflow.unit disable trigger append_only")
    found = rows(conn, "select invariant from pgflow.check()")
    assert found == ["the journal is append only by trigger"]


def test_a_trial_balance_adds_up(conn, flow):
    settle(flow, paying, 3)
    assert rows(conn, "select * from pgflow.trial_balance()") == [("effects", 3, 3, 0, 0, 0, 0)]


@pytest.mark.unsound
@pytest.mark.parametrize(
    "change",
    [
        "delete from pgflow.unit where kind = 'C' and call = (select min(call) from pgflow.unit where kind = 'C')",
        "delete from pgflow.unit where kind = 'i' and call = (select min(call) from pgflow.unit where kind = 'i')",
        "insert into pgflow.owed (run_id, call, opened_at, kind, name, detail) values (1, 77, now(), 'effect', 'x', '{\"state\": \"accepted\"}')",
        "insert into pgflow.owed (run_id, call, opened_at, kind, name, detail) values (99, 77, now(), 'effect', 'x', '{\"state\": \"unknown\"}')",
    ],
)
def test_the_trial_balance_misses_what_was_taken_out(conn, flow, change):
    settle(flow, paying, 3)
    tamper(conn, change)
    found = rows(conn, "select invariant from pgflow.check_balance_()")
    assert "effects balance in total" in found
    assert "effects balance" in found
    conn.execute("set pgflow.rewrites = 'on'")
    conn.execute("delete from pgflow.unit; delete from pgflow.owed; delete from pgflow.run")
    conn.execute("delete from pgflow.outcome; delete from pgflow.run_key")


def test_whoever_asks_while_the_sealer_looks_is_not_forgotten(dsn, conn, flow):
    settle(flow, adding, 1)
    switch_on(conn)
    seal(conn)
    pending = "select run_id from pgflow.seal_pending"
    with connect(dsn) as late, late.transaction():
        late.execute("select pgflow.look_again_(array[1])")
        seal(conn)
    assert rows(conn, pending) == [1]
    with connect(dsn) as late, late.transaction():
        late.execute("select pgflow.look_again_(array[1])")
        seal(conn)  # which has done what the first one asked for
    assert rows(conn, pending) == [1]
    seal(conn)
    assert rows(conn, pending) == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_whoever_asks_waits_for_nobody_at_any_level(dsn, conn, flow, level):
    flow.include(adding, waiting)
    for n in range(2):
        flow.start(adding, n)
    settle(flow, waiting)
    switch_on(conn)
    seal(conn)
    with connect(dsn) as one_, connect(dsn) as other, one_.transaction(), other.transaction():
        for asker in (one_, other):
            asker.execute(f"set transaction isolation level {level}")
            asker.execute(f"set local lock_timeout = '{HANG_SECONDS}s'")
            asker.execute("select count(*) from pgflow.run")
        one_.execute("select pgflow.look_again_(array[1, 3])")
        other.execute("select pgflow.look_again_(array[3, 1])")
        seal(conn)
        one_.execute("select pgflow.look_again_(array[2])")
        other.execute("select pgflow.look_again_(array[2, 1])")
    seal(conn)
    assert rows(conn, "select run_id from pgflow.seal_pending") == [3]
    assert findings(conn) == []


def test_the_first_round_waits_for_whoever_saw_that_nothing_is_sealed(dsn, conn, flow):
    """Else what it adds to a run that has ended would look as if somebody had put it in later."""
    settle(flow, adding, 1)
    with connect(dsn) as early, early.transaction():
        early.execute("select pgflow.look_again_(array[1])")
        switch_on(conn)
        seal(conn)
        assert one(conn, "select passed_run_id from pgflow.seal_state") == 0
        early.execute(
            "insert into pgflow.unit (run_id, seq, call, kind, name, payload, token, at, recorded_at)"
            " select o.run_id, 1 + (select max(seq) from pgflow.unit), 0, 'e', 'x', '1', 0, o.finished_at, o.finished_at"
            " from pgflow.outcome o"
        )
    assert seal(conn) == 1
    assert findings(conn) == []


def test_whoever_saw_it_long_ago_is_looked_at_again(dsn, conn, flow):
    settle(flow, adding, 1)
    with connect(dsn) as early, early.transaction():
        early.execute("set transaction isolation level repeatable read")
        early.execute("select count(*) from pgflow.run")
        switch_on(conn)
        seal(conn)
        early.execute("select pgflow.look_again_(array[1])")
    assert rows(conn, "select run_id from pgflow.seal_pending") == [1]
    seal(conn)
    assert rows(conn, "select run_id from pgflow.seal_pending") == []


def test_nothing_is_sealed_while_history_is_removed(dsn, conn, flow):
    settle(flow, adding, 1)
    switch_on(conn)
    with connect(dsn) as pruner, pruner.transaction():
        pruner.execute("select pgflow.drop_history(clock_timestamp())")
        assert one(conn, "select * from pgflow.seal_units()") == (0, False, 1)
    assert seal(conn) == 0
    assert findings(conn) == []


@pytest.mark.full
def test_a_round_ends_when_its_time_is_over(conn, flow):
    flow.include(adding)
    for n in range(45):
        flow.start(adding, n)
    flow.until_idle()
    ids = rows(conn, "select run_id from pgflow.run order by 1")
    looked = "select looked, cardinality(sealed) from pgflow.seal_until_(%s, 1, now(), {})"
    for until, seen in (("'-infinity'", 10), ("'infinity'", 45)):
        with conn.transaction(force_rollback=True):
            assert one(conn, looked.format(until), ids) == (seen, seen)
    assert one(conn, looked.format("'infinity'"), []) == (0, 0)


@pytest.mark.parametrize("most", ["null", "0", "-5", "1"])
def test_a_round_of_no_size_seals_at_least_one(conn, flow, most):
    flow.include(adding)
    for n in range(2):
        flow.start(adding, n)
    flow.until_idle()
    switch_on(conn)
    made, has_more, _ = one(conn, f"select * from pgflow.seal_units({most}, true)")
    assert (made, has_more) == ((2, False) if most == "null" else (1, True))
    seal(conn)
    assert findings(conn) == []


def test_a_value_that_pretends_to_be_redacted_holds_nobody_up(conn, flow):
    settle(flow, adding, 1)
    with conn.transaction(force_rollback=True):
        tamper(
            conn,
            'update pgflow.unit set payload = \'{"$codec":"","data":"","redacted":"no hash"}\' where seq = 1',
        )
        switch_on(conn)
        assert seal(conn) == 1
        assert findings(conn) == []
    forged = '{"$codec":"","data":"","redacted":"' + "0" * 64 + '"}'
    with pytest.raises(psycopg.Error, match="looks like a value that was redacted") as refused:
        conn.execute("select pgflow.start_run('adding', input => %s)", (forged,))
    assert refused.value.sqlstate == InvalidArgument.sqlstate
