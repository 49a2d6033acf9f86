"""Supervises loops: an error in one neither ends the loop nor goes unnoticed.

A failed loop restarts after a pause, longer each time. If it keeps failing, its owner is notified
and ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import psycopg

from pgflow._engine.loop import is_interrupt
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

MAX_FAILURES = 8
"""Failures in a row after which a loop is given up: about ten seconds of restarts."""
HEALTHY_SECONDS = 60.0
"""Time without a failure that resets the count."""
CANCEL_AGAIN_SECONDS = 1.0
"""Seconds to wait for a cancelled task before cancelling it again."""


def back_off_seconds(failures: int) -> float:
    """Return the seconds to wait after this many failures in a row."""
    return float(min(5.0, 0.05 * 2 ** min(failures, 10))) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load


class Failures:
    """Counts the failures of a loop in close succession."""

    def __init__(self) -> None:
        self.count = 0
        self._last = time.monotonic()

    def add(self) -> bool:
        """Count a failure; return False once restarting is pointless."""
        now = time.monotonic()
        self.count = 1 if now - self._last > HEALTHY_SECONDS else self.count + 1
        self._last = now
        return self.count < MAX_FAILURES


def is_the_end(error: BaseException) -> bool:
    """Return True if an error from code that awaits nothing ends the process: Ctrl-C, or a signal
    handler's exit.
    """
    return is_interrupt(error) or (
        isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread()
    )


def is_own_end(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return True if an error raised in a task ends the task itself or the process, rather than
    being an error of its work.

    Args:
        error: The error.
        task: The task that was current when its coroutine started.
    """
    if isinstance(error, asyncio.CancelledError):
        # Something in it may have been cancelled, and not the task.
        return task is None or task.cancelling() > 0
    if isinstance(error, GeneratorExit):  # a coroutine that is being closed has no task
        return asyncio._get_running_loop() is None or asyncio.current_task() is not task
    return is_the_end(error)


async def keep_going(
    name: str, loop: Callable[[], Awaitable[Any]], give_up: Callable[[str, BaseException], None]
) -> None:
    """Run a loop until its task is cancelled, and restart it after each failure.

    Args:
        name: Name for the log.
        loop: Makes a coroutine that never returns.
        give_up: Called with the name and the last error once restarting is pointless.
    """
    failures = Failures()
    task = asyncio.current_task()
    while True:
        error: BaseException
        try:
            await loop()
            error = RuntimeError("it has ended by itself")
        except BaseException as failed:  # on any error, the loop must continue
            if is_own_end(failed, task):
                raise
            error = failed
        if not failures.add():
            give_up(name, error)
            return
        delay = back_off_seconds(failures.count)
        log.error("%s failed; restarting in %.2f s", name, delay, exc_info=error)
        await asyncio.sleep(delay)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended. Their errors are dropped.

    A cancel may be lost: ``asyncio.wait_for`` of Python 3.11, in which psycopg 3.2 waits for its
    socket, drops one that coincides with the end of the wait (python/cpython#86296). So it is
    repeated.
    """
    asked = list(tasks)
    left = set(asked)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*asked, return_exceptions=True)


async def quietly(awaitable: Awaitable[Any]) -> None:
    """Await something that need not succeed: the next poll, a reaper or another worker makes up for
    it.
    """
    try:
        await awaitable
    except (psycopg.Error, OSError, TimeoutError, PgflowError) as error:
        log.debug("at the end of the worker: %s", redacted(error))
