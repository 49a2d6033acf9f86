"""Shared by the parts of a worker: their interface, their tasks, and the state that all may read.

A worker is a list of parts (`Worker.parts`). It starts them in order, notifies them when another
server becomes the primary, and stops them in reverse order. A part owns its state, which no other
object changes. So a new loop is a file with a :class:`Loop` and a line in that list.

An error in a loop neither ends it nor goes unnoticed. A failed loop restarts after a pause, longer
each time. If it keeps failing, its owner is notified and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar

from pgflow._db.failures import DATABASE_ERRORS
from pgflow._engine.loop import is_interrupt
from pgflow.errors import PgflowError, WorkerFailed
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Life:
    """State that every part of a worker may read. Only the methods here change it.

    A worker that has failed or stops stays so. The heartbeat's thread records heartbeats; the
    worker's loop changes the rest.

    Args:
        stale_after_seconds: Age of the last heartbeat from which on others might soon believe this
            worker dead.

    Attributes:
        worker_id: The worker's number in the database; 0 before it is registered, a new one after
            it was declared dead.
        is_stopping: True once it is asked to stop.
        failed: Set once it can no longer work.
        failure: The reason for that; None before.
        stale_at: Time of the monotonic clock at which the last heartbeat becomes so old that others
            might soon believe this worker dead.
    """

    def __init__(self, stale_after_seconds: float) -> None:
        self.worker_id = 0
        self.is_stopping = False
        self.failed = asyncio.Event()
        self.failure: WorkerFailed | None = None
        self._stale_after_seconds = stale_after_seconds
        self.beat_acknowledged(time.monotonic())

    def registered(self, worker_id: int) -> None:
        """Record the number of a new registration."""
        self.worker_id = worker_id

    def beat_acknowledged(self, at: float) -> None:
        """Record the acknowledgement of a heartbeat sent at this time."""
        self.stale_at = at + self._stale_after_seconds

    @property
    def age_seconds(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent."""
        return time.monotonic() - self.stale_at + self._stale_after_seconds

    def fail(self, part: str, error: BaseException | None = None) -> None:
        """End this worker with an error: it claims nothing more, and its owner is notified by
        `failed`.
        """
        if self.failure is not None or self.is_stopping:
            return
        because = "" if error is None else f": {type(error).__name__}: {redacted(error)}"
        failure = WorkerFailed(
            f"worker {self.worker_id} has failed and hands its runs back: {part}{because}"
        )
        failure.__cause__ = error
        self.fail_for(failure)

    def fail_for(self, failure: WorkerFailed) -> None:
        """End this worker with this error, even if it is stopping or has failed before."""
        self.failure = failure
        log.error("%s", failure, exc_info=failure.__cause__)
        self.failed.set()

    def stop(self) -> bool:
        """Ask the worker to stop; return False if it was asked before."""
        was_stopping, self.is_stopping = self.is_stopping, True
        return not was_stopping


MAX_FAILURES = 8
"""FailureCount in a row after which a loop is given up: about ten seconds of restarts."""
HEALTHY_SECONDS = 60.0
"""Time without a failure that resets the count."""
CANCEL_AGAIN_SECONDS = 1.0
"""Seconds to wait for a cancelled task before cancelling it again."""


def back_off_seconds(failures: int, first_seconds: float = 0.05) -> float:
    """Return the seconds to wait after this many failures in a row: twice as long each time."""
    return float(min(5.0, first_seconds * 2 ** min(failures, 10))) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load


class FailureCount:
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


def is_its_own(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return True if an error from a function of the app is the function's own, rather than the end
    of the calling task, or of the process by a Ctrl-C. SystemExit is the function's own.
    """
    return isinstance(error, SystemExit) or not is_own_end(error, task)


async def keep_going(
    name: str, loop: Callable[[], Awaitable[Any]], give_up: Callable[[str, BaseException], None]
) -> None:
    """Run a loop until its task is cancelled, and restart it after each failure.

    Args:
        name: Name for the log.
        loop: Makes a coroutine that never returns.
        give_up: Called with the name and the last error once restarting is pointless.
    """
    failures = FailureCount()
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
    except (*DATABASE_ERRORS, PgflowError) as error:
        log.debug("at the end of the worker: %s", redacted(error))


class Part:
    """A part of a worker. The methods here do nothing: override those that you need."""

    def start(self) -> None:
        """Start working. All methods of a part run on the worker's loop."""

    def leave(self) -> None:
        """Cut what waits for a server that was left, so that it need not wait for its deadline."""

    async def stop(self) -> None:
        """Stop working. The parts before it in the list still work."""


class Wanted:
    """Requests to loops to look at once. They break a circle: parts that a loop calls may request
    its next round.

    Attributes:
        claims: There may be work, or room for some.
        polls: Timers, mail or nudges may be due.
        pages: A person may be needed.
    """

    def __init__(self) -> None:
        self.claims = asyncio.Event()
        self.polls = asyncio.Event()
        self.pages = asyncio.Event()

    def poll(self) -> None:
        """Poll at once, and look for due pages."""
        self.polls.set()
        self.pages.set()


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, for at most this long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Tasks(Part):
    """The tasks of a worker: its loops, and background work. All of them end together, before the
    parts that they need.

    Args:
        life: Fails with any of the loops.

    Attributes:
        loop: The event loop of the tasks.
    """

    def __init__(self, life: Life) -> None:
        self.loop = asyncio.get_running_loop()
        self._life = life
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background, until the worker ends."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def begin(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run the coroutine that a function makes in the background; for timers."""
        self.spawn(make())

    def keep_going(self, name: str, loop: Callable[[], Awaitable[Any]]) -> None:
        """Run a loop, and restart it after each failure. The worker fails if the loop ends before
        it.
        """
        self.spawn(keep_going(name, loop, self._life.fail)).add_done_callback(
            partial(self._loop_ended, name)
        )

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the worker ended with an error", exc_info=task.exception())

    def _loop_ended(self, name: str, task: asyncio.Task[Any]) -> None:
        """Fail the worker, unless it is stopping."""
        if not self._life.is_stopping:
            self._life.fail(
                name,
                asyncio.CancelledError("it was cancelled")
                if task.cancelled()
                else task.exception(),
            )

    async def stop(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await cancel(self._tasks)


class Loop(Part, ABC):
    """A part that loops for as long as its worker lives. It ends with the other :class:`Tasks`.

    Attributes:
        name: Name for the log, and for the error if the worker fails.
    """

    name: ClassVar[str]

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def start(self) -> None:
        """Start the loop."""
        self._tasks.keep_going(self.name, self.loop)

    @abstractmethod
    async def loop(self) -> None:
        """Loop, and never return. An error is logged, and the loop restarts with the part's current
        state.
        """
