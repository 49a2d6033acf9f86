"""Readers of what goes on: the rates of the last minutes, and the pulse."""

from __future__ import annotations

import asyncio
import contextlib
import json

import psycopg
import pytest
from records import SOON, launch, settle, wait_until
from sqlkit import one

import pgflow
from pgflow import Retries, inspect, step, workflow
from pgflow._worker.rates import Rates, bucket_of


@step(retries=Retries(max_attempts=1))
async def count(n: int) -> int:
    if n == 0:
        raise ValueError("nothing to count")
    return n


@workflow
async def counting(steps: int) -> None:
    for n in range(1, steps + 1):
        await count(n)
    if not steps:
        await count(0)


def add(conn: psycopg.Connection, *rows: tuple[int, int, int, int], took: dict[int, int]) -> None:
    counts = [took.get(bucket, 0) for bucket in range(max(took) + 1)]
    one(conn, "select pgflow.add_rates(%s, %s)", json.dumps(rows), counts)


def test_what_workers_end_is_counted_by_the_minute(dsn, conn):
    nothing = inspect.ask(conn, inspect.read_rates())
    assert (len(nothing.bins), nothing.p50_seconds) == (60, None)
    one(conn, "select pgflow.add_rates()")  # the first look: what was before is not counted
    for n in range(3):
        one(conn, "select run_id from pgflow.start_run('w', '{}', key => %s)", f"k{n}")
    lane = one(conn, "select lane_id from pgflow.lane")
    add(conn, (lane, 5, 1, 0), took={bucket_of(2_000_000): 5, bucket_of(60_000_000): 1})
    add(conn, (lane, 1, 0, 1), (-1, 9, 9, 9), took={bucket_of(2_000_000): 2})
    conn.execute("update pgflow.rate set minute = minute - interval '1 minute'")
    one(conn, "select pgflow.add_rates()")
    rates = inspect.ask(conn, inspect.read_rates(3))
    before, last = rates.bins[-2:]
    assert (before.completed, before.failed, before.cancelled, before.ended) == (6, 1, 1, 8)
    assert (last.started, last.queued, last.ended) == (3, 3, 0)
    assert last.oldest_seconds is not None
    assert rates.p50_seconds == pytest.approx(2, rel=0.15)
    assert rates.p99_seconds == before.p99_seconds == pytest.approx(60, rel=0.15)
    of_queue = inspect.ask(conn, inspect.read_rates(1, 5, queue="default"))
    assert (of_queue.bins[-1].ended, of_queue.bins[-1].started) in ((8, 3), (0, 3))
    assert inspect.ask(conn, inspect.read_rates(queue="other")).bins[-2].ended == 0

    async def ask() -> inspect.Rates:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            return await inspect.ask_async(connection, inspect.read_rates(3))

    assert asyncio.run(ask()).p50_seconds == rates.p50_seconds


def test_counts_are_kept_for_a_day_and_looked_at_once_a_minute(conn):
    one(conn, "select pgflow.add_rates()")
    conn.execute("update pgflow.rate set minute = minute - interval '26 hours'")
    one(conn, "select run_id from pgflow.start_run('w', '{}')")
    for _ in range(3):
        one(conn, "select pgflow.add_rates()")
    rows = conn.execute("select queue, sum(started), count(*) from pgflow.rates group by queue")
    found = {queue: (entered, many) for queue, entered, many in rows}
    assert found[None][0] == found["default"][0] == 1
    assert found[None][1] <= 2  # another minute may have begun


def test_a_worker_tells_its_counts_in_one_statement_for_any_number_of_runs(flow, dsn, monkeypatch):
    calls: list[int] = []
    tell = Rates._tell

    async def told(self: Rates) -> None:
        calls.append(sum(map(sum, self._ended.values())))
        await tell(self)

    monkeypatch.setattr(Rates, "_tell", told)
    with pgflow.App(dsn, include=[counting]) as app:
        with app.worker(concurrency=4):
            for run in app.start_many(counting, [(0,), *[(1,)] * 30]):
                with contextlib.suppress(pgflow.RunFailed):
                    run.result(SOON)
        rates = inspect.ask(app, inspect.read_rates(2))
    assert sum(calls) == 31
    assert len(calls) <= 2
    assert (sum(b.completed for b in rates.bins), sum(b.failed for b in rates.bins)) == (30, 1)
    assert rates.p99_seconds is not None


@pytest.mark.full
def test_the_pulse_changes_with_what_is_written(conn):
    before = inspect.ask(conn, inspect.read_pulse())
    one(conn, "select run_id from pgflow.start_run('w', '{}', key => 'k')")

    def is_new() -> bool:
        one(conn, "select pg_stat_clear_snapshot()")
        return inspect.ask(conn, inspect.read_pulse()) > before

    wait_until(is_new, "the server has added it up")


def test_workflows_and_their_steps_are_told_by_their_newest_runs(flow, dsn):
    launch(flow, counting.options(key="a"), 3)
    settle(flow, counting.options(key="b"), 0)
    with psycopg.connect(dsn) as conn:
        (row,) = inspect.ask(conn, inspect.list_workflow_rows())
        assert (row.workflow, row.runs, row.unended, row.failed) == ("counting", 2, 0, 1)
        assert row.most_seconds is not None
        (row,) = inspect.ask(conn, inspect.list_workflow_rows(newest=1))
        assert row.runs == 1
        (one,) = inspect.ask(conn, inspect.list_step_times("counting"))
        assert (one.step, one.calls, one.repeated, one.failed) == ("count", 4, 0, 1)
        assert one.half_seconds is not None
        assert inspect.ask(conn, inspect.list_step_times("none")) == []
