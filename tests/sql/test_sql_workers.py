"""Signs of life, and the work of workers that are dead: only a counter that moves is a sign of
life.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlkit
from sqlkit import (
    T0,
    Actor,
    Claim,
    claim,
    claim_one,
    commit,
    connect,
    count,
    finish,
    flush,
    hold,
    one,
    poll,
    register,
    rows,
    seconds,
    set_clock,
    start,
    start_many,
    status,
    unit,
    wait_for,
)

if TYPE_CHECKING:
    import psycopg

    Conn = psycopg.Connection[Any]


def beat(conn: Conn, worker: int, *, stopping: bool = False) -> bool:
    return one(conn, "select alive from pgflow.beat(%s, %s)", worker, stopping)


def beats(conn: Conn) -> dict[int, int]:
    return dict(rows(conn, "select worker_id, beat from pgflow.observe_workers()"))


def reap(conn: Conn, worker: int, beat: int = 0) -> tuple[int, list[int], list[int]]:
    """Reap a worker; return (number ready again, ids stuck, lanes)."""
    return one(conn, "select reclaimed, stuck, lanes from pgflow.reap_worker(%s, %s)", worker, beat)


def test_a_worker_announces_itself_and_beats(db):
    set_clock(db, T0)
    worker = one(db, "select pgflow.register_worker(%s, 42, '{a,b}', 7, '1.2')", "h" * 300)
    assert beats(db) == {worker: 0}
    set_clock(db, T0 + seconds(2))
    assert beat(db, worker)
    assert beat(db, worker, stopping=True)
    assert beats(db) == {worker: 2}
    query = "select host, pid, queues, concurrency, version, stopping, started_at, beat_at, beat, running from pgflow.workers"
    assert one(db, query) == ("h" * 255, 42, ["a", "b"], 7, "1.2", True, T0, T0 + seconds(2), 2, 0)


def test_numbers_of_workers_are_never_used_again(db):
    first = register(db)
    reap(db, first)
    assert register(db) > first


def test_a_worker_that_was_declared_dead_is_told_so(db):
    worker = register(db)
    reap(db, worker)
    assert not beat(db, worker)
    assert beats(db) == {}


def test_a_worker_that_beat_since_it_was_observed_is_not_dead(db):
    worker = register(db)
    start(db)
    claim_one(db, worker=worker)
    beat(db, worker)
    for stale in (0, 2, -1):
        assert reap(db, worker, stale) == (0, [], [])
    assert beats(db) == {worker: 1}
    assert count(db, "lease") == 1
    assert reap(db, worker, 1)[0] == 1


def test_a_reaper_that_has_observed_nothing_reaps_nobody(db):
    worker = register(db)
    db.execute("select * from pgflow.reap_worker(%s, null)", (worker,))
    assert beat(db, worker)


def test_a_beat_on_its_way_saves_the_worker(dsn, conn):
    worker = register(conn)
    with Actor(dsn) as reaper:
        with connect(dsn) as heart, heart.transaction():
            beat(heart, worker)
            reaped = reaper.do(reap, worker, 0)
            reaper.until_waiting(conn)
        assert reaped.result() == (0, [], [])
    assert beat(conn, worker)


def test_of_two_reapers_one_takes_the_runs(dsn, conn):
    worker = register(conn)
    start_many(conn, [(None, "{}")] * 5)
    claim(conn, 5, worker=worker)
    with Actor(dsn) as second:
        with connect(dsn) as first, first.transaction():
            assert reap(first, worker)[0] == 5
            late = second.do(reap, worker, 0)
            second.until_waiting(conn)
        assert late.result() == (0, [], [])
    assert rows(conn, "select suspect from pgflow.ready") == [1] * 5


def test_a_worker_that_holds_runs_cannot_leave(db):
    worker = register(db)
    start(db)
    run = claim_one(db, worker=worker)
    db.execute("select pgflow.leave_worker(%s)", (worker,))
    assert beat(db, worker)
    finish(db, run)
    db.execute("select pgflow.leave_worker(%s)", (worker,))
    assert not beat(db, worker)
    db.execute("select pgflow.leave_worker(%s)", (worker,))


def test_the_runs_of_a_dead_worker_are_ready_in_their_lanes_with_their_priority(db):
    worker, other = register(db), register(db)
    a, b = start(db, "a", priority=3), start(db, "b")
    claim(db, 2, worker=worker)
    kept = start(db, "a")
    claim_one(db, worker=other)
    reclaimed, stuck, lanes = reap(db, worker)
    assert (reclaimed, stuck, sorted(lanes)) == (2, [], [a.lane_id, b.lane_id])
    query = "select run_id, lane_id, priority, attempt, last_seq, suspect from pgflow.ready order by run_id"
    assert rows(db, query) == [(a.run_id, a.lane_id, 3, 1, 0, 1), (b.run_id, b.lane_id, 0, 1, 0, 1)]
    assert status(db, kept.run_id) == "running"


def test_attempts_and_deaths_grow_until_something_is_recorded(db):
    run_id = start(db).run_id
    seen = []
    for progress in (False, False, True, False):
        run = claim_one(db)
        seen.append((run.attempt, run.suspect))
        if progress:
            commit(db, flush(run, unit()))
        reap(db, run.worker)
    run = claim_one(db)
    seen.append((run.attempt, run.suspect))
    assert seen == [(1, 0), (2, 1), (3, 2), (1, 0), (2, 1)]
    assert run.run_id == run_id


def test_a_park_clears_suspicion(db):
    set_clock(db, T0)
    start(db, key="k")
    reap(db, claim_one(db).worker)
    run = claim_one(db)
    assert run.suspect == 1
    commit(db, wait_for(run, "paid"))
    sqlkit.send(db, "k", "paid")
    poll(db)
    assert (again := claim_one(db)).suspect == 0
    assert again.attempt == 1


def test_a_suspect_that_made_progress_is_handed_back_without_suspicion(db):
    start(db)
    reap(db, claim_one(db).worker)
    run = claim_one(db)
    commit(db, flush(run, unit()))
    db.execute("select pgflow.release_runs(%s, %s)", ([run.run_id], [run.token]))
    assert one(db, "select suspect, attempt from pgflow.ready") == (0, 0)


def test_a_suspect_that_made_no_progress_stays_one_when_it_is_handed_back(db):
    start(db)
    reap(db, claim_one(db).worker)
    run = claim_one(db)
    db.execute("select pgflow.release_runs(%s, %s)", ([run.run_id], [run.token]))
    assert one(db, "select suspect, attempt from pgflow.ready") == (1, 1)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_run_that_kills_its_workers_is_stuck_and_the_queue_goes_on(db, most):
    db.execute(
        "select pgflow.set_queue('default', jsonb_build_object('max_deaths', %s::int))", (most,)
    )
    guilty = start(db, key="guilty", priority=-1).run_id
    innocent = start(db, key="innocent").run_id
    answers = []
    for _ in range(most):
        run = claim_one(db)
        assert run.run_id == guilty
        answers.append(reap(db, run.worker)[:2])
    assert answers == [(1, [])] * (most - 1) + [(0, [guilty])]
    state, _, error, reason = one(
        db, "select status, output, error, reason from pgflow.result('guilty')"
    )
    assert (state, reason) == ("stuck", "poison")
    assert error == {
        "deaths": most,
        "message": f"{most} workers died holding this run and it recorded nothing: if it kills "
        "them, mend that; if its step only takes long, pgflow retry gives it as many deaths again",
    }
    assert claim_one(db).run_id == innocent


def test_only_the_guilty_run_of_a_worker_is_suspected_for_long(db):
    """All runs of the first dead worker are suspects; each is then tried alone, and the innocent
    ones are cleared by what they record.
    """
    ids = [s.run_id for s in start_many(db, [(None, "{}")] * 6)]
    guilty = ids[2]
    worker = register(db)
    claim(db, 6, worker=worker)
    reap(db, worker)
    for _ in range(40):
        for run in claim(db, 10):
            if run.run_id == guilty:
                reap(db, run.worker)
            else:
                finish(db, run)
    assert {status(db, run_id) for run_id in ids if run_id != guilty} == {"completed"}
    assert one(db, "select pgflow.status_(%s)", guilty) == "stuck"


def test_a_heartbeat_is_progress_and_the_drafts_of_a_step_are_none(db):
    db.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 2))")
    start(db, key="k")
    for _ in range(3):
        run = claim_one(db)
        assert run.suspect == 0
        db.execute("select pgflow.beat_step(%s, %s, 1, 1, 'null')", (run.run_id, run.token))
        reap(db, run.worker)
    for suspect in range(2):
        run = claim_one(db)
        assert run.suspect == suspect
        db.execute(
            "select pgflow.emit_drafts(%s, %s, 1, 't', 0, 0, %s::jsonb)",
            (run.run_id, run.token, '[["words", "1"]]'),
        )
        db.execute("update pgflow.step_beat set beat_at = beat_at - interval '1 hour'")
        reap(db, run.worker)
    assert one(db, "select status from pgflow.result('k')") == "stuck"


def test_a_retry_of_a_poisoned_run_gives_it_a_fresh_budget(db):
    db.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1))")
    start(db, key="k")
    reap(db, claim_one(db).worker)
    chain = one(db, "select pgflow.retry_run('k')")
    sqlkit.wake(db, chain)
    run = claim_one(db)
    assert (run.attempt, run.suspect) == (1, 0)


def test_a_dead_worker_gives_back_its_share_of_a_limit(db):
    db.execute("select pgflow.set_queue('default', jsonb_build_object('concurrency', 1))")
    start(db)
    run = claim_one(db)
    assert claim(db, 5) == []
    reap(db, run.worker)
    assert claim_one(db).run_id == run.run_id


def test_leases_of_a_worker_that_is_gone_are_seen_and_taken(db):
    start_many(db, [(None, "{}")] * 2)
    worker, alive = register(db), register(db)
    claim(db, 2, worker=worker)
    db.execute("delete from pgflow.worker where worker_id = %s", (worker,))
    assert beats(db) == {worker: -1, alive: 0}
    assert reap(db, worker, 0) == (0, [], [])
    assert reap(db, worker, -1)[0] == 2
    assert beats(db) == {alive: 0}
    assert reap(db, alive, -1) == (0, [], [])


def test_a_claim_beside_the_death_of_its_worker_leaves_a_lease_of_nobody_that_is_found(dsn, conn):
    worker = register(conn)
    start(conn)
    with connect(dsn) as claimer:
        with claimer.transaction():
            run = claim_one(claimer, worker=worker)
            assert reap(conn, worker) == (0, [], [])
        assert beats(conn) == {worker: -1}
    assert reap(conn, worker, -1)[0] == 1
    assert status(conn, run.run_id) == "queued"


def test_a_frozen_worker_that_locks_a_lease_is_not_waited_for(dsn, conn):
    worker = register(conn)
    start_many(conn, [(None, "{}")] * 2)
    frozen, free = claim(conn, 2, worker=worker)
    with connect(dsn) as reaper:
        with conn.transaction():
            conn.execute("select pgflow.begin_step(%s, %s, 1)", (frozen.run_id, frozen.token))
            row = json.dumps(flush(frozen, unit()).unit_rows())
            conn.execute(
                "select pgflow.fence_step(%s, %s, 1, %s)", (frozen.run_id, frozen.token, row)
            )
            assert reap(reaper, worker)[0] == 1
            assert status(reaper, free.run_id) == "queued"
            assert beats(reaper) == {worker: -1}
        # What it committed in the end counts, and nobody else has had the run.
        assert reap(reaper, worker, -1)[0] == 1
    assert one(
        conn, "select last_seq, suspect, attempt from pgflow.ready where run_id = %s", frozen.run_id
    ) == (1, 0, 0)


@pytest.mark.full
def test_no_run_is_lost_while_workers_claim_die_and_finish(dsn, conn):
    total = 150
    start_many(conn, [(None, "{}")] * total)
    conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000))")

    def live_and_die(c: Conn, n: int) -> None:
        for life in range(1000):
            worker = register(c)
            runs = claim(c, 4, worker=worker)
            if not runs and one(c, "select count(*) from pgflow.outcome") == total:
                return
            for run in runs[: 1 + (n + life) % 3]:
                finish(c, run)
            for number, observed in beats(c).items():
                if number == worker or observed == -1:
                    reap(c, number, observed)

    sqlkit.race(dsn, 3, live_and_die)
    assert one(
        conn,
        "select count(*), count(distinct run_id) from pgflow.outcome where status = 'completed'",
    ) == (total, total)
    assert count(conn, "lease") == count(conn, "ready") == 0


def put_stuck(
    conn: Conn, workflow: str, code_hash: str | None, reason: str = "nondeterminism"
) -> Claim:
    run = sqlkit.begin(conn, workflow)
    commit(conn, flush(run, unit()))
    commit(conn, hold(run, reason, code_hash))
    return run


def test_other_code_tries_what_could_not_be_replayed_and_nothing_else(db):
    old, same = put_stuck(db, "a", "old"), put_stuck(db, "a", "new")
    unknown, other = put_stuck(db, "a", None), put_stuck(db, "b", "old")
    refused = put_stuck(db, "a", "old", reason="refused")
    start(db, "a", key="paused")
    sqlkit.wake(db, one(db, "select pgflow.pause_run('paused')"))
    assert one(db, "select pgflow.release_stuck(%s, %s)", ["a", "c"], ["new", "new"]) == 2
    found = rows(db, "select run_id from pgflow.ready order by run_id")
    assert found == [old.run_id, unknown.run_id]
    found = rows(db, "select run_id from pgflow.held where state = 'stuck' order by run_id")
    assert found == [same.run_id, other.run_id, refused.run_id]
    assert one(db, "select last_seq, attempt, suspect from pgflow.ready limit 1") == (1, 0, 0)
    assert one(db, "select pgflow.release_stuck(%s, %s)", ["a"], ["new"]) == 0
    assert one(db, "select pgflow.release_stuck('{}', '{}')") == 0


def test_two_workers_with_new_code_release_a_run_once(dsn, conn):
    run = put_stuck(conn, "a", "old")
    query = "select pgflow.release_stuck('{a}', '{new}')"
    with connect(dsn) as second:
        with conn.transaction():
            assert one(conn, query) == 1
            assert one(second, query) == 0
        assert one(second, query) == 0
    assert claim_one(conn).run_id == run.run_id
