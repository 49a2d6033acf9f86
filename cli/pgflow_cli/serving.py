"""A process that works: its log, the signals that end it, and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from pgflow_cli.failures import Mistake

if TYPE_CHECKING:
    from pgflow.app import AsyncApp
    from pgflow.options import WorkerOptions
    from pgflow.worker import Worker

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: str) -> None:
    """Logs to standard error.

    Raises:
        Mistake: There is no such level.
    """
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise Mistake(f"--log-level is debug, info, warning or error, not {level!r}")
    logging.basicConfig(level=level.upper(), format=FORMAT)


def leave(code: int) -> None:
    """Ends the process: a thread that a step never gives back must not keep it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Stop:
    """Remembers a signal from the first moment on: one that comes during the start is not lost."""

    def __init__(self) -> None:
        self._asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    def _received(self, _number: int, _frame: object) -> None:
        if self._asked:
            os._exit(1)
        self._asked = True
        if self._loop is not None and self._event is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    def event(self) -> asyncio.Event:
        """Set once a signal has come."""
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        if self._asked:
            self._event.set()
        return self._event


def serve(app: AsyncApp, options: WorkerOptions, stop: Stop) -> int:
    """Works until a signal asks to stop; answers the exit code."""
    return asyncio.run(_serve(app, options, stop))


async def _serve(app: AsyncApp, options: WorkerOptions, stop: Stop) -> int:
    asked = stop.event()
    async with app, app._work(options) as worker:
        logging.getLogger("pgflow").info("worker %s serves %s", worker.worker_id, ", ".join(options.queues))
        return await _until_asked(asked, worker)


async def _until_asked(asked: asyncio.Event, worker: Worker) -> int:
    """0 once a signal asks; 1 if a part of the worker has died, so that whoever watches starts another."""
    waits = [asyncio.ensure_future(asked.wait()), asyncio.ensure_future(worker.failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return 1 if worker.failed.is_set() else 0
