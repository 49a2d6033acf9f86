"""Calls functions of the app for a step: its body, and the questions before or after it. Coroutine
functions are awaited, others run in a thread.

A body in a thread cannot be stopped, so it continues after its step was given up. New threads
replace such lost ones, up to a bound. A worker at that bound for as long as its grace fails. The
connection of an abandoned body's transaction is cut.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as FutureCancelled
from datetime import timedelta
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple, Self

from pgflow._db.calls import worker as worker_calls
from pgflow._db.connect import is_left, last_left, server_of
from pgflow._db.deadlines import Cord, cut
from pgflow._db.failures import is_conflict_on_unit, is_of_a_pooler, sqlstate_of
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._flow.operations import around_body
from pgflow._flow.scope import log_fields
from pgflow._model.options import Retries
from pgflow._transactions import protocol as transactions
from pgflow._worker.context import WorkerContext
from pgflow._worker.options import WorkerOptions
from pgflow._worker.parts import Part, quietly
from pgflow._worker.threads import DaemonThreads, Job
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


def _do_nothing() -> None:
    """Leave-behind callback for transactions whose connection is not shared."""


class _Open(NamedTuple):
    """An open transaction of a body: its start, its connection, the function that cuts that, and
    the one that notifies its provider of an abandoned body.
    """

    began_at: float
    connection: object
    cut: Callable[[], None]
    leave_behind: Callable[[], None] = _do_nothing


class OpenTransactions(Part):
    """Tracks the open transaction of each call: the one that its last body has begun."""

    def __init__(self) -> None:
        self._known: dict[StepCall, _Open] = {}

    def begun(self, call: StepCall, transaction: Any) -> None:
        """Track the transaction of an async body."""
        connection = getattr(transaction, "driver_connection", None)
        self._known[call] = _Open(time.monotonic(), connection, lambda: _cut(transaction))

    def ended(self, call: StepCall) -> None:
        """Stop tracking the transaction of an async body."""
        del self._known[call]

    def cords(self, call: StepCall, transaction: Any) -> Cords:
        """Return a context that tracks the transaction of a body in a thread."""
        return Cords(self._known, call, transaction)

    def leave_behind(self, call: StepCall) -> None:
        """Cut the transaction of an abandoned body: it cannot commit, and its locks are free for
        the next attempt.
        """
        known = self._known.get(call)
        if known is not None:
            known.leave_behind()
            known.cut()

    def leave(self) -> None:
        """Cut transactions on the old primary. They are lost, and their bodies run again."""
        for transaction in list(self._known.values()):
            is_ours = server_of(transaction.connection) is not None
            if is_left(transaction.connection) if is_ours else transaction.began_at < last_left():
                transaction.cut()


class Cords:
    """Cuts a transaction's connection while its thread waits on it, for as long as the transaction
    is open.

    Args:
        known: Open transactions by call; this one is entered with its start time.
        call: Call of the step.
        transaction: May change its connection until its first statement has been executed.
    """

    def __init__(self, known: dict[StepCall, _Open], call: StepCall, transaction: Any) -> None:
        self._known = known
        self._call = call
        self._transaction = transaction
        self._began = time.monotonic()
        self._cord: Cord | None = None
        self._connection: Any = None
        self._open: _Open | None = None

    def __enter__(self) -> Self:
        self.current()
        return self

    def current(self) -> Cord | None:
        """Return the cord of the current connection; None if its provider does not expose the
        socket.
        """
        connection = getattr(self._transaction, "driver_connection", None)
        if self._cord is None or connection is not self._connection:
            fileno = transactions.socket_of(self._transaction)
            if fileno is not None:
                self._close()
                self._cord, self._connection = Cord(fileno), connection
                left = getattr(self._transaction, "leave_behind", _do_nothing)
                self._open = self._known[self._call] = _Open(
                    self._began, connection, self._cord.cut, left
                )
        return self._cord

    def _close(self) -> None:
        if self._known.get(self._call) is self._open:
            # An abandoned body may return late: the entry of the next attempt must stay.
            self._known.pop(self._call, None)
        if self._cord is not None:
            self._cord.close()

    def __exit__(self, *_: object) -> None:
        self._close()


def _cut(transaction: Any) -> None:
    fileno = transactions.socket_of(transaction)
    if fileno is not None:
        cut(fileno)


LEAST_LOST = 32
"""Least default for the number of threads that may be lost, however low the concurrency."""


class LostThreads(Part):
    """Counts lost threads and fails the worker when there are too many.

    Args:
        threads: Run the bodies, and are shut down with this part.

    Attributes:
        most: Number of lost threads that are replaced. The worker fails with this many.
        transactions: Open transactions; those of abandoned bodies are cut.
    """

    def __init__(self, context: WorkerContext, threads: DaemonThreads) -> None:
        self.most = threads.max_lost
        self.transactions = OpenTransactions()
        self._threads = threads
        self._tasks = context.tasks
        # Records the number of lost threads in the database.
        self._control = context.control
        self._life = context.life
        self._grace_seconds = context.options.grace_seconds
        self._meter = context.options.meter
        self._loop = asyncio.get_running_loop()
        self._is_ending = False
        self._recorded = 0
        self._is_recording = False
        self._too_many_since: float | None = None

    @property
    def count(self) -> int:
        """Number of threads that run abandoned bodies."""
        return self._threads.lost

    def abandon(self, call: StepCall, job: Job) -> None:
        """Abandon a body, which continues in its thread if it has begun."""
        if self._threads.give_up(job) and not self._is_ending:
            # Past its fence a body goes on to commit.
            if not call.fencing:
                self.transactions.leave_behind(call)
            if self._meter is not None:
                self._meter.thread_lost()
            log.warning(
                "step %s continues in its thread after it was given up: %d of %d "
                "threads that this worker may lose are lost",
                call.name,
                self._threads.lost,
                self.most,
            )

    def end(self) -> None:
        """Stop reporting: all bodies are abandoned with their worker."""
        self._is_ending = True

    def look(self) -> None:
        """Record the number of lost threads, and fail the worker if there are too many for longer
        than its grace.
        """
        lost, now = self._threads.lost, self._loop.time()
        if lost != self._recorded and not self._is_recording:
            self._is_recording = True
            self._tasks.spawn(self._record(lost))
        if lost < max(1, self.most):
            self._too_many_since = None
        elif self._too_many_since is None:
            self._too_many_since = now
            log.error(
                "%d of %d threads that worker %s may lose are lost to bodies that do not end: it "
                "hands its runs back in %.1f s",
                lost,
                self.most,
                self._life.worker_id,
                self._grace_seconds,
            )
        elif now - self._too_many_since > self._grace_seconds:
            self._life.fail(
                f"{lost} of its threads are lost to bodies that do not end, as many as it may lose"
            )

    async def _record(self, lost: int) -> None:
        try:
            await quietly(
                self._control.ask(worker_calls.count_lost_threads(self._life.worker_id, lost))
            )
            self._recorded = lost
        finally:
            self._is_recording = False

    def reset_record(self) -> None:
        """Record the number again: the database has none for the new registration."""
        self._recorded = 0

    async def stop(self) -> None:
        """Start no further body, and wait for none."""
        self._threads.shutdown(cancel_futures=True)


def most_lost(options: WorkerOptions) -> int:
    """Return the number of lost threads that are replaced."""
    return (
        max(LEAST_LOST, options.concurrency)
        if options.max_lost_threads is None
        else options.max_lost_threads
    )


_INFRASTRUCTURE_RETRIES = Retries(
    first_delay=timedelta(seconds=0.1), max_delay=timedelta(seconds=5)
)


class BodyCalls:
    """Calls functions of the app. It keeps no state; the caller owns the result.

    Attributes:
        threads: For functions that are not coroutine functions.
        lost_threads: Tracks abandoned threads.
    """

    def __init__(self, context: WorkerContext) -> None:
        options = context.options
        self.threads = DaemonThreads(
            options.concurrency, "pgflow-step", max_lost=most_lost(options)
        )
        self.lost_threads = LostThreads(context, self.threads)
        self._posts = context.posts
        # Their ``around_step`` wraps each call.
        self._interceptors = context.definitions.interceptors
        # Ends if a pooler lost a prepared statement on a connection of pgflow.
        self._preparing = context.connect.preparing
        # Counts attempts that are not recorded.
        self._meter = options.meter
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
        job = self.threads.start(
            partial(context.run, _with_outcome, work, *args),
            partial(self._posts.post, _set_outcome, ended),
        )
        try:
            outcome = await ended
        except asyncio.CancelledError:
            self.lost_threads.abandon(call, job)
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


def _set_outcome(ended: asyncio.Future[Any], outcome: Any) -> None:
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
