"""Times of keys: one open run of a key at a time, windows in which what comes twice is one run, and
starts of which the last counts.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlkit
from clikit import pgflow as cli
from records import SOON, count, result_of
from servers import HANG_SECONDS
from sqlkit import (
    T0,
    Actor,
    begin,
    claim,
    claim_one,
    connect,
    finish,
    one,
    rows,
    start,
    start_many,
    status,
)

import pgflow
from pgflow import InvalidArgument, KeyConflict, Signal, workflow

Conn = psycopg.Connection[Any]

MINE = "00000000-0000-4000-8000-000000000001"
go = Signal("go", int)


@workflow
async def adds(n: int) -> int:
    return n + await go.wait()


@workflow
async def says(n: int) -> int:
    return n


def clock(conn: Conn, seconds: float) -> None:
    sqlkit.set_clock(conn, T0 + timedelta(seconds=seconds))


def n_of(conn: Conn, run_id: int) -> Any:
    return one(conn, "select input->'n' from pgflow.run where run_id = %s", run_id)


def put_off(conn: Conn, n: int, seconds: float = 10, **options: Any) -> int:
    return start(
        conn, key="k", input=json.dumps({"n": n}), debounce_seconds=seconds, **options
    ).run_id


@pytest.mark.parametrize("if_taken", ["match", "attach"])
def test_a_key_that_counts_while_its_run_is_open_has_one_open_run(db, if_taken):
    said = {"key": "k", "key_seconds": 0, "if_taken": if_taken}
    first = start(db, **said)
    assert start(db, **said)[1:3] == (first.run_id, False)
    held = claim_one(db)
    assert start(db, **said)[1:3] == (first.run_id, False)
    sqlkit.commit(db, sqlkit.wait_for(held, "paid"))
    assert start(db, **said)[1:3] == (first.run_id, False)
    sqlkit.send(db, "k", "paid")
    sqlkit.poll(db)
    finish(db, claim_one(db))
    second = start(db, **said)
    assert second.is_new
    assert one(db, "select pgflow.find_chain('k')") == second.run_id
    assert status(db, first.run_id) == "completed"
    assert not start(db, key="k").is_new  # for good, if nothing is said


def test_what_is_open_is_rejected_and_what_has_ended_is_not(db):
    said = {"key": "k", "key_seconds": 0, "if_taken": "reject"}
    held = begin(db, **said)
    with pytest.raises(psycopg.Error, match="which is running") as error, db.transaction():
        start(db, **said)
    assert error.value.sqlstate == "PF002"
    finish(db, held)
    assert start(db, **said).is_new


def test_in_a_window_what_comes_twice_is_one_run_though_it_has_ended(db):
    said = {"key": "k", "key_seconds": 60, "if_taken": "attach"}
    clock(db, 0)
    first = begin(db, **said)
    finish(db, first)
    clock(db, 59)
    assert start(db, **said)[1:3] == (first.run_id, False)
    clock(db, 60)
    second = start(db, **said)
    assert second.is_new
    clock(db, 200)
    assert start(db, **said)[1:3] == (second.run_id, False)  # it is open
    assert status(db, first.run_id) == "completed"


def test_a_restarted_run_is_open_and_has_its_key(db):
    held = begin(db, key="k", key_seconds=0)
    finish(db, held)
    db.execute("select pgflow.restart_run('k')")
    assert not start(db, key="k", key_seconds=0).is_new


def test_a_start_that_is_sent_again_finds_its_run_though_that_has_ended(db):
    held = begin(db, key="k", key_seconds=0, start_id=MINE)
    finish(db, held)
    assert start(db, key="k", key_seconds=0, start_id=MINE)[1:3] == (held.run_id, False)
    many = start_many(db, [("a", "{}"), ("b", "{}")], key_seconds=0, start_id=MINE)
    for _ in many:
        finish(db, claim_one(db))
    again = start_many(db, [("a", "{}"), ("b", "{}")], key_seconds=0, start_id=MINE)
    assert [s.run_id for s in again] == [s.run_id for s in many]


def test_a_batch_starts_those_whose_keys_count_no_longer(db):
    pairs = [(k, "{}") for k in "cab"]
    first = start_many(db, pairs, key_seconds=0)
    ended = claim_one(db)
    finish(db, ended)
    second = start_many(db, pairs, key_seconds=0)
    assert [s.is_new for s in second] == [s.run_id == ended.run_id for s in first]
    assert count(db, "pgflow.run_key") == 3


def test_two_that_start_at_once_under_a_key_that_is_free_again_have_one_run(dsn, conn):
    finish(conn, begin(conn, key="k"))
    with connect(dsn) as mine, Actor(dsn) as other:
        with mine.transaction():
            first = start(mine, key="k", key_seconds=0)
            waiting = other.do(start, key="k", key_seconds=0)
            other.until_waiting(conn)
        assert waiting.result(HANG_SECONDS)[1:3] == (first.run_id, False)
        with mine.transaction():
            finish(conn, claim_one(conn))
            first = start_many(mine, [("k", "{}"), ("l", "{}")], key_seconds=0)[0]
            waiting = other.do(start_many, [("l", "{}"), ("k", "{}")], key_seconds=0)
            other.until_waiting(conn)
        assert [s.is_new for s in waiting.result(HANG_SECONDS)] == [False, False]
    assert first.is_new


def test_of_starts_that_are_put_off_the_last_counts_and_begins_after_a_pause(db):
    clock(db, 0)
    run = put_off(db, 1)
    for n, at in ((2, 8), (3, 16)):
        clock(db, at)
        assert put_off(db, n) == run
    clock(db, 25)
    sqlkit.poll(db)
    assert claim(db, 9) == []
    found = rows(db, "select status, run_at from pgflow.runs")
    assert found == [("waiting", T0 + timedelta(seconds=26))]
    clock(db, 26)
    sqlkit.poll(db)
    assert json.loads(claim_one(db).input) == {"n": 3}
    assert count(db, "pgflow.run") == 1


def test_it_begins_at_the_latest_after_the_longest_wait(db):
    clock(db, 0)
    run = put_off(db, 0, max_wait_seconds=25)
    for at in (8, 16, 24):
        clock(db, at)
        assert put_off(db, at, max_wait_seconds=25) == run
    clock(db, 25)
    sqlkit.poll(db)
    assert json.loads(claim_one(db).input) == {"n": 24}
    clock(db, 26)
    assert put_off(db, 26, max_wait_seconds=25) != run


def test_the_last_start_says_priority_queue_labels_and_deadline_too(db):
    clock(db, 0)
    run = put_off(db, 1, timeout_seconds=100, labels='{"a": "b"}')
    put_off(db, 2, timeout_seconds=5, priority=3, queue="other", labels='{"c": "d"}')
    put_off(db, 3, queue="other", labels='{"c": "d"}', priority=3, start_id=MINE)
    assert count(db, "pgflow.deadline") == 0
    clock(db, 1)
    put_off(db, 4, queue="other", labels='{"c": "d"}', priority=3, timeout_seconds=5)
    found = rows(db, "select run_id, queue, priority, labels, deadline_at from pgflow.runs")
    assert found == [(run, "other", 3, {"c": "d"}, T0 + timedelta(seconds=16))]
    assert rows(db, "select due_at from pgflow.deadline") == [T0 + timedelta(seconds=16)]


def test_one_that_is_due_and_not_begun_takes_the_last_input_where_it_stands(db):
    clock(db, 0)
    run = put_off(db, 1)
    clock(db, 10)
    sqlkit.poll(db)
    assert status(db, run) == "queued"
    assert put_off(db, 2) == run
    assert json.loads(claim_one(db).input) == {"n": 2}
    later = put_off(db, 3)
    assert later != run
    assert (status(db, run), status(db, later)) == ("running", "waiting")
    assert one(db, "select pgflow.find_chain('k')") == later


def test_one_that_stands_in_a_line_stands_there_by_its_new_key(db):
    db.execute("""select pgflow.set_queue('default', '{"key": "input.n", "per_key": 1}')""")
    clock(db, 0)
    begin(db, input='{"n": 1}')
    run = put_off(db, 1)
    clock(db, 10)
    sqlkit.poll(db)
    assert claim(db, 9) == []
    assert rows(db, "select key from pgflow.line_run") == ["1"]
    put_off(db, 2)
    assert [c.run_id for c in claim(db, 9)] == [run]


def test_one_that_is_paused_or_cancelled_is_left_alone(db):
    clock(db, 0)
    paused = put_off(db, 1)
    db.execute("select pgflow.pause_run('k')")
    db.execute("select pgflow.wake()")
    cancelled = put_off(db, 2)
    assert cancelled != paused
    db.execute("select pgflow.cancel_run('k')")
    last = put_off(db, 3)  # the cancel is on its way
    assert last != cancelled
    db.execute("select pgflow.wake()")
    assert [n_of(db, run) for run in (paused, cancelled, last)] == [1, 2, 3]
    found = [status(db, run) for run in (paused, cancelled, last)]
    assert found == ["paused", "cancelled", "waiting"]


def test_a_start_that_is_sent_again_neither_puts_off_nor_starts_another(db):
    clock(db, 0)
    run = put_off(db, 1)
    assert put_off(db, 2, start_id=MINE) == run
    clock(db, 9)
    assert put_off(db, 2, start_id=MINE) == run
    clock(db, 10)
    sqlkit.poll(db)
    claim_one(db)
    assert put_off(db, 2, start_id=MINE) == run


def test_another_workflow_does_not_take_it(db):
    run = put_off(db, 1)
    with pytest.raises(psycopg.Error, match="another workflow") as error, db.transaction():
        put_off(db, 2, workflow="other")
    assert error.value.sqlstate == "PF002"
    assert n_of(db, run) == 1


def test_starts_at_once_come_one_after_the_other_and_a_claim_waits_for_none(dsn, conn):
    clock(conn, 0)
    run = put_off(conn, 1)
    with connect(dsn) as mine, Actor(dsn) as other:
        with mine.transaction():
            put_off(mine, 2)
            waiting = other.do(put_off, 3)
            other.until_waiting(conn)
            clock(conn, 30)
            sqlkit.poll(conn)
            assert claim(conn, 9) == []
        assert waiting.result(HANG_SECONDS) == run
    sqlkit.poll(conn)
    assert claim(conn, 9) == []  # the last start was at the thirtieth second
    clock(conn, 40)
    sqlkit.poll(conn)
    assert json.loads(claim_one(conn).input) == {"n": 3}


def test_a_start_that_is_put_off_is_sealed_as_it_began(db):
    db.execute("select pgflow.set_sealing(true)")
    clock(db, 0)
    put_off(db, 1)
    db.execute("select pgflow.seal_units(at_once => true)")
    put_off(db, 2)
    db.execute("select pgflow.seal_units(at_once => true)")
    clock(db, 10)
    sqlkit.poll(db)
    finish(db, claim_one(db))
    db.execute("select pgflow.seal_units(at_once => true)")
    assert count(db, "pgflow.seal") == 1
    assert rows(db, "select invariant from pgflow.check()") == []


def test_times_of_keys_are_said_in_python(flow, conn):
    flow.include(adds)
    one_at_a_time = adds.options(key="k", key_for=0, if_taken="attach")
    first = flow.start(one_at_a_time, 1)
    again = flow.start(one_at_a_time, 2)
    first.send(go, 1)
    assert (first.result(SOON), again.result(SOON)) == (2, 2)
    second = flow.start(one_at_a_time, 3)
    with pytest.raises(KeyConflict, match="another input"):
        flow.start(adds.options(key="k", key_for=timedelta(hours=1)), 1)
    many = flow.app.start_many(adds.options(key_for=0, if_taken="attach"), [(5,)], keys=["k"])
    second.send(go, 1)
    assert [run.result(SOON) for run in (second, *many)] == [4, 4]
    assert count(conn, "pgflow.run") == 2


async def test_the_last_of_starts_counts_in_python(aflow, conn):
    aflow.include(says)
    rests = says.options(key="k", debounce=60, max_wait=timedelta(minutes=5))
    runs = [await aflow.app.start(rests, n) for n in range(5)]
    await aflow.skip(60)
    assert [await run.result(SOON) for run in runs] == [4] * 5
    assert count(conn, "pgflow.run") == 1


async def test_what_cannot_be_said_is_refused(aflow, conn):
    app = aflow.app
    for options, why in (
        ({"key_for": 5}, r"require options\(key="),
        ({"key": "k", "max_wait": 5}, "max_wait_seconds is of a debounce"),
        ({"key": "k", "debounce": 5, "max_wait": 4}, "at least as long"),
        ({"key": "k", "debounce": 0}, "more than 0"),
        ({"key": "k", "debounce": 5, "if_taken": "attach"}, "says itself"),
        ({"key": "k", "debounce": 5, "key_for": 1}, "says itself"),
        ({"key": "k", "debounce": 5, "budget": {"usd": 1}}, "says itself"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            await app.start(says.options(**options), 1)
    with pytest.raises(InvalidArgument, match="cannot debounce"):
        await app.start_many(says.options(debounce=5), [(1,)], keys=["k"])
    with pytest.raises(InvalidArgument, match=r"requires keys=\["):
        await app.start_many(says.options(key_for=5), [(1,)])
    assert count(conn, "pgflow.run") == 0

    @workflow
    async def parent() -> str:
        try:
            await pgflow.run_child(says.options(key="x", key_for=0), 1)
        except InvalidArgument as error:
            return str(error)
        return "started"

    assert "a child is this run's own" in await result_of(aflow, parent)


def test_times_of_keys_are_said_on_the_command_line(dsn, conn):
    begun = begin(conn, key="k", input='{"n": 1}')
    said = ("start", "demo", "n:=1", "--key", "k")
    assert cli(dsn, *said, "--key-for", "0s").data["new"] is False
    finish(conn, begun)
    assert cli(dsn, *said, "--key-for", "0s").data["new"] is True
    late = ("start", "demo", "--key", "l", "--debounce", "1h", "--max-wait", "2h")
    assert "Started l" in cli(dsn, *late, "n:=1", tty=True).out
    found = cli(dsn, *late, "n:=2", tty=True).out
    assert "l had not begun: it begins later, with this input" in found
    assert rows(conn, "select input->'n' from pgflow.run where key = 'l'") == [2]
    missing = cli(dsn, "start", "demo", "--debounce", "1h")
    assert (missing.code, "--collect require --key" in missing.err) == (2, True)
