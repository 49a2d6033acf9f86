"""Lines, in SQL alone: limits and rates of queues and of keys, order, fair turns, and changes while
runs wait.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from sqlkit import (
    T0,
    Claim,
    claim,
    claim_one,
    count,
    finish,
    one,
    register,
    rows,
    start,
    start_many,
    status,
)

if TYPE_CHECKING:
    Conn = psycopg.Connection[Any]


def rule(conn: Conn, queue: str = "default", **rules: Any) -> dict[str, Any]:
    return one(conn, "select pgflow.set_queue(%s, %s::jsonb)", queue, json.dumps(rules))


def start_of(conn: Conn, key: str, **options: Any) -> int:
    return start(conn, input=json.dumps({"k": key}), **options).run_id


def start_keys(conn: Conn, keys: str) -> list[int]:
    """One run for each letter."""
    return [
        started.run_id for started in start_many(conn, [(None, json.dumps({"k": k})) for k in keys])
    ]


def keys_of(claims: list[Claim]) -> str:
    return "".join(json.loads(c.input)["k"] for c in claims)


def clock(conn: Conn, seconds: float) -> None:
    sqlkit.set_clock(conn, T0 + timedelta(seconds=seconds))


def held_by(db: Conn, run_id: int) -> Claim:
    row = db.execute(
        "select token, worker_id from pgflow.lease where run_id = %s", (run_id,)
    ).fetchone()
    assert row is not None
    return Claim(
        run_id, row[0], run_id, 0, 1, 1, 0, 0, "", "", "{}", None, False, 0, 0, None, worker=row[1]
    )


def test_no_more_runs_of_a_key_are_held_than_its_queue_allows(db):
    rule(db, key="input.k", per_key=2)
    start_keys(db, "aaaabbbc")
    first = claim(db, 10)
    assert sorted(keys_of(first)) == list("aabbc")
    assert claim(db, 10) == []
    finish(db, next(c for c in first if keys_of([c]) == "a"))
    assert keys_of(claim(db, 10)) == "a"
    assert claim(db, 10) == []


def test_a_run_in_a_line_is_queued(db):
    rule(db, key="input.k", per_key=1)
    run = start_of(db, "a")
    assert status(db, run) == "queued"
    assert rows(db, "select status from pgflow.runs") == ["queued"]
    assert db.execute("select queued, waiting from pgflow.queues").fetchone() == (1, 0)
    assert rows(db, "select queued from pgflow.lanes") == [1]


def test_the_limits_of_a_queue_and_of_a_worker_hold_together_with_that_of_keys(db):
    rule(db, key="input.k", per_key=2, concurrency=5, per_worker=3)
    start_keys(db, "abcdefgh")
    one_worker, other = register(db), register(db)
    assert len(claim(db, 10, worker=one_worker)) == 3
    assert claim(db, 10, worker=one_worker) == []
    assert len(claim(db, 10, worker=other)) == 2
    assert claim(db, 10, worker=other) == []


def test_a_limit_for_each_worker_needs_no_line(db):
    rule(db, per_worker=2)
    start_keys(db, "abcdef")
    assert count(db, "ready") == 6
    one_worker, other = register(db), register(db)
    assert len(claim(db, 10, worker=one_worker)) == 2
    assert claim(db, 10, worker=one_worker) == []
    assert len(claim(db, 1, worker=other)) == 1
    assert len(claim(db, 10, worker=other)) == 1


def test_what_comes_back_stands_in_line_again_before_what_has_not_begun(db):
    rule(db, key="input.k", per_key=1)
    started = start_keys(db, "aab")
    first = next(c for c in claim(db, 10) if c.run_id == started[0])
    sqlkit.commit(db, sqlkit.wait_for(first, "paid"))
    assert [c.run_id for c in claim(db, 10)] == [started[1]]
    sqlkit.send(db, first.key, "paid")
    sqlkit.poll(db)
    assert claim(db, 10) == []
    assert status(db, started[0]) == "queued"
    start_of(db, "a")
    second = one(db, "select token from pgflow.lease where run_id = %s", started[1])
    db.execute("select pgflow.release_runs(%s, %s)", ([started[1]], [second]))
    assert [c.run_id for c in claim(db, 10)] == [started[0]]


@pytest.mark.parametrize("then", ["is claimed", "waits", "is paused before"])
def test_in_order_a_run_that_goes_on_as_new_keeps_its_turn(db, then):
    rule(db, key="input.k", fifo=True)
    _, second = start_keys(db, "aa")
    first = claim_one(db)
    sqlkit.commit(db, sqlkit.flush(first, **{"continue": first.input}))
    if then == "is paused before":
        db.execute("select pgflow.pause_run(%s)", (first.key,))
        sqlkit.poll(db)
    else:
        again = claim_one(db)
        assert (again.chain_id, again.generation) == (first.chain_id, 2)
        if then == "waits":
            sqlkit.commit(db, sqlkit.wait_for(again, "paid"))
    assert claim(db, 9) == []
    if then == "is claimed":
        finish(db, again)
    else:
        db.execute("select pgflow.cancel_run(%s, force => true)", (first.key,))
        sqlkit.poll(db)
    assert [c.run_id for c in claim(db, 9)] == [second]


def test_a_run_whose_worker_died_is_a_suspect_in_its_line_too(db):
    rule(db, key="input.k", per_key=1)
    started = start_keys(db, "aa")
    for _ in range(2):
        db.execute("select pgflow.reap_worker(%s, 0)", (claim_one(db).worker,))
    assert [c.run_id for c in claim(db, 10, take_suspect=False)] == [started[1]]
    assert claim(db, 10) == []
    finish(db, held_by(db, started[1]))
    again = claim_one(db)
    assert (again.run_id, again.suspect, again.attempt) == (started[0], 2, 3)


def test_a_run_that_is_cancelled_or_paused_leaves_its_line(db):
    rule(db, key="input.k", per_key=1)
    a, b, c = (start(db, input='{"k": "x"}') for _ in range(3))
    db.execute("select pgflow.cancel_run(%s)", (a.run_key,))
    db.execute("select pgflow.pause_run(%s)", (b.run_key,))
    sqlkit.poll(db)
    assert [status(db, r.run_id) for r in (a, b, c)] == ["cancelled", "paused", "queued"]
    claimed = claim_one(db)
    assert claimed.run_id == c.run_id
    db.execute("select pgflow.resume_run(%s)", (b.run_key,))
    sqlkit.poll(db)
    assert claim(db, 10) == []
    finish(db, claimed)
    assert claim_one(db).run_id == b.run_id


def test_one_that_goes_on_takes_its_cancel_when_its_turn_comes(db):
    rule(db, key="input.k", per_key=1)
    first, second = (start(db, input='{"k": "x"}') for _ in range(2))
    sqlkit.commit(db, sqlkit.wait_for(claim_one(db), "paid"))
    other = claim_one(db)
    assert other.run_id == second.run_id
    sqlkit.send(db, first.run_key, "paid")
    sqlkit.poll(db)
    assert claim(db, 10) == []
    db.execute("select pgflow.cancel_run(%s)", (first.run_key,))
    sqlkit.poll(db)
    assert claim(db, 10) == []
    assert (status(db, first.run_id), count(db, "line_run")) == ("queued", 1)
    finish(db, other)
    again = claim_one(db)
    assert (again.run_id, again.has_mail) == (first.run_id, True)


def test_one_that_is_restarted_leaves_its_line_and_its_heir_stands_there(db):
    rule(db, key="input.k", per_key=1)
    first, second = (start(db, input='{"k": "x"}') for _ in range(2))
    claimed = claim_one(db)
    heir = one(
        db, 'select run_id from pgflow.restart_run(%s, input => \'{"k": "y"}\')', second.run_key
    )
    assert (claimed.run_id, status(db, heir)) == (first.run_id, "queued")
    assert count(db, "line_run") == 0
    assert claim_one(db).run_id == heir


def test_children_and_runs_that_waited_before_stand_in_line(db):
    started = start_keys(db, "aab")
    rule(db, key="input.k", per_key=1)
    assert count(db, "ready") == 3
    assert sorted(c.run_id for c in claim(db, 10)) == [started[0], started[2]]
    assert (count(db, "ready"), count(db, "line_run")) == (1, 1)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("input.k", "7"), ("input.a.b", "x"), ("input.none", ""), ("tenant", "t"), ("workflow", "demo"),
        ("labels.a.b", "l"), ("tenant, input.k", "t/7"), ("input.a", '{"b": "x"}'), ("input.list.1", "two"),
    ],
)  # fmt: skip
def test_a_key_is_made_of_parts_of_a_run(db, expression, expected):
    rule(db, key=expression, per_key=1)
    start(
        db,
        input='{"k": 7, "a": {"b": "x"}, "list": ["one", "two"]}',
        tenant="t",
        labels='{"a.b": "l"}',
    )
    assert rows(db, "select key from pgflow.line_run") == [expected]


def test_a_long_key_is_known_by_its_hash(db):
    rule(db, key="input.k", per_key=1)
    start_keys(db, "a")
    start_of(db, "x" * 300)
    start_of(db, "x" * 300)
    assert len(claim(db, 10)) == 2


def test_in_order_a_key_waits_for_the_end_of_what_began_before(db):
    rule(db, key="input.k", fifo=True)
    sqlkit.set_clock(db, T0)
    started = start_keys(db, "aab")
    first = next(c for c in claim(db, 10) if c.run_id == started[0])
    sqlkit.commit(db, sqlkit.sleep_for(first, 60))
    assert claim(db, 10) == []
    clock(db, 61)
    sqlkit.poll(db)
    again = claim_one(db)
    assert again.run_id == started[0]
    finish(db, again, "failed")
    assert claim_one(db).run_id == started[1]


def test_in_order_priorities_do_not_count(db):
    rule(db, key="input.k", fifo=True)
    first = start_of(db, "a", priority=5)
    second = start_of(db, "a", priority=-5)
    claimed = claim_one(db)
    assert claimed.run_id == first
    assert claim(db, 5) == []
    finish(db, claimed)
    assert claim_one(db).run_id == second


def test_priorities_count_among_the_runs_of_a_key(db):
    rule(db, key="input.k", per_key=1)
    start_of(db, "a", priority=5)
    urgent = start_of(db, "a", priority=-5)
    assert claim_one(db).run_id == urgent


def test_a_run_that_waits_long_enough_goes_before_one_of_a_better_priority(db):
    rule(db, ageing_seconds=10)
    clock(db, 0)
    old = start_of(db, "a", priority=3)
    clock(db, 29)
    better = start_of(db, "a", priority=0)
    assert claim_one(db).run_id == better
    clock(db, 31)
    start_of(db, "a", priority=0)
    assert claim_one(db).run_id == old


def test_keys_take_turns_however_many_runs_one_has(db):
    rule(db, key="input.k")
    start_keys(db, "a" * 50 + "bbcc")
    assert [keys_of(claim(db, 1)) for _ in range(6)] == list("abcabc")
    assert keys_of(claim(db, 10)) == "a" * 10


def test_a_key_has_as_many_runs_in_its_turn_as_its_weight(db):
    rule(db, key="input.k", weights={"a": 3})
    start_keys(db, "a" * 20 + "b" * 20)
    assert sorted(keys_of(claim(db, 8))) == list("aaaaaabb")
    assert keys_of(claim(db, 4)).count("b") == 1


def test_a_turn_that_another_worker_cannot_take_is_not_lost(db):
    rule(db, key="input.k", per_key=1)
    start_keys(db, "abcdefghij")
    assert keys_of(claim(db, 4)) + keys_of(claim(db, 4)) + keys_of(claim(db, 4)) == "abcdefghij"


def test_no_window_has_more_starts_than_the_rate_and_the_next_has_as_many(db):
    clock(db, 0)
    rule(db, rate="5/10s")
    start_keys(db, "a" * 30)
    assert len(claim(db, 3)) == 3
    clock(db, 4)
    assert len(claim(db, 10)) == 2
    clock(db, 10)
    assert claim(db, 10) == []
    clock(db, 10.2)
    assert len(claim(db, 10)) == 3
    clock(db, 14.2)
    assert len(claim(db, 10)) == 2
    assert 5.9 < one(db, "select seconds from pgflow.next_turn('{default}')") < 6.2


def test_a_bucket_lets_a_burst_through_and_then_its_rate(db):
    clock(db, 0)
    rule(db, rate="10/10s", burst=4)
    start_keys(db, "a" * 30)
    assert len(claim(db, 10)) == 4
    clock(db, 2.5)
    assert len(claim(db, 10)) == 2
    assert 0.4 < one(db, "select seconds from pgflow.next_turn('{default}')") < 0.6
    clock(db, 100)
    assert len(claim(db, 20)) == 4


@pytest.mark.parametrize("burst", [None, 2])
def test_a_rate_of_keys_holds_for_each(db, burst):
    clock(db, 0)
    rule(db, key="input.k", key_rate="2/10s", key_burst=burst)
    start_keys(db, "aaaabbbc")
    assert sorted(keys_of(claim(db, 20))) == list("aabbc")
    assert claim(db, 20) == []
    clock(db, 10.2)
    assert sorted(keys_of(claim(db, 20))) == list("aab")


def test_a_run_that_goes_on_needs_no_leave_of_a_rate(db):
    clock(db, 0)
    rule(db, rate="1/1h")
    start_keys(db, "ab")
    first = claim_one(db)
    sqlkit.commit(db, sqlkit.sleep_for(first, 5))
    clock(db, 6)
    sqlkit.poll(db)
    assert [c.run_id for c in claim(db, 10)] == [first.run_id]


def test_a_clock_that_is_put_back_holds_a_rate_for_a_window_at_most(db):
    clock(db, 100_000)
    rule(db, rate="1/10s")
    start_keys(db, "abc")
    assert len(claim(db, 5)) == 1
    clock(db, 0)
    assert len(claim(db, 5)) == 1
    assert claim(db, 5) == []


@pytest.mark.parametrize("fifo", [False, True])
def test_work_that_has_not_begun_in_time_is_cancelled_and_never_begins(db, fifo):
    clock(db, 0)
    rule(db, key="input.k", per_key=1, expires_seconds=60, fifo=fifo)
    begun = start_of(db, "a")
    late = start_of(db, "a")
    clock(db, 30)
    young = start_of(db, "a")
    first = claim_one(db)
    clock(db, 61)
    finish(db, first)
    assert claim(db, 5) == [] if fifo else [c.run_id for c in claim(db, 5)] == [young]
    sqlkit.poll(db)
    if fifo:
        assert claim_one(db).run_id == young
    found = [status(db, run) for run in (begun, late, young)]
    assert found == ["completed", "cancelled", "running"]
    query = "select reason, reason_code from pgflow.runs where run_id = %s"
    assert db.execute(query, (late,)).fetchone() == ("expired", "expired")


def test_a_run_that_has_begun_does_not_expire(db):
    clock(db, 0)
    rule(db, expires_seconds=60)
    run = start_of(db, "a")
    sqlkit.commit(db, sqlkit.sleep_for(claim_one(db), 100))
    clock(db, 200)
    sqlkit.poll(db)
    sqlkit.poll(db)
    assert claim_one(db).run_id == run


def test_rules_that_are_not_named_stay_and_null_takes_one_away(db):
    found = rule(db, concurrency=5, rate="100/1m", key="input.k")
    assert found == {"concurrency": 5, "rate": "100/1m", "key": "input.k"}
    assert rule(db, rate=None, per_key=2) == {"concurrency": 5, "key": "input.k", "per_key": 2}
    assert rule(db, key=None, per_key=None, concurrency=None) == {}
    assert rows(db, "select is_lined from pgflow.queue") == [None]


def test_a_line_that_is_over_lets_everybody_out_also_who_comes_late(dsn):
    with sqlkit.connect(dsn) as conn, sqlkit.connect(dsn) as late:
        rule(conn, key="input.k", per_key=1)
        start_keys(conn, "aaa")
        with late.transaction():
            start_of(late, "a")
            rule(conn, key=None, per_key=None)
            assert len(claim(conn, 10)) == 3
        assert claim(conn, 10) == []
        sqlkit.poll(conn)
        assert len(claim(conn, 10)) == 1
        assert count(conn, "line_run") == 0


def test_another_key_is_of_those_who_wait_and_those_who_run(db):
    rule(db, key="input.k", per_key=1)
    start(db, input='{"k": "a", "j": "x"}')
    start(db, input='{"k": "a", "j": "x"}')
    start(db, input='{"k": "a", "j": "y"}')
    assert len(claim(db, 10)) == 1
    rule(db, key="input.j")
    assert [json.loads(c.input)["j"] for c in claim(db, 10)] == ["y"]


def test_a_rate_of_another_length_counts_what_has_begun(db):
    clock(db, 0)
    rule(db, rate="3/10s")
    start_keys(db, "a" * 10)
    assert len(claim(db, 2)) == 2
    rule(db, rate="3/1m")
    assert len(claim(db, 10)) == 1
    clock(db, 59)
    assert claim(db, 10) == []
    clock(db, 61)
    assert len(claim(db, 10)) == 3


def test_it_is_kept_who_changed_what(db):
    db.execute("""select pgflow.set_queue('q', '{"concurrency": 2}', 'too slow', 'ann')""")
    db.execute(
        "select pgflow.pause_queue('q'), pgflow.resume_queue('q'), pgflow.set_queue('q', jsonb_build_object('concurrency', 3))"
    )
    found = db.execute(
        "select what, said, why, changed_by from pgflow.queue_changes order by changed_at"
    ).fetchall()
    user = one(db, "select session_user::text")
    assert found == [
        ("set", {"concurrency": 2}, "too slow", f"ann ({user})"),
        ("paused", {}, None, user),
        ("resumed", {}, None, user),
        ("set", {"concurrency": 3}, None, user),
    ]


@pytest.mark.parametrize(
    "rules",
    [
        {"concurrency": 0}, {"per_worker": 1.5}, {"per_key": 1}, {"key": "input"}, {"key": "k; drop table"}, {"key": ""},
        {"rate": "100"}, {"rate": "0/1m"}, {"rate": "1/1y"}, {"rate": "1/40d"}, {"burst": 3}, {"weights": {"a": 1}},
        {"key": "tenant", "weights": {"a": 0}}, {"fifo": True, "ageing_seconds": 3}, {"key": "tenant", "fifo": 1},
        {"nonsense": 1}, {"expires_seconds": 4e7}, {"key": 3}, {"fifo": True, "key": "tenant", "per_key": 2}, {"ageing_seconds": 1e9},
    ],
)  # fmt: skip
def test_rules_that_no_queue_can_have_are_refused(db, rules):
    with pytest.raises(psycopg.Error) as raised, db.transaction():
        rule(db, **rules)
    assert raised.value.sqlstate == "PF003"
    assert count(db, "queue_change") == 0
