"""The parts of a worker: what each has to offer, and the tasks in which they go on.

A worker is a list of parts (`Worker.parts`). They are started one after the other, told when
another server becomes the primary, and stopped, the last one first. A part owns its state, which
nobody else changes, and is given the few things that it needs: it knows nothing of the worker. So a
further loop is a file with a :class:`Loop`, and a line in that list.
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
    """A part of a worker. One that has nothing to do at one
    of these moments leaves the method as it is here.
    """

    def start(self) -> None:
        """Begins its work; on the worker's loop, as all of these."""

    def leave(self, left_at: float) -> None:
        """Another server is the primary since then (``time.monotonic``): what waits for the old one
        need not wait for its deadline.
        """

    async def stop(self) -> None:
        """Ends its work. The parts that come before it in the list still do theirs."""


class Tasks(Part):
    """The tasks of a worker: its loops, and what is done beside. All end together, before anything
    that they rest on does.

    Args:
        life: Of the worker, which fails with any of its loops.

    Attributes:
        loop: The event loop that they are on.
    """

    def __init__(self, life: Life) -> None:
        self.loop = asyncio.get_running_loop()
        self._life = life
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something beside; it is cancelled at the end of the worker."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def keep_going(self, name: str, loop: Callable[[], Awaitable[Any]]) -> None:
        """Runs a loop, again after each failure;
        one that has ended before its worker is the worker's end.
        """
        self.spawn(keep_going(name, loop, self._life.fail)).add_done_callback(
            partial(self._loop_ended, name)
        )

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the worker ended with an error", exc_info=task.exception())

    def _loop_ended(self, name: str, task: asyncio.Task[Any]) -> None:
        """A loop that must go on has ended: this worker is of no more use."""
        if not self._life.is_stopping:
            self._life.fail(
                name,
                asyncio.CancelledError("it was cancelled")
                if task.cancelled()
                else task.exception(),
            )

    async def stop(self) -> None:
        """Cancels all of them, and waits until they have ended."""
        await cancel(self._tasks)


class Loop(Part, ABC):
    """A part that goes round for as long as its worker lives. It ends with the other
    :class:`Tasks`.

    Attributes:
        name: Name for the log, and for whoever is told that the worker has failed.
    """

    name: ClassVar[str]

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def start(self) -> None:
        """Begins to go round."""
        self._tasks.keep_going(self.name, self.loop)

    @abstractmethod
    async def loop(self) -> None:
        """Goes round, and never returns. What it raises is logged, and it begins anew, with the
        state that its part has by then.
        """
