"""Running the bodies of steps: outside the workflow's loop, where they may do anything.

An ``async def`` body is a task of the worker's loop, a ``def`` body a call in a thread. What it returns
is encoded at once; what it raises is judged: an error of ``raises=`` or of the last try is the outcome, any
other is a failed attempt with a delay. That goes for errors of the databases that a body has to do with, too.
Only the connection that a transactional body is handed is ours: trouble with that is waited out, and never
recorded.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as FutureCancelled
from datetime import timedelta
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, cast

from pgflow._db.busy_poll import BusyPoll
from pgflow._db.calls import transaction as calls
from pgflow._db.connect import server_of
from pgflow._db.deadlines import Cord, cut
from pgflow._db.drivers import is_raised_on
from pgflow._db.failures import REFUSED_AFTER_SECONDS, database_error, is_conflict_on_unit, is_of_a_pooler, is_passing, sqlstate_of
from pgflow._engine.calls import EffectCall, StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.history import UNREADABLE
from pgflow._engine.host import StepResult
from pgflow._engine.loop import is_interrupt
from pgflow._engine.outcomes import seal_result
from pgflow._flow.scope import StepScope, current, log_fields
from pgflow._flow.step import Step
from pgflow._model.decisions import Choice
from pgflow._model.envelopes import open_text, open_value
from pgflow._model.exceptions import clean, encode_error
from pgflow._model.options import Retries
from pgflow._model.reasons import Unknown
from pgflow._transactions import protocol as transactions
from pgflow._transactions.provider import provider_for
from pgflow._worker.drafts import Drafts
from pgflow._worker.effect_bodies import Acts, unknown
from pgflow._worker.fencing import FenceHost, FenceQueue, FenceQueueFromThread
from pgflow._worker.threads import DaemonThreads, Job, Posts
from pgflow.errors import CodecError, LeaseLost, StepCommitted
from pgflow.logs import redacted
from pgflow.meter import Meter

log = logging.getLogger("pgflow")

_INFRASTRUCTURE_RETRIES = Retries(first_delay=timedelta(seconds=0.1), max_delay=timedelta(seconds=5))


class BodyHost(FenceHost, Protocol):
    """Interface of the worker, as bodies need it."""

    providers: list[Any]
    replacements: dict[Step[Any, Any], Callable[..., Any]]
    threads: DaemonThreads
    posts: Posts
    meter: Meter | None
    busy_poll: BusyPoll
    transaction_idle_ms: int

    @property
    def around_step(self) -> Callable[[StepScope], Any] | None:
        """Context manager to enter around a body, or None."""

    def returned(self, execution: Execution, result: StepResult) -> None:
        """A body has come back; never raises."""

    def wake_soon(self, chains: list[int], lanes: set[int]) -> None:
        """Wakes runs after a commit that sent them something."""

    def discard(self, execution: Execution, why: str) -> None:
        """Takes an execution apart."""

    def body_failed(self, execution: Execution, call: StepCall, error: BaseException) -> None:
        """Report a body whose result could not be judged."""

    def thread_lost(self, call: StepCall) -> None:
        """A body goes on in a thread that nobody waits for."""

    def prepare_no_more(self, error: BaseException) -> None:
        """A prepared statement was lost on a connection of ours."""


class Bodies:
    """The bodies that run in this worker."""

    def __init__(self, host: BodyHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._tasks: dict[StepCall, asyncio.Task[None] | Job] = {}
        self._providers: dict[Step[Any, Any], Any] = {}
        self._transactions: dict[StepCall, _Open] = {}
        self._acts = Acts(self)
        self._making_drafts = threading.Lock()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def replacements(self) -> dict[Step[Any, Any], Callable[..., Any]]:
        """Functions that tests call in place of a body, by step."""
        return self._host.replacements

    def start(self, execution: Execution, call: StepCall) -> None:
        """Runs a body."""
        if not _is_plain(execution, call):
            self._tasks[call] = self._loop.create_task(self._run(execution, call))
        elif call.spec.definition.is_async:
            self._start_as_task(execution, call)
        else:
            self._start_in_thread(execution, call)

    def stop(self, call: StepCall) -> None:
        """Nobody waits for it any more: a task is cancelled, a thread left to finish; past its fence it goes on."""
        task = self._tasks.get(call)
        if type(task) is Job:
            del self._tasks[call]
            self._left_behind(call, task)
        elif isinstance(task, asyncio.Task) and not call.fencing:
            task.cancel()

    def stop_all(self) -> list[asyncio.Task[None]]:
        """Cancels every task, for the end of the process: what they would have done is done elsewhere."""
        self._stopped = True
        for call in list(self._tasks):
            self.stop_now(call)
        return [task for task in self._tasks.values() if isinstance(task, asyncio.Task)]

    def stop_now(self, call: StepCall) -> None:
        """As :meth:`stop`, past its fence too."""
        task = self._tasks[call]
        if isinstance(task, asyncio.Task):
            task.cancel()
        else:
            self.stop(call)

    def leave(self, left_at: float) -> None:
        """Another server is the primary since then: transactions of the old one are lost, and their bodies run again."""
        for transaction in list(self._transactions.values()):
            if transaction.began_at < left_at:
                transaction.cut()

    # ------------------------------------------------------------ a body that needs nothing but a task, or a thread

    def _start_as_task(self, execution: Execution, call: StepCall) -> None:
        """In one coroutine around the body: each further one costs as much as its bookkeeping."""
        scope, context, fn = self._prepared(execution, call)
        self._tasks[call] = self._loop.create_task(self._come_back(execution, call, scope, fn), context=context)

    def _start_in_thread(self, execution: Execution, call: StepCall) -> None:
        """Without a task of the loop, which would cost more than the thread: what the body comes to is told by its thread."""
        scope, context, fn = self._prepared(execution, call)
        self._tasks[call] = self._host.threads.start(
            lambda: context.run(self._come_to, call, scope, fn),
            partial(self._host.posts.post, self._body_ended, execution, call, scope, context),
        )

    def _prepared(self, execution: Execution, call: StepCall) -> tuple[StepScope, contextvars.Context, Callable[..., Any]]:
        """The scope of a first try, the context that the body runs in, and its function."""
        scope = self._scope_of(execution, call, 1)
        step: Step[Any, Any] = call.spec.definition
        context = contextvars.copy_context()
        context.run(current.set, scope)
        for variable, value in call.variables:
            context.run(variable.set, value)
        return scope, context, self._host.replacements.get(step.origin) or step.fn

    def _scope_of(self, execution: Execution, call: StepCall, attempt: int) -> StepScope:
        return StepScope(
            execution.claim, call, attempt, lambda details: self._beat(execution, call, details),
            tell=lambda scope: self._tell(execution, scope),
        )

    def _tell(self, execution: Execution, scope: StepScope) -> None:
        with self._making_drafts:  # a body may emit in several threads
            if scope.drafts is None:
                scope.drafts = Drafts(self._host, self._loop, execution)
        scope.drafts.tell(scope)

    def _come_to(self, call: StepCall, scope: StepScope, fn: Callable[..., Any]) -> _CameTo:
        """In its thread: what the body returned, encoded, or raised; what it hands on to the loop."""
        try:
            value = self._call_sync(call, scope, fn, ())
            return value if type(value) is CoroutineType else self._encoded(call, scope, value)
        except BaseException as error:  # noqa: BLE001 - whatever a body raises is its outcome
            return error

    def _body_ended(
        self, execution: Execution, call: StepCall, scope: StepScope, context: contextvars.Context, outcome: _CameTo
    ) -> None:
        if isinstance(outcome, CoroutineType):
            if call in self._tasks:
                self._tasks[call] = self._loop.create_task(self._come_back(execution, call, scope, outcome), context=context)
            else:
                outcome.close()
            return
        if self._tasks.pop(call, None) is None:  # nobody waits for it any more
            return
        if isinstance(outcome, StepResult):
            self._host.returned(execution, outcome)
            return
        self._judge_raised(execution, call, _as_raised(outcome))

    def _judge_raised(self, execution: Execution, call: StepCall, error: BaseException) -> None:
        """Judges what a body has raised, and tells a person if that cannot be judged."""
        try:
            self._body_raised(execution, call, error)
        except BaseException as failure:
            if self._is_the_end(call, failure):
                raise
            self._host.body_failed(execution, call, failure)

    async def _come_back(
        self, execution: Execution, call: StepCall, scope: StepScope, body: Callable[..., Any] | CoroutineType[Any, Any, Any]
    ) -> None:
        """Awaits an async body; or the rest of one that is a lambda, or a def, and has called an async def."""
        try:
            value = await (body if isinstance(body, CoroutineType) else self.call_untimed(call, scope, body, ()))
            self._host.returned(execution, self._encoded(call, scope, value))
        except BaseException as error:
            if self._is_stopped(execution, call, error) or self._is_the_end(call, error):
                raise
            self._judge_raised(execution, call, _as_raised(error))
        finally:
            self._tasks.pop(call, None)

    def _body_raised(self, execution: Execution, call: StepCall, error: BaseException) -> None:
        """Judges what a body has raised that was not stopped by anybody."""
        if isinstance(error, asyncio.CancelledError):
            self._host.returned(execution, StepResult(call, None, encode_error(asyncio.CancelledError("the body cancelled itself"))))
        elif isinstance(error, LeaseLost):
            self._host.discard(execution, str(error))
        elif isinstance(error, CodecError):  # which is no fault of the body, and no outcome
            execution.hold_for(UNREADABLE, {"message": str(error), "step": call.name, "call": call.number})
        elif isinstance(error, StepCommitted):
            execution.hold_for("committed_outside", {"message": str(error), "step": call.name, "call": call.number})
        else:
            self._host.returned(execution, _judge(call, error))

    # ------------------------------------------------------------ one body

    async def _run(self, execution: Execution, call: StepCall) -> None:
        try:
            await self._try_until_judged(execution, call)
        except BaseException as error:
            if self._is_stopped(execution, call, error) or self._is_the_end(call, error):
                raise
            self._host.body_failed(execution, call, error)
        finally:
            self._tasks.pop(call, None)

    def _is_stopped(self, execution: Execution, call: StepCall, error: BaseException) -> bool:
        """Return True if the body was cancelled by somebody who wants nothing of it any more."""
        return isinstance(error, asyncio.CancelledError) and (self._stopped or execution.over or not execution.wants(call))

    def _is_the_end(self, call: StepCall, error: BaseException) -> bool:
        """Return True if something other than the body raised this: the process ends, or the loop has closed this very coroutine."""
        if isinstance(error, GeneratorExit):
            return asyncio._get_running_loop() is None or asyncio.current_task() is not self._tasks.get(call)
        return isinstance(error, KeyboardInterrupt) and call.spec.definition.is_async and is_interrupt(error)

    async def _try_until_judged(self, execution: Execution, call: StepCall) -> None:
        attempt = call.attempts if isinstance(call, EffectCall) else call.failed_attempts + 1
        scope = self._scope_of(execution, call, attempt)
        current.set(scope)
        for variable, value in call.variables:
            variable.set(value)
        if call.failed_attempts > 0 or execution.claim.has_beats or call.details is not None:
            scope.last_details = await self._last_details(execution, call)
        if isinstance(call, EffectCall):
            await self._try_effect(execution, call, scope)
            return
        tries, failing_since = 0, None
        while True:
            try:
                await self._attempt(execution, call, scope)
            except asyncio.CancelledError as error:
                if self._is_stopped(execution, call, error):
                    raise
                self._body_raised(execution, call, asyncio.CancelledError())
            except transactions.Trouble as trouble:
                now = time.monotonic()
                if failing_since is None:
                    failing_since = now
                elif not is_passing(trouble.error) and now - failing_since >= REFUSED_AFTER_SECONDS:
                    _hold_refused(execution, call, trouble.error)
                    return
                tries += 1
                await self.wait_out(execution, call, trouble.error, tries)
                continue
            except BaseException as error:  # whatever a body raises is its outcome
                if self._is_the_end(call, error):
                    raise
                self._body_raised(execution, call, error)
            return

    async def wait_out(self, execution: Execution, call: StepCall, error: BaseException, tries: int) -> None:
        """Waits as long as trouble with a connection, or contention, deserves."""
        if is_of_a_pooler(error):
            self._host.prepare_no_more(error)
        is_contention = sqlstate_of(error) in ("40001", "40P01", "55P03") or is_conflict_on_unit(error)
        delay = random.uniform(0.5, 1) * 0.005 * 2 ** min(tries, 8) if is_contention else _INFRASTRUCTURE_RETRIES.delay_seconds(tries)  # noqa: S311
        log.log(
            logging.DEBUG if is_contention else logging.WARNING,
            "step %s, call %s: %s; tried again in %.2f s and not recorded", call.name, call.number, redacted(error), delay,
            extra=log_fields(execution.claim, call),
        )
        if self._host.meter is not None:
            self._host.meter.tried_again(call.spec.effect, contention=is_contention)
        await asyncio.sleep(delay)

    async def _attempt(self, execution: Execution, call: StepCall, scope: StepScope) -> None:
        step: Step[Any, Any] = call.spec.definition
        scope.begin_try()
        if step.effect == "t":
            await self._transactional_attempt(execution, call, scope, step)
            return
        fn: Callable[..., Any] = self._host.replacements.get(step.origin) or step.fn
        value = await self.call_body(call, scope, fn, ())
        self._host.returned(execution, self._encoded(call, scope, value))

    @staticmethod
    def _encoded(call: StepCall, scope: StepScope, value: Any) -> StepResult:
        if call.spec.effect == "d" and not isinstance(value, Choice):
            raise TypeError(f"decision {call.name} must return a pgflow.Choice, not {type(value).__name__}")
        text = call.spec.result.encode(value, f"the result of step {call.name}")
        scope.succeeded()
        return StepResult(call, text, None)

    def call_body(self, call: StepCall, scope: StepScope, fn: Callable[..., Any], first: tuple[Any, ...]) -> Awaitable[Any]:
        """Return an awaitable for the body's result. Plain functions do: a coroutine for each body costs as much as its bookkeeping."""
        called = self.call_untimed(call, scope, fn, first)
        return called if call.spec.timeout_seconds is None else _within(call.spec.timeout_seconds, called)

    def call_untimed(self, call: StepCall, scope: StepScope, fn: Callable[..., Any], first: tuple[Any, ...]) -> Awaitable[Any]:
        """The same without a time-out."""
        if not call.spec.definition.is_async:
            return self._in_thread(call, self._call_sync, call, scope, fn, first)
        around_step = self._host.around_step
        if around_step is None:
            return cast("Awaitable[Any]", fn(*first, *call.args, **call.kwargs))
        return self._call_around(around_step(scope), call, fn, first)

    async def _call_around(self, context: Any, call: StepCall, fn: Callable[..., Any], first: tuple[Any, ...]) -> Any:
        with context:
            return await fn(*first, *call.args, **call.kwargs)

    async def _in_thread(self, call: StepCall, work: Callable[..., Any], *args: Any) -> Any:
        context = contextvars.copy_context()
        ended: asyncio.Future[Any] = self._loop.create_future()
        job = self._host.threads.start(partial(context.run, _with_outcome, work, *args), partial(self._host.posts.post, _tell, ended))
        try:
            outcome = await ended
        except asyncio.CancelledError:
            self._left_behind(call, job)
            raise
        if type(outcome) is _Raised:
            raise outcome.error
        if type(outcome) is CoroutineType:  # a lambda, or a def, that hands on what an async def is to do
            return await outcome
        return outcome

    def _left_behind(self, call: StepCall, job: Job) -> None:
        """Nobody waits for a body any more, which goes on in its thread if it has begun."""
        if self._host.threads.give_up(job) and not self._stopped:
            known = self._transactions.get(call)
            if known is not None and not call.fencing:  # it will not commit: what it has locked is free for the next
                known.leave_behind()
                known.cut()
            self._host.thread_lost(call)

    def _call_sync(self, call: StepCall, scope: StepScope, fn: Callable[..., Any], first: tuple[Any, ...]) -> Any:
        if self._host.around_step is None:
            return fn(*first, *call.args, **call.kwargs)
        with self._host.around_step(scope):
            return fn(*first, *call.args, **call.kwargs)

    # ------------------------------------------------------------ effects

    async def _try_effect(self, execution: Execution, call: EffectCall, scope: StepScope) -> None:
        """One attempt at an effect, or one question to the counterparty. Whatever happens in it is told, and nothing of it repeated."""
        turn = call.turn
        scope.begin_try()
        began = time.monotonic()
        try:
            result = await (self._acts.act(execution, call, scope) if call.phase == "act" else self._acts.inquire(call, scope))
        except asyncio.CancelledError as error:
            if self._stopped or execution.over or not execution.wants(call):
                raise
            result = unknown(call, Unknown.CANCELLED_ITSELF, error)
        except BaseException as error:  # whatever a body raises says something of the effect
            if self._is_the_end(call, error):
                raise
            result = unknown(call, Unknown.RAISED if call.phase == "act" else Unknown.ASKING_FAILED, error)
        if call.phase == "act":
            scope.succeeded()
        result.turn = turn
        result.took_seconds = time.monotonic() - began
        self._host.returned(execution, result)

    # ------------------------------------------------------------ transactional bodies

    async def _transactional_attempt(self, execution: Execution, call: StepCall, scope: StepScope, step: Any) -> None:
        provider = self._providers.get(step.origin)
        if provider is None:
            provider = self._providers[step.origin] = provider_for(step, self._host.providers)
        takes_connection = step.connection_parameter is not None
        fn: Callable[..., Any] = self._host.replacements.get(step.origin) or step.fn
        turns = FenceQueue(self._host, execution)
        scope.chains_to_wake.clear()
        scope.lanes_made_ready.clear()

        def encode(value: Any) -> str:
            what = f"the result of step {call.name}"
            text = call.spec.result.encode(value, what)
            if (envelopes := execution.claim.envelopes) is not None:
                call.stored = seal_result(call, text, envelopes)
                text = open_text(envelopes, call.stored, what)
            call.spec.result.decode(text, what)  # what the workflow could not read must not be committed
            scope.succeeded()
            return text

        def body(connection: Any) -> Any:
            scope.connection = connection
            execution.told_by = server_of(connection)
            return self.call_body(call, scope, fn, (connection,) if takes_connection else ())

        if step.is_async:
            is_open = False
            try:
                async with provider.begin_async(step.isolation) as transaction:
                    is_open = True
                    if hasattr(transaction, "busy_poll"):
                        transaction.busy_poll = self._host.busy_poll
                    protocol = transactions.attempt(
                        execution.claim, call, encode, together=hasattr(transaction, "execute_and_commit"),
                        is_ours=_is_of(transaction), has_closed=partial(_has_closed, transaction),
                        has_hooks=getattr(transaction, "has_hooks", True), durable_seq=execution.durable_seq,
                        idle_ms=self._host.transaction_idle_ms,
                    )
                    self._transactions[call] = _Open(time.monotonic(), lambda: _cut(transaction))
                    try:
                        wanted = await transactions.drive_async(protocol, transaction, body, turns)
                    finally:
                        del self._transactions[call]
            except Exception as error:
                _raise_unless_open(error, is_open)
                raise
        else:
            async with turns.limited():
                wanted = await self._in_thread(call, self._sync_transaction, provider, step, execution, call, scope, fn, encode, turns)
        if wanted:
            if self._host.meter is not None:
                self._host.meter.attempt_ended(step.effect)
            self._host.wake_soon(scope.chains_to_wake, scope.lanes_made_ready)

    def _sync_transaction(
        self, provider: Any, step: Any, execution: Execution, call: StepCall, scope: StepScope, fn: Callable[..., Any],
        encode: Callable[[Any], str], turns: FenceQueue,
    ) -> bool:
        takes_connection = step.connection_parameter is not None
        thread_turns = FenceQueueFromThread(turns, self._host.posts)
        is_open = False

        def body(connection: Any) -> Any:
            scope.connection = connection
            if call.spec.timeout_seconds is not None:
                self._host.posts.post(turns.start_clock, call.spec.timeout_seconds)
            execution.told_by = server_of(connection)
            return self._call_sync(call, scope, fn, (connection,) if takes_connection else ())

        try:
            with provider.begin(step.isolation) as transaction, _Cords(self._transactions, call, transaction) as cords:
                is_open = True
                protocol = transactions.attempt(
                    execution.claim, call, encode, together=hasattr(transaction, "execute_and_commit"), is_ours=_is_of(transaction),
                    has_closed=partial(_has_closed, transaction), has_hooks=getattr(transaction, "has_hooks", True),
                    durable_seq=execution.durable_seq, idle_ms=self._host.transaction_idle_ms,
                )
                return transactions.drive(protocol, transaction, body, thread_turns, cords.current)
        except Exception as error:
            _raise_unless_open(error, is_open)
            raise
        finally:
            thread_turns.tell_end()

    # ------------------------------------------------------------ heartbeats

    def _beat(self, execution: Execution, call: StepCall, details: str) -> None:
        execution.beat = True
        call.details = details
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._send_beat(execution, call, details)))

    async def _send_beat(self, execution: Execution, call: StepCall, details: str) -> None:
        query = calls.beat_step(execution.run_id, execution.claim.token, call.number, call.failed_attempts + 1, details)
        try:
            if not await self._host.ask(query):
                self._host.discard(execution, "another worker holds it")
        except Exception as error:  # noqa: BLE001 - a heartbeat that does not arrive is not an outcome
            log.warning("a heartbeat of step %s was not recorded: %s", call.name, redacted(error), extra=log_fields(execution.claim, call))

    async def _last_details(self, execution: Execution, call: StepCall) -> Any:
        if call.details is not None:
            details = json.loads(call.details)
        else:
            details = await self._host.ask(calls.step_details(execution.run_id, call.number))
        return open_value(execution.claim.envelopes, details, f"what step {call.name} said of its progress")


