"""Losses of a fail-over: they are noticed, told run by run, and leave no hole in a journal that
goes on.
"""

from __future__ import annotations

import threading

import psycopg
import pytest
from clikit import pgflow
from records import SOON, wait_until
from servers import HANG_SECONDS
from sqlkit import begin, commit, flush, one, unit

from pgflow import App, step, workflow
from pgflow._db.calls import loss as calls
from pgflow._db.calls.worker import Beat
from pgflow._db.query import run as ask
from pgflow._worker import upkeep
from pgflow._worker.acknowledged import Acknowledged
from pgflow.meter import Meter

hold_on = threading.Event()
ran: list[str] = []


@step
async def first() -> str:
    ran.append("first")
    return "first"


@step
async def second() -> str:
    ran.append("second")
    return "second"


@step
def last() -> str:
    ran.append("last")
    hold_on.wait(HANG_SECONDS)
    return "last"


@workflow
async def another() -> str:
    return "another"


@workflow
async def three() -> list[str]:
    return [await first(), await second(), await last.aio()]


@pytest.mark.full
@pytest.mark.parametrize(
    "is_first", [True, False], ids=["the first to commit", "after another run"]
)
def test_a_run_goes_on_from_what_is_left_after_a_failover_has_lost_what_was_acknowledged(
    dsn, conn, monkeypatch, is_first
):
    monkeypatch.setattr(upkeep, "STRAYS_EVERY_SECONDS", 0.2)
    hold_on.clear()
    ran.clear()
    with App(dsn, include=[another, three]) as app, app.worker(poll_seconds=0.05):
        run = app.start(three)
        wait_until(lambda: "last" in ran, "the last step runs")
        # the standby that takes over had come so far
        conn.execute("set pgflow.rewrites = 'on'; delete from pgflow.unit where seq > 2")
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = "
            "current_database() and application_name = 'pgflow committer'"
        )
        if not is_first:
            # its commit is the one that fails and is sent again
            assert app.run(another) == "another"
        hold_on.set()
        assert run.result(SOON) == ["first", "second", "last"]
    assert ran == ["first", "second", "last", "second", "last"]


def test_a_transactional_step_does_not_go_on_where_an_acknowledged_unit_is_lost(db):
    run = begin(db)
    commit(db, flush(run, unit(), unit(call=2)))
    assert one(db, "select pgflow.begin_step(%s, %s, 3, 0, 2)", run.run_id, run.token)
    db.execute("set local pgflow.rewrites = 'on'")
    db.execute("delete from pgflow.unit where run_id = %s and seq = 2", (run.run_id,))
    with (
        pytest.raises(
            psycopg.Error, match="lacks the unit 2, whose commit this worker has seen"
        ) as refused,
        db.transaction(),
    ):
        db.execute("select pgflow.begin_step(%s, %s, 3, 0, 2)", (run.run_id, run.token))
    assert refused.value.sqlstate == "PF004"
    db.execute("delete from pgflow.unit where run_id = %s", (run.run_id,))


def test_what_was_acknowledged_and_is_gone_is_told_run_by_run(conn):
    kept, gone, early = begin(conn), begin(conn), begin(conn)
    for claim in (kept, early):
        commit(conn, flush(claim, unit()))
    told = Acknowledged()
    told.note(early.run_id, early.token, 1, "early", has_ended=False)
    beat_of(told, timeline=1, flushed=500)
    for claim, key in ((kept, "kept"), (gone, "gone")):
        told.note(claim.run_id, claim.token, 1, key, has_ended=False)
    beat_of(told, timeline=1, flushed=1000)
    told.note(kept.run_id, kept.token, 0, "kept", has_ended=False)  # a park: no unit is new
    told.cut()
    loss = told.judge(Beat(True, [], 2, 1200, 900, False), lambda query: ask(conn, query))
    assert loss is not None
    assert (loss.old_timeline, loss.new_timeline, loss.acknowledged, loss.kept) == (1, 2, 1000, 900)
    assert [run["key"] for run in loss.runs] == ["gone"]


