"""The ``on_start`` and ``on_stop`` functions of an app: called before the first worker of an event
loop claims, and after the last has ended.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from pgflow._worker.threads import DaemonThreads, is_its_own
from pgflow.errors import DefinitionError, WorkerFailed
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

Hook = Callable[[], Any]


class _Turn:
    """The number of workers on one event loop, and a lock around the calls."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.workers = 0


class Hooks:
    """The functions that an app has declared with ``on_start`` and ``on_stop``."""

    def __init__(self) -> None:
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()

    def add_start(self, fn: Hook) -> None:
        """Add a function to call before workers claim."""
        self._on_start.append(_checked(fn, "on_start"))

    def add_stop(self, fn: Hook) -> None:
        """Add a function to call after workers have ended."""
        self._on_stop.append(_checked(fn, "on_stop"))

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """Call the functions around one worker, unless another worker of this event loop has called
        them or still needs them.

        Raises:
            WorkerFailed: A function raised. If it is one of ``on_start``, the worker must not
                start.
        """
        turn = self._turns.setdefault(asyncio.get_running_loop(), _Turn())
        async with turn.lock:
            # Under the lock: no second worker claims before these have ended.
            if not turn.workers:
                for hook in self._on_start:
                    await _call(hook, "on_start")
            turn.workers += 1
        try:
            yield
        finally:
            async with turn.lock:
                turn.workers -= 1
                if not turn.workers:
                    await self._stop()

    async def _stop(self) -> None:
        """Call each ``on_stop`` function, the last declared first, even if others fail."""
        failure: WorkerFailed | None = None
        for hook in reversed(self._on_stop):
            try:
                await _call(hook, "on_stop")
            except WorkerFailed as error:
                log.error("%s", redacted(error))  # noqa: TRY400 - the first is raised, with its traceback
                failure = failure or error
        if failure is not None:
            raise failure


def _checked(fn: Any, decorator: str) -> Hook:
    if not callable(fn):
        raise DefinitionError(
            f"@app.{decorator} takes a function, not {fn!r}: write it without parentheses"
        )
    try:
        inspect.signature(fn).bind()
    except TypeError as error:
        raise DefinitionError(
            f"a function of @app.{decorator} is called without arguments, but {_name(fn)} needs "
            f"some: {error}"
        ) from None
    return fn  # type: ignore[no-any-return]


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


async def _call(hook: Hook, decorator: str) -> None:
    """Call one function; a ``def`` runs in a thread, so that it cannot block the loop."""
    try:
        if inspect.iscoroutinefunction(hook):
            await hook()
            return
        threads = DaemonThreads(1, f"pgflow {decorator}")
        try:
            answer = await asyncio.wrap_future(threads.submit(hook))
        finally:
            threads.shutdown(wait=False)
        if inspect.isawaitable(answer):
            # A partial of a coroutine function, or an object with an async __call__.
            await answer
    except BaseException as error:
        if not is_its_own(error, asyncio.current_task()):
            raise
        raise WorkerFailed(
            f"the function {_name(hook)} of @app.{decorator} has failed: {redacted(error)}"
        ) from error
