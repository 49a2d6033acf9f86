"""Transactional bodies: one attempt at a step in a transaction of the application, whose commit is
the step's.

Only the connection passed to the body is pgflow's. Trouble with it, or with opening it, is not an
outcome of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pgflow._db.busy_poll import BusyPoll
from pgflow._db.connect import server_of
from pgflow._db.drivers import is_raised_on
from pgflow._db.failures import database_error
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.values import seal_result
from pgflow._flow.scope import StepScope
from pgflow._flow.step import Step
from pgflow._model.durations import duration
from pgflow._transactions import protocol as transactions
from pgflow._transactions.provider import provider_for
from pgflow._worker.body_calls import BodyCalls
from pgflow._worker.fencing import FenceQueue, FenceQueueFromThread, Turns
from pgflow._worker.open_transactions import OpenTransactions
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.threads import Posts
from pgflow._worker.wakes import Wakes
from pgflow.errors import NotStorable

LONGEST_TIMEOUT_MS = 2**31 - 1
"""The longest time-out that the server accepts, 24 days."""


class TransactionBodies:
    """Makes attempts at transactional steps. It remembers the provider of each step's connection.

    Args:
        calls: Calls the body.
        open_transactions: Tracks the open transactions, and can cut them.
        turns: Turns of the runs, to fence.
        wakes: Wakes the runs that a transaction has sent messages to.
        busy_poll: Polls for answers as the rest of the worker does.
    """

    def __init__(
        self,
        calls: BodyCalls,
        open_transactions: OpenTransactions,
        turns: Turns,
        posts: Posts,
        wakes: Wakes,
        busy_poll: BusyPoll,
        definitions: Definitions,
        options: WorkerOptions,
    ) -> None:
        idle = duration(
            options.transaction_idle_seconds,
            "transaction_idle_seconds of a worker",
            least_seconds=0.001,
        )
        self._idle_ms = min(round(idle.total_seconds() * 1000), LONGEST_TIMEOUT_MS)
        self._calls = calls
        self._open = open_transactions
        self._turns = turns
        self._posts = posts
        self._wakes = wakes
        self._busy_poll = busy_poll
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
                text = call.spec.result.encode(value, what)
                if (envelopes := execution.claim.envelopes) is not None:
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
            return self._calls.call(call, fn, (connection,) if takes_connection else ())

        if step.is_async:
            is_open = False
            try:
                async with provider.begin_async(step.isolation) as transaction:
                    is_open = True
                    scope.transaction, scope.transaction_is_sync = transaction, False
                    if hasattr(transaction, "busy_poll"):
                        transaction.busy_poll = self._busy_poll
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
                wanted = await self._calls.in_thread(
                    call, self._in_thread, provider, step, execution, call, scope, fn, encode, queue
                )
        if wanted:
            if self._meter is not None:
                self._meter.attempt_ended(step.effect)
            # After the commit: a wake must see the messages.
            self._wakes.wake_soon(scope.chains_to_wake, scope.lanes_made_ready)

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
            return self._calls.call_sync(call, fn, (connection,) if takes_connection else ())

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
            thread_queue.tell_end()

    def _protocol(
        self, execution: Execution, call: StepCall, encode: Callable[[Any], str], transaction: Any
    ) -> transactions.Protocol_:
        return transactions.attempt(
            execution.claim,
            call,
            encode,
            together=hasattr(transaction, "execute_and_commit"),
            is_ours=_is_of(transaction),
            has_closed=partial(_has_closed, transaction),
            has_hooks=getattr(transaction, "has_hooks", True),
            durable_seq=execution.flushing.durable_seq,
            idle_ms=self._idle_ms,
        )


def _is_of(transaction: Any) -> Callable[[BaseException], bool]:
    """Return a test for errors of a transaction's connection. It is always true if the library does
    not expose its connection.
    """

    def is_ours(error: BaseException) -> bool:
        connection = getattr(transaction, "driver_connection", None)
        return connection is None or is_raised_on(error, connection)

    return is_ours


def _has_closed(transaction: Any) -> bool:
    """Return True if a body has closed the connection of its transaction, rather than lost it."""
    connection = getattr(transaction, "driver_connection", None)
    return bool(getattr(connection, "closed", False)) and not getattr(connection, "broken", True)


def _raise_unless_open(error: Exception, is_open: bool) -> None:
    """Raise Trouble if no transaction could be opened: that is not an outcome of the step."""
    if not is_open and database_error(error) is not None:
        raise transactions.Trouble(error) from error