def _do_nothing() -> None:
    """For transactions whose connection nobody else needs."""


class _Open(NamedTuple):
    """A transaction that a body is in: since when, what cuts its connection, and what tells its provider that the body is left behind."""

    began_at: float
    cut: Callable[[], None]
    leave_behind: Callable[[], None] = _do_nothing


class _Cords:
    """Means to cut a transaction's connection while its thread waits on it, for as long as the transaction is open.

    Args:
        known: Calls under which it is put down, with the time at which the transaction began.
        call: Of the step.
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
        """Return the cord of its connection now; None if its provider does not tell the socket."""
        connection = getattr(self._transaction, "driver_connection", None)
        if self._cord is None or connection is not self._connection:
            fileno = transactions.socket_of(self._transaction)
            if fileno is not None:
                self._close()
                self._cord, self._connection = Cord(fileno), connection
                left = getattr(self._transaction, "leave_behind", _do_nothing)
                self._open = self._known[self._call] = _Open(self._began, self._cord.cut, left)
        return self._cord

    def _close(self) -> None:
        if self._known.get(self._call) is self._open:  # a body that was left behind comes back when the next try has long begun
            self._known.pop(self._call, None)
        if self._cord is not None:
            self._cord.close()

    def __exit__(self, *_: object) -> None:
        self._close()


def _is_of(transaction: Any) -> Callable[[BaseException], bool]:
    """Return a test for errors of a transaction's connection. It is always true where the library does not tell its connection."""

    def is_ours(error: BaseException) -> bool:
        connection = getattr(transaction, "driver_connection", None)
        return connection is None or is_raised_on(error, connection)

    return is_ours


