"""The contract of `commit_units`: fenced, written once, exact - and a retried ack is told from a
lost lease.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from psycopg import IsolationLevel, errors
from servers import HANG_SECONDS
from sqlkit import (
    T0,
    Actor,
    Claim,
    Flush,
    begin,
    claim,
    claim_one,
    commit,
    connect,
    count,
    document,
    finish,
    flush,
    journal,
    one,
    read_answer,
    register,
    rows,
    seconds,
    send,
    set_clock,
    sleep_for,
    status,
    unit,
    unsound,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Conn = psycopg.Connection[Any]

LEASE_LOST, STEP_COMMITTED = "PF004", "PF005"


def units_of(conn: Conn, run: Claim) -> list[tuple[int, str | None]]:
    """(seq, payload) of a run's journal."""
    return [(seq, payload) for seq, _, _, _, payload in journal(conn, run.run_id)]


def reap(conn: Conn, run: Claim) -> None:
    """The run's worker is declared dead."""
    beat = one(conn, "select beat from pgflow.worker where worker_id = %s", run.worker)
    conn.execute("select pgflow.reap_worker(%s, %s)", (run.worker, beat))


def database_of(conn: Conn) -> str:
    """Everything that a zombie could change."""
    tables = (
        "unit", "outcome", "lease", "ready", "parked", "held", "signal", "undelivered", "run",
        "wait", "timer", "nudge", "step_beat",
    )  # fmt: skip
    return "\n".join(
        str(one(conn, f"select array_agg(t::text order by t::text) from pgflow.{table} t"))
        for table in tables
    )


def test_a_commit_where_all_is_well_answers_nothing(db):
    a, b = begin(db), begin(db)
    assert (
        commit(
            db, flush(a, unit(payload="1"), unit(call=2, payload="2")), flush(b, unit(payload="3"))
        ).raw
        is None
    )
    assert commit(db, flush(a, unit(call=3, payload="4"))).raw is None
    assert units_of(db, a) == [(1, "1"), (2, "2"), (3, "4")]
    assert units_of(db, b) == [(1, "3")]
    assert status(db, a.run_id) == "running"


def test_an_empty_batch_is_nothing(db):
    assert commit(db).raw is None
    assert commit(db, careful=True).bad == {}


def test_a_lease_that_another_has_is_lost(db):
    zombie = begin(db)
    reap(db, zombie)
    holder = claim_one(db)
    assert commit(db, flush(zombie, unit())).bad == {zombie.run_id: "lost"}
    assert commit(db, flush(holder, unit(payload='"mine"'))).raw is None
    assert units_of(db, holder) == [(1, '"mine"')]


@pytest.mark.parametrize("leave", ["reaped", "finished", "parked", "held"])
def test_a_wrong_token_is_lost_wherever_the_run_is(db, leave):
    run = begin(db)
    {
        "reaped": lambda: reap(db, run),
        "finished": lambda: finish(db, run),
        "parked": lambda: commit(db, wait_for(run, "x")),
        "held": lambda: commit(db, sqlkit.hold(run)),
    }[leave]()
    before = database_of(db)
    assert commit(db, flush(run, unit(), token=run.token ^ 1)).bad == {run.run_id: "lost"}
    assert database_of(db) == before


def test_a_run_that_never_was_is_lost(db):
    ghost = begin(db)
    ghost.run_id += 1_000_000
    assert commit(db, flush(ghost, unit())).bad == {ghost.run_id: "lost"}


def test_a_seq_taken_under_another_token_is_lost(db):
    zombie = begin(db)
    commit(db, flush(zombie, unit(payload='"old"')))
    reap(db, zombie)
    holder = claim_one(db)
    found = commit(db, flush(holder, unit(payload='"new"'), expected=0), careful=True).bad
    assert found == {holder.run_id: "lost"}
    assert units_of(db, holder) == [(1, '"old"')]


REST = {
    "units alone": lambda run: flush(run, unit(payload="1")),
    "units and the end": lambda run: flush(
        run, unit(), outcome=("completed", None, "1", None), has_kin=True
    ),
    "the end alone": lambda run: flush(
        run, outcome=("failed", None, None, '{"message": "no"}'), has_kin=True
    ),
    "units and a park": lambda run: sleep_for(run, 60),
    "a park alone": lambda run: wait_for(run, "x"),
    "a hold": sqlkit.hold,
    "units and a hold": lambda run: flush(
        run, unit(), hold=["stuck", "refused", None, None, "pgflow"]
    ),
    "a continuation": lambda run: flush(run, **{"continue": "{}"}),
    "a child": lambda run: flush(run, children=[sqlkit.child()]),
}


@pytest.mark.parametrize("careful", [False, True], ids=["in a hurry", "careful"])
@pytest.mark.parametrize("what", REST.values(), ids=REST)
def test_a_commit_whose_answer_was_lost_is_already_there(db, what, careful):
    run = begin(db, key="k")
    f = what(run)
    assert commit(db, f).bad == {}
    before = database_of(db)
    if status(db, run.run_id) == "running" and not careful:
        # The lease is still ours: only the duplicate tells, and sends the batch into the careful
        # path.
        with pytest.raises(errors.UniqueViolation) as error, db.transaction():
            commit(db, f)
        assert error.value.diag.constraint_name == "unit_0_pkey"
    else:
        assert commit(db, f, careful=careful).bad == {run.run_id: "already"}
    assert database_of(db) == before


