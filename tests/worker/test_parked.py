"""Runs that wait hold nothing but rows: no connection, no thread, no lease."""

from __future__ import annotations

import threading

import pytest
from records import HOUR, count, settle

import pgflow
from pgflow import Signal, step, workflow
from pgflow._worker.poller import due_after

go = Signal("go", int)

RUNS = 100
FEW_CONNECTIONS = 16
OF_THE_TEST = "datname = current_database() and application_name <> 'pgflow tests'"
"""Five of the worker, four at most of each of the two apps in a harness, two that wait for results,
and the test's own.
"""


@step
async def note(n: int) -> int:
    return n


@workflow
async def sleep_an_hour(n: int) -> int:
    await note(n)
    await pgflow.sleep(HOUR)
    return n


@workflow
async def wait_for_go(n: int) -> int:
    await note(n)
    return n + await go.wait()


@workflow
def sleep_an_hour_sync(n: int) -> int:
    note.sync(n)
    pgflow.sync.sleep(HOUR)
    return n


@workflow
def wait_for_go_sync(n: int) -> int:
    note.sync(n)
    return n + go.sync.wait()


def workflow_threads() -> int:
    """Threads but those of pools, which keep what they once needed for a while."""
    names = [thread.name for thread in threading.enumerate()]
    return sum(
        not name.startswith(("pgflow-workflow_", "pgflow-step_", "pool-", "asyncio_"))
        and not name.endswith(", spare")
        for name in names
    )


@pytest.mark.full
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_two_hundred_runs_that_wait_cost_rows_only_and_all_come_to_their_end(flow, conn, colour):
    sleeper, waiter = (
        (sleep_an_hour, wait_for_go)
        if colour == "async"
        else (sleep_an_hour_sync, wait_for_go_sync)
    )
    flow.include(sleeper, waiter)
    settle(flow, waiter, -1)
    threads = workflow_threads()

    sleeping = flow.app.start_many(sleeper, [(n,) for n in range(RUNS)])
    waiting = flow.app.start_many(waiter, [(n,) for n in range(RUNS)])
    flow.until_idle()
    assert count(conn, "pgflow.parked") == 2 * RUNS + 1
    assert (
        count(conn, "pgflow.lease")
        == count(conn, "pgflow.ready")
        == count(conn, "pgflow.nudge")
        == 0
    )
    assert count(conn, "pgflow.timer") == RUNS
    assert count(conn, "pgflow.wait") == RUNS + 1
    assert count(conn, "pg_stat_activity", OF_THE_TEST) <= FEW_CONNECTIONS
    assert workflow_threads() <= threads
    assert conn.execute("select waiting from pgflow.queues").fetchall() == [(2 * RUNS + 1,)]

    flow.skip(HOUR)
    for run in waiting:
        run.send(go, 1000)
    flow.until_idle()
    assert [run.result() for run in sleeping] == list(range(RUNS))
    assert [run.result() for run in waiting] == list(range(1000, 1000 + RUNS))


def test_the_next_poll_is_when_a_timer_is_due_as_of_the_question():
    assert due_after(0.5, took_seconds=0.125) == 0.375


@pytest.mark.parametrize("due_seconds", [-4.0, 0.0, 0.25])
def test_polls_rest_for_as_long_as_they_take(due_seconds):
    assert due_after(due_seconds, took_seconds=0.125) == 0.125
    assert due_after(due_seconds - 0.25, took_seconds=0) == 0.001
