"""Running the bodies of steps: outside the workflow's loop, where they may do anything.

An ``async def`` body is a task of the worker's loop, a ``def`` body a call in a thread. What it returns
is encoded at once; what it raises is judged: infrastructure is tried again and never recorded, an error
of ``raises=`` or of the last try is the outcome, any other is a failed attempt with a delay.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol, cast

from pgflow import transactions
from pgflow._calls import transaction as calls
from pgflow._engine.calls import EffectCall, StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._engine.host import EffectResult, StepResult
from pgflow._engine.ledger import CHANGED, GUARDED
from pgflow._io import Query, is_conflict_on_unit, is_infrastructure
from pgflow._scope import StepScope, current, log_fields
from pgflow.effect import EffectStep
from pgflow.errors import Diverged, LeaseLost, Stale, StepCommitted
from pgflow.failures import encode_error
from pgflow.logs import said
from pgflow.meter import Meter
from pgflow.model import Absent, Accepted, Choice, Confirmed, Retries, StillUnknown, is_name
from pgflow.providers import provider_for
from pgflow.step import Step
from pgflow.threads import DaemonThreads
from pgflow.values import fingerprint

log = logging.getLogger("pgflow")

BEGIN_WITHIN = 0.5
"""Share of the time between the end of an attempt and when "absent" is believed, by which an act may begin later than it was licensed.

The rest is for what cannot be seen: the process may stand still between the last look at the clock and the act.
"""

_INFRASTRUCTURE_RETRIES = Retries(first_delay=timedelta(seconds=0.1), max_delay=timedelta(seconds=5))


class BodyHost(Protocol):
    """What bodies need of the worker they run in."""

    providers: list[Any]
    replacements: dict[Step[Any, Any], Callable[..., Any]]
    threads: DaemonThreads
    meter: Meter | None

    @property
    def around_step(self) -> Callable[[StepScope], Any] | None:
        """What is entered around a body, if anything."""

    def returned(self, execution: Execution, result: StepResult) -> None:
        """A body has come back; never raises."""

    async def ask(self, query: Query[Any]) -> Any:
        """Runs a query on one of the worker's connections, once there is one."""

    def wake_soon(self, chains: list[int], lanes: set[int]) -> None:
        """Wakes runs after a commit that sent them something."""

    async def turn_of(self, execution: Execution) -> None:
        """Waits until a step of the run may fence, or its run is over."""

    def go_on(self, execution: Execution) -> None:
        """Somebody's turn is over: releases what was decided, and lets the next one have it; never raises."""

    def got_on(self, execution: Execution) -> None:
        """What a body of the run came to is durable."""

    def discard(self, execution: Execution, why: str) -> None:
        """Takes an execution apart."""


