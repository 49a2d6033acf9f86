"""Lines while many claim, start, cancel, pause and change the rules at the same time."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from sqlkit import (
    Actor,
    Claim,
    claim,
    connect,
    count,
    finish,
    one,
    register,
    rows,
    start,
    start_many,
)

MOVES = 150
"""Moves of each connection in a race."""

if TYPE_CHECKING:
    Conn = psycopg.Connection[Any]


def rule(conn: Conn, **rules: Any) -> None:
    conn.execute("select pgflow.set_queue('default', %s)", (json.dumps(rules),))


def start_keys(conn: Conn, keys: str) -> list[int]:
    return [s.run_id for s in start_many(conn, [(None, json.dumps({"k": k})) for k in keys])]


def test_a_claim_waits_for_another_of_the_same_line_and_then_counts_its_leases(conn, dsn):
    rule(conn, key="input.k", per_key=1)
    start_keys(conn, "aab")
    with Actor(dsn) as first, Actor(dsn) as second:
        with first.conn.transaction():
            taken = claim(first.conn, 1)
            other = second.do(claim, 5)
            second.until_waiting(conn)
        (rest,) = other.result()
    assert {json.loads(c.input)["k"] for c in (*taken, rest)} == {"a", "b"}


def test_rules_wait_for_a_claim_that_is_under_way(conn, dsn):
    rule(conn, key="input.k", per_key=2)
    start_keys(conn, "aaa")
    with Actor(dsn) as first, Actor(dsn) as second:
        with first.conn.transaction():
            assert len(claim(first.conn, 1)) == 1
            other = second.do(rule, per_key=1)
            second.until_waiting(conn)
        other.result()
    assert claim(conn, 5) == []


def test_a_claim_passes_over_a_run_that_somebody_is_just_cancelling(conn, dsn):
    rule(conn, key="input.k")
    first, second = start(conn, input='{"k": "a"}'), start(conn, input='{"k": "b"}')
    conn.execute("select pgflow.cancel_run(%s)", (first.run_key,))
    with connect(dsn) as other, other.transaction():
        sqlkit.wake(other, first.run_id)
        with connect(dsn) as impatient:
            assert [c.run_id for c in claim(impatient, 5)] == [second.run_id]
    assert sqlkit.status(conn, first.run_id) == "cancelled"


def test_a_start_waits_for_no_claim_and_no_claim_for_a_start(conn, dsn):
    rule(conn, key="input.k", fifo=True, rate="1000/1s")
    start_keys(conn, "a")
    with connect(dsn) as starter, connect(dsn) as worker, starter.transaction():
        start_keys(starter, "ab")
        with worker.transaction():
            assert len(claim(worker, 5)) == 1
            start_keys(starter, "c")
            with connect(dsn) as third:
                start_keys(third, "d")


@pytest.mark.full
@pytest.mark.parametrize(
    "rules", [{"per_key": 2}, {"fifo": True}, {"per_key": 1, "rate": "500/100ms"}]
)
def test_nobody_is_lost_and_no_limit_is_passed_whoever_meets_whom(conn, dsn, rules):
    rule(conn, key="input.k", **rules)
    most = rules.get("per_key", 1)
    lane = start(conn, input='{"k": "a"}').lane_id

    def act(own: Conn, n: int) -> int:
        rng, over, held = random.Random(n), 0, []
        worker = register(own)
        for _ in range(MOVES):
            match rng.randrange(12 if n else 13):
                case 0 | 1 | 2:
                    start_keys(own, "".join(rng.choices("abcdef", k=rng.randint(1, 2))))
                case 3 | 4 | 5:
                    held += claim(own, rng.randint(1, 4), worker=worker, lanes=[lane])
                case 6 | 7 if held:
                    finish(own, held.pop(rng.randrange(len(held))))
                case 8 if held:
                    sqlkit.commit(own, sqlkit.sleep_for(held.pop(), 0.01))
                case 9 if held:
                    back: Claim = held.pop()
                    own.execute("select pgflow.release_runs(%s, %s)", ([back.run_id], [back.token]))
                case 10:
                    keys = rows(
                        own,
                        "select key from pgflow.runs where status in ('queued', 'paused') limit 5",
                    )
                    verb = rng.choice(("cancel_run", "pause_run", "resume_run"))
                    if keys:
                        own.execute(f"select pgflow.{verb}(%s)", (rng.choice(keys),))
                case 11:
                    sqlkit.poll(own)
                case 12:
                    rule(own, concurrency=rng.randint(5, 20))
            over = max(
                over,
                one(
                    own,
                    """
              select coalesce(max(n), 0) from (
                select count(*) as n from pgflow.lease e join pgflow.run r using (run_id) group by r.input->>'k') x
            """,
                ),
            )
        while held:
            finish(own, held.pop())
        return over

    assert max(sqlkit.race(dsn, 6, act)) <= most
    # A run that somebody has cancelled is not parked: whoever wanted to has forgotten it.
    conn.execute(
        "select pgflow.release_runs(array_agg(run_id), array_agg(token)) from pgflow.lease having count(*) > 0"
    )
    open_runs = count(conn, "parked") + count(conn, "ready") + count(conn, "held")
    rule(conn, concurrency=None, key=None, per_key=None, fifo=None, rate=None)
    while open_runs:
        conn.execute("select pgflow.resume_run(key) from pgflow.runs where status = 'paused'")
        sqlkit.poll(conn)
        for claimed in claim(conn, 500):
            finish(conn, claimed)
        open_runs = count(conn, "parked") + count(conn, "ready") + count(conn, "held")
    assert (count(conn, "line_run"), count(conn, "lease")) == (0, 0)
