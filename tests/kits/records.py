"""Runs on a harness in one line; their records from the views and tables, in the shape in which
tests compare them; and waiting for a condition.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import servers

import pgflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import psycopg

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


def launch(
    harness: Any, workflow: Any, *args: Any, beside: Iterable[Any] = (), **named: Any
) -> Any:
    """Include a workflow, and others beside it, and start it; a coroutine for `aflow`."""
    harness.include(workflow, *beside)
    return harness.start(workflow, *args, **named)


def result_of(harness: Any, workflow: Any, *args: Any, **named: Any) -> Any:
    """Include and start a workflow, and return its result; a coroutine for `aflow`."""
    run = launch(harness, workflow, *args, **named)

    async def result() -> Any:
        return await (await run).result(SOON)

    return result() if inspect.isawaitable(run) else run.result(SOON)


def settle(harness: Any, workflow: Any, *args: Any, **named: Any) -> Any:
    """Include and start a workflow, and work until idle; return the run, a coroutine for `aflow`."""
    run = launch(harness, workflow, *args, **named)

    async def settled() -> Any:
        started = await run
        await harness.until_idle()
        return started

    if inspect.isawaitable(run):
        return settled()
    harness.until_idle()
    return run


def recover(harness: Any) -> Any:
    """Kill the worker, and let another one work until idle; a coroutine for `aflow`."""
    crash = harness.crash()

    async def recovered() -> None:
        await crash
        await harness.until_idle()

    return recovered() if inspect.isawaitable(crash) else harness.until_idle()


def calling(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return a workflow that does nothing but await this call."""

    @pgflow.workflow
    async def caller() -> Any:
        return await function(*args, **named)

    return caller


def calling_sync(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return a workflow in a thread that does nothing but this call."""

    @pgflow.workflow
    def caller() -> Any:
        return function(*args, **named)

    return caller


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
