"""Notifies other processes after a commit: of lanes with work, runs with mail, finished chains, and
chains that have emitted values.

Correctness does not depend on it: the next poll finds what was not notified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import psycopg

from pgflow._db.calls import worker as worker_calls
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.listener import DONE_CHANNEL, STREAM_CHANNEL, WORK_CHANNEL, chunks, payloads
from pgflow._worker.parts import Part, Tasks
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

NOTIFY_AFTER_SECONDS = 0.002
"""Delay that collects notifications into one commit, because all notifying commits share a lock."""

NOTIFY_EVERY_SECONDS = 0.01
"""Least interval between notifications. Each costs the worker a round trip, which with many runs
would be one for every two or three of them.
"""


class Notifier(Part):
    """Collects notifications until its timer fires."""

    def __init__(self, control: WorkerConnection, tasks: Tasks) -> None:
        self._control = control
        self._tasks = tasks
        self._lanes: set[int] = set()
        self._mail: set[int] = set()
        self._done: set[int] = set()
        self._emitted: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = -NOTIFY_EVERY_SECONDS

    def tell(
        self,
        *,
        lanes: Iterable[int] = (),
        mail: Iterable[int] = (),
        done: Iterable[int] = (),
        emitted: Iterable[int] = (),
    ) -> None:
        """Schedule notifications: to other workers of lanes with work and runs with mail, to
        clients of chains that are finished or have emitted values.
        """
        self._lanes.update(lanes)
        self._mail.update(mail)
        self._done.update(done)
        self._emitted.update(emitted)
        is_news = self._lanes or self._mail or self._done or self._emitted
        if self._timer is None and is_news:
            loop = asyncio.get_running_loop()
            when = max(loop.time() + NOTIFY_AFTER_SECONDS, self._sent_at + NOTIFY_EVERY_SECONDS)
            self._timer = loop.call_at(when, lambda: self._tasks.spawn(self._send()))

    async def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sent_at = asyncio.get_running_loop().time()
        messages = [(WORK_CHANNEL, text) for text in payloads(self._lanes, self._mail)]
        messages += [(DONE_CHANNEL, text) for text in chunks(self._done)]
        messages += [(STREAM_CHANNEL, text) for text in chunks(self._emitted)]
        self._lanes, self._mail, self._done, self._emitted = set(), set(), set(), set()
        for channel, text in messages:
            try:
                await self._control.ask(worker_calls.notify(channel, text))
            except (psycopg.Error, OSError, TimeoutError, PgflowError) as error:
                log.debug("cannot notify: %s", redacted(error))

    async def stop(self) -> None:
        """Send the pending notifications."""
        await self._send()