def test_a_retried_ack_is_already_there_though_the_run_has_moved_on_since(db):
    run = begin(db, key="k")
    f = flush(run, unit(payload='"first"'))
    commit(db, f)
    commit(db, flush(run, unit(call=2)))
    assert commit(db, f, careful=True).bad == {run.run_id: "already"}
    reap(db, run)
    assert commit(db, f).bad == {run.run_id: "already"}
    successor = claim_one(db)
    commit(db, flush(successor, unit(call=3)))
    assert commit(db, f).bad == {run.run_id: "already"}
    finish(db, successor)
    assert commit(db, f).bad == {run.run_id: "already"}
    assert len(units_of(db, run)) == 3


def test_a_run_locked_by_another_transaction_is_busy_and_not_waited_for(dsn, conn):
    a, b = begin(conn), begin(conn)
    ends = ("completed", None, "2", None)
    with connect(dsn) as committer, connect(dsn) as other:
        with other.transaction():
            commit(other, flush(a, unit(payload='"theirs"'), outcome=ends))
            answer = commit(
                committer,
                flush(a, unit(payload='"ours"'), expected=0, outcome=ends),
                flush(b, unit()),
            )
            assert answer.bad == {a.run_id: "busy"}
            found = commit(committer, flush(a, unit(), expected=0), careful=True).bad
            assert found == {a.run_id: "busy"}
            assert (
                one(
                    committer,
                    "select pgflow.commit_unit(%s, %s, 1, 1, 'c', 's', '1', null, 0)",
                    a.run_id,
                    a.token,
                )
                == "busy"
            )
        found = commit(committer, flush(a, unit(), expected=0), careful=True).bad
        assert found == {a.run_id: "already"}
    assert units_of(conn, a) == [(1, '"theirs"')]
    assert units_of(conn, b) == [(1, "null")]


@pytest.mark.parametrize("careful", [False, True])
def test_the_same_flush_sent_again_while_it_is_on_its_way_waits_for_itself(dsn, conn, *, careful):
    run = begin(conn)
    again = document(flush(run, unit(payload="1")))
    with connect(dsn) as first, Actor(dsn) as batch, Actor(dsn) as alone:
        with first.transaction():
            commit(first, flush(run, unit(payload="1")))
            sent = [
                batch.do(one, "select pgflow.commit_units(%s, %s)", again, careful),
                alone.do(commit_unit, run, 1),
            ]
            batch.until_waiting(conn)
            alone.until_waiting(conn)
        for answer in sent:
            with pytest.raises(errors.UniqueViolation):
                answer.result(HANG_SECONDS)
    found = read_answer(one(conn, "select pgflow.commit_units(%s, true)", again)).bad
    assert found == {run.run_id: "already"}
    assert units_of(conn, run) == [(1, "1")]


def test_a_wrong_token_is_lost_at_once_though_the_lease_is_locked(dsn, conn):
    run = begin(conn)
    with connect(dsn) as committer, conn.transaction():
        commit(conn, flush(run, unit()))
        found = commit(committer, flush(run, unit(), token=7, expected=0)).bad
        assert found == {run.run_id: "lost"}


def test_of_a_mixed_batch_the_good_are_committed_and_the_others_named(dsn, conn):
    good, ended, parked, zombie, done, busy = (begin(conn) for _ in range(6))
    commit(conn, flush(done, unit()))
    reap(conn, zombie)
    with connect(dsn) as committer, connect(dsn) as other, other.transaction():
        one(other, "select 1 from pgflow.lease where run_id = %s for update", busy.run_id)
        answer = commit(
            committer,
            flush(good, unit(payload="1")),
            flush(ended, unit(), outcome=("completed", None, "2", None), has_kin=True),
            wait_for(parked, "x"),
            flush(zombie, unit(), outcome=("completed", None, "3", None), has_kin=True),
            flush(done, unit(), expected=0),
            flush(busy, unit(), park=True, signals=[[1, "x"]]),
        )
    assert answer.bad == {zombie.run_id: "lost", done.run_id: "already", busy.run_id: "busy"}
    assert set(answer.settled) == {parked.run_id}
    assert answer.wake == [parked.chain_id]
    runs = (good, ended, parked, zombie, done, busy)
    assert [status(conn, run.run_id) for run in runs] == [
        "running", "completed", "waiting", "queued", "running", "running",
    ]  # fmt: skip
    assert [len(units_of(conn, run)) for run in runs] == [1, 1, 0, 0, 1, 0]


def test_a_batch_of_nothing_but_bad_runs_changes_nothing(db):
    a, b = begin(db), begin(db)
    reap(db, a)
    reap(db, b)
    before = database_of(db)
    answer = commit(db, flush(a, unit()), flush(b, outcome=("completed", None, "1", None)))
    assert answer.raw == {"bad": [[a.run_id, "lost"], [b.run_id, "lost"]]}
    assert database_of(db) == before


