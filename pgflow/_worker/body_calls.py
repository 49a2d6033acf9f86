"""Calls functions of the app for a step: its body, and the questions before or after it. Coroutine
functions are awaited, others run in a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as FutureCancelled
from datetime import timedelta
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple

from pgflow._db.connect import Preparing
from pgflow._db.failures import is_conflict_on_unit, is_of_a_pooler, sqlstate_of
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.operations import around_body
from pgflow._flow.scope import log_fields
from pgflow._model.options import Retries
from pgflow._worker.lost_threads import LostThreads
from pgflow._worker.threads import DaemonThreads, Posts
from pgflow.logs import redacted
from pgflow.meter import Meter

log = logging.getLogger("pgflow")

_INFRASTRUCTURE_RETRIES = Retries(
    first_delay=timedelta(seconds=0.1), max_delay=timedelta(seconds=5)
)


class BodyCalls:
    """Calls functions of the app. It keeps no state; the caller owns the result.

    Args:
        threads: For functions that are not coroutine functions.
        posts: Calls from threads to the loop.
        lost: Tracks abandoned threads.
        interceptors: Their ``around_step`` wraps each call.
        preparing: Stops preparing statements if a pooler lost one on a connection of pgflow.
        meter: Counts attempts that are not recorded.
    """

    def __init__(
        self,
        threads: DaemonThreads,
        posts: Posts,
        lost: LostThreads,
        interceptors: list[Interceptor],
        preparing: Preparing,
        meter: Meter | None,
    ) -> None:
        self._threads = threads
        self._posts = posts
        self._lost = lost
        self._interceptors = interceptors
        self._preparing = preparing
        self._meter = meter
        self._loop = asyncio.get_running_loop()

    def call(
        self, call: StepCall, fn: Callable[..., Any], first: tuple[Any, ...]
    ) -> Awaitable[Any]:
        """Return an awaitable for the function's result, within the step's time-out.

        A plain function, because a coroutine for each body costs as much as its bookkeeping.
        """
        called = self.call_untimed(call, fn, first)
        return (
            called
            if call.spec.timeout_seconds is None
            else _within(call.spec.timeout_seconds, called)
        )

    def call_untimed(
        self, call: StepCall, fn: Callable[..., Any], first: tuple[Any, ...]
    ) -> Awaitable[Any]:
        """Return an awaitable for the function's result, without a time-out."""
        if not call.spec.definition.is_async:
            return self.in_thread(call, self.call_sync, call, fn, first)
        if not self._interceptors:
            called: Awaitable[Any] = fn(*first, *call.args, **call.kwargs)
            return called
        return self.call_around(fn, *first, *call.args, **call.kwargs)

    async def call_around(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Await a coroutine function inside the interceptors."""
        with around_body(self._interceptors) as hearing:
            return hearing.returned(await fn(*args, **kwargs))

    def call_sync(self, call: StepCall, fn: Callable[..., Any], first: tuple[Any, ...]) -> Any:
        """Call a function inside the interceptors, in the current thread."""
        if not self._interceptors:
            return fn(*first, *call.args, **call.kwargs)
        with around_body(self._interceptors) as hearing:
            return hearing.returned(fn(*first, *call.args, **call.kwargs))

    async def in_thread(self, call: StepCall, work: Callable[..., Any], *args: Any) -> Any:
        """Run work in a thread and return its result. A cancel abandons the thread."""
        context = contextvars.copy_context()
        ended: asyncio.Future[Any] = self._loop.create_future()
        job = self._threads.start(
            partial(context.run, _with_outcome, work, *args),
            partial(self._posts.post, _tell, ended),
        )
        try:
            outcome = await ended
        except asyncio.CancelledError:
            self._lost.left_behind(call, job)
            if ended.done() and not ended.cancelled():  # it arrived while the step was given up
                _close_if_coroutine(ended.result())
            raise
        if type(outcome) is _Raised:
            raise outcome.error
        if type(outcome) is CoroutineType:
            # A lambda, or a def, that hands on what an async def is to do.
            return await outcome
        return outcome

    async def wait_out(
        self, execution: Execution, call: StepCall, error: BaseException, tries: int
    ) -> None:
        """Sleep before the next attempt: briefly after contention, longer after connection
        trouble.
        """
        if is_of_a_pooler(error):
            self._preparing.end(error)
        is_contention = sqlstate_of(error) in ("40001", "40P01", "55P03") or is_conflict_on_unit(
            error
        )
        # Contention passes soon (at most 1.28 s here); a server that is away takes longer.
        delay = (
            random.uniform(0.5, 1) * 0.005 * 2 ** min(tries, 8)  # noqa: S311
            if is_contention
            else _INFRASTRUCTURE_RETRIES.delay_seconds(tries)
        )
        log.log(
            logging.DEBUG if is_contention else logging.WARNING,
            "step %s, call %s: %s; retrying in %.2f s, not recorded",
            call.name,
            call.number,
            redacted(error),
            delay,
            extra=log_fields(execution.claim, call),
        )
        if self._meter is not None:
            self._meter.tried_again(call.spec.effect, contention=is_contention)
        await asyncio.sleep(delay)


def as_raised(error: BaseException) -> BaseException:
    """Return the error of a body in a thread as a coroutine would raise it."""
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        return RuntimeError(f"the body raised {type(error).__name__}")
    return asyncio.CancelledError(*error.args) if isinstance(error, FutureCancelled) else error


async def _within(seconds: float, called: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await called


class _Raised(NamedTuple):
    """An error raised by a body in a thread."""

    error: BaseException


def _with_outcome(work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        return _Raised(as_raised(error))


def _tell(ended: asyncio.Future[Any], outcome: Any) -> None:
    if not ended.done():
        ended.set_result(outcome)
    else:
        _close_if_coroutine(outcome)


def _close_if_coroutine(outcome: Any) -> None:
    """Close a coroutine that is never awaited, to avoid Python's warning at the next garbage
    collection.
    """
    if type(outcome) is CoroutineType:
        outcome.close()
