"""Records of a run from the views and tables, in the shape in which tests compare them; beginning
runs, and waiting for a condition.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import servers

from pgflow.testing import AsyncHarness, Harness

SOON = timedelta(seconds=servers.HANG_SECONDS)
"""Time that a test waits for a result: a guard against hangs."""

HOUR = timedelta(hours=1)

wait_until = servers.wait_until


def in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Runs a test with asyncio.run, whose handler of Ctrl-C is in place then."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


async def eventually(
    condition: Callable[[], Any], what: str, patience_seconds: float = servers.HANG_SECONDS
) -> None:
    """Return as soon as the condition, which may be a coroutine function, holds; fail when it
    never does.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return
        assert time.monotonic() < deadline, f"it hangs: {what}"
        await asyncio.sleep(0.005)


def run_row(conn: psycopg.Connection, key: str, columns: str) -> tuple[Any, ...]:
    """Columns of a run's row in the view `runs`."""
    row = conn.execute(f"select {columns} from pgflow.runs where key = %s", (key,)).fetchone()
    assert row is not None, f"no run {key}"
    return row


def events(conn: psycopg.Connection, key: str) -> list[tuple[str, str | None]]:
    """The journal of all generations of a run: (what happened, to what)."""
    sql = "select event, name from pgflow.timeline where key = %s order by generation, seq"
    return conn.execute(sql, (key,)).fetchall()


def steps(conn: psycopg.Connection, key: str) -> list[tuple[str, str, int]]:
    """The steps of a run in the order in which they were called: (name, status, attempts)."""
    sql = "select step, status, attempts from pgflow.steps where key = %s order by run_id, call"
    return conn.execute(sql, (key,)).fetchall()


def count(conn: psycopg.Connection, table: str, condition: str = "true") -> int:
    """Rows of a table."""
    (number,) = conn.execute(f"select count(*) from {table} where {condition}").fetchone()
    return number


def started(flow: Harness | AsyncHarness, workflow: Any, *args: Any, **options: Any) -> Any:
    """Include a workflow and start a run of it; await that of an ``AsyncHarness``."""
    flow.include(workflow.origin)
    return flow.start(workflow, *args, **options)


def begun(flow: Harness | AsyncHarness, workflow: Any, *args: Any, **options: Any) -> Any:
    """Include a workflow, start a run of it and work until nothing is left to do before time
    passes; await that of an ``AsyncHarness``.
    """
    run = started(flow, workflow, *args, **options)
    if isinstance(flow, Harness):
        flow.until_idle()
        return run
    return _worked_on(flow, run)


async def _worked_on(flow: AsyncHarness, starting: Awaitable[Any]) -> Any:
    run = await starting
    await flow.until_idle()
    return run
