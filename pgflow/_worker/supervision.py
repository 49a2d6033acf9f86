"""Loops that must go on: what one of them raises ends neither it nor, unseen, its worker.

A loop that fails begins again after a while, each time a longer one. Where that is in vain, whoever
rests on the loop is told and ends.
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
"""Failures in a row that are the end: about ten seconds of beginning again."""
HEALTHY_SECONDS = 60.0
"""After so long without a failure, the next is the first again."""
CANCEL_AGAIN_SECONDS = 1.0
"""Seconds to wait for a cancelled task until it is told again."""


def back_off_seconds(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    return float(min(5.0, 0.05 * 2 ** min(failures, 10))) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load


class Failures:
    """Counts the failures of a loop that come close upon each other."""

    def __init__(self) -> None:
        self.count = 0
        self._last = time.monotonic()

    def add(self) -> bool:
        """One more; answers whether it is worth to begin again."""
        now = time.monotonic()
        self.count = 1 if now - self._last > HEALTHY_SECONDS else self.count + 1
        self._last = now
        return self.count < MAX_FAILURES


def is_the_end(error: BaseException) -> bool:
    """Return True if an error out of code that nothing is awaited in ends the process: Ctrl-C, or
    the exit that a handler of a signal asks for.
    """
    return is_interrupt(error) or (
        isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread()
    )


def is_own_end(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return True if an error raised in a task is the end of the task itself or of the process, and
    not an error of its work.

    Args:
        error: The error.
        task: The one that was running when its coroutine began.
    """
    if isinstance(error, asyncio.CancelledError):
        # Something in it may have been cancelled, and not the task.
        return task is None or task.cancelling() > 0
    if isinstance(error, GeneratorExit):  # a coroutine that is closed has no task any more
        return asyncio._get_running_loop() is None or asyncio.current_task() is not task
    return is_the_end(error)


async def keep_going(
    name: str, loop: Callable[[], Awaitable[Any]], give_up: Callable[[str, BaseException], None]
) -> None:
    """Runs a loop until its task is cancelled.

    Args:
        name: Name for the log.
        loop: Makes a coroutine that never returns.
        give_up: Called with the name and the last error once beginning again is in vain.
    """
    failures = Failures()
    task = asyncio.current_task()
    while True:
        error: BaseException
        try:
            await loop()
            error = RuntimeError("it has ended by itself")
        except BaseException as failed:  # whatever it is, it must go on
            if is_own_end(failed, task):
                raise
            error = failed
        if not failures.add():
            give_up(name, error)
            return
        delay = back_off_seconds(failures.count)
        log.error("%s failed, and begins again in %.2f s", name, delay, exc_info=error)
        await asyncio.sleep(delay)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and waits until they have ended; their errors are nobody's any more.

    A cancel may be lost: ``asyncio.wait_for`` of Python 3.11, in which psycopg 3.2 waits for its
    socket, drops one that meets the end of what it waits for (python/cpython#86296).
    So it is said again.
    """
    asked = list(tasks)
    left = set(asked)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*asked, return_exceptions=True)


async def quietly(awaitable: Awaitable[Any]) -> None:
    """Awaits what need not succeed: whatever it leaves undone, the next poll,
    a reaper or another worker finds.
    """
    try:
        await awaitable
    except (psycopg.Error, OSError, TimeoutError, PgflowError) as error:
        log.debug("at the end of the worker: %s", redacted(error))
