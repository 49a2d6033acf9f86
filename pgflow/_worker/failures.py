"""Failures: tells the app's functions of ``on_failure`` that a run has failed for good.

They are called once the failure is durable, by the worker that has recorded it. Nothing remembers
them: a worker that is killed between both calls none. The log has its record before.
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
    """See the module. It has the threads for functions that are no coroutines."""

    def __init__(self, tasks: Tasks, hooks: Sequence[Callable[[FailedRun], Any]]) -> None:
        self._tasks = tasks
        self._hooks = hooks
        self._calls = AppCalls(THREADS, "pgflow-failures")
        self._open: set[asyncio.Task[Any]] = set()

    def tell(self, failed: FailedRun) -> None:
        """Call all of them, beside whatever else goes on."""
        for hook in self._hooks:
            task = self._tasks.spawn(self._call(hook, failed))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _call(self, hook: Callable[[FailedRun], Any], failed: FailedRun) -> None:
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._calls.call(hook, failed, (failed.run_id, id(hook)))
        except BaseException as error:  # whatever it raises, it is the function's own trouble
            if not is_its_own(error, task):
                raise
            log.warning(
                "a function of on_failure failed for run %s with %s: %s",
                failed.run,
                type(error).__name__,
                redacted(error),
            )

    async def finish(self, within_seconds: float) -> None:
        """Let those under way end, for as long as this."""
        if self._open:
            await asyncio.wait(self._open, timeout=within_seconds)

    async def stop(self) -> None:
        """Calls none any more; never waits for one that hangs in its thread."""
        self._calls.close()