@pytest.mark.parametrize("what", ["metadata of a child", "detail of a hold"])
def test_a_bad_run_in_the_batch_does_not_change_what_the_others_record(db, what):
    run, zombie = begin(db), begin(db)
    detail = {"a": None, "b": {"c": None}}
    if what == "metadata of a child":
        f, query = (
            flush(run, children=[sqlkit.child(metadata=detail)]),
            "select metadata from pgflow.run where parent_run_id is not null",
        )
    else:
        f, query = sqlkit.hold(run, detail=detail), "select detail from pgflow.held"
    assert commit(db, f, flush(zombie, unit(), token=1)).bad == {zombie.run_id: "lost"}
    assert one(db, query) == detail


def test_the_order_of_the_runs_in_a_batch_does_not_matter(db):
    a, b, c = begin(db), begin(db), begin(db)
    batch = json.loads(document(flush(a, unit()), flush(b, unit()), flush(c, unit())))
    batch["runs"].reverse()
    batch["units"].reverse()
    assert one(db, "select pgflow.commit_units(%s)", json.dumps(batch)) is None
    assert [len(units_of(db, run)) for run in (a, b, c)] == [1, 1, 1]


def test_a_duplicate_names_the_constraint_of_its_partition_and_the_careful_path_decides(db):
    run, other = begin(db), begin(db)
    commit(db, flush(run, unit(payload="1")))
    batch = (flush(run, unit(payload="2"), expected=0), flush(other, unit()))
    with pytest.raises(errors.UniqueViolation) as error, db.transaction():
        commit(db, *batch)
    assert error.value.diag.constraint_name == "unit_0_pkey"
    assert units_of(db, other) == []
    assert commit(db, *batch, careful=True).bad == {run.run_id: "already"}
    assert units_of(db, run) == [(1, "1")]
    assert len(units_of(db, other)) == 1


def test_every_partition_names_its_constraint_after_its_number(db):
    db.execute("select pgflow.add_unit_partitions(6)")
    query = """
      select c.relname = 'unit_' || n - 1 and t.conname = c.relname || '_pkey'
      from (select c.oid, c.relname, row_number() over (order by c.oid) as n from pg_class c
        join pg_inherits i on i.inhrelid = c.oid where i.inhparent = 'pgflow.unit'::regclass) c
      join pg_constraint t on t.conrelid = c.oid and t.contype = 'p'
    """
    found = rows(db, query)
    assert len(found) > 4
    assert all(found)


def test_a_client_that_leaves_a_gap_is_found_by_the_audit(db):
    run = begin(db)
    with db.transaction(force_rollback=True):
        assert commit(db, flush(run, unit(), expected=1)).raw is None
        assert unsound(db) == {"the units of a run are dense from 1"}
    assert commit(db, flush(run, unit(), expected=1), careful=True).bad == {run.run_id: "lost"}


EXACT = [
    '{"b":1,"a":2}', '{"a":1,"a":2}', "-0.0", "1e22", "1E400", "0.10",
    "123456789012345678901234567890.000", '  [1,   2 ,{"x" : null}]  ',
    '"\\u00e9\\ud83d\\ude00 é😀"', '"\\"\\\\\\/\\b\\f\\n\\r\\t"', '"\\u0000"', '"\\ud800"', '""',
    "null", "[]", "false",
]  # fmt: skip


def test_payloads_keep_their_exact_text(db):
    run = begin(db)
    commit(db, flush(run, *(unit(call=n, payload=text) for n, text in enumerate(EXACT, 1))))
    assert [payload for _, payload in units_of(db, run)] == EXACT
    found = [row[4] for row in json.loads(one(db, "select pgflow.load_units(%s, 0)", run.run_id))]
    assert found == EXACT
    for n, text in enumerate(EXACT, 1):
        assert one(db, "select payload from pgflow.read_unit(%s, %s)", run.run_id, n) == text


def test_outcomes_keep_their_exact_text(db):
    for text in EXACT:
        run = begin(db, "exact")
        finish(db, run, output=text)
        found = one(db, "select output::text from pgflow.outcome where run_id = %s", run.run_id)
        assert found == text
        assert one(db, "select output from pgflow.results(%s)", [run.chain_id]) == text


def test_a_recorded_null_is_not_nothing(db):
    run = begin(db)
    commit(db, flush(run, unit(payload="null"), unit(call=2, payload=None)))
    assert rows(db, "select payload is null from pgflow.unit order by seq") == [False, True]
    finish(db, run, output="null")
    assert one(db, "select output::text, output is null from pgflow.outcome") == ("null", False)


def test_times_are_kept_to_the_microsecond_and_delays_count_from_the_commit(db):
    set_clock(db, T0)
    run = begin(db)
    at = T0 - seconds(0.123457)
    commit(db, flush(run, unit("t", at=at, delay_seconds=1.5), unit(call=2, at=at)))
    query = "select at, recorded_at, due_at from pgflow.unit order by seq"
    assert rows(db, query) == [(at, T0, T0 + seconds(1.5)), (at, T0, None)]


@pytest.mark.parametrize(
    "bad",
    [{"kind": "?"}, {"call": -1}, {"name": "x" * 256}, {"payload": f'"{"x" * 1_200_000}"'}],
    ids=["kind", "call", "name", "payload"],
)
def test_what_the_journal_cannot_hold_fails_the_whole_batch(db, bad):
    run, other = begin(db), begin(db)
    with pytest.raises(errors.CheckViolation), db.transaction():
        commit(db, flush(run, unit(**bad)), flush(other, unit()))
    assert units_of(db, run) == units_of(db, other) == []


