"""Queues that are closed to new runs, and backlogs that are counted and cancelled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
import sqlkit
from clikit import pgflow as cli
from records import SOON
from sqlkit import begin, claim, claim_one, count, finish, one, rows, start, start_many, status

from pgflow import App, AsyncApp, workflow
from pgflow.errors import WrongState
from pgflow.queues import Backlog

Conn = psycopg.Connection[Any]


@workflow(queue="orders")
async def order(n: int) -> int:
    await asyncio.sleep(0)
    return n


def purge(conn: Conn, upto: int | None = None, most: int = 1000) -> tuple[int, int | None]:
    query = "select runs, newest from pgflow.purge_queue('default', %s, max => %s)"
    return one(conn, query, upto, most)


def close(conn: Conn, *, closed: bool = True) -> None:
    conn.execute("select pgflow.set_queue('default', %s)", (json.dumps({"closed": closed}),))


def test_a_closed_queue_takes_no_new_runs_and_what_is_there_goes_on(db):
    waiting = start(db, key="k")
    close(db)
    for refused in (lambda: start(db), lambda: start_many(db, [(None, "{}")])):
        with pytest.raises(psycopg.Error, match="'default' is closed") as error, db.transaction():
            refused()
        assert error.value.sqlstate == "PF006"
    assert start(db, queue="other").is_new
    held = claim_one(db, lanes=[waiting.lane_id])
    finish(db, held)
    db.execute("select pgflow.restart_run('k')")
    assert one(db, "select rules from pgflow.queues where queue = 'default'") == {"closed": True}
    close(db, closed=False)
    assert start(db).is_new


def test_a_backlog_is_counted_and_those_that_were_counted_are_cancelled(db):
    held = begin(db)
    waiting = [s.run_id for s in start_many(db, [(None, "{}")] * 5)]
    later = start(db, run_at="2100-01-01").run_id
    other = start(db, queue="other").run_id
    assert purge(db) == (6, later)
    assert count(db, "signal") == 0
    since = start(db).run_id
    assert [purge(db, later, 4)[0] for _ in range(3)] == [4, 2, 0]
    sqlkit.poll(db)
    assert {status(db, run) for run in (*waiting, later)} == {"cancelled"}
    found = [status(db, run) for run in (held.run_id, other, since)]
    assert found == ["running", "queued", "queued"]
    found = rows(db, "select distinct reason_code from pgflow.runs where status = 'cancelled'")
    assert found == ["purged"]
    found = rows(db, "select what, said->'runs' from pgflow.queue_changes order by 2")
    assert found == [("purged", 2), ("purged", 4)]


def test_what_has_begun_is_no_backlog_though_it_waits_again(db):
    woken, released = begin(db, key="a"), begin(db, key="b")
    sqlkit.commit(db, sqlkit.wait_for(woken, "paid"))
    assert purge(db) == (0, None)
    sqlkit.send(db, "a", "paid")
    sqlkit.poll(db)
    db.execute("select pgflow.release_runs(%s, %s)", ([released.run_id], [released.token]))
    assert [status(db, run.run_id) for run in (woken, released)] == ["queued", "queued"]
    assert purge(db) == (0, None)


def test_runs_in_a_line_are_purged_too(db):
    db.execute("""select pgflow.set_queue('default', '{"key": "input.k", "per_key": 1}')""")
    start_many(db, [(None, '{"k": 1}')] * 3)
    assert len(claim(db, 9)) == 1
    runs, newest = purge(db)
    assert runs == 2
    purge(db, newest)
    sqlkit.poll(db)
    assert count(db, "line_run") == 0
    found = rows(db, "select status from pgflow.runs order by 1")
    assert found == ["cancelled", "cancelled", "running"]


@pytest.mark.full
def test_queues_are_closed_and_purged_in_both_colours(dsn):
    with App(dsn, include=[order]) as app:
        app.start_many(order, [(n,) for n in range(3)])
        backlog = app.count_backlog("orders")
        assert backlog.runs == 3
        last = app.start(order, 7)
        assert app.purge_queue("orders", backlog, why="sold out", by="ann") == 3
        assert app.purge_queue("orders", Backlog(0, None)) == 0
        app.set_queue("orders", closed=True)
        with pytest.raises(WrongState, match="closed"):
            app.start(order, 8)
        with app.worker():
            assert last.result(SOON) == 7

    async def other() -> int:
        async with AsyncApp(dsn) as app:
            await app.set_queue("orders", closed=None)
            await app.start(order, 1)
            return await app.purge_queue("orders", await app.count_backlog("orders"))

    assert asyncio.run(other()) == 1
    with psycopg.connect(dsn) as conn:
        found = rows(conn, "select status, count(*) from pgflow.runs group by 1 order by 1")
        assert found == [("cancelled", 4), ("completed", 1)]


@pytest.mark.full
def test_queues_are_closed_and_purged_on_the_command_line(dsn, conn):
    start_many(conn, [(None, "{}")] * 2)
    assert cli(dsn, "queues", "set", "default", "--closed").data[0]["rules"] == {"closed": True}
    assert "is closed: it takes no new runs" in cli(dsn, "start", "demo").err
    found = cli(dsn, "queues", "purge", "default", "--dry-run", tty=True).out
    assert "2 runs of default would be cancelled; nothing was done" in found
    assert "pass --yes" in cli(dsn, "queues", "purge", "default").err
    assert count(conn, "signal") == 0
    said = cli(dsn, "queues", "purge", "default", "--yes", "--why", "a mistake")
    assert said.data == {"queue": "default", "found": 2, "purged": 2}
    assert rows(conn, "select status from pgflow.runs") == ["cancelled", "cancelled"]
    assert "queue 'no' does not exist" in cli(dsn, "queues", "purge", "no", "--yes").err
    assert "closed=yes" in cli(dsn, "queues", "history", tty=True).out
