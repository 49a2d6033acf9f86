"""The roles that processes of the nursery play; each is a function of a DSN, and its answer the
exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from datetime import timedelta
from typing import Any

import pgflow_cli.commands

from pgflow import App
from pgflow._worker.options import Rhythm, WorkerOptions
from tests.campaigns import jobs

TINY = Rhythm(beat=0.1, look=0.05, dead_after=0.6)
"""Rhythm so fast that a campaign sees many deaths."""


def worker(
    dsn: str,
    *,
    dead_after: float = TINY.dead_after,
    concurrency: int = 8,
    poll_seconds: float = 0.1,
    queues: tuple[str, ...] = ("default",),
    listen: bool = True,
    count: int = 1,
    clock_hours: float = 0.0,
) -> None:
    """Works until it is killed. ``count`` workers share the process; ``clock_hours`` is by how much
    its clock is wrong.
    """
    logging.disable(logging.CRITICAL)
    random.seed()
    if clock_hours:
        _mislead(clock_hours * 3600)
    rhythm = Rhythm(beat=dead_after / 6, look=min(0.5, dead_after / 12), dead_after=dead_after)
    options = [
        WorkerOptions(tuple(queues), concurrency, poll_seconds, rhythm=rhythm, listen=listen)
        for _ in range(count)
    ]
    asyncio.run(_work(dsn, options))


async def _work(dsn: str, options: list[WorkerOptions]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        app = await stack.enter_async_context(jobs.app.on(dsn))
        for each in options:
            await stack.enter_async_context(app._work(each))
        await asyncio.Event().wait()


def _mislead(offset_seconds: float) -> None:
    """Moves what Python says of the time of day, where no library does it for the whole process."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + offset_seconds
    time.time_ns = lambda: right_ns() + int(offset_seconds * 1e9)


def command(dsn: str, **options: Any) -> None:
    """`pgflow workers`, which ends the process itself."""
    given = {"dsn": dsn, "log-level": "error", "dead-after": "1s", "poll": "100ms", **options}
    words = [f"--{name}={value}" for name, value in given.items()]
    pgflow_cli.commands.run(["workers", "tests.campaigns.jobs", *words])


def script(dsn: str, *, key: str) -> int:
    """A program of a user: works in its own process, and waits for the result in its main
    thread.
    """
    logging.disable(logging.CRITICAL)
    with App(dsn, include=jobs.WORKFLOWS) as app, app.worker(poll_seconds=0.1):
        app.get(key, jobs.booking).result(timedelta(minutes=1))
    return 0