@pytest.mark.parametrize(("outcome", "expected"), [
    (("completed", None, '{"b":1,"a":2}', None), ("completed", {"b": 1, "a": 2}, None, None)),
    (("failed", None, None, '{"message":"no"}'), ("failed", None, {"message": "no"}, None)),
    (("cancelled", "asked", None, None), ("cancelled", None, None, "asked")),
])  # fmt: skip
def test_an_outcome_is_written_once_and_never_changes(db, outcome, expected):
    run = begin(db, key="k")
    commit(db, flush(run, unit(), outcome=outcome, has_kin=True))
    assert one(db, "select status, output, error, reason from pgflow.result('k')") == expected
    before = database_of(db)
    for late in (
        flush(run, outcome=("failed", None, None, "{}")),
        flush(run, unit(call=9), outcome=("completed", None, "9", None)),
        flush(run, outcome=("completed", None, "9", None), token=1),
        wait_for(run, "x"),
    ):
        for careful in (False, True):
            assert set(commit(db, late, careful=careful).bad.values()) <= {"already", "lost"}
    with pytest.raises(errors.UniqueViolation), db.transaction():
        db.execute(
            "insert into pgflow.outcome (run_id, finished_at, status) values (%s, now(), "
            "'completed')",
            (run.run_id,),
        )
    assert database_of(db) == before


def test_the_end_takes_away_what_only_served_the_open_run(db):
    run = begin(db, key="k", timeout_seconds=3600)
    db.execute("select pgflow.beat_step(%s, %s, 1, 1, '{}')", (run.run_id, run.token))
    send(db, "k", "never read")
    finish(db, run)
    found = [count(db, table) for table in ("deadline", "step_beat", "lease", "signal")]
    assert found == [0, 0, 0, 0]
    assert sqlkit.undelivered(db, run.chain_id) == [("s", "never read")]


def test_nobody_can_write_the_end_of_a_run_twice_at_once(dsn, conn):
    run = begin(conn)
    with connect(dsn) as second:
        with conn.transaction():
            finish(conn, run, output='"first"')
            f = flush(run, outcome=("completed", None, '"second"', None))
            assert commit(second, f).bad == {run.run_id: "busy"}
        assert commit(second, f).bad == {run.run_id: "already"}
    assert one(conn, "select output::text from pgflow.outcome") == '"first"'


SYNC = "select current_setting('synchronous_commit')"


def record_by(verb: str, conn: Conn, run: Claim) -> None:
    """Records something, with one function or another."""
    if verb == "commit_units":
        commit(conn, flush(run, unit()))
    elif verb == "commit_unit":
        conn.execute(
            "select pgflow.commit_unit(%s, %s, 1, 1, 'c', 's', '1', null, 0)",
            (run.run_id, run.token),
        )
    elif verb == "commit_and_claim":
        conn.execute(
            "select pgflow.commit_and_claim(%s, %s, '{1}', 1, '{1}', true)",
            (document(flush(run, unit())), run.worker),
        )
    else:
        conn.execute("select pgflow.begin_step(%s, %s, 1)", (run.run_id, run.token))


def test_a_commit_is_durable_though_the_session_says_otherwise(conn):
    for verb in ("commit_units", "commit_unit", "commit_and_claim", "begin_step"):
        for before, inside in (
            ("off", "on"),
            ("local", "local"),
            ("remote_write", "remote_write"),
            ("on", "on"),
        ):
            run = begin(conn)
            conn.execute(f"set synchronous_commit = {before}")
            with conn.transaction():
                record_by(verb, conn, run)
                assert one(conn, SYNC) == inside, verb
            assert one(conn, SYNC) == before


def test_what_may_be_lost_does_not_wait_for_the_disk_and_leaves_the_session_alone(conn):
    run = begin(conn)
    for call in (
        f"claim_runs({run.worker}, '{{1}}', 0, '{{}}')",
        "wake('{1}')",
        "poll()",
        f"beat({run.worker})",
        f"beat_step({run.run_id}, {run.token}, 1, 1, null)",
    ):
        with conn.transaction():
            conn.execute(f"select pgflow.{call}")
            assert one(conn, SYNC) == "off", call
        assert one(conn, SYNC) == "on", call


def ways_of_a_zombie(conn: Conn, run: Claim) -> dict[str, Callable[[], object]]:
    """Everything a worker can do to a run, and what it is told."""
    return {
        "units": lambda: commit(conn, flush(run, unit())).bad,
        "one unit": lambda: {
            run.run_id: one(
                conn,
                "select pgflow.commit_unit(%s, %s, 1, 1, 'c', 's', '1', null, 0)",
                run.run_id,
                run.token,
            )
        },
        "the end": lambda: (
            commit(conn, flush(run, outcome=("completed", None, "1", None), has_kin=True)).bad
        ),
        "a park": lambda: commit(conn, wait_for(run, "other")).bad,
        "a hold": lambda: commit(conn, sqlkit.hold(run)).bad,
        "a signal": lambda: commit(conn, wait_for(run, "paid")).bad,
        "a child": lambda: commit(conn, flush(run, children=[sqlkit.child()])).bad,
        "a continuation": lambda: commit(conn, flush(run, **{"continue": "{}"})).bad,
    }