def _has_closed(transaction: Any) -> bool:
    """Return True if a body has closed the connection of its transaction: one that is lost is broken."""
    connection = getattr(transaction, "driver_connection", None)
    return bool(getattr(connection, "closed", False)) and not getattr(connection, "broken", True)


def _raise_unless_open(error: Exception, is_open: bool) -> None:
    """No transaction could be opened: that is nobody's outcome."""
    if not is_open and database_error(error) is not None:
        raise transactions.Trouble(error) from error


def _hold_refused(execution: Execution, call: StepCall, error: BaseException) -> None:
    detail = {"message": clean(str(error)), "sqlstate": sqlstate_of(error), "step": call.name, "call": call.number}
    claim = execution.claim
    log.error("run %s is held: step %s was refused for long: %s", claim.key, call.name, redacted(error), extra=log_fields(claim, call))
    execution.hold_for("refused", detail)


def _cut(transaction: Any) -> None:
    fileno = transactions.socket_of(transaction)
    if fileno is not None:
        cut(fileno)


async def _within(seconds: float, called: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await called


class _Raised(NamedTuple):
    """Exception that a body in a thread has raised."""

    error: BaseException


def _with_outcome(work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        return _Raised(_as_raised(error))


_CameTo: TypeAlias = "StepResult | CoroutineType[Any, Any, Any] | BaseException"


def _as_raised(error: BaseException) -> BaseException:
    """An error of a body in a thread, as a coroutine in its place would raise it."""
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        return RuntimeError(f"the body raised {type(error).__name__}")
    return asyncio.CancelledError(*error.args) if isinstance(error, FutureCancelled) else error


def _tell(ended: asyncio.Future[Any], outcome: Any) -> None:
    if not ended.done():
        ended.set_result(outcome)


def _is_plain(execution: Execution, call: StepCall) -> bool:
    """Return True if a body needs nothing but a task or a thread: no time-out, no word of an earlier try, no transaction."""
    return (
        type(call) is StepCall and call.spec.effect != "t" and call.spec.timeout_seconds is None
        and call.failed_attempts == 0 and not execution.claim.has_beats
    )  # fmt: skip


def _judge(call: StepCall, error: BaseException) -> StepResult:
    """A failed attempt with a delay, or the outcome."""
    is_final = isinstance(error, call.spec.raises) or not isinstance(error, Exception)
    attempts = call.failed_attempts + 1
    is_last = attempts >= (call.max_attempts or call.spec.retries.max_attempts)
    delay = None if is_final or is_last else call.spec.retries.delay_seconds(attempts)
    return StepResult(call, None, encode_error(error), delay)
