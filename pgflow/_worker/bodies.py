"""Runs the bodies of steps, outside the workflow's loop, where they may do anything.

An ``async def`` body is a task of the worker's loop, a ``def`` body a call in a thread. Its result
is encoded at once. Its error is either the outcome (an error of ``raises=``, or the last attempt)
or a failed attempt with a delay. A result that cannot be stored is an outcome at once: the body has
done its work, and a retry would repeat it. Errors of databases that the body itself uses belong to
the body. Only the connection passed to a transactional body is pgflow's: trouble with it is retried
and never recorded.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import CoroutineType
from typing import Any, TypeAlias

from pgflow._db.failures import (
    REFUSED_AFTER_SECONDS,
    is_our_trouble,
    is_passing,
    sqlstate_of,
)
from pgflow._engine.calls import StepCall
from pgflow._engine.effects import EffectCall
from pgflow._engine.execution import Execution
from pgflow._engine.host import EffectResult, StepResult
from pgflow._engine.loop import is_interrupt
from pgflow._engine.values import UNREADABLE
from pgflow._flow.scope import StepScope, current, log_fields
from pgflow._flow.step import Step
from pgflow._model.decisions import Choice
from pgflow._model.envelopes import is_hiding
from pgflow._model.exceptions import clean, encode_error
from pgflow._model.reasons import Unknown
from pgflow._transactions.protocol import Trouble, Unstorable
from pgflow._worker.body_calls import as_raised
from pgflow._worker.context import WorkerContext
from pgflow._worker.effect_bodies import EffectAttempts, unknown
from pgflow._worker.progress import Progress
from pgflow._worker.runs import Runs
from pgflow._worker.threads import Job
from pgflow._worker.transaction_bodies import TransactionBodies
from pgflow.errors import CodecError, LeaseLost, NotStorable, StepCommitted
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Bodies:
    """The bodies that run in this worker, each with its task or job from its start until it is
    judged or given up, and the bodies that wait for a fresh heartbeat.

    Args:
        runs: The runs of this worker; get the results.
        transactions: Attempts at transactional steps.
        progress: Sends the reports of bodies.
    """

    def __init__(
        self,
        context: WorkerContext,
        runs: Runs,
        transactions: TransactionBodies,
        progress: Progress,
    ) -> None:
        definitions = context.definitions
        self._runs = runs
        self._transactions = transactions
        self._progress = progress
        self._calls = calls = transactions.calls
        self._effects = EffectAttempts(calls, definitions)
        self._threads = calls.threads
        self._lost = calls.lost_threads
        self._posts = context.posts
        # Its `stale_at` defers effectful bodies.
        self._life = context.life
        self._replacements = definitions.replacements
        self._interceptors = definitions.interceptors
        # Without a codec, the text of errors may be recorded.
        self._records_errors = definitions.envelopes is None
        self._meter = context.options.meter
        self._loop = loop = asyncio.get_running_loop()
        # Without a factory `create_task` only calls this, which is one call less for each body.
        self._begin_task: Any = (
            partial(asyncio.Task, loop=loop)
            if loop.get_task_factory() is None
            else loop.create_task
        )
        # A body started by the end of another one must not see that one's variables.
        self._context = contextvars.copy_context()
        self._tasks: dict[StepCall, asyncio.Task[None] | Job] = {}
        self._deferred: list[tuple[Execution, StepCall]] = []
        self._stopped = False
        runs.when_leaving(attrgetter("agenda.running"), self._stop_those_of)

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, execution: Execution, call: StepCall) -> None:
        """Start a body. Defer an effectful one if the last heartbeat is too old: others may soon
        believe this worker dead.

        A plain body runs in a single coroutine, or in a thread without a task, because each further
        coroutine costs as much as all of its bookkeeping.
        """
        if call.spec.effect != "r" and time.monotonic() > self._life.stale_at:
            self._deferred.append((execution, call))
            return
        context = self._context.copy()
        if not call.spec.is_plain or call.failed_attempts or execution.claim.has_beats:
            self._tasks[call] = self._loop.create_task(self._run(execution, call), context=context)
            return
        step: Step[Any, Any] = call.spec.definition
        fn = self._replacements.get(step.origin) or step.fn
        scope = StepScope(execution, call, 1, self._progress)
        context.run(current.set, scope)
        for variable, value in call.variables:
            context.run(variable.set, value)
        if step.is_async:
            body = fn if not self._interceptors else partial(self._calls.call_around, fn)
            self._tasks[call] = self._begin_task(
                self._await_body(execution, call, scope, body), context=context
            )
        else:
            self._tasks[call] = self._threads.start(
                lambda: context.run(self._outcome_of, call, scope, fn),
                partial(self._posts.post, self._body_ended, execution, call, scope, context),
            )

    def start_deferred(self) -> None:
        """Start the bodies that waited for a fresh heartbeat."""
        deferred, self._deferred = self._deferred, []
        for execution, call in deferred:
            if not execution.over and execution.agenda.is_open(call):
                self.start(execution, call)

    def stop(self, call: StepCall) -> None:
        """Give a body up: cancel its task, or abandon its thread. A body past its fence
        continues.
        """
        if self._deferred:
            self._deferred = [pair for pair in self._deferred if pair[1] is not call]
        task = self._tasks.get(call)
        if type(task) is Job:
            del self._tasks[call]
            self._lost.abandon(call, task)
        elif isinstance(task, asyncio.Task) and not call.fencing:
            task.cancel()

    def _stop_those_of(self, execution: Execution) -> None:
        for call in list(execution.agenda.running.values()):
            self.stop(call)

    async def stop_all(self) -> None:
        """Cancel every task at the end of the worker, and wait up to a second for each. Another
        worker repeats their work.
        """
        for task in self.abandon():
            # Bounded, because a body may suppress the cancel.
            await asyncio.wait([task], timeout=1)

    def abandon(self) -> list[asyncio.Task[None]]:
        """Cancel every task without waiting, and return the tasks."""
        self._stopped = True
        self._lost.end()
        for call, task in list(self._tasks.items()):
            if isinstance(task, asyncio.Task):
                task.cancel()  # past its fence, too
            else:
                self.stop(call)
        return [task for task in self._tasks.values() if isinstance(task, asyncio.Task)]

    # -------------------------------------------- a body that needs nothing but a task, or a thread

    def _outcome_of(self, call: StepCall, scope: StepScope, fn: Callable[..., Any]) -> _Outcome:
        """Return the body's encoded result, its coroutine, or its error. Runs in the body's
        thread.
        """
        try:
            value = self._calls.call_sync(call, fn, ())
            return value if type(value) is CoroutineType else _encoded(call, scope, value)
        except BaseException as error:  # noqa: BLE001 - whatever a body raises is its outcome
            return error

    def _body_ended(
        self,
        execution: Execution,
        call: StepCall,
        scope: StepScope,
        context: contextvars.Context,
        outcome: _Outcome,
    ) -> None:
        if isinstance(outcome, CoroutineType):
            if call in self._tasks:
                self._tasks[call] = self._loop.create_task(
                    self._await_body(execution, call, scope, outcome), context=context
                )
            else:
                outcome.close()
            return
        if self._tasks.pop(call, None) is None:  # given up meanwhile
            return
        if isinstance(outcome, StepResult):
            self.returned(execution, outcome)
        elif is_our_trouble(outcome):
            self._tasks[call] = self._loop.create_task(
                self._run(execution, call, outcome), context=self._context.copy()
            )
        else:
            self._judge_raised(execution, call, as_raised(outcome))

    async def _await_body(
        self,
        execution: Execution,
        call: StepCall,
        scope: StepScope,
        body: Callable[..., Any] | CoroutineType[Any, Any, Any],
    ) -> None:
        """Await an async body, or the coroutine that a lambda or a ``def`` returned, and judge its
        outcome.
        """
        try:
            if isinstance(body, CoroutineType):
                value = await body
            else:
                value = await body(*call.args, **call.kwargs)
            self.returned(execution, _encoded(call, scope, value))
        except BaseException as error:
            if self._is_stopped(execution, call, error) or self._is_the_end(call, error):
                raise
            if is_our_trouble(error):
                await self._run(execution, call, error)
            else:
                self._judge_raised(execution, call, as_raised(error))
        finally:
            self._tasks.pop(call, None)

    # ------------------------------------------------------------ one that needs more

    async def _run(
        self, execution: Execution, call: StepCall, trouble: BaseException | None = None
    ) -> None:
        """Run a body until it is judged. `trouble` is the connection trouble that a first attempt
        met.
        """
        try:
            await self._try_until_judged(execution, call, trouble)
        except BaseException as error:
            if self._is_stopped(execution, call, error) or self._is_the_end(call, error):
                raise
            self._hold_unjudged(execution, call, error)
        finally:
            self._tasks.pop(call, None)

    async def _try_until_judged(
        self, execution: Execution, call: StepCall, trouble: BaseException | None
    ) -> None:
        attempt = call.attempts if isinstance(call, EffectCall) else call.failed_attempts + 1
        scope = StepScope(execution, call, attempt, self._progress)
        # From here on the code is the body of a step.
        current.set(scope)
        for variable, value in call.variables:
            variable.set(value)
        if call.failed_attempts > 0 or execution.claim.has_beats or call.details is not None:
            scope.last_details = await self._progress.last_details(execution, call)
        if isinstance(call, EffectCall):
            await self._try_effect(execution, call, scope)
            return
        tries, failing_since = 0, time.monotonic()
        while True:
            if trouble is not None:
                tries += 1
                await self._calls.wait_out(execution, call, trouble, tries)
            trouble = await self._trouble_of(execution, call, scope)
            if trouble is None:
                return
            now = time.monotonic()
            if tries == 0:
                failing_since = now
            elif not is_passing(trouble) and now - failing_since >= REFUSED_AFTER_SECONDS:
                _hold_refused(execution, call, trouble)
                return

    async def _trouble_of(
        self, execution: Execution, call: StepCall, scope: StepScope
    ) -> BaseException | None:
        """Return the connection trouble that an attempt met, or None if the attempt was judged."""
        try:
            await self._attempt(execution, call, scope)
        except asyncio.CancelledError as error:
            if self._is_stopped(execution, call, error):
                raise
            self._body_raised(execution, call, asyncio.CancelledError())
        except Trouble as trouble:
            return trouble.error
        except BaseException as error:  # whatever a body raises is its outcome
            if self._is_the_end(call, error):
                raise
            if call.spec.effect != "t" and is_our_trouble(error):
                return error
            self._body_raised(execution, call, error)
        return None

    async def _attempt(self, execution: Execution, call: StepCall, scope: StepScope) -> None:
        step: Step[Any, Any] = call.spec.definition
        scope.begin_try()
        if step.effect == "t":
            await self._transactions.attempt(execution, call, scope, step)
            return
        fn: Callable[..., Any] = self._replacements.get(step.origin) or step.fn
        value = await self._calls.call(call, fn, ())
        self.returned(execution, _encoded(call, scope, value))

    async def _try_effect(self, execution: Execution, call: EffectCall, scope: StepScope) -> None:
        """Make one attempt at an effect, or ask the counterparty once. Record every outcome and
        repeat nothing.
        """
        turn, is_acting = call.turn, call.is_acting
        scope.begin_try()
        began = time.monotonic()
        try:
            result = await (
                self._effects.act(execution, call) if is_acting else self._effects.inquire(call)
            )
        except asyncio.CancelledError as error:
            if self._stopped or execution.over or not execution.agenda.is_open(call):
                raise
            result = unknown(call, Unknown.CANCELLED_ITSELF, error)
        except BaseException as error:  # any error is evidence about the effect
            if self._is_the_end(call, error):
                raise
            result = unknown(call, Unknown.RAISED if is_acting else Unknown.ASKING_FAILED, error)
        if is_acting:
            scope.succeeded()
        result.turn = turn
        result.took_seconds = time.monotonic() - began
        self.returned(execution, result)

    # ------------------------------------------------------------ results

    def returned(self, execution: Execution, result: StepResult) -> None:
        """Hand the result of a body to its run; never raises."""
        call, again = result.call, result.delay_seconds is not None
        if self._meter is not None:
            self._meter.attempt_ended(
                call.spec.effect, failed=result.error is not None, again=again
            )
        if result.error is not None:
            # Never log its text: it may quote the run's data.
            kind = result.error["type"].removeprefix("builtins.")
            then = f"retrying in {result.delay_seconds:.2f} s" if again else "not retried"
            if isinstance(result, EffectResult):
                then = f"its outcome is {result.verdict}"
            log.info(
                "step %s failed with %s: %s",
                call.name,
                kind,
                then,
                extra=log_fields(execution.claim, call),
            )
        try:
            execution.step_returned(result)
        except BaseException as error:  # noqa: BLE001 - raised again if it is the end
            self._runs.move_failed(execution, error)

    def _judge_raised(self, execution: Execution, call: StepCall, error: BaseException) -> None:
        """Judge the error of a body, and hold the run if that fails."""
        try:
            self._body_raised(execution, call, error)
        except BaseException as failure:
            if self._is_the_end(call, failure):
                raise
            self._hold_unjudged(execution, call, failure)

    def _body_raised(self, execution: Execution, call: StepCall, error: BaseException) -> None:
        """Judge the error of a body that was not cancelled by its run or worker."""
        if isinstance(error, asyncio.CancelledError):
            self.returned(
                execution,
                StepResult(
                    call, None, encode_error(asyncio.CancelledError("the body cancelled itself"))
                ),
            )
        elif isinstance(error, LeaseLost):
            self._runs.discard(execution, str(error))
        elif isinstance(error, CodecError):  # not the body's fault, so not an outcome
            execution.hold_for(UNREADABLE, _detail(call, str(error)))
        elif isinstance(error, StepCommitted):
            execution.hold_for("committed_outside", _detail(call, str(error)))
        else:
            self.returned(execution, _failed_result(call, error))

    def _hold_unjudged(self, execution: Execution, call: StepCall, error: BaseException) -> None:
        """Hold the run because the result of a body could not be processed. Without this, the run
        would wait for it forever.
        """
        where = log_fields(execution.claim, call)
        log.error(
            "step %s: cannot process its result; the run is held",
            call.name,
            exc_info=error,
            extra=where,
        )
        if self._runs.has(execution) and not execution.over:
            text = f": {redacted(error)}" if self._records_errors else ""
            message = f"cannot process the result of step {call.name}: {type(error).__name__}{text}"
            detail = _detail(call, clean(message))
            self._runs.guard(execution, execution.hold_for, "engine", detail)

    def _is_stopped(self, execution: Execution, call: StepCall, error: BaseException) -> bool:
        """Return True if the body was cancelled because its run or worker no longer needs it."""
        return isinstance(error, asyncio.CancelledError) and (
            self._stopped or execution.over or not execution.agenda.is_open(call)
        )

    def _is_the_end(self, call: StepCall, error: BaseException) -> bool:
        """Return True if the error did not come from the body: the process ends, or the loop has
        closed this coroutine.
        """
        if isinstance(error, GeneratorExit):
            return (
                asyncio._get_running_loop() is None
                or asyncio.current_task() is not self._tasks.get(call)
            )
        return (
            isinstance(error, KeyboardInterrupt)
            and call.spec.definition.is_async
            and is_interrupt(error)
        )


_Outcome: TypeAlias = "StepResult | CoroutineType[Any, Any, Any] | BaseException"


def _encoded(call: StepCall, scope: StepScope, value: Any) -> StepResult:
    if call.spec.effect == "d":
        if not isinstance(value, Choice):
            raise Unstorable(
                TypeError(
                    f"decision {call.name} must return a pgflow.decisions.Choice, not "
                    f"{type(value).__name__}"
                )
            )
        value = value.recorded()
    try:
        what = f"the result of step {call.name}"
        text = call.spec.result.encode(value, what, is_hidden=is_hiding(scope.claim.envelopes))
    except NotStorable as error:
        raise Unstorable(error) from error
    if scope.emitted:
        scope.succeeded()
    return StepResult(call, text, None)


def _failed_result(call: StepCall, error: BaseException) -> StepResult:
    """Return a failed attempt with a delay, or the outcome if no attempt is left."""
    is_final = isinstance(error, call.spec.raises) or not isinstance(error, Exception)
    if isinstance(error, Unstorable):
        error, is_final = error.error, True
    attempts = call.failed_attempts + 1
    is_last = attempts >= (call.max_attempts or call.spec.retries.max_attempts)
    delay = None if is_final or is_last else call.spec.retries.delay_seconds(attempts)
    return StepResult(call, None, encode_error(error), delay)


def _detail(call: StepCall, message: str) -> dict[str, Any]:
    """Return the detail of a hold for a step."""
    return {"message": message, "step": call.name, "call": call.number}


def _hold_refused(execution: Execution, call: StepCall, error: BaseException) -> None:
    detail = {**_detail(call, clean(str(error))), "sqlstate": sqlstate_of(error)}
    claim = execution.claim
    log.error(
        "run %s is held: the server kept refusing step %s: %s",
        claim.key,
        call.name,
        redacted(error),
        extra=log_fields(claim, call),
    )
    execution.hold_for("refused", detail)