@pytest.mark.parametrize(
    "since", ["ready again", "held by another", "finished by another", "parked by another"]
)
def test_a_zombie_commits_nothing(db, since):
    run = begin(db, key="k")
    send(db, "k", "paid", '"money"')
    reap(db, run)
    if since != "ready again":
        successor = claim_one(db)
        if since == "finished by another":
            finish(db, successor)
        elif since == "parked by another":
            commit(db, sleep_for(successor, 60))
    before = database_of(db)
    for what, attempt in ways_of_a_zombie(db, run).items():
        assert attempt() == {run.run_id: "lost"}, what
    for call in ("begin_step(%s, %s, 1)", "fence_step(%s, %s, 1, '[]')"):
        with pytest.raises(psycopg.Error) as error, db.transaction():
            db.execute(
                "select set_config('pgflow.step', %s, true)", (f"{run.run_id}/{run.token}/1",)
            )
            db.execute(f"select pgflow.{call}", (run.run_id, run.token))
        assert error.value.sqlstate == LEASE_LOST, call
    assert one(db, "select pgflow.beat_step(%s, %s, 1, 1, null)", run.run_id, run.token) is False
    assert one(db, "select pgflow.release_runs(%s, %s)", [run.run_id], [run.token]) == []
    assert database_of(db) == before


def test_a_reaper_leaves_a_run_whose_commit_is_on_its_way_for_later(dsn, conn):
    run, other = begin(conn), begin(conn)
    conn.execute(
        "update pgflow.lease set worker_id = %s where run_id = %s", (run.worker, other.run_id)
    )
    query = "select reclaimed from pgflow.reap_worker(%s, %s)"
    with connect(dsn) as reaper:
        with conn.transaction():
            commit(conn, flush(run, unit()))
            assert one(reaper, query, run.worker, 0) == 0
            assert {status(reaper, held.run_id) for held in (run, other)} == {"running"}
        found = rows(reaper, "select worker_id, beat from pgflow.observe_workers()")
        assert (run.worker, -1) in found
        assert one(reaper, query, run.worker, -1) == 2
    found = rows(conn, "select last_seq, suspect from pgflow.ready order by run_id")
    assert found == [(1, 0), (0, 1)]


def test_a_reaper_leaves_a_run_that_is_just_being_parked_and_takes_the_others(dsn, conn):
    run, other = begin(conn), begin(conn)
    conn.execute(
        "update pgflow.lease set worker_id = %s where run_id = %s", (run.worker, other.run_id)
    )
    with connect(dsn) as reaper, conn.transaction():
        commit(conn, wait_for(run, "x"))
        assert one(reaper, "select reclaimed from pgflow.reap_worker(%s, 0)", run.worker) == 1
        assert [status(reaper, held.run_id) for held in (run, other)] == ["running", "queued"]


def test_runs_are_handed_back_after_the_flush_that_is_on_its_way(dsn, conn):
    run = begin(conn)
    with Actor(dsn) as stopper:
        with conn.transaction():
            commit(conn, flush(run, unit()))
            released = stopper.do(
                one, "select pgflow.release_runs(%s, %s)", [run.run_id], [run.token]
            )
            with connect(dsn) as observer:
                stopper.until_waiting(observer)
        assert released.result(HANG_SECONDS) == [run.run_id]
    assert one(conn, "select last_seq, attempt from pgflow.ready") == (1, 0)
    assert not unsound(conn)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("alone", [False, True])
def test_a_commit_with_one_snapshot_for_all_locks_its_leases(dsn, conn, level, *, alone):
    run = begin(conn)
    with connect(dsn) as zombie:
        zombie.isolation_level = level
        with pytest.raises(errors.SerializationFailure), zombie.transaction():
            assert status(zombie, run.run_id) == "running"
            reap(conn, run)
            if alone:
                commit_unit(zombie, run, 1)
            else:
                commit(zombie, flush(run, unit()))
    assert journal(conn, run.run_id) == []


def test_runs_that_a_worker_took_over_under_another_number_are_locked_one_by_one(dsn, conn):
    run = begin(conn)
    batch = json.loads(document(flush(run, unit())))
    other = register(conn)
    with connect(dsn) as reaper, conn.transaction():
        assert (
            one(conn, "select pgflow.commit_units(%s)", json.dumps({**batch, "worker": other}))
            is None
        )
        assert one(reaper, "select reclaimed from pgflow.reap_worker(%s, 0)", run.worker) == 0
    assert one(conn, "select last_seq from pgflow.lease where run_id = %s", run.run_id) == 0
    assert len(journal(conn, run.run_id)) == 1


def test_a_commit_beside_a_reaper_is_busy_and_then_lost(dsn, conn):
    run = begin(conn)
    with connect(dsn) as zombie:
        with conn.transaction():
            reap(conn, run)
            assert commit(zombie, flush(run, unit(), expected=0)).bad == {run.run_id: "busy"}
        assert commit(zombie, flush(run, unit(), expected=0)).bad == {run.run_id: "lost"}
    assert journal(conn, run.run_id) == []


COMMIT_UNIT = "select pgflow.commit_unit(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"


