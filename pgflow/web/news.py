"""The changes that live pages wait for: a process listens once and polls once, for all its pages.

It begins with the first page that waits, and ends some time after the last one has gone. The poll
reads one figure. So an idle page costs the database less than a query in five seconds, and fifty
cost no more than one. A notification has no content: each page looks for itself whether it has
changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import psycopg

from pgflow._db.connect import ConnectOptions
from pgflow._worker.listener import DONE_CHANNEL, WORK_CHANNEL, Listener, ListenerCallbacks
from pgflow.console.backend import Backend, Unreachable
from pgflow.errors import PgflowError
from pgflow.inspect import read_pulse

POLL_SECONDS = 6.0
LINGER_SECONDS = 60.0
"""Time for which it runs on after the last page has gone, so that the next one misses nothing."""


class News:
    """The count of what this process has heard.

    Attributes:
        count: Grows with everything that is new.
    """

    def __init__(self, backend: Backend) -> None:
        self.count = 0
        self._backend = backend
        self._told = asyncio.Event()
        self._waiting = 0
        self._stop: Callable[[], None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._pulse: int | None = None

    @contextlib.asynccontextmanager
    async def heard(self) -> AsyncIterator[None]:
        """Receive changes while the context is open."""
        self._waiting += 1
        if self._running is None or self._running.done():
            self._tell()  # changes before this
            self._running = asyncio.create_task(self._run(), name="pgflow-console-news")
        try:
            yield
        finally:
            self._waiting -= 1

    async def after(self, count: int) -> None:
        """Wait until more is known than that."""
        while self.count <= count:
            await self._told.wait()

    def close(self) -> None:
        """Stop hearing."""
        if self._running is not None:
            self._running.cancel()
        self._tell()

    def _tell(self) -> None:
        self.count += 1
        told, self._told = self._told, asyncio.Event()
        told.set()

    async def _run(self) -> None:
        """Listen and poll until no page has waited for a while."""
        listener: Listener | None = None
        idle_seconds = 0.0
        try:
            while idle_seconds < LINGER_SECONDS:
                await self._poll()  # which opens the app
                if listener is None and (listener := self._listener()) is not None:
                    listener.start()
                await asyncio.sleep(POLL_SECONDS)
                idle_seconds = 0.0 if self._waiting else idle_seconds + POLL_SECONDS
        finally:
            self._pulse = None
            if listener is not None:
                await listener.stop()

    def _listener(self) -> Listener | None:
        dsn = self._backend.listens_at
        if dsn is None:
            return None
        return Listener(
            ConnectOptions(dsn, None),
            [WORK_CHANNEL, DONE_CHANNEL],
            ListenerCallbacks(lambda _: self._tell(), self._tell, lambda _, __: None),
        )

    async def _poll(self) -> None:
        """Read the pulse. A database that is gone is news too."""
        try:
            pulse = await self._backend.ask(read_pulse())
        except (PgflowError, psycopg.Error, *Unreachable):
            pulse = -1
        before, self._pulse = self._pulse, pulse
        if before is not None and before != pulse:
            self._tell()
