"""Locks of plain code: a block outside of any run.

It holds for a limited time, which is renewed while the block goes on. So a process that dies gives
its locks back by itself, and one that is frozen finds out that it has lost them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import Any

from pgflow._db.calls import locks
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._db.query import Query
from pgflow._flow.locks import check_key
from pgflow._model.durations import SHORTEST, Duration, duration
from pgflow.errors import LockLost, PgflowError

PATIENCE = timedelta(seconds=10)
"""Time within which a waiting process asks again, or loses its place in the queue."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 0.5
"""Pauses between two questions whether it has its turn."""
RENEWALS = 3
"""A lock is renewed so often in the time for which it is held."""

_TROUBLE = (*DATABASE_ERRORS, PgflowError)


class _Held:
    """The part of a block that both colours share.

    Args:
        key: Name of the lock.
        ttl: Time for which it is held at once.
        timeout: Time for which the block waits for its turn.
        shared: True if others may hold it too that share it.
    """

    def __init__(self, key: str, ttl: Duration, timeout: Duration | None, *, shared: bool) -> None:
        self._key = check_key(key)
        self._ttl = duration(ttl, f"ttl of lock {key!r}", least_seconds=SHORTEST)
        self._timeout = duration(timeout, f"timeout of lock {key!r}", least_seconds=-math.inf)
        self._is_shared = shared
        self._holder = f"{socket.gethostname()[:200]}:{os.getpid()}/{uuid.uuid4().hex[:16]}"
        self._secret = secrets.token_urlsafe()  # proves that it is us; the name is in a view
        self._fence = 0
        self._lost = False
        self._good_until = 0.0

    def _take(self) -> Query[int | None]:
        return locks.take_lock(
            self._key, self._holder, self._ttl, PATIENCE, self._secret, shared=self._is_shared
        )

    def _renew(self) -> Query[bool]:
        return locks.renew_lock(self._key, self._fence, self._ttl, self._secret)

    def _leave(self) -> Query[None]:
        return locks.leave_lock(self._key, self._holder, self._secret)

    def _note_held(self, since: float) -> None:
        """Extend the trust in the lock to one ttl after ``since``, by the clock of this process.
        The database decides; this bounds the trust while it cannot be reached.
        """
        self._good_until = since + self._ttl.total_seconds()

    @property
    def _is_doubtful(self) -> bool:
        return time.monotonic() >= self._good_until

    @property
    def _renew_seconds(self) -> float:
        return self._ttl.total_seconds() / RENEWALS

    def _check_patience(self, since: float) -> None:
        """Raise TimeoutError if the block has waited for its whole timeout."""
        if self._timeout is not None and (
            time.monotonic() - since >= self._timeout.total_seconds()
        ):
            raise TimeoutError(f"no lock {self._key!r} in time")

    def _is_lost(self) -> LockLost:
        return LockLost(
            f"lock {self._key!r} is lost: it was not renewed within {self._ttl}, or it was taken "
            f"away, and others may have won it since, with a greater fence than {self._fence}"
        )


class AsyncHeldLock(_Held, AbstractAsyncContextManager[int]):
    """A block of async code; its task is cancelled if the lock is lost."""

    def __init__(self, ask: Callable[[Query[Any]], Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ask = ask
        self._task: asyncio.Task[Any] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._cancelling = 0

    async def __aenter__(self) -> int:
        since = asked = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        try:
            while (fence := await self._ask(self._take())) is None:
                self._check_patience(since)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                asked = time.monotonic()
        except BaseException:
            await asyncio.shield(self._give_up())
            raise
        self._fence = fence
        self._note_held(asked)
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._renewing = asyncio.create_task(self._keep())
        return self._fence

    async def _give_up(self) -> None:
        with contextlib.suppress(*_TROUBLE):
            await self._ask(self._leave())
            await self._ask(locks.sweep_locks())

    async def _keep(self) -> None:
        while not self._lost:
            await asyncio.sleep(self._renew_seconds)
            asked = time.monotonic()
            try:
                async with asyncio.timeout(self._good_until - asked):
                    self._lost = not await self._ask(self._renew())
            except _TROUBLE:
                self._lost = self._is_doubtful
            else:
                self._note_held(asked)
        if self._task is not None:
            self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._renewing is not None
        task, self._task = self._task, None
        was_lost = self._lost
        self._renewing.cancel()
        cancelled: asyncio.CancelledError | None = None
        try:
            await asyncio.wait([self._renewing])
        except asyncio.CancelledError as raised:  # perhaps for the loss, as the block ended
            cancelled = raised
        if not self._lost:
            try:
                if error is None and cancelled is None:
                    # Asked apart, since the answer to a release may be lost: what was released is
                    # not held any more when that is sent again.
                    self._lost = not await asyncio.shield(self._ask(self._renew()))
            finally:
                await asyncio.shield(self._give_up())
        is_ours = was_lost and task is not None and task.uncancel() <= self._cancelling
        if cancelled is not None and error is None and not is_ours:
            raise cancelled
        if self._lost and (
            error is None or (is_ours and isinstance(error, asyncio.CancelledError))
        ):
            raise self._is_lost() from error


class HeldLock(_Held, AbstractContextManager[int]):
    """A block of sync code; a thread renews the lock."""

    def __init__(self, ask: Callable[[Query[Any]], Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ask = ask
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> int:
        since = asked = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        try:
            while (fence := self._ask(self._take())) is None:
                self._check_patience(since)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                asked = time.monotonic()
        except BaseException:
            self._give_up()
            raise
        self._fence = fence
        self._note_held(asked)
        self._renewing = threading.Thread(
            target=self._keep, name=f"pgflow lock {self._key}", daemon=True
        )
        self._renewing.start()
        return self._fence

    def _give_up(self) -> None:
        with contextlib.suppress(*_TROUBLE):
            self._ask(self._leave())
            self._ask(locks.sweep_locks())

    def _keep(self) -> None:
        while not self._lost and not self._ended.wait(self._renew_seconds):
            asked = time.monotonic()
            try:
                self._lost = not self._ask(self._renew())
            except _TROUBLE:
                self._lost = self._is_doubtful
            else:
                self._note_held(asked)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._renewing is not None
        self._ended.set()
        self._renewing.join()
        if not self._lost:
            try:
                if error is None:
                    self._lost = not self._ask(self._renew())
            finally:
                self._give_up()
        if self._lost and error is None:
            raise self._is_lost()