def commit_unit(
    conn: Conn, run: Claim, seq: int, payload: str = "null", token: int | None = None
) -> str | None:
    return one(
        conn,
        COMMIT_UNIT,
        run.run_id,
        token or run.token,
        seq,
        seq,
        "c",
        "step",
        payload,
        None,
        sqlkit.micros(T0),
        run.worker,
    )


def test_the_direct_path_records_what_a_batch_would(db):
    set_clock(db, T0)
    direct, batch = begin(db), begin(db)
    licence = '[[2,"s","x",1,0]]'
    for n, text in enumerate(EXACT, 1):
        at = sqlkit.micros(T0) - n
        assert (
            one(
                db,
                COMMIT_UNIT,
                direct.run_id,
                direct.token,
                n,
                n,
                "c",
                "step",
                text,
                licence,
                at,
                direct.worker,
            )
            is None
        )
        commit(
            db, flush(batch, unit(call=n, payload=text, starts=licence, at=T0 - n * seconds(1e-6)))
        )
    query = """
      select seq, call, kind, name, payload::text, starts::text, at, recorded_at, due_at, token = %s from pgflow.unit
      where run_id = %s order by seq
    """
    found = rows(db, query, direct.token, direct.run_id)
    assert found == rows(db, query, batch.token, batch.run_id)


def test_the_direct_path_is_fenced_as_a_batch_is(db):
    run = begin(db)
    assert commit_unit(db, run, 1, token=7) == "lost"
    assert commit_unit(db, run, 1) is None
    with pytest.raises(errors.UniqueViolation) as error, db.transaction():
        commit_unit(db, run, 1)
    assert error.value.diag.constraint_name == "unit_0_pkey"
    reap(db, run)
    assert commit_unit(db, run, 1) == "already"
    assert commit_unit(db, run, 2) == "lost"
    assert len(units_of(db, run)) == 1


def commit_and_claim(
    conn: Conn, worker: int, count: int, *flushes: Flush
) -> tuple[sqlkit.Answer, list[Claim]]:
    query = f"select answer, {sqlkit.CLAIM} from pgflow.commit_and_claim(%s, %s, %s, %s, %s, true)"
    found = conn.execute(
        query, (document(*flushes), worker, sqlkit.all_lanes(conn), count, sqlkit.tokens(count))
    ).fetchall()
    return sqlkit.read_answer(found[0][0]), [
        Claim(*row[1:], worker=worker) for row in found if row[1] is not None
    ]


def test_a_finish_and_the_next_claims_are_one_transaction(dsn, conn):
    worker = register(conn)
    done = begin(conn)
    nexts = [sqlkit.start(conn).run_id for _ in range(3)]
    with conn.transaction(force_rollback=True):
        answer, claims = commit_and_claim(
            conn, worker, 2, flush(done, outcome=("completed", None, "1", None))
        )
        assert answer.raw is None
        assert [c.run_id for c in claims] == nexts[:2]
        found = [status(conn, run_id) for run_id in (done.run_id, *nexts)]
        assert found == ["completed", "running", "running", "queued"]
    with connect(dsn) as other:
        found = [status(other, run_id) for run_id in (done.run_id, *nexts)]
        assert found == ["running", "queued", "queued", "queued"]


def test_the_answer_of_the_commit_comes_though_nothing_is_claimed(db):
    a, zombie = begin(db), begin(db)
    answer, claims = commit_and_claim(
        db, register(db), 5, flush(a, unit()), flush(zombie, unit(), token=1)
    )
    assert answer.bad == {zombie.run_id: "lost"}
    assert claims == []


def test_the_answer_of_the_commit_comes_once_however_many_runs_are_claimed(db):
    parent, done = begin(db), begin(db)
    sqlkit.start(db, "child")
    document_ = document(
        flush(parent, children=[sqlkit.child(call) for call in (1, 2, 3)]),
        flush(done, outcome=("completed", None, "1", None)),
    )
    query = "select answer, run_id from pgflow.commit_and_claim(%s, %s, %s, 3, %s, true)"
    found = db.execute(
        query, (document_, register(db), sqlkit.all_lanes(db), sqlkit.tokens(3))
    ).fetchall()
    got = [(answer is not None, run_id is not None) for answer, run_id in found]
    assert got == [(True, True), (False, True), (False, True)]


def test_a_run_that_a_commit_makes_ready_can_be_claimed_in_the_same_call(db):
    run = begin(db)
    _, claims = commit_and_claim(db, register(db), 5, flush(run, **{"continue": '{"n": 2}'}))
    assert [(c.generation, c.input) for c in claims] == [(2, '{"n": 2}')]


def test_tokens_beyond_the_claim_are_for_runs_that_park_in_its_commit(db):
    parks, has_mail, ends = begin(db), begin(db), begin(db)
    sqlkit.send(db, has_mail.key, "paid")
    nexts = [sqlkit.start(db).run_id for _ in range(5)]
    batch = document(
        flush(parks, signals=[[1, "paid"]], park=True),
        flush(has_mail, signals=[[1, "paid"]], park=True),
        flush(ends, outcome=("completed", None, "1", None)),
    )
    query = "select answer, run_id from pgflow.commit_and_claim(%s, %s, %s, 1, %s, true)"
    found = db.execute(
        query, (batch, register(db), sqlkit.all_lanes(db), sqlkit.tokens(3))
    ).fetchall()
    places = {settled["run"]: settled["place"] for settled in found[0][0]["answers"]}
    assert places == {parks.run_id: "parked", has_mail.run_id: "leased"}
    assert [run_id for _, run_id in found] == nexts[:2]


