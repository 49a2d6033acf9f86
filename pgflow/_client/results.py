"""Wait for results. All waits of a process share one query, woken by notifications and by polling.
A wait for an answer of a run asks its own query.

Polling backs off while nothing arrives and never stops, so a lost notification costs one poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from pgflow._db.calls import result as calls
from pgflow._db.connect import ConnectOptions
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._model.kinds import ENDED
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.listener import DONE_CHANNEL, Listener, ListenerCallbacks, parse_done
from pgflow._worker.parts import FailureCount, back_off_seconds, cancel, is_own_end
from pgflow.errors import WorkerFailed
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

T = TypeVar("T")

FIRST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 1.0
ASK_AGAIN_SECONDS = 0.02
"""Pause before the next question about a run that has ended."""

ANSWER_SECONDS = 10.0
"""Timeout of a question; after it, another server may be asked."""


class ResultWaiter:
    """Waiter for results, for one event loop; see the module."""

    def __init__(self, connect: ConnectOptions, *, listen: bool = True) -> None:
        self._control = WorkerConnection(connect, "pgflow results", timeout_seconds=ANSWER_SECONDS)
        callbacks = ListenerCallbacks(self._heard, self._look_now, self._not_listening)
        self._listener = Listener(connect, [DONE_CHANNEL], callbacks)
        self._listen = listen
        self._waits: dict[int, set[asyncio.Future[calls.Ended]]] = {}
        self._news: dict[int, set[asyncio.Event]] = {}
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._closing = False

    def fail(self, failure: Exception | None) -> None:
        """Fail all waits with an error, and new ones too, until called with None: the workers of
        this process have stopped.
        """
        self._failure = failure
        if failure is not None:
            self._tell(failure)

    def _tell(self, failure: Exception) -> None:
        for futures in self._waits.values():
            for future in futures:
                if not future.done():
                    future.set_exception(failure)

    def _not_listening(self, name: str, error: BaseException) -> None:
        log.error(
            "%s keeps failing: polling for results once a second",
            name,
            exc_info=error,
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail the remaining waits when the polling task ends, so that none waits forever."""
        if self._waits and task is self._task and not self._closing:
            # A newer wait may have started another task.
            error = (
                asyncio.CancelledError("the polling task was cancelled")
                if task.cancelled()
                else task.exception()
            )
            self._give_up(error or RuntimeError("the polling task has ended"))

    def _give_up(self, error: BaseException) -> None:
        failure = WorkerFailed(
            f"polling for results failed: {type(error).__name__}: {redacted(error)}"
        )
        failure.__cause__ = error
        log.error("%s", failure, exc_info=error)
        self._tell(failure)

    async def wait(self, chain_id: int) -> calls.Ended:
        """Wait until a chain has ended, or is stuck."""
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[calls.Ended] = asyncio.get_running_loop().create_future()
        self._waits.setdefault(chain_id, set()).add(future)
        if self._task is None or self._task.done():
            if self._listen and self._task is None:
                self._listener.start()
            self._task = asyncio.create_task(self._serve(), name="pgflow-results")
            self._task.add_done_callback(self._ended)
        self._look.set()
        try:
            return await future
        finally:
            waits = self._waits.get(chain_id)
            if waits is not None:
                waits.discard(future)
                if not waits:
                    self._waits.pop(chain_id, None)

    async def answered(
        self, chain_id: int, ask: Callable[[], Awaitable[T]], is_there: Callable[[T], bool]
    ) -> T | calls.Ended:
        """Ask until an answer is there, after each news of a chain. Return its end instead if the
        chain is stuck or gone.
        """
        news = asyncio.Event()
        self._news.setdefault(chain_id, set()).add(news)
        end: asyncio.Task[calls.Ended] | None = None
        delay = FIRST_POLL_SECONDS
        try:
            while True:
                news.clear()
                answer = await ask()
                if is_there(answer):
                    return answer
                if end is None:
                    end = asyncio.create_task(self.wait(chain_id))
                    end.add_done_callback(lambda _: news.set())
                elif end.done():
                    if (ended := end.result()).status not in ENDED:
                        return ended
                    # Its end is an answer, unless the run goes on at this moment.
                    end = None
                    await asyncio.sleep(ASK_AGAIN_SECONDS)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay * random.uniform(0.8, 1.0)):  # noqa: S311 - spreads the load
                        await news.wait()
                delay = min(LONGEST_POLL_SECONDS, delay * 1.5)
        finally:
            others = self._news[chain_id]
            others.discard(news)
            if not others:
                del self._news[chain_id]
            if end is not None:
                await cancel([end])

    def notify(self, chains: Iterable[int]) -> None:
        """Wake the waits for these chains, which have ended or answered, ahead of the next poll."""
        for chain in chains:
            if chain in self._waits:
                self._look.set()
            for news in self._news.get(chain, ()):
                news.set()

    def _heard(self, payload: str) -> None:
        self.notify(parse_done(payload))

    def _look_now(self) -> None:
        self._look.set()
        for waiting in self._news.values():
            for news in waiting:
                news.set()

    async def _serve(self) -> None:
        """Poll while there are waits. After too many failures in a row, fail them."""
        failures, task = FailureCount(), asyncio.current_task()
        while self._waits:
            try:
                await self._run()
            except BaseException as error:
                if is_own_end(error, task):
                    raise
                if not failures.add():
                    self._give_up(error)
                    return
                delay = back_off_seconds(failures.count)
                log.error(  # noqa: TRY400
                    "polling for results failed; retrying in %.2f s", delay, exc_info=error
                )
                await asyncio.sleep(delay)

    async def _run(self) -> None:
        delay = FIRST_POLL_SECONDS
        while self._waits:
            self._look.clear()
            try:
                found = await self._control.ask(calls.results(list(self._waits)))
            except DATABASE_ERRORS as error:
                log.debug("cannot poll for results: %s", redacted(error))
                found = {}
            for chain_id, ended in found.items():
                for future in self._waits.pop(chain_id, ()):
                    if not future.done():
                        future.set_result(ended)
            growth = 4 if self._listener.listening else 1.5  # then most news comes by itself
            delay = FIRST_POLL_SECONDS if found else min(LONGEST_POLL_SECONDS, delay * growth)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay * random.uniform(0.8, 1.0)):  # noqa: S311 - spreads the load
                    await self._look.wait()

    def abandon(self) -> None:
        """Drop the connections of a waiter whose event loop ended before it was closed."""
        self._closing = True
        self._control.abandon()
        self._listener.abandon()

    async def close(self) -> None:
        """Stop, and cancel the remaining waits."""
        self._closing = True
        if self._task is not None:
            await cancel([self._task])
        await self._listener.stop()
        await self._control.close()
