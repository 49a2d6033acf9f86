"""Readers of what goes on: the rates of the last minutes, and the pulse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest
from records import wait_until
from sqlkit import one

from pgflow import Retries, inspect, step, workflow

if TYPE_CHECKING:
    from pgflow.testing import Harness


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


def test_what_began_and_ended_is_counted_by_the_minute(dsn: str, conn: psycopg.Connection) -> None:
    assert inspect.ask(conn, inspect.read_rates()) == inspect.Rates((), None, None, is_whole=True)
    for n in range(3):
        one(conn, "select run_id from pgflow.start_run('w', '{}', key => %s)", f"k{n}")
    one(conn, "select pgflow.cancel_run('k1')")
    one(conn, "select pgflow.wake(array(select chain_id from pgflow.runs))")
    rates = inspect.ask(conn, inspect.read_rates())
    assert sum(minute.started for minute in rates.minutes) == 3
    assert sum(minute.ended for minute in rates.minutes) == 1
    assert sum(minute.failed for minute in rates.minutes) == 0
    assert rates.half_seconds is not None
    assert rates.half_seconds >= 0
    assert rates.is_whole
    few = inspect.ask(conn, inspect.read_rates(newest=2))
    assert (sum(minute.started for minute in few.minutes), few.is_whole) == (2, False)

    async def ask() -> inspect.Rates:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            return await inspect.ask_async(connection, inspect.read_rates())

    assert len(asyncio.run(ask()).minutes) == len(rates.minutes)


@pytest.mark.full
def test_the_pulse_changes_with_what_is_written(conn: psycopg.Connection) -> None:
    before = inspect.ask(conn, inspect.read_pulse())
    one(conn, "select run_id from pgflow.start_run('w', '{}', key => 'k')")

    def is_new() -> bool:
        one(conn, "select pg_stat_clear_snapshot()")
        return inspect.ask(conn, inspect.read_pulse()) > before

    wait_until(is_new, "the server has added it up")


def test_workflows_and_their_steps_are_told_by_their_newest_runs(flow: Harness, dsn: str) -> None:
    flow.include(counting)
    flow.start(counting.options(key="a"), 3)
    flow.start(counting.options(key="b"), 0)
    flow.until_idle()
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
