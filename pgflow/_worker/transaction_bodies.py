"""Transactional bodies: one attempt at a step in a transaction of the application, whose commit is
the step's.

Only the connection passed to the body is pgflow's. Trouble with it, or with opening it, is not an
outcome of the step. One step of a run fences and commits at a time, in whichever thread its body
runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pgflow._db.connect import server_of
from pgflow._db.drivers import is_raised_in
from pgflow._db.failures import database_error
from pgflow._db.query import Query
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._engine.values import seal_result
from pgflow._flow.scope import StepScope
from pgflow._flow.step import Step
from pgflow._model.durations import duration
from pgflow._model.envelopes import is_hiding
from pgflow._transactions import protocol as transactions
from pgflow._transactions.provider import provider_for
from pgflow._worker.body_calls import BodyCalls
from pgflow._worker.context import WorkerContext
from pgflow._worker.notifications import Notifications
from pgflow._worker.runs import Runs
from pgflow._worker.threads import Answer, Posts
from pgflow.errors import NotStorable


class Turns:
    """The turns of all runs. Waiters check again whenever something of their run has changed.

    Attributes:
        runs: The runs.
        waiting: The waiters of each run.

    Args:
        runs: The runs of this worker.
    """

    def __init__(self, context: WorkerContext, runs: Runs) -> None:
        self.runs = runs
        self._acknowledged = context.acknowledged
        # Runs queries outside of the step's transaction.
        self._control = context.control
        self._loop = asyncio.get_running_loop()
        self.waiting: dict[Execution, list[asyncio.Future[None]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        """Tasks that threads wait for; a loop keeps no reference to its tasks."""
        runs.when_left(self.waiting.__contains__, self.changed)

    @staticmethod
    def is_free(execution: Execution) -> bool:
        """Return True if a step of the run may fence at once, or the run is over."""
        return execution.over or execution.flushing.may_fence

    async def wait_for(self, execution: Execution) -> None:
        """Wait until a step of the run may fence."""
        while not self.is_free(execution):
            turn = self._loop.create_future()
            self.waiting.setdefault(execution, []).append(turn)
            await turn

    def changed(self, execution: Execution) -> None:
        """Wake the waiters of a run, so that they check again."""
        for turn in self.waiting.pop(execution, ()):
            if not turn.done():
                turn.set_result(None)

    def fenced(self, execution: Execution, seq: int) -> None:
        """Note that a transaction of the run is committed: its units up to this seq are durable."""
        self.runs.suspects.progressed(execution)
        execution.flushing.acknowledged_at(time.monotonic())
        self._acknowledged.note(
            execution.run_id, execution.claim.token, seq, execution.claim.key, has_ended=False
        )

    def go_on(self, execution: Execution) -> None:
        """Release the outcome of a finished transaction and give the next one its turn."""
        if not execution.over:
            self.runs.guard(execution, execution.advance)
        self.changed(execution)

    async def ask_elsewhere(self, query: Query[Any]) -> Any:
        """Run a query on the worker's connection until there is an answer."""
        return await self._control.insist(query)

    def answer(self, coroutine: Coroutine[Any, Any, Any], answer: Answer) -> None:
        """Run a coroutine and pass its result to a waiting thread."""
        task = self._loop.create_task(_answered(coroutine, answer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)


async def _answered(coroutine: Coroutine[Any, Any, Any], answer: Answer) -> None:
    try:
        value = await coroutine
    except asyncio.CancelledError as error:
        # The thread itself is not cancelled: to it this is an error like others.
        answer.fail(FutureCancelled(*error.args))
        raise
    except Exception as error:  # noqa: BLE001 - raised in the thread
        answer.fail(error)
    else:
        answer.give(value)


class FenceQueue:
    """Turns of a transactional attempt (`pgflow._transactions.protocol.Fencing`), for a body on the
    worker's loop.
    """

    def __init__(self, turns: Turns, execution: Execution) -> None:
        self._turns = turns
        self._execution = execution
        self._limit: asyncio.Timeout | None = None
        self._over = False

    @asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Wrap a body in a thread. Once the block ends, by a time-out or otherwise, the thread may
        no longer fence.
        """
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        finally:
            self._over = True

    def start_clock(self, seconds: float) -> None:
        """Start the time-out of the body in the thread. It ends when the body takes its turn."""
        if self._limit is not None and not self._over:
            self._limit.reschedule(asyncio.get_running_loop().time() + seconds)

    async def take_turn(self, call: StepCall, text: str) -> Flush | None:
        if self._over:
            return None
        if self._limit is not None:
            self._limit.reschedule(None)
        await self._turns.wait_for(self._execution)
        return self._execution.begin_fence(call, text)

    def take_turn_for(self, call: StepCall, text: str, answer: Answer) -> None:
        """Take a turn for a thread, without a task of the loop if the turn is free."""
        if not self._over and not self._turns.is_free(self._execution):
            self._turns.answer(self.take_turn(call, text), answer)
            return
        if self._limit is not None and not self._over:
            self._limit.reschedule(None)
        try:
            answer.give(None if self._over else self._execution.begin_fence(call, text))
        except BaseException as error:
            answer.fail(error)
            raise

    async def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        self.turn_ended(call, flush, committed, at_us)

    def turn_ended(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        """End the turn and schedule what follows it."""
        self._execution.flushing.end_fence(call, flush, committed=committed, at_us=at_us)
        if committed:
            self._turns.fenced(self._execution, flush.last_seq)
        # In the next turn of the loop, once the connection is back at its provider.
        asyncio.get_running_loop().call_soon(self._turns.go_on, self._execution)

    async def ask_elsewhere(self, query: Query[Any]) -> Any:
        return await self._turns.ask_elsewhere(query)

    async def pause(self, tries: int) -> None:
        await asyncio.sleep(min(0.01 * 2**tries, 0.5))


class FenceQueueFromThread:
    """Turns for a body in a thread: each move runs on the worker's loop."""

    def __init__(self, turns: Turns, queue: FenceQueue, posts: Posts) -> None:
        self._turns = turns
        self._queue = queue
        self._posts = posts
        self._committed: tuple[StepCall, Flush, bool, int] | None = None

    def take_turn(self, call: StepCall, text: str) -> Flush | None:
        flush: Flush | None = self._posts.ask(self._queue.take_turn_for, call, text)
        return flush

    def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        if committed:  # reported at the end of the body, once the connection is back
            self._committed = call, flush, committed, at_us
        else:
            self._posts.post(self._queue.turn_ended, call, flush, committed, at_us)

    def report_end(self) -> None:
        """Report a turn that ended with a commit to the loop, after the connection was returned."""
        if self._committed is not None:
            self._posts.post(self._queue.turn_ended, *self._committed)

    def ask_elsewhere(self, query: Query[Any]) -> Any:
        return self._posts.ask(
            lambda answer: self._turns.answer(self._turns.ask_elsewhere(query), answer)
        )

    def pause(self, tries: int) -> None:
        self._posts.ask(lambda answer: self._turns.answer(self._queue.pause(tries), answer))


LONGEST_TIMEOUT_MS = 2**31 - 1
"""The longest time-out that the server accepts, 24 days."""


class TransactionBodies:
    """Makes attempts at transactional steps. It remembers the provider of each step's connection.

    Args:
        turns: Turns of the runs, to fence.
        notifications: Wakes the runs that a transaction has sent messages to.

    Attributes:
        calls: Calls the body.
    """

    def __init__(
        self,
        context: WorkerContext,
        calls: BodyCalls,
        turns: Turns,
        notifications: Notifications,
    ) -> None:
        options, definitions = context.options, context.definitions
        idle = duration(
            options.transaction_idle_seconds,
            "transaction_idle_seconds of a worker",
            least_seconds=0.001,
        )
        self.calls = calls
        self._idle_ms = min(round(idle.total_seconds() * 1000), LONGEST_TIMEOUT_MS)
        self._open = calls.lost_threads.transactions
        self._turns = turns
        self._posts = context.posts
        self._notifications = notifications
        self._known_providers = definitions.providers
        self._replacements = definitions.replacements
        self._meter = options.meter
        self._providers: dict[Step[Any, Any], Any] = {}

    async def attempt(
        self, execution: Execution, call: StepCall, scope: StepScope, step: Any
    ) -> None:
        """Run the body once, and commit its result behind the fence.

        Raises:
            Trouble: Its connection, or its server, is in trouble.
        """
        provider = self._providers.get(step.origin)
        if provider is None:
            provider = self._providers[step.origin] = provider_for(step, self._known_providers)
        takes_connection = step.connection_parameter is not None
        fn: Callable[..., Any] = self._replacements.get(step.origin) or step.fn
        queue = FenceQueue(self._turns, execution)
        scope.chains_to_wake, scope.lanes_made_ready = (), frozenset()

        def encode(value: Any) -> str:
            what = f"the result of step {call.name}"
            try:
                envelopes = execution.claim.envelopes
                text = call.spec.result.encode(value, what, is_hidden=is_hiding(envelopes))
                if envelopes is not None:
                    call.stored, text = seal_result(call, text, envelopes)
                # Do not commit a result that the workflow cannot read.
                call.spec.result.decode(text, what)
            except NotStorable as error:
                raise transactions.Unstorable(error) from error
            scope.succeeded()
            return text

        def body(connection: Any) -> Any:
            scope.connection = connection
            execution.flushing.acknowledged_from(server_of(connection))
            return self.calls.call(call, fn, (connection,) if takes_connection else ())

        if step.is_async:
            is_open = False
            try:
                async with provider.begin_async(step.isolation) as transaction:
                    is_open = True
                    scope.transaction, scope.transaction_is_sync = transaction, False
                    protocol = self._protocol(execution, call, encode, transaction)
                    self._open.begun(call, transaction)
                    try:
                        wanted = await transactions.drive_async(protocol, transaction, body, queue)
                    finally:
                        self._open.ended(call)
            except Exception as error:
                _raise_unless_open(error, is_open)
                raise
        else:
            async with queue.limited():
                wanted = await self.calls.in_thread(
                    call, self._in_thread, provider, step, execution, call, scope, fn, encode, queue
                )
        if wanted:
            if self._meter is not None:
                self._meter.attempt_ended(step.effect)
            # After the commit: a wake must see the messages.
            self._notifications.wake_soon(scope.chains_to_wake, scope.lanes_made_ready)

    def _in_thread(
        self,
        provider: Any,
        step: Any,
        execution: Execution,
        call: StepCall,
        scope: StepScope,
        fn: Callable[..., Any],
        encode: Callable[[Any], str],
        queue: FenceQueue,
    ) -> bool:
        takes_connection = step.connection_parameter is not None
        thread_queue = FenceQueueFromThread(self._turns, queue, self._posts)
        is_open = False

        def body(connection: Any) -> Any:
            scope.connection = connection
            if call.spec.timeout_seconds is not None:
                self._posts.post(queue.start_clock, call.spec.timeout_seconds)
            execution.flushing.acknowledged_from(server_of(connection))
            return self.calls.call_sync(call, fn, (connection,) if takes_connection else ())

        try:
            with (
                provider.begin(step.isolation) as transaction,
                self._open.cords(call, transaction) as cords,
            ):
                is_open = True
                scope.transaction, scope.transaction_is_sync = transaction, True
                protocol = self._protocol(execution, call, encode, transaction)
                return transactions.drive(protocol, transaction, body, thread_queue, cords.current)
        except Exception as error:
            _raise_unless_open(error, is_open)
            raise
        finally:
            thread_queue.report_end()

    def _protocol(
        self, execution: Execution, call: StepCall, encode: Callable[[Any], str], transaction: Any
    ) -> transactions.Protocol_:
        return transactions.attempt(
            execution.claim,
            call,
            encode,
            together=hasattr(transaction, "execute_and_commit"),
            is_ours=partial(is_raised_in, transaction),
            has_closed=partial(_has_closed, transaction),
            has_hooks=getattr(transaction, "has_hooks", True),
            durable_seq=execution.flushing.durable_seq,
            idle_ms=self._idle_ms,
        )


def _has_closed(transaction: Any) -> bool:
    """Return True if a body has closed the connection of its transaction, rather than lost it."""
    connection = getattr(transaction, "driver_connection", None)
    return bool(getattr(connection, "closed", False)) and not getattr(connection, "broken", True)


def _raise_unless_open(error: Exception, is_open: bool) -> None:
    """Raise Trouble if no transaction could be opened: that is not an outcome of the step."""
    if not is_open and database_error(error) is not None:
        raise transactions.Trouble(error) from error