@pytest.mark.parametrize("recovered_to", [None, 1100], ids=["stopped", "crashed"])
def test_a_loss_is_told_by_a_new_primary_that_was_restarted_and_has_forgotten_where_it_took_over(
    conn, recovered_to
):
    gone = begin(conn)
    told = Acknowledged()
    told.note(gone.run_id, gone.token, 1, "gone", has_ended=False)
    beat_of(told, timeline=1, flushed=1000)
    loss = told.judge(Beat(True, [], 2, 1200, recovered_to, False), lambda query: ask(conn, query))
    assert loss is not None
    assert [run["key"] for run in loss.runs] == ["gone"]


@pytest.mark.parametrize(
    ("waits", "recovered_to", "is_loss"),
    [(False, 900, True), (True, 900, False), (False, 1000, False), (False, None, False)],
)
def test_a_piece_of_the_log_is_a_loss_where_commits_wait_for_nobody(
    conn, waits, recovered_to, is_loss
):
    told = Acknowledged()
    beat_of(told, timeline=1, flushed=1000, waits=waits)
    loss = told.judge(Beat(True, [], 2, 1200, recovered_to, waits), lambda query: ask(conn, query))
    assert (loss is not None) == is_loss


def test_a_server_put_back_to_an_earlier_state_is_noticed_and_one_that_goes_on_is_not(conn):
    told = Acknowledged()
    beat_of(told, timeline=1, flushed=1000)
    assert told.judge(Beat(True, [], 1, 1000, None, False), lambda query: ask(conn, query)) is None
    found = told.judge(Beat(True, [], 1, 800, None, False), lambda query: ask(conn, query))
    assert found is not None


def beat_of(told: Acknowledged, *, timeline: int, flushed: int, waits: bool = False) -> None:
    told.cut()
    told.beat_acknowledged(Beat(True, [], timeline, flushed, None, waits))


def test_the_end_of_a_run_is_told_too(conn):
    claim = begin(conn)
    query = calls.lost_runs([claim.run_id], [claim.token], [0], [True])
    assert ask(conn, query) == [claim.run_id]
    assert ask(conn, calls.lost_runs([claim.run_id], [claim.token], [0], [False])) == []


@pytest.mark.full
def test_a_worker_remembers_what_it_was_told_and_where_the_log_was(dsn):
    hold_on.set()
    meter = Meter()
    with App(dsn, include=[three]) as app, app.worker(meter=meter):
        run = app.start(three)
        run.result(SOON)
        (here,) = app._background._on_loops.values()  # type: ignore[union-attr]
        (worker,) = here.workers
        told = worker._context.acknowledged
        wait_until(
            lambda: any(
                key == run.key and has_ended
                for part in told._stretches
                for _, _, has_ended, key in part.acknowledged.values()
            ),
            "a beat comes",
        )
        assert told._last is not None
        assert told._last.timeline == 1
    assert (meter.losses, meter.lost_runs) == (0, 0)


@pytest.mark.full
def test_doctor_names_a_loss_until_somebody_closes_it(dsn, conn):
    loss = calls.Loss(1, 2, 5000, 4000, 2.5, [{"key": "order-7", "seq": 3, "ended": False}])
    number = ask(conn, calls.report_loss(4, "far", 77, loss))
    ((level, found),) = [
        (row["level"], row["found"])
        for row in pgflow(dsn, "doctor").data
        if row["check"] == "losses"
    ]
    assert level == "fail"
    assert found == (
        f"loss {number}: a fail-over lost what was acknowledged to worker far/77, 1,000 bytes of "
        "the log; something of 1 run is lost: order-7"
    )
    assert one(conn, "select pgflow.close_loss(%s, 'paid by hand')", number) is True
    assert one(conn, "select pgflow.close_loss(%s, 'twice')", number) is False
    assert [row["level"] for row in pgflow(dsn, "doctor").data if row["check"] == "losses"] == [
        "ok"
    ]
    assert conn.execute("select why, runs->0->>'key' from pgflow.losses").fetchone() == (
        "paid by hand",
        "order-7",
    )
