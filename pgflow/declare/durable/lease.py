"""Lease of a run on its working folder: of all runs that may change a folder, one works there.

The lease is a lock of the engine, whose key is the real path of the folder. A run asks for it with
its first work in the folder, so one that still waits for a person keeps no other run out. It has
the lease until its end, and its children work under it.

A run that failed has released the lease. If it is retried, its journal still says that it holds it,
and the run hears of the loss before anything else. No shell and no effect has begun by then. A turn
of an agent needs no permission to begin, so it may have begun, and is cut off. The works that were
asked for are given up, and asked for again once the lease is held.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pgflow
from pgflow.declare.durable.frozen import Settings
from pgflow.declare.durable.results import WorkflowFailed
from pgflow.declare.graph import Graph
from pgflow.errors import LockLost, LockRefused

T = TypeVar("T")

_MOST_BYTES: Final = 240
"""Longest path in a key; the hash of a longer one is."""


def lease_key(folder: str) -> str:
    """Return the key of the lock that the lease on a folder is.

    Args:
        folder: Its real path.
    """
    if len(folder.encode("utf-8", "surrogateescape")) <= _MOST_BYTES and folder.isprintable():
        return f"folder{folder}"
    return f"folder/{hashlib.sha256(os.fsencode(folder)).hexdigest()}"


def is_alone(settings: Settings, graph: Graph) -> bool:
    """Return True for a run that has its folder alone."""
    return (
        settings.depth == 0
        and settings.lease != "share"
        and graph.options.get("mutates_checkout") is not False
    )


@pgflow.read(name="pgflow.folder")
def _real_path(folder: str) -> str:
    return os.path.realpath(folder)


class Lease:
    """Has a run's works wait until the folder is theirs.

    Args:
        settings: Settings of the run.
        graph: Its workflow.
    """

    def __init__(self, settings: Settings, graph: Graph) -> None:
        self._settings = settings
        self._is_alone = is_alone(settings, graph)
        self._held = asyncio.Event()
        self._open: list[asyncio.Future[Any]] = []
        self._keeper: asyncio.Task[None] | None = None
        self._main: asyncio.Task[Any] | None = None
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        self._main = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # What ends the run gives the lease back.
        if self._error is not None and isinstance(error, asyncio.CancelledError):
            raise WorkflowFailed(self._why_not()) from self._error

    def _why_not(self) -> str:
        folder = self._settings.cwd
        if isinstance(self._error, TimeoutError):
            return f"another run works in {folder}: see `pgflow locks`"
        return f"the right to work in {folder} was taken away"

    async def during(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do a piece of work under the lease, and again if that was not there when it was asked
        for.

        Args:
            work: The work.
        """
        if not self._is_alone:
            return await work()
        while True:
            await self.held()
            asked = asyncio.ensure_future(work())
            self._open.append(asked)
            try:
                return await asked
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._held.is_set() or (task is not None and task.cancelling()):
                    raise
            finally:
                self._open.remove(asked)

    async def held(self) -> None:
        """Wait until the lease is there."""
        if not self._is_alone:
            return
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        await self._held.wait()

    async def _keep(self) -> None:
        """Have the lease, and have it again where it is found to have been given back."""
        key = lease_key(await _real_path.aio(self._settings.cwd))
        timeout = 0 if self._settings.lease == "refuse" else None
        while True:
            try:
                async with pgflow.lock(key, timeout=timeout):
                    self._held.set()
                    await asyncio.Event().wait()
            except LockLost as error:
                if error.reason != "expired":
                    return self._fail(error)
                self._held.clear()
                for asked in self._open:
                    asked.cancel()
            except (TimeoutError, LockRefused) as error:
                return self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Have the run fail for want of its folder."""
        self._error = error
        if self._main is not None:
            self._main.cancel()
