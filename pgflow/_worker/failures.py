"""Calls the app's ``on_failure`` functions for a run that has failed for good.

The worker that recorded the failure calls them once it is durable. They are not called again: if
that worker is killed first, no other worker calls them. The log record comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from pgflow._model.failures import FailedRun
from pgflow._worker.parts import Part, Tasks
from pgflow._worker.threads import AppCalls, is_its_own
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

TIMEOUT_SECONDS = 30.0
THREADS = 4


class Failures(Part):
    """Calls ``on_failure`` functions. It owns the threads for those that are not coroutine
    functions.
    """

    def __init__(self, tasks: Tasks, hooks: Sequence[Callable[[FailedRun], Any]]) -> None:
        self._tasks = tasks
        self._hooks = hooks
        self._calls = AppCalls(THREADS, "pgflow-failures")
        self._open: set[asyncio.Task[Any]] = set()

    def tell(self, failed: FailedRun) -> None:
        """Call all of the functions, each in a task."""
        for hook in self._hooks:
            task = self._tasks.spawn(self._call(hook, failed))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _call(self, hook: Callable[[FailedRun], Any], failed: FailedRun) -> None:
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._calls.call(hook, failed, (failed.run_id, id(hook)))
        except BaseException as error:  # any error is the function's own
            if not is_its_own(error, task):
                raise
            log.warning(
                "a function of on_failure failed for run %s with %s: %s",
                failed.run,
                type(error).__name__,
                redacted(error),
            )

    async def finish(self, within_seconds: float) -> None:
        """Wait up to `within_seconds` for the calls under way."""
        if self._open:
            await asyncio.wait(self._open, timeout=within_seconds)

    async def stop(self) -> None:
        """Stop calling functions, without waiting for one that hangs in its thread."""
        self._calls.close()
