"""Locks in the code of a workflow: a block for one run at a time, or for several that share it.

Once the lock is lost, the block is cancelled in the way of ``asyncio.timeout``: the current wait
raises, and the block raises LockLost.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import Token
from datetime import timedelta
from types import TracebackType
from typing import Any

from pgflow._engine.drivers import ThreadDriver
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.locking import Holds, Locks
from pgflow._engine.locks import HoldCall, LockCall
from pgflow._engine.loop import Unwind
from pgflow._flow.scope import Held, WorkflowScope, async_scope, locked, sync_scope
from pgflow._model.durations import SHORTEST, Duration, duration
from pgflow._model.names import is_name
from pgflow.errors import InvalidArgument, LockLost, LockRefused

_ELSEWHERE = (Unwind, GeneratorExit, ContinueAsNew)
"""Exceptions that leave code which goes on elsewhere, with its locks."""


def check_key(key: str) -> str:
    """A key of a lock as it was given.

    Raises:
        InvalidArgument: No lock can have it.
    """
    if not is_name(key):
        raise InvalidArgument(
            f"the key of a lock must be a text of 1 to 255 bytes without NUL, not {key!r}"
        )
    return key


class _Block:
    """The part of a lock's block that both colours share."""

    def __init__(
        self,
        scope: WorkflowScope,
        key: str,
        ttl: Duration | None,
        timeout: Duration | None,
        *,
        shared: bool,
    ) -> None:
        self._scope = scope
        self._key = check_key(key)
        self._ttl: timedelta | None = duration(ttl, f"ttl of lock {key!r}", least_seconds=SHORTEST)
        self._timeout: timedelta | None = duration(
            timeout, f"timeout of lock {key!r}", least_seconds=-math.inf
        )
        self._is_shared = shared
        self._hold: HoldCall | None = None
        self._token: Token[tuple[Held, ...]] | None = None

    def _ask(self) -> LockCall:
        around = locked.get()
        if any(held.key == self._key for held in around):
            raise LockRefused(
                f"run {self._scope.claim.key!r} holds lock {self._key!r} already, in a block "
                "around this one: a lock is taken once",
                "reentered",
            )
        return self._scope.execution.parts[Locks].issue(
            self._key,
            self._ttl,
            self._timeout,
            tuple(held.fence for held in around),
            is_shared=self._is_shared,
        )

    def _enter(self, call: LockCall, fence: int) -> int:
        self._hold = self._scope.execution.parts[Holds].issue(call, fence, self._lost)
        self._token = locked.set((*locked.get(), Held(self._key, fence)))
        return fence

    def _lost(self) -> None:
        raise NotImplementedError

    def _leave(self) -> tuple[HoldCall, bool]:
        """The block ends: return its hold, which the database is asked to end, and whether it was
        lost before.
        """
        hold, token = self._hold, self._token
        assert hold is not None
        assert token is not None
        self._hold = self._token = None
        locked.reset(token)
        if hold.lost is not None:
            return hold, True
        self._scope.execution.parts[Holds].release(hold)
        return hold, False

    def _conclude(
        self,
        hold: HoldCall,
        error: BaseException | None,
        cancelled: asyncio.CancelledError | None,
        *,
        is_ours: bool,
    ) -> None:
        """Raise the outcome of the block after its hold has ended. An error of the code itself
        propagates.

        Args:
            hold: Its hold.
            error: Error with which the code left the block.
            cancelled: Cancellation during the release of the lock.
            is_ours: True if only the loss of the lock cancelled the code.
        """
        if cancelled is not None and error is None:
            raise cancelled
        if hold.lost is None or not (
            error is None or (is_ours and isinstance(error, asyncio.CancelledError))
        ):
            return
        why = "its ttl expired" if hold.lost == "expired" else "it was taken away"
        raise LockLost(
            f"run {self._scope.claim.key!r} lost lock {self._key!r}: {why}, and others "
            f"may have won it since, with a greater fence than {hold.fence}",
            hold.lost,
        ) from error


class _AsyncBlock(_Block, AbstractAsyncContextManager[int]):
    _task: asyncio.Task[Any] | None = None
    _cancelling = 0

    async def __aenter__(self) -> int:
        call = self._ask()
        fence: int = await self._scope.wait(call)
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self._enter(call, fence)

    def _lost(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, _ELSEWHERE):
            return
        task, self._task = self._task, None
        hold, was_lost = self._leave()
        cancelled: asyncio.CancelledError | None = None
        waiter: Any = hold.waiter
        while not waiter.done():  # whatever comes, it is given back before the code goes on
            try:
                await asyncio.shield(waiter)
            except asyncio.CancelledError as again:
                cancelled = again
        is_ours = was_lost and task is not None and task.uncancel() <= self._cancelling
        self._conclude(hold, error, cancelled, is_ours=is_ours)


class _SyncBlock(_Block, AbstractContextManager[int]):
    def __init__(
        self, scope: WorkflowScope, thread: ThreadDriver, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(scope, *args, **kwargs)
        self._thread = thread

    def __enter__(self) -> int:
        call = self._ask()
        return self._enter(call, self._scope.block(call))

    def _lost(self) -> None:
        self._thread.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, _ELSEWHERE):
            return
        hold, was_lost = self._leave()
        cancelled: asyncio.CancelledError | None = None
        waiter: Any = hold.waiter
        while not waiter.done():
            try:
                self._thread.block(hold)
            except asyncio.CancelledError as again:
                cancelled = again
        is_ours = was_lost and self._scope.execution.end.cancel_request is None
        self._conclude(hold, error, cancelled, is_ours=is_ours)


def lock(
    key: str,
    *,
    ttl: Duration | None = None,
    shared: bool = False,
    timeout: Duration | None = None,
) -> AbstractAsyncContextManager[int]:
    """Return a block that only one run at a time enters, among all that use the same key.

    A run that has to wait is parked, and continues when it is its turn: first come, first served.
    It holds the lock until the block ends, across crashes and deploys; the end of the run releases
    it too. ``async with`` yields the *fence*, a number that grows each time the lock is won. Pass
    it to the system that the lock protects, and have it refuse a smaller fence than the largest it
    has seen.

    Args:
        key: Name of the lock, shared by all runs and plain code of the database.
        ttl: Time after which the lock expires, by the database's clock. By default, the run holds
            it until the block ends.
        shared: True to share the block with others that pass ``shared=True``.
        timeout: Give up waiting after this long.

    Raises:
        LockLost: The lock expired, or an operator took it away. It is raised at the next durable
            call in the block, or at its end.
        LockRefused: The code is already in a block of this lock, or the holder waits for a lock of
            this run.
        TimeoutError: The lock was not won within ``timeout``.

    Example::

        async with pgflow.lock(f"prospect/{prospect}", timeout=timedelta(hours=1)) as fence:
            await send_mail(prospect, fence)
    """
    scope = async_scope("pgflow.lock()", "pgflow.sync.lock()")
    return _AsyncBlock(scope, key, ttl, timeout, shared=shared)


def lock_sync(
    key: str,
    *,
    ttl: Duration | None = None,
    shared: bool = False,
    timeout: Duration | None = None,
) -> AbstractContextManager[int]:
    """A block that at most one run at a time is in, of all that name the same key; see
    :func:`pgflow.lock`.
    """
    scope, thread = sync_scope("pgflow.sync.lock()", "pgflow.lock()")
    return _SyncBlock(scope, thread, key, ttl, timeout, shared=shared)
