"""Batches: a run that begins once all members have ended, and once only, however they ended."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
import sqlkit
from clikit import pgflow as cli
from records import SOON, count
from servers import HANG_SECONDS
from sqlkit import Actor, begin, claim, claim_one, connect, finish, one, rows, start, status

from pgflow import App, AsyncApp, InvalidArgument, KeyConflict, RunNotFound, workflow
from pgflow.errors import WrongState
from pgflow.queues import BatchCount

Conn = psycopg.Connection[Any]


@workflow
async def load(n: int) -> int:
    await asyncio.sleep(0)
    if n % 3 == 2:
        raise ValueError(f"row {n}")
    return n


@workflow
async def report(upload: str) -> str:
    return upload


def wait_for(
    conn: Conn, *ids: int, key: str = "b", whole: bool = True, workflow: str = "demo"
) -> None:
    query = "select pgflow.fill_batch(%s, %s, %s, is_whole => %s)"
    conn.execute(query, (key, workflow, list(ids), whole))


def members(conn: Conn, number: int) -> list[int]:
    return [start(conn, "load").run_id for _ in range(number)]


def open_batch(conn: Conn, number: int, **options: Any) -> tuple[int, list[int]]:
    whole = options.pop("whole", True)
    with conn.transaction():
        waits = start(conn, key="b", **options).run_id
        ids = members(conn, number)
        wait_for(conn, *ids, whole=whole)
    return waits, ids


def end(conn: Conn, how: str = "completed") -> int:
    held = claim(conn, 1)[0]
    finish(conn, held, how)
    return held.run_id


def test_a_run_begins_once_all_members_have_ended_however_they_ended(db):
    waits, ids = open_batch(db, 4)
    found = rows(db, "select status, reason, reason_code from pgflow.runs where key = 'b'")
    assert found == [("waiting", "until the runs of its batch have ended", "batch")]
    end(db)
    end(db, "failed")
    sqlkit.poll(db)
    end(db)
    db.execute("select pgflow.cancel_run(key) from pgflow.run where run_id = %s", (ids[3],))
    assert rows(db, "select runs, passed, begun_at is null from pgflow.batches") == [(4, 2, True)]
    assert sqlkit.poll(db).lanes != []
    counted = one(db, "select c.* from pgflow.count_batch('b') c")
    assert counted == (4, 2, 1, 1, True)
    assert claim_one(db).run_id == waits
    assert rows(db, "select passed, begun_at is null from pgflow.batches") == [(4, False)]


def test_a_batch_that_is_not_whole_waits_for_more(db):
    waits, _ = open_batch(db, 1, whole=False)
    end(db)
    sqlkit.poll(db)
    assert status(db, waits) == "waiting"
    (more,) = members(db, 1)
    wait_for(db, more)
    sqlkit.poll(db)
    assert status(db, waits) == "waiting"
    end(db)
    sqlkit.poll(db)
    assert status(db, waits) == "queued"
    wait_for(db, more)  # sent again
    with pytest.raises(psycopg.Error, match="the batch 'b' is over") as error, db.transaction():
        wait_for(db, *members(db, 1))
    assert error.value.sqlstate == "PF006"


def test_a_batch_without_members_is_over_at_once(db):
    waits, _ = open_batch(db, 0)
    sqlkit.poll(db)
    assert status(db, waits) == "queued"


def test_members_that_ended_before_and_generations_count_as_their_chain(db):
    held = begin(db, "load", key="m")
    finish(db, begin(db, "load", key="n"))
    finish(db, held, "failed")
    restarted = one(db, "select run_id from pgflow.restart_run('m')")
    waits = start(db, key="b").run_id
    wait_for(db, one(db, "select pgflow.find_chain('n')"), held.run_id)
    sqlkit.poll(db)
    assert status(db, waits) == "waiting"
    finish(db, claim_one(db))
    sqlkit.poll(db)
    assert (status(db, restarted), status(db, waits)) == ("completed", "queued")


def test_a_run_that_waits_is_paused_and_cancelled_as_any_other(db):
    waits, _ = open_batch(db, 1)
    db.execute("select pgflow.pause_run('b')")
    db.execute("select pgflow.wake()")
    with (
        pytest.raises(psycopg.Error, match="until the runs of its batch have ended"),
        db.transaction(),
    ):
        db.execute("select pgflow.restart_run('b')")
    end(db)
    sqlkit.poll(db)
    assert status(db, waits) == "paused"
    db.execute("select pgflow.resume_run('b')")
    db.execute("select pgflow.wake()")
    assert status(db, waits) == "waiting"
    sqlkit.poll(db)
    assert status(db, waits) == "queued"
    other = start(db, key="c").run_id
    wait_for(db, *members(db, 1), key="c", whole=False)
    db.execute("select pgflow.cancel_run('c')")
    db.execute("select pgflow.wake()")
    sqlkit.poll(db)
    assert status(db, other) == "cancelled"
    assert rows(db, "select key from pgflow.batches where begun_at is null") == []


def test_only_a_run_that_has_not_begun_can_wait_for_members(db):
    begin(db, key="b")
    start(db, "load", key="l")
    for key, why in (("b", "has begun"), ("l", "another workflow"), ("no", "no run has the key")):
        with pytest.raises(psycopg.Error, match=why), db.transaction():
            wait_for(db, 1, key=key)
    with pytest.raises(psycopg.Error, match="has no batch"), db.transaction():
        db.execute("select pgflow.count_batch('b')")


def test_a_run_of_a_line_and_one_with_a_time_wait_too(db):
    db.execute("""select pgflow.set_queue('default', '{"key": "workflow", "per_key": 9}')""")
    waits, ids = open_batch(db, 2)
    later = start(db, key="later", run_at="2100-01-01").run_id
    wait_for(db, *ids, key="later")
    assert {c.run_id for c in claim(db, 9)} == set(ids)
    db.execute("select pgflow.drop_history(pgflow.now_())")
    assert {status(db, waits), status(db, later)} == {"waiting"}


def test_a_cursor_that_is_behind_passes_each_member_once_and_sleepers_are_found(db):
    for n in range(30):  # batches whose first members stay open
        start(db, key=f"o{n}")
        wait_for(db, *members(db, 1), key=f"o{n}")
    last = start(db, key="last").run_id
    wait_for(db, key="last")
    for _ in range(200):
        if status(db, last) == "queued":
            break
        one(db, "select pgflow.begin_batches_(3, pgflow.now_())")
    assert status(db, last) == "queued"
    waits = start(db, key="long").run_id
    ids = members(db, 25)
    wait_for(db, *ids, key="long")
    db.execute("select pgflow.cancel_run(key) from pgflow.run where run_id = any(%s)", (ids,))
    db.execute("select pgflow.wake()")
    passed = []
    for _ in range(3):
        batch = "(select b from pgflow.batch b where b.upto >= 0 order by batch_id desc limit 1)"
        db.execute(f"select pgflow.advance_batch_({batch}, 10, pgflow.now_())")
        found = one(db, "select passed from pgflow.batches where key = 'long'")
        passed.append((found, status(db, waits)))
    assert passed == [(10, "waiting"), (20, "waiting"), (25, "queued")]


def test_polls_at_once_begin_it_once_and_wait_for_nobody(dsn, conn):
    waits, _ = open_batch(conn, 1)
    end(conn)
    with connect(dsn) as mine, Actor(dsn) as other:
        with mine.transaction():
            wait_for(mine, *members(mine, 1))  # one more, which is not committed yet
            other.do(sqlkit.poll).result(HANG_SECONDS)
            assert status(conn, waits) == "waiting"
        end(conn)
        with mine.transaction():
            mine.execute("select from pgflow.parked where run_id = %s for update", (waits,))
            other.do(sqlkit.poll).result(HANG_SECONDS)
        assert status(conn, waits) == "waiting"
        sqlkit.race(dsn, 4, lambda one_of, _: sqlkit.poll(one_of))
    assert status(conn, waits) == "queued"


def test_history_takes_batches_along(db):
    open_batch(db, 2)
    for _ in range(2):
        end(db)
    sqlkit.poll(db)
    end(db)
    db.execute("select pgflow.drop_history(pgflow.now_())")
    assert count(db, "pgflow.batch") + count(db, "pgflow.batch_member") == 0


@pytest.mark.full
async def test_a_batch_is_started_and_counted_in_python(aflow, conn):
    aflow.include(load, report)
    app = aflow.app
    named = report.options(key="upload-7")
    run = await app.start_batch(load, ((n,) for n in range(7)), then=named, args=("seven",))
    await aflow.until_idle()
    assert await run.result(SOON) == "seven"
    assert await app.count_batch("upload-7") == BatchCount(7, 5, 2, 0, True)
    assert (await app.count_batch("upload-7")).open == 0
    again = await app.start_batch(load, [(n,) for n in range(7)], then=named, args=("seven",))
    assert await again.result(SOON) == "seven"
    assert count(conn, "pgflow.run") == 8
    found = rows(conn, "select key, labels from pgflow.run where key like '%/6'")
    assert found == [("upload-7/6", {"batch": "upload-7"})]
    with pytest.raises(WrongState, match="is over"):
        await app.start_batch(load, [(9,)], keys=["new"], then=named, args=("seven",))
    with pytest.raises(KeyConflict, match="another input"):
        await app.start_batch(load, [], then=named, args=("eight",))
    with pytest.raises(InvalidArgument, match="begins when its batch is over"):
        await app.start_batch(load, [], then=report.options(key="x", debounce=5), args=("",))
    with pytest.raises(RunNotFound):
        await app.count_batch("upload-8")


def test_a_batch_in_parts_goes_on_where_it_was_cut_short(dsn, conn, monkeypatch):
    monkeypatch.setattr("pgflow._client.batches.PART", 3)

    def inputs() -> Any:
        yield from ((n * 3,) for n in range(5))
        raise OSError("the file is gone")

    named = report.options(key="u")
    with App(dsn, include=[load, report]) as app:
        with pytest.raises(OSError, match="gone"):
            app.start_batch(load, inputs(), then=named, args=("u",))
        with app.worker(poll_seconds=0.05):
            run = app.start_batch(load, [(n * 3,) for n in range(7)], then=named, args=("u",))
            assert run.result(SOON) == "u"
        assert app.count_batch("u") == BatchCount(7, 7, 0, 0, True)
        with conn.transaction(force_rollback=True):
            app.using(conn).start_batch(load, [(0,)], then=report.options(key="v"), args=("v",))
    assert count(conn, "pgflow.run") == 8


def test_a_batch_is_started_in_a_callers_transaction(dsn, conn):
    async def work() -> str:
        async with AsyncApp(dsn, include=[load, report]) as app:
            async with await psycopg.AsyncConnection.connect(dsn) as own, own.transaction():
                run = await app.using(own).start_batch(
                    load, [(0,), (3,)], then=report.options(key="b"), args=("b",), keys=["x", "y"]
                )
            async with app.worker(poll_seconds=0.05):
                return await run.result(SOON)

    assert asyncio.run(work()) == "b"
    assert rows(conn, "select key from pgflow.run order by key") == ["b", "x", "y"]


def test_batches_are_shown_on_the_command_line(dsn, conn):
    assert "There are no batches" in cli(dsn, "batches", tty=True).err
    open_batch(conn, 3, whole=False)
    end(conn)
    assert "more to come" in cli(dsn, "batches", tty=True).out
    wait_for(conn)
    sqlkit.poll(conn)
    assert cli(dsn, "batches").data[0]["passed"] == 1
    said = cli(dsn, "batches", "b", tty=True).out
    assert "b has 3 runs: 2 open, 1 completed, 0 failed, 0 cancelled." in " ".join(said.split())
    assert cli(dsn, "batches", "b").data["open"] == 2
    assert json.loads(json.dumps(cli(dsn, "batches", "b").data))["runs"] == 3
    assert "no run has the key" in cli(dsn, "batches", "x").err


def watch(conn: Conn, key: str = "b", **given: str) -> None:
    conn.execute(
        "select pgflow.on_batch_failure(%s, 'tell', %s, %s)",
        (key, given.get("input", "{}"), given.get("queue", "default")),
    )


FIRED = "select first_failed, failure_key, failure_trouble, failed_at is null from pgflow.batches"


def test_one_run_begins_with_the_first_failure_while_others_go_on(db):
    waits, ids = open_batch(db, 4)
    watch(db)
    watch(db)  # sent again
    held = {claim.run_id: claim for claim in claim(db, 4)}
    finish(db, held[ids[1]])
    sqlkit.poll(db)
    assert rows(db, FIRED) == [(None, None, None, True)]
    finish(db, held[ids[2]], "failed")
    assert one(db, "select bool_or(pgflow.is_batch_due_(b)) from pgflow.batch b")
    assert sqlkit.poll(db).lanes != []
    finish(db, held[ids[0]], "failed")
    sqlkit.poll(db)
    finish(db, held[ids[3]], "failed")
    sqlkit.poll(db)
    (failed,) = rows(db, "select key from pgflow.run where run_id = %s", ids[2])
    assert rows(db, FIRED) == [(failed, "b/failed", None, False)]
    begun = (
        "select key, labels->>'batch', labels->>'failed' from pgflow.run where labels ? 'failed'"
    )
    assert rows(db, begun) == [("b/failed", "b", failed)]
    assert status(db, waits) == "queued"


def test_a_batch_of_which_all_fail_at_once_begins_both_and_one_that_succeeds_only_one(db):
    waits, _ = open_batch(db, 2)
    watch(db)
    end(db, "failed")
    end(db, "failed")
    sqlkit.poll(db)
    assert rows(db, FIRED)[0][1:] == ("b/failed", None, False)
    assert status(db, waits) == "queued"
    start(db, key="good")
    wait_for(db, key="good")
    watch(db, "good")
    sqlkit.poll(db)
    assert rows(db, "select key from pgflow.run where key = 'good/failed'") == []
    with pytest.raises(psycopg.Error, match="something else") as other, db.transaction():
        watch(db, input='{"x": 1}')
    assert other.value.sqlstate == "PF002"
    start(db, key="over")
    wait_for(db, key="over")
    sqlkit.poll(db)
    with pytest.raises(psycopg.Error, match="is over") as over, db.transaction():
        watch(db, "over")
    assert over.value.sqlstate == "PF006"
    with pytest.raises(psycopg.Error, match="no run has the key"), db.transaction():
        watch(db, "none")


def test_a_failure_far_behind_a_member_that_stays_open_is_found_by_looks_of_bounded_size(db):
    _, ids = open_batch(db, 30)
    watch(db)
    held = {claim.run_id: claim for claim in claim(db, 30)}
    finish(db, held[ids[27]], "failed")
    looks = 0
    while rows(db, FIRED)[0][1] is None:
        db.execute("select pgflow.notice_failure_(b, 5, pgflow.now_()) from pgflow.batch b")
        looks += 1
        if looks == 2:
            finish(db, held[ids[6]], "failed")  # behind the look, which goes round
        assert looks < 12
    assert rows(db, FIRED)[0][1:] == ("b/failed", None, False)
    assert looks > 2


def test_a_start_that_is_refused_is_noted_and_not_tried_with_every_poll(db):
    open_batch(db, 2)
    watch(db, queue="shut")
    db.execute("""select pgflow.set_queue('shut', '{"closed": true}')""")
    end(db, "failed")
    sqlkit.poll(db)
    assert rows(db, FIRED)[0][1:] == (None, "PF006", False)


@pytest.mark.full
async def test_a_batch_has_a_run_for_its_first_failure(aflow):
    aflow.include(load, report)
    app = aflow.app
    options = {"then": report.options(key="u"), "args": ("over",)}
    run = await app.start_batch(
        load, [(n,) for n in range(9)], **options, on_failure=report, failure_args=("x" * 100_000,)
    )
    await aflow.until_idle()
    assert await run.result() == "over"
    failure = app.get("u/failed", report)
    assert await failure.result() == "x" * 100_000
    with pytest.raises(InvalidArgument, match="takes queue= only"):
        await app.start_batch(load, [], **options, on_failure=report.options(priority=1))