def begin_step(conn: Conn, run: Claim, call: int = 1, idle_timeout_ms: int = 0) -> str:
    return one(
        conn,
        "select pgflow.begin_step(%s, %s, %s, %s)",
        run.run_id,
        run.token,
        call,
        idle_timeout_ms,
    )


def fence(conn: Conn, f: Flush, call: int = 1) -> int:
    query = "select pgflow.fence_step(%s, %s, %s, %s)"
    return one(conn, query, f.claim.run_id, f.token, call, json.dumps(f.unit_rows()))


def app_table(conn: Conn) -> None:
    conn.execute("create table public.ledger (n int primary key)")


@pytest.fixture
def ledger(conn: Conn) -> Conn:
    app_table(conn)
    return conn


def test_a_step_and_the_writes_of_the_application_are_one_transaction(dsn, ledger):
    run = begin(ledger, key="k")
    with connect(dsn) as app:
        with app.transaction(force_rollback=True):
            begin_step(app, run)
            app.execute("insert into public.ledger values (1)")
            sqlkit.start(app, key="next")
            send(app, "k", "hello")
            fence(app, flush(run, unit()))
        assert (
            count(ledger, "unit"),
            count(ledger, "signal"),
            one(ledger, "select count(*) from public.ledger"),
        ) == (0, 0, 0)
        with app.transaction():
            xid = begin_step(app, run)
            app.execute("insert into public.ledger values (1)")
            at_us = fence(
                app,
                flush(run, unit("f", payload='"buffered"', call=7), unit(payload="1"), expected=0),
            )
    assert units_of(ledger, run) == [(1, '"buffered"'), (2, "1")]
    assert one(ledger, "select pgflow.micros_(recorded_at) from pgflow.unit where seq = 2") == at_us
    assert one(ledger, "select pgflow.transaction_status(%s)", xid) == "committed"
    assert (
        one(ledger, "select pgflow.transaction_status((%s::text::bigint + 1000000)::text)", xid)
        == "aborted"
    )  # of a server before this one
    assert one(ledger, "select n from public.ledger") == 1


def test_a_step_of_a_lost_lease_is_refused_at_its_beginning(db):
    run = begin(db)
    for token in (run.token + 1, 0):
        with (
            pytest.raises(psycopg.Error, match=f"run {run.run_id} is no longer held") as error,
            db.transaction(),
        ):
            db.execute("select pgflow.begin_step(%s, %s, 1)", (run.run_id, token))
        assert error.value.sqlstate == LEASE_LOST


def test_a_step_whose_lease_is_lost_while_it_runs_writes_nothing(dsn, ledger):
    # A transaction with one snapshot cannot see that the lease is gone, and must be tried again.
    answers = {
        IsolationLevel.READ_COMMITTED: LEASE_LOST,
        IsolationLevel.REPEATABLE_READ: "40001",
        IsolationLevel.SERIALIZABLE: "40001",
    }
    for level, sqlstate in answers.items():
        run = begin(ledger, level.name)
        with connect(dsn) as app:
            app.isolation_level = level
            with pytest.raises(psycopg.Error) as error, app.transaction():
                begin_step(app, run)
                app.execute("insert into public.ledger values (1)")
                reap(ledger, run)
                fence(app, flush(run, unit()))
        assert error.value.sqlstate == sqlstate
    assert one(ledger, "select count(*) from public.ledger") == count(ledger, "unit") == 0


def test_a_fence_holds_the_lease_until_the_commit(dsn, ledger):
    run = begin(ledger)
    with connect(dsn) as app, connect(dsn) as other:
        with app.transaction():
            begin_step(app, run)
            fence(app, flush(run, unit()))
            assert one(other, "select reclaimed from pgflow.reap_worker(%s, 0)", run.worker) == 0
            ends = ("completed", None, "1", None)
            found = commit(other, flush(run, unit(), expected=0, outcome=ends)).bad
            assert found == {run.run_id: "busy"}
        assert one(other, "select reclaimed from pgflow.reap_worker(%s, -1)", run.worker) == 1
    assert one(ledger, "select last_seq, suspect from pgflow.ready") == (1, 0)


def test_a_client_that_freezes_between_fence_and_commit_is_ended_after_five_seconds(db):
    run = begin(db)
    begin_step(db, run)
    fence(db, flush(run, unit()))
    assert one(db, "select current_setting('idle_in_transaction_session_timeout')") == "5s"


def test_a_body_that_ends_its_transaction_itself_is_found_out(dsn, ledger):
    run = begin(ledger)
    for n, end in enumerate((psycopg.Connection.commit, psycopg.Connection.rollback)):
        with connect(dsn) as app:
            app.autocommit = False
            begin_step(app, run)
            app.execute("insert into public.ledger values (%s)", (n,))
            end(app)
            with pytest.raises(psycopg.Error, match="ended its transaction itself") as error:
                fence(app, flush(run, unit()))
            app.rollback()
        assert error.value.sqlstate == STEP_COMMITTED
    assert count(ledger, "unit") == 0


