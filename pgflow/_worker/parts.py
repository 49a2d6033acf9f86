"""The interface of a worker's parts, and the tasks that run them.

A worker is a list of parts (`Worker.parts`). It starts them in order, notifies them when another
server becomes the primary, and stops them in reverse order. A part owns its state, which no other
object changes. Its constructor takes the few objects that it needs, never the worker. So a new loop
is a file with a :class:`Loop` and a line in that list.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ClassVar

from pgflow._worker.life import Life
from pgflow._worker.supervision import cancel, keep_going

log = logging.getLogger("pgflow")


class Part:
    """A part of a worker. The methods here do nothing: override those that you need."""

    def start(self) -> None:
        """Start working. All methods of a part run on the worker's loop."""

    def leave(self, left_at: float) -> None:
        """Cut what waits for the old primary since `left_at` (``time.monotonic``), so that it need
        not wait for its deadline.
        """

    async def stop(self) -> None:
        """Stop working. The parts before it in the list still work."""


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