class Bodies:
    """The bodies that run in this worker."""

    def __init__(self, host: BodyHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._tasks: dict[StepCall, asyncio.Task[None]] = {}
        self._providers: dict[Step[Any, Any], Any] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, execution: Execution, call: StepCall) -> None:
        """Runs a body."""
        self._tasks[call] = self._loop.create_task(self._run(execution, call))

    def stop(self, call: StepCall) -> None:
        """Nobody waits for it any more: a task is cancelled, a thread left to finish; past its fence it goes on."""
        task = self._tasks.get(call)
        if task is not None and not call.fencing:
            task.cancel()

    def stop_all(self) -> list[asyncio.Task[None]]:
        """Cancels every task, for the end of the process: what they would have done is done elsewhere."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks

    # ------------------------------------------------------------ one body

    async def _run(self, execution: Execution, call: StepCall) -> None:
        try:
            await self._try_until_judged(execution, call)
        finally:
            self._tasks.pop(call, None)

    async def _try_until_judged(self, execution: Execution, call: StepCall) -> None:
        attempt = call.attempts if isinstance(call, EffectCall) else call.failed_attempts + 1
        scope = StepScope(execution.claim, call, attempt, lambda details: self._beat(execution, call, details))
        current.set(scope)
        if call.failed_attempts > 0 or execution.claim.has_beats:
            scope.last_details = await self._last_details(execution, call)
        if isinstance(call, EffectCall):
            await self._try_effect(execution, call, scope)
            return
        tries = 0
        while True:
            try:
                await self._attempt(execution, call, scope)
            except asyncio.CancelledError:
                if self._stopped or execution.over or not execution.wants(call):
                    raise
                self._host.returned(execution, StepResult(call, None, encode_error(asyncio.CancelledError("the body cancelled itself"))))
            except LeaseLost as error:
                self._host.discard(execution, str(error))
            except StepCommitted as error:
                execution.hold_for("committed_outside", {"message": str(error), "step": call.name, "call": call.number})
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a body raises is its outcome
                if is_infrastructure(error) or is_conflict_on_unit(error):
                    tries += 1
                    await self._wait_out(execution, call, error, tries)
                    continue
                self._host.returned(execution, _judge(call, error))
            return

    async def _wait_out(self, execution: Execution, call: StepCall, error: BaseException, tries: int) -> None:
        is_contention = getattr(error, "sqlstate", None) in ("40001", "40P01", "55P03") or is_conflict_on_unit(error)
        delay = random.uniform(0.5, 1) * 0.005 * 2 ** min(tries, 8) if is_contention else _INFRASTRUCTURE_RETRIES.delay_seconds(tries)  # noqa: S311
        log.log(
            logging.DEBUG if is_contention else logging.WARNING,
            "step %s, call %s: %s; tried again in %.2f s and not recorded", call.name, call.number, said(error), delay,
            extra=log_fields(execution.claim, call),
        )
        if self._host.meter is not None:
            self._host.meter.tried_again(call.spec.effect, contention=is_contention)
        await asyncio.sleep(delay)

    async def _attempt(self, execution: Execution, call: StepCall, scope: StepScope) -> None:
        step: Step[Any, Any] = call.spec.definition
        if step.effect == "t":
            await self._transactional_attempt(execution, call, scope, step)
            return
        fn: Callable[..., Any] = self._host.replacements.get(step.origin) or step.fn
        value = await self._call_body(call, scope, fn, ())
        if step.effect == "d" and not isinstance(value, Choice):
            raise TypeError(f"decision {call.name} must return a pgflow.Choice, not {type(value).__name__}")
        text = call.spec.result.encode(value, f"the result of step {call.name}")
        self._host.returned(execution, StepResult(call, text, None))

    def _call_body(self, call: StepCall, scope: StepScope, fn: Callable[..., Any], first: tuple[Any, ...]) -> Awaitable[Any]:
        """What is awaited for the body's result. Plain functions give it: each coroutine around a body costs as much as its bookkeeping."""
        called = self._call_untimed(call, scope, fn, first)
        return called if call.spec.timeout_seconds is None else _within(call.spec.timeout_seconds, called)

    def _call_untimed(self, call: StepCall, scope: StepScope, fn: Callable[..., Any], first: tuple[Any, ...]) -> Awaitable[Any]:
        if not call.spec.definition.is_async:
            return self._in_thread(self._call_sync, call, scope, fn, first)
        around_step = self._host.around_step
        if around_step is None:
            return cast("Awaitable[Any]", fn(*first, *call.args, **call.kwargs))
        return self._call_around(around_step(scope), call, fn, first)

    async def _call_around(self, context: Any, call: StepCall, fn: Callable[..., Any], first: tuple[Any, ...]) -> Any:
        with context:
            return await fn(*first, *call.args, **call.kwargs)

    def _in_thread(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        context = contextvars.copy_context()
        return self._loop.run_in_executor(self._host.threads, lambda: context.run(work, *args))

    def _call_sync(self, call: StepCall, scope: StepScope, fn: Callable[..., Any], first: tuple[Any, ...]) -> Any:
        if self._host.around_step is None:
            return fn(*first, *call.args, **call.kwargs)
        with self._host.around_step(scope):
            return fn(*first, *call.args, **call.kwargs)

    # ------------------------------------------------------------ effects

    async def _try_effect(self, execution: Execution, call: EffectCall, scope: StepScope) -> None:
        """One attempt at an effect, or one question to the counterparty. Whatever happens in it is told, and nothing of it repeated."""
        turn = call.turn
        began = time.monotonic()
        try:
            result = await (self._act(execution, call, scope) if call.phase == "act" else self._inquire(call, scope))
        except asyncio.CancelledError as error:
            if self._stopped or execution.over or not execution.wants(call):
                raise
            result = _unknown(call, "the body cancelled itself", error)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a body raises says something of the effect
            result = _unknown(call, "it raised" if call.phase == "act" else "asking failed", error)
        result.turn = turn
        result.took_seconds = time.monotonic() - began
        self._host.returned(execution, result)

    async def _act(self, execution: Execution, call: EffectCall, scope: StepScope) -> EffectResult:
        step: EffectStep[..., Any] = call.spec.definition.declared
        if not call.agreed.has_body:
            return _unknown(call, call.notice["why"] if call.notice else "nothing is declared that takes it back: a person must")
        slack_seconds = call.agreed.settle_after_seconds - (call.spec.timeout_seconds or 0)
        if (execution.estimate_us() - call.attempted_us) / 1e6 > BEGIN_WITHIN * slack_seconds:
            return EffectResult(call, "not begun", why="its worker was too long out of touch to begin it")
        is_before_act = True
        try:
            async with asyncio.timeout(call.spec.timeout_seconds):
                if (refusal := await self._refused_before_act(execution, call, scope, step)) is not None:
                    return refusal
                is_before_act = False
                return await self._act_and_verify(call, scope, step)
        except TimeoutError as error:
            if is_before_act:
                return _not_done(call, error)
            raise

    async def _refused_before_act(
        self, execution: Execution, call: EffectCall, scope: StepScope, step: EffectStep[..., Any]
    ) -> EffectResult | None:
        """Asks the precondition, then looks whether what the act rests on is as it was: nothing comes between that and the act."""
        try:
            if step.guard is not None and not await self._ask_before_act(execution, call, scope, step.guard):
                return _not_done(call, Stale(f"the precondition of effect {call.name} does not hold; nothing was done"))
            if call.expected is not None and step.observer is not None:
                observed = fingerprint(await self._ask_before_act(execution, call, scope, step.observer))
                if observed != call.expected:
                    return _not_done(call, _diverged(call, observed), CHANGED)
        except Exception as error:  # noqa: BLE001 - before the act
            return _not_done(call, error)
        return None

    async def _ask_before_act(self, execution: Execution, call: EffectCall, scope: StepScope, fn: Callable[..., Any]) -> Any:
        """What a function says before the act; infrastructure is waited out, since nothing has been done yet."""
        tries = 0
        while True:
            try:
                return await self._call_untimed(call, scope, fn, ())
            except Exception as error:
                if not is_infrastructure(error):
                    raise
                tries += 1
                await self._wait_out(execution, call, error, tries)

    async def _act_and_verify(self, call: EffectCall, scope: StepScope, step: EffectStep[..., Any]) -> EffectResult:
        fn: Callable[..., Any] = self._host.replacements.get(step) or step.fn
        try:
            value = await self._call_untimed(call, scope, fn, ())
        except call.spec.raises as refusal:
            return EffectResult(call, "failed", error=encode_error(refusal))
        if isinstance(value, Accepted):
            return EffectResult(call, "accepted", checked_ref(value.ref))
        if step.verifier is not None and not await self._call_untimed(call, scope, step.verifier, (value,)):
            return _unknown(call, "its verification does not find it")
        return EffectResult(call, "confirmed", call.spec.result.encode(value, f"the result of effect {call.name}"))

    async def _inquire(self, call: EffectCall, scope: StepScope) -> EffectResult:
        step: EffectStep[..., Any] = call.spec.definition.declared
        assert step.settler is not None
        answer = await self._call_body(call, scope, step.settler, ())
        if isinstance(answer, Confirmed) and isinstance(answer.value, Accepted):  # it was taken on, and its confirmation is to come
            return EffectResult(call, "accepted", checked_ref(answer.value.ref))
        if isinstance(answer, Confirmed):
            return EffectResult(call, "confirmed", call.spec.result.encode(answer.value, f"what settling effect {call.name} brought"))
        if isinstance(answer, Absent):
            return EffectResult(call, "absent")
        if isinstance(answer, StillUnknown):
            return _unknown(call, "the counterparty cannot say yet")
        raise TypeError(f"settle of effect {call.name} must return Confirmed, Absent or StillUnknown, not {type(answer).__name__}")

    # ------------------------------------------------------------ transactional bodies

    async def _transactional_attempt(self, execution: Execution, call: StepCall, scope: StepScope, step: Any) -> None:
        provider = self._providers.get(step.origin)
        if provider is None:
            provider = self._providers[step.origin] = provider_for(step, self._host.providers)
        takes_connection = step.connection_parameter is not None
        fn: Callable[..., Any] = self._host.replacements.get(step.origin) or step.fn
        turns = _Turns(self._host, execution)
        scope.chains_to_wake.clear()
        scope.lanes_made_ready.clear()

        def encode(value: Any) -> str:
            what = f"the result of step {call.name}"
            text = call.spec.result.encode(value, what)
            call.spec.result.decode(text, what)  # what the workflow could not read must not be committed
            return text

        def body(connection: Any) -> Any:
            scope.connection = connection
            return self._call_body(call, scope, fn, (connection,) if takes_connection else ())

        if step.is_async:
            async with provider.begin_async(step.isolation) as transaction:
                protocol = transactions.attempt(execution.claim, call, encode, together=hasattr(transaction, "execute_and_commit"))
                wanted = await transactions.drive_async(protocol, transaction, body, turns)
        else:
            protocol = transactions.attempt(execution.claim, call, encode, together=False)
            async with turns.limited():
                wanted = await self._in_thread(self._sync_transaction, provider, step, protocol, call, scope, fn, turns)
        if wanted:
            if self._host.meter is not None:
                self._host.meter.attempt_ended(step.effect)
            self._host.wake_soon(scope.chains_to_wake, scope.lanes_made_ready)

    def _sync_transaction(
        self, provider: Any, step: Any, protocol: transactions.Protocol_, call: StepCall, scope: StepScope, fn: Callable[..., Any],
        turns: _Turns,
    ) -> bool:
        takes_connection = step.connection_parameter is not None
        with provider.begin(step.isolation) as transaction:
            scope.connection = transaction.connection

            def body(connection: Any) -> Any:
                if call.spec.timeout_seconds is not None:
                    self._loop.call_soon_threadsafe(turns.start_clock, call.spec.timeout_seconds)
                return self._call_sync(call, scope, fn, (connection,) if takes_connection else ())

            return transactions.drive(protocol, transaction, body, _TurnsFromThread(turns, self._loop))

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
            log.warning("a heartbeat of step %s was not recorded: %s", call.name, said(error), extra=log_fields(execution.claim, call))

    async def _last_details(self, execution: Execution, call: StepCall) -> Any:
        if call.details is not None:
            return json.loads(call.details)
        return await self._host.ask(calls.step_details(execution.run_id, call.number))


async def _within(seconds: float, called: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await called


def _unknown(call: EffectCall, why: str, error: BaseException | None = None) -> EffectResult:
    return EffectResult(call, "unknown", error=None if error is None else encode_error(error), why=why)


def _diverged(call: EffectCall, observed: str) -> Diverged:
    assert call.expected is not None
    return Diverged(f"what effect {call.name} rests on is not as it was expected to be; nothing was done", call.expected, observed)


def _not_done(call: EffectCall, error: BaseException, why: str = GUARDED) -> EffectResult:
    """This attempt has done nothing; an earlier one may have."""
    if call.may_have_acted:
        return _unknown(call, why, error)
    return EffectResult(call, "failed", error=encode_error(error))


def checked_ref(ref: object) -> str:
    """A counterparty's reference, if it can be found again."""
    if not isinstance(ref, str) or not is_name(ref):
        raise TypeError(f"the reference of Accepted must be a text of 1 to 255 bytes without NUL, not {ref!r}")
    return ref


def _judge(call: StepCall, error: BaseException) -> StepResult:
    """A failed attempt with a delay, or the outcome."""
    is_final = isinstance(error, call.spec.raises) or not isinstance(error, Exception)
    attempts = call.failed_attempts + 1
    is_last = attempts >= (call.max_attempts or call.spec.retries.max_attempts)
    delay = None if is_final or is_last else call.spec.retries.delay_seconds(attempts)
    return StepResult(call, None, encode_error(error), delay)


class _Turns:
    """What a transactional attempt needs of the engine, for a body on the worker's loop."""

    def __init__(self, host: BodyHost, execution: Execution) -> None:
        self._host = host
        self._execution = execution
        self._limit: asyncio.Timeout | None = None
        self._over = False

    @asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Around a body in a thread: once this is left, by its time-out or otherwise, the thread may no longer fence."""
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        finally:
            self._over = True

    def start_clock(self, seconds: float) -> None:
        """The body in the thread begins; until it takes its turn it must not last longer than this."""
        if self._limit is not None and not self._over:
            self._limit.reschedule(asyncio.get_running_loop().time() + seconds)

    async def take_turn(self, call: StepCall, text: str) -> Flush | None:
        if self._over:
            return None
        if self._limit is not None:
            self._limit.reschedule(None)
        await self._host.turn_of(self._execution)
        return self._execution.begin_fence(call, text)

    async def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        self._execution.end_fence(call, flush, committed=committed, at_us=at_us)
        if committed:
            self._host.got_on(self._execution)
        asyncio.get_running_loop().call_soon(self._host.go_on, self._execution)  # once the connection is back

    async def ask_elsewhere(self, query: Query[Any]) -> Any:
        return await self._host.ask(query)

    async def pause(self, tries: int) -> None:
        await asyncio.sleep(min(0.01 * 2**tries, 0.5))


class _TurnsFromThread:
    """The same for a body in a thread: each move is made on the worker's loop."""

    def __init__(self, turns: _Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._turns = turns
        self._loop = loop

    def take_turn(self, call: StepCall, text: str) -> Flush | None:
        return asyncio.run_coroutine_threadsafe(self._turns.take_turn(call, text), self._loop).result()

    def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        asyncio.run_coroutine_threadsafe(self._turns.end_turn(call, flush, committed, at_us), self._loop).result()

    def ask_elsewhere(self, query: Query[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(self._turns.ask_elsewhere(query), self._loop).result()

    def pause(self, tries: int) -> None:
        asyncio.run_coroutine_threadsafe(self._turns.pause(tries), self._loop).result()
