"""The runs that a worker works on: beginning and leaving them, and what they want of it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from pgflow._db.busy_poll import BusyPoll
from pgflow._db.calls import claim as claim_calls
from pgflow._db.query import Query
from pgflow._engine.calls import StepCall
from pgflow._engine.drivers import Driver
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._engine.history import UNREADABLE
from pgflow._engine.host import EffectResult, StepResult
from pgflow._engine.undo import Undoing
from pgflow._flow.interceptor import around
from pgflow._flow.main import make_driver
from pgflow._flow.run_info import run_info
from pgflow._flow.scope import StepScope, log_fields
from pgflow._flow.workflow import Workflow
from pgflow._model.claims import Claim
from pgflow._model.codecs import ANYTHING
from pgflow._model.effects import Ref
from pgflow._model.exceptions import clean
from pgflow._model.kinds import Kind
from pgflow._model.opening import open_answer, open_claim
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.bodies import Bodies
from pgflow._worker.committer import Committer
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.heartbeat import Heart
from pgflow._worker.notifier import Wakes
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.pager import Pager
from pgflow._worker.ref_checks import find_lost, refs_in
from pgflow._worker.supervision import is_the_end
from pgflow._worker.threads import AppCalls, DaemonThreads, Posts, SpareThreads
from pgflow._worker.undoing import make_undoing
from pgflow.errors import CodecError, DefinitionError, PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

_TOLD = ("definition", "engine", "refused", UNREADABLE)
"""Reasons of which the log has said more already."""
MAX_ENGINE_FAILURES = 3
"""A run at which the engine has failed so often in this worker is held."""
MAX_REMEMBERED = 1_000


class Executions(ABC):
    """The lower half of a :class:`~pgflow._worker.worker.Worker`; see the module."""

    _loop: asyncio.AbstractEventLoop
    _thread_id: int
    _committer: Committer
    _bodies: Bodies
    _heart: Heart
    _wakes: Wakes
    threads: DaemonThreads
    code_threads: SpareThreads
    posts: Posts
    checks: AppCalls
    busy_poll: BusyPoll

    def __init__(self, definitions: Definitions, options: WorkerOptions, control: WorkerConnection) -> None:
        self.definitions = definitions
        self.options = options
        self.providers = definitions.providers
        self.replacements = definitions.replacements
        self.meter = options.meter
        self.executions: dict[int, Execution] = {}
        self.acknowledged = Acknowledged()
        self.pager: Pager | None = None
        self.finished = 0
        self._control = control
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._releases: set[asyncio.Task[Any]] = set()
        self._looks: dict[Execution, asyncio.TimerHandle] = {}
        self._turns: dict[Execution, list[asyncio.Future[None]]] = {}
        self._deferred: list[tuple[Execution, StepCall]] = []
        self._engine_failures: dict[int, tuple[int, str]] = {}

    @abstractmethod
    def runs_ended(self, chains: list[int]) -> None:
        """Tells those who wait for results."""

    @abstractmethod
    def _left(self, execution: Execution) -> None:
        """A run has left this worker: there is room for another."""

    @abstractmethod
    def got_on(self, execution: Execution) -> None:
        """Note that the result of a body of the run is durable."""

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something beside; it is cancelled at the end of the worker."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the worker ended with an error", exc_info=task.exception())

    async def _quietly(self, awaitable: Any) -> None:
        try:
            await awaitable
        except (psycopg.Error, OSError, TimeoutError, PgflowError) as error:
            log.debug("at the end of the worker: %s", redacted(error))

    @property
    def active(self) -> int:
        """Number of runs worked on."""
        return len(self.executions)

    @property
    def concurrency(self) -> int:
        """Most runs that it works on at once."""
        return self.options.concurrency

    @property
    def beat_age_seconds(self) -> float:
        """Seconds since the last acknowledged sign of life."""
        return self._heart.age_seconds

    def _begin(self, claim: Claim) -> None:
        """Begins a run that was claimed. What goes wrong in it is its own: the other runs of the claim and their worker go on."""
        try:
            self._begin_soundly(claim)
        except BaseException as error:
            if is_the_end(error):
                raise
            log.exception("run %s: the engine failed; the run is handed back", claim.key, extra=log_fields(claim))
            self._engine_failed(claim, error)
            execution = self.executions.get(claim.run_id)
            if execution is not None and execution.claim is claim:
                self._remove(execution)
            self._release_soon(claim)

    def _engine_failed(self, claim: Claim, error: BaseException) -> None:
        """Remembers it: a run that comes back again and again is held."""
        while len(self._engine_failures) >= MAX_REMEMBERED:
            del self._engine_failures[next(iter(self._engine_failures))]
        tries = self._engine_failures.pop(claim.run_id, (0, ""))[0] + 1
        told = type(error).__name__ if self.definitions.envelopes is not None else f"{type(error).__name__}: {redacted(error)}"
        self._engine_failures[claim.run_id] = tries, told

    def _begin_soundly(self, claim: Claim) -> None:
        workflow = self.definitions.workflows[claim.workflow]
        tries, why = self._engine_failures.get(claim.run_id, (0, ""))
        if tries >= MAX_ENGINE_FAILURES:
            del self._engine_failures[claim.run_id]
            execution = Execution(claim, self, lambda e: self._driver(e, workflow), ANYTHING, workflow.code_hash)
            self.executions[claim.run_id] = execution
            log.error("run %s is held: the engine failed at it %d times: %s", claim.key, tries, why, extra=log_fields(claim))
            execution.hold_for("engine", {"message": f"the engine failed at it {tries} times: {why}"})
            return
        try:
            open_claim(claim, self.definitions.envelopes)
        except CodecError as error:
            self._hold_unread(claim, workflow, error)
            return
        try:
            result, misfit = workflow.result_codec, None
        except DefinitionError as error:
            result, misfit = ANYTHING, str(error)
        if misfit is None and claim.heritage is not None and claim.heritage.undo:
            execution = make_undoing(claim, self, workflow, self.definitions.errors)
        else:
            execution = Execution(claim, self, lambda e: self._driver(e, workflow), result, workflow.code_hash)
        execution.told_at = time.monotonic()
        self.executions[claim.run_id] = execution
        if misfit is None:
            self._start(execution)
        else:
            log.error("run %s is held: %s", claim.key, misfit, extra=log_fields(claim))
            execution.hold_for("definition", {"message": misfit}, workflow.code_hash)

    def _hold_unread(self, claim: Claim, workflow: Workflow[..., Any], error: CodecError) -> None:
        """Holds a run of which something cannot be decoded here, before its code has seen anything; also for a worker with other code."""
        execution = Execution(claim, self, lambda e: self._driver(e, workflow), ANYTHING, workflow.code_hash)
        self.executions[claim.run_id] = execution
        log.error("run %s is held: %s", claim.key, error, extra=log_fields(claim))
        execution.hold_for(UNREADABLE, {"message": str(error)}, workflow.code_hash)

    def _start(self, execution: Execution) -> None:
        """Runs its code, once it is known whether what its journal claims to exist still does."""
        checkers = self.definitions.ref_checkers
        refs = refs_in(execution.claim.units, checkers) if checkers and not isinstance(execution, Undoing) else {}
        if refs:
            execution.locked = True
            self.spawn(self._check_and_start(execution, refs))
        else:
            self._guard(execution, execution.start)

    async def _check_and_start(self, execution: Execution, refs: dict[Ref, list[int]]) -> None:
        checkers = self.definitions.ref_checkers
        try:
            lost = await find_lost(execution.claim, refs, checkers, self.checks, lambda: not (execution.over or execution.draining))
        except BaseException:
            if self.executions.get(execution.run_id) is execution:
                self.give_back(execution)
            raise
        if execution.draining and self.executions.get(execution.run_id) is execution:
            self.give_back(execution)
        elif not execution.over:
            execution.claim.lost = lost
            execution.locked = False
            self._guard(execution, execution.start)

    def _driver(self, execution: Execution, workflow: Workflow[..., Any]) -> Driver:
        def yield_control() -> None:
            self.posts.post(self._thread_stands, execution)

        definitions = self.definitions
        return make_driver(
            execution, workflow, definitions.errors, definitions.interceptors, self.code_threads.run, yield_control
        )

    def _thread_stands(self, execution: Execution) -> None:
        self._guard(execution, execution.thread_stands)
        self.turn_changed(execution)

    @property
    def around_step(self) -> Callable[[StepScope], AbstractContextManager[Any]] | None:
        """The interceptors' contexts around a body; None if there are none."""
        interceptors = self.definitions.interceptors
        return (lambda _: around(interceptors, "around_step", run_info)) if interceptors else None

    def _guard(self, execution: Execution, move: Callable[..., None], *args: Any) -> None:
        """A move of an execution. What goes wrong in it is its own: the run is handed back, the worker goes on."""
        try:
            move(*args)
        except BaseException as error:
            if is_the_end(error):
                raise
            log.exception("run %s: the engine failed; the run is handed back", execution.claim.key, extra=log_fields(execution.claim))
            self._engine_failed(execution.claim, error)
            self._remove(execution)
            self._release_soon(execution.claim)

    def _remove(self, execution: Execution) -> None:
        """The run leaves this worker."""
        self.executions.pop(execution.run_id, None)
        if (look := self._looks.pop(execution, None)) is not None:
            look.cancel()
        for call in execution.bodies:
            self._bodies.stop(call)
        execution.close()
        self.turn_changed(execution)
        self._changed.set()
        self._left(execution)

    async def _hand_back(self, executions: list[Execution]) -> None:
        for execution in executions:
            self._remove(execution)
        await self._release([e.claim for e in executions])

    def _release_soon(self, claim: Claim) -> None:
        """Hands a run back beside; a worker that stops waits for it."""
        task = self.spawn(self._release([claim]))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, claims: list[Claim]) -> None:
        if claims:
            await self._quietly(self._control.ask(claim_calls.release_runs(claims)))
            self._wakes.tell(lanes=[c.lane_id for c in claims])

    def discard(self, execution: Execution, why: str) -> None:
        """Takes an execution apart whose run is no longer ours."""
        if self.executions.get(execution.run_id) is execution:
            log.warning("run %s goes on elsewhere: %s", execution.claim.key, why, extra=log_fields(execution.claim))
            self._count_left(execution, "elsewhere")
            self._remove(execution)

    # ================================================================ what an execution wants

    def start_body(self, execution: Execution, call: StepCall) -> None:
        """Runs a body; an effectful one only while others surely believe us alive."""
        if call.spec.effect != "r" and self._heart.is_stale:
            self._deferred.append((execution, call))
        else:
            self._bodies.start(execution, call)

    def _start_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for execution, call in deferred:
            if not execution.over and execution.wants(call):
                self.start_body(execution, call)

    def stop_body(self, execution: Execution, call: StepCall) -> None:
        """Nobody waits for a body any more."""
        if threading.get_ident() != self._thread_id:
            self.posts.post(self.stop_body, execution, call)
            return
        self._deferred = [pair for pair in self._deferred if pair != (execution, call)]
        self._bodies.stop(call)

    def retry_body_later(self, execution: Execution, call: StepCall, delay_seconds: float) -> None:
        """The next try of a body, if the run is still here by then."""
        if threading.get_ident() != self._thread_id:
            self.posts.post(self.retry_body_later, execution, call, delay_seconds)
            return
        self._loop.call_later(delay_seconds, self._retry_due, execution, call)

    def _retry_due(self, execution: Execution, call: StepCall) -> None:
        if not execution.over:
            self._guard(execution, execution.retry_due, call)

    def returned(self, execution: Execution, result: StepResult) -> None:
        """A body has come back."""
        call, again = result.call, result.delay_seconds is not None
        if self.meter is not None:
            self.meter.attempt_ended(call.spec.effect, failed=result.error is not None, again=again)
        if result.error is not None:
            kind = result.error["type"].removeprefix("builtins.")  # never its text: it may quote what the run works on
            then = f"tried again in {result.delay_seconds:.2f} s" if again else "not tried again"
            if isinstance(result, EffectResult):
                then = f"its outcome is {result.verdict}"
            log.info("step %s failed with %s: %s", call.name, kind, then, extra=log_fields(execution.claim, call))
        self._guard(execution, execution.step_returned, result)

    def body_failed(self, execution: Execution, call: StepCall, error: BaseException) -> None:
        """Hold the run: the result of a body could not be judged, and nobody would ever hear of it."""
        where = log_fields(execution.claim, call)
        log.error("step %s: what it came to cannot be told; the run is held", call.name, exc_info=error, extra=where)
        if self.executions.get(execution.run_id) is execution and not execution.over:
            told = "" if self.definitions.envelopes is not None else f": {redacted(error)}"
            message = f"what step {call.name} came to cannot be told: {type(error).__name__}{told}"
            self._guard(execution, execution.hold_for, "engine", {"message": clean(message), "step": call.name, "call": call.number})

    def thread_lost(self, call: StepCall) -> None:
        """A body goes on in a thread that nobody waits for."""
        if self.meter is not None:
            self.meter.threads_lost += 1
        log.warning(
            "step %s goes on in its thread though nobody waits for it any more: %d of %d threads that this worker may lose are lost",
            call.name, self.threads.lost, self.threads.max_lost,
        )

    def want_flush(self, execution: Execution) -> None:
        """Something must become durable. (The code of a sync workflow asks from its own thread.)"""
        if threading.get_ident() == self._thread_id:
            self._committer.submit(execution)
        else:
            self.posts.post(self._committer.submit, execution)

    def look_later(self, execution: Execution, delay_seconds: float) -> None:
        """Asks the database again after a delay; the earliest wish counts."""
        when = self._loop.time() + delay_seconds
        known = self._looks.get(execution)
        if known is not None:
            if known.when() <= when + 0.0005:
                return
            known.cancel()
        self._looks[execution] = self._loop.call_at(when, self._look_due, execution)

    def has_room(self) -> bool:
        """Return True if a run may wait for its children in memory: not where such runs take most of the room that children need."""
        return len(self.executions) < self.concurrency or 2 * len(self._looks) <= self.concurrency

    def _look_due(self, execution: Execution) -> None:
        self._looks.pop(execution, None)
        if not execution.over:
            self._guard(execution, execution.poke)

    def noted(self, execution: Execution, seq: int, *, has_ended: bool) -> None:
        """Something of a run was acknowledged: units up to a seq (0 for none), its end."""
        claim = execution.claim
        execution.told_at = time.monotonic()
        self.acknowledged.note(claim.run_id, claim.token, seq, claim.key, has_ended=has_ended)

    def hand_back(self, execution: Execution) -> None:
        """Give the run back once the dropped effects are taken back: whoever claims it next goes on with its code."""
        self.give_back(execution)

    def monotonic_us(self) -> int:
        """Microseconds on a clock that only measures durations."""
        return time.monotonic_ns() // 1000

    # ================================================================ what the committer tells

    def committed(self, execution: Execution, flush: Flush, answer: dict[str, Any] | None) -> None:
        """A flush is durable."""
        execution.told_at = time.monotonic()
        if flush.rows or flush.ending is not None:
            self.noted(execution, flush.last_seq if flush.rows else 0, has_ended=flush.ending is not None)
        if answer is not None and not self._is_opened(execution, answer):
            return
        self._guard(execution, execution.flush_committed, flush, answer)
        if execution.claim.suspect and any(row.kind != Kind.STEP_STARTED for row in flush.rows):
            self.got_on(execution)
        if execution.over and self.executions.get(execution.run_id) is execution:
            if flush.ending is not None:
                self.finished += 1
                self._tell_end(execution.claim, flush.ending.status)
            elif answer is not None:
                if answer["place"] in ("ended", "held"):
                    self.runs_ended([execution.claim.chain_id])
                self._tell_place(execution, flush, answer["place"])
            self._remove(execution)
        self.turn_changed(execution)
        self._changed.set()

    def _is_opened(self, execution: Execution, answer: dict[str, Any]) -> bool:
        """Opens what the database has decided. What cannot be read is in the journal, where the next claim finds it and holds the run."""
        try:
            open_answer(answer, self.definitions.envelopes, execution.claim.key)
        except CodecError as error:
            if self.executions.get(execution.run_id) is execution:
                log.warning("run %s is handed back: %s", execution.claim.key, error, extra=log_fields(execution.claim))
                self.give_back(execution)
            return False
        return True

    def _tell_end(self, claim: Claim, status: str) -> None:
        if self.meter is not None:
            self.meter.finished[claim.workflow, status] += 1
        level = logging.DEBUG if status == "completed" else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "run %s %s", claim.key, status, extra=log_fields(claim))

    def _tell_place(self, execution: Execution, flush: Flush, place: str) -> None:
        """A run has left without an end of its own: parked, held, continued as new, or ended from outside."""
        question = flush.question or {}
        self._count_left(execution, "waiting" if place == "parked" else "continued" if "continue" in question else place)
        if place == "held" and self.pager is not None:
            self.pager.look_now()
        hold = question.get("hold") or question.get("stuck")
        if place == "held" and hold is not None and hold[1] not in _TOLD:
            claim = execution.claim
            log.warning("run %s is stuck: %s; `pgflow show` says more", claim.key, hold[1], extra=log_fields(claim))

    def _count_left(self, execution: Execution, place: str) -> None:
        if self.meter is not None:
            self.meter.left[execution.claim.workflow, place] += 1

    def lost(self, execution: Execution) -> None:
        """Somebody else holds the run."""
        self.discard(execution, "another worker holds it")

    def give_back(self, execution: Execution) -> None:
        """The answer to a question is lost: the run must be replayed to learn it."""
        self._remove(execution)
        self._release_soon(execution.claim)

    def not_committed(self, execution: Execution, error: BaseException) -> None:
        """The committer failed at a batch with this run: what is durable of it, a replay will find out."""
        if self.executions.get(execution.run_id) is execution:
            self._engine_failed(execution.claim, error)
            self.give_back(execution)

    def refused(self, execution: Execution, error: Exception) -> None:
        """The server would not store what the run wanted to record: a person must look."""
        claim = execution.claim
        log.error("run %s is held: the server refused what it wanted to record: %s", claim.key, redacted(error), extra=log_fields(claim))

    @staticmethod
    def has_turn(execution: Execution) -> bool:
        """Return True if a step of the run may fence at once, or its run is over."""
        return execution.over or execution.may_fence

    async def turn_of(self, execution: Execution) -> None:
        """Waits until a step of the run may fence."""
        while not self.has_turn(execution):
            turn = self._loop.create_future()
            self._turns.setdefault(execution, []).append(turn)
            await turn

    def go_on(self, execution: Execution) -> None:
        """A transaction is over: its outcome is released, and the next may have its turn."""
        if not execution.over:
            self._guard(execution, execution.advance)
        self.turn_changed(execution)

    def turn_changed(self, execution: Execution) -> None:
        """Have whoever waits for a turn look again."""
        for turn in self._turns.pop(execution, ()):
            if not turn.done():
                turn.set_result(None)

    async def ask(self, query: Query[Any]) -> Any:
        """Runs a query that may be run twice, until there is an answer."""
        return await self._control.insist(query)