def test_the_mark_of_a_step_belongs_to_one_call_and_one_token(db):
    run, other = begin(db), begin(db)
    begin_step(db, run, call=1)
    for f, call in (
        (flush(run, unit()), 2),
        (flush(run, unit(), token=run.token + 1), 1),
        (flush(other, unit()), 1),
    ):
        with pytest.raises(psycopg.Error) as error, db.transaction():
            fence(db, f, call)
        assert error.value.sqlstate == STEP_COMMITTED
    fence(db, flush(run, unit()), 1)


def test_savepoints_inside_a_step_do_not_count_as_an_end(db):
    run = begin(db)
    begin_step(db, run)
    with db.transaction(force_rollback=True):
        db.execute("create table public.t ()")
    with db.transaction():
        pass
    fence(db, flush(run, unit()))


def test_two_parallel_steps_that_take_the_same_seq_are_told_by_the_constraint(dsn, ledger):
    run = begin(ledger)
    with connect(dsn) as a, Actor(dsn) as b:

        def second(c: Conn) -> None:
            with c.transaction():
                begin_step(c, run, 2)
                c.execute("insert into public.ledger values (2)")
                fence(c, flush(run, unit(call=2), expected=0), 2)

        with a.transaction():
            begin_step(a, run, 1)
            fence(a, flush(run, unit(call=1), expected=0), 1)
            late = b.do(second)
            b.until_waiting(ledger)
        with pytest.raises(errors.UniqueViolation) as error:
            late.result()
    assert error.value.diag.constraint_name == "unit_0_pkey"
    assert one(ledger, "select count(*) from public.ledger") == 0


def test_an_idle_step_is_ended_only_where_the_session_has_no_timeout_of_its_own(dsn, conn):
    run = begin(conn)
    query = "select current_setting('idle_in_transaction_session_timeout')"
    with connect(dsn) as app:
        with app.transaction():
            begin_step(app, run, idle_timeout_ms=90_000)
            assert one(app, query) == "90s"
        assert one(app, query) == "0"
        app.execute("set idle_in_transaction_session_timeout = '7s'")
        with app.transaction():
            begin_step(app, run, idle_timeout_ms=90_000)
            assert one(app, query) == "7s"


def test_an_ambiguous_commit_can_be_looked_up(dsn, conn):
    run = begin(conn)
    look = "select token, call, kind, payload from pgflow.read_unit(%s, 1)"
    with connect(dsn) as app:
        with app.transaction(force_rollback=True):
            aborted = begin_step(app, run)
            fence(app, flush(run, unit(payload='{"b":1,"a":2}')))
            assert one(conn, "select pgflow.transaction_status(%s)", aborted) == "in progress"
            assert one(conn, look, run.run_id) is None
        assert one(conn, "select pgflow.transaction_status(%s)", aborted) == "aborted"
        with app.transaction():
            committed = begin_step(app, run)
            fence(app, flush(run, unit(payload='{"b":1,"a":2}')))
    assert one(conn, "select pgflow.transaction_status(%s)", committed) == "committed"
    assert one(conn, look, run.run_id) == (run.token, 1, "c", '{"b":1,"a":2}')


def test_an_application_that_locks_its_rows_first_never_deadlocks_with_a_group_commit(dsn, ledger):
    """The fence comes last: whoever holds rows of the application waits for the engine, never the
    other way round.
    """
    run, other = begin(ledger), begin(ledger)
    ledger.execute("insert into public.ledger values (1)")
    with connect(dsn) as first, Actor(dsn) as second, connect(dsn) as committer:

        def step(c: Conn) -> None:
            with c.transaction():
                begin_step(c, other)
                c.execute("update public.ledger set n = n")
                fence(c, flush(other, unit()))

        with first.transaction():
            begin_step(first, run)
            first.execute("update public.ledger set n = n")
            waiting = second.do(step)
            second.until_waiting(ledger)
            assert commit(committer, flush(other, unit("v", 5, None, "{}"))).raw is None
            fence(first, flush(run, unit()))
        waiting.result()
    assert len(units_of(ledger, other)) == 2


def test_a_step_leaves_details_for_its_next_attempt(db):
    run = begin(db)
    beat = "select pgflow.beat_step(%s, %s, 1, %s, %s)"
    look = "select pgflow.step_details(%s, 1)"
    assert one(db, look, run.run_id) is None
    assert one(db, beat, run.run_id, run.token, 1, '{"b":1, "a":2}') is True
    assert one(db, beat, run.run_id, run.token, 1, None) is True
    assert one(db, look, run.run_id) == '{"b":1, "a":2}'
    reap(db, run)
    run = claim_one(db)
    assert one(db, beat, run.run_id, run.token, 2, "3") is True
    assert one(db, look, run.run_id) == "3"
    assert one(db, "select attempt from pgflow.step_beat") == 2


def test_a_beat_on_its_way_when_the_run_ends_leaves_nothing(dsn, conn):
    run = begin(conn)
    with Actor(dsn) as ender:
        with connect(dsn) as stepper, stepper.transaction():
            stepper.execute("select pgflow.beat_step(%s, %s, 1, 1, null)", (run.run_id, run.token))
            ended = ender.do(finish, run)
            ender.until_waiting(conn, unless_done=ended)
        ended.result()
    assert count(conn, "step_beat") == 0
    assert claim(conn) == []
