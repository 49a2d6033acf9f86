"""A worker: claims runs, runs their code and the bodies of their steps, commits what they do.

One event loop does all of it but the heart, which has its own thread, and the bodies of ``def`` steps and
workflows. The worker holds five connections: two that commit, one for claims, polls and wakes, one that
listens, one of the heart. However many runs it works on, it needs no more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg

from pgflow._calls import claim as claim_calls
from pgflow._calls import wake as wake_calls
from pgflow._calls import worker as worker_calls
from pgflow._engine.calls import StepCall
from pgflow._engine.drivers import Driver
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._engine.host import StepResult
from pgflow._io import Query
from pgflow._io.connect import ConnectOptions
from pgflow._scope import StepScope
from pgflow._version import __version__
from pgflow.bodies import Bodies
from pgflow.committer import Committer
from pgflow.context import run_info
from pgflow.control import Control
from pgflow.errors import DefinitionError, LeaseLost, PgflowError
from pgflow.heart import Heart, Rhythm
from pgflow.interceptor import Interceptor, around
from pgflow.listener import DONE_CHANNEL, WORK_CHANNEL, Listener, chunks, parse_work, payloads
from pgflow.model import DEFAULT_QUEUE
from pgflow.replay import make_driver
from pgflow.step import Step
from pgflow.threads import DaemonThreads, start_daemon
from pgflow.units import Claim
from pgflow.values import ANYTHING
from pgflow.workflow import Workflow

log = logging.getLogger("pgflow")

MAX_CLAIM = 128
NOTIFY_AFTER_SECONDS = 0.002
FLUSH_AFTER_US = 100_000
SWEEP_SECONDS = 0.05
STRAYS_EVERY_SECONDS = 5.0
PARTITIONS_EVERY_SECONDS = 60.0


@dataclass
class WorkerOptions:
    """How a worker works.

    Attributes:
        queues: Queues it serves.
        concurrency: How many runs it works on at once; waiting runs do not count.
        poll_seconds: Between sweeps where nothing is notified.
        grace_seconds: How long running steps may go on after a stop.
        rhythm: Of its signs of life.
        listen: Whether to listen for notifications; False behind a pooler in transaction mode.
    """

    queues: Sequence[str] = (DEFAULT_QUEUE,)
    concurrency: int = 100
    poll_seconds: float = 1.0
    grace_seconds: float = 10.0
    rhythm: Rhythm = field(default_factory=Rhythm)
    listen: bool = True


@dataclass
class Definitions:
    """What an app brings to a worker."""

    workflows: dict[str, Workflow[..., Any]]
    errors: tuple[type[Exception], ...] = ()
    providers: list[Any] = field(default_factory=list)
    interceptors: list[Interceptor] = field(default_factory=list)
    replacements: dict[Step[Any, Any], Callable[..., Any]] = field(default_factory=dict)


class Worker:
    """See the module. Start and stop it on a running event loop."""

    def __init__(
        self, connect: ConnectOptions, definitions: Definitions, options: WorkerOptions, ended: Callable[[list[int]], None] | None = None
    ) -> None:
        self.definitions = definitions
        self.options = options
        self.providers = definitions.providers
        self.replacements = definitions.replacements
        self.executions: dict[int, Execution] = {}
        self.ticks = 0
        self.worker_id = 0
        self.finished = 0
        self._connect = connect
        self._ended = ended
        self._control = Control(connect, "pgflow worker")
        self._committer = Committer(self, connect)
        self._lanes: dict[int, claim_calls.Lane] = {}
        self._claiming = 0
        self._backlog = False
        self._running_suspect: int | None = None
        self._claim_wanted = asyncio.Event()
        self._poll_wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self.failed = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._looks: dict[Execution, asyncio.TimerHandle] = {}
        self._turns: dict[Execution, list[asyncio.Future[None]]] = {}
        self._deferred: list[tuple[Execution, StepCall]] = []
        self._to_wake: set[int] = set()
        self._to_notify: tuple[set[int], set[int], set[int]] = (set(), set(), set())
        self._notify_timer: asyncio.TimerHandle | None = None

    # ================================================================ life

    async def start(self) -> None:
        """Registers, and begins to work."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self.threads = DaemonThreads(self.options.concurrency, "pgflow-step")
        self._bodies = Bodies(self, self._loop)
        await self._register()
        code = {name: workflow.code_hash for name, workflow in self.definitions.workflows.items()}
        await self._control.insist(worker_calls.release_stuck(code))
        self._heart = Heart(self, self._connect, self.worker_id, self.options.rhythm, self._thread_id)
        self._heart.start()
        self._committer.start()
        self._listener = Listener(self._connect, WORK_CHANNEL, self._heard, self._claim_wanted.set)
        if self.options.listen:
            self._listener.start()
        for loop in (self._claim_loop, self._poll_loop, self._sweep_loop, self._upkeep_loop):
            self._spawn(loop()).add_done_callback(self._part_ended)
        self._claim_wanted.set()

    async def _register(self) -> None:
        options = self.options
        self.worker_id = await self._control.insist(
            worker_calls.register_worker(socket.gethostname(), os.getpid(), options.queues, options.concurrency, __version__)
        )
        lanes = await self._control.insist(claim_calls.serve_lanes(options.queues, list(self.definitions.workflows)))
        self._lanes = {lane.lane_id: lane for lane in lanes}

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the worker ended with an error", exc_info=task.exception())

    def _part_ended(self, task: asyncio.Task[Any]) -> None:
        """A loop that must go on has ended: this worker is of no more use."""
        if not task.cancelled() and not self._stopping:
            self.failed.set()

    async def stop(self) -> None:
        """Claims nothing more, lets running bodies finish within the grace, hands everything back, and leaves."""
        if self._stopping:
            return
        self._stopping = True
        self._heart.stopping = True
        deadline = self._loop.time() + self.options.grace_seconds
        for execution in list(self.executions.values()):
            self._guard(execution, execution.drain)
        await self._hand_back_drained(deadline)
        for task in self._bodies.stop_all():
            await asyncio.wait([task], timeout=1)
        await self._hand_back(list(self.executions.values()))
        await self._shut_down()
        if self.worker_id:
            await self._quietly(self._control.ask(worker_calls.leave_worker(self.worker_id)))
        await self._control.close()

    async def _hand_back_drained(self, deadline: float) -> None:
        while self.executions or self._claiming:
            drained = [e for e in self.executions.values() if e.is_drained and not e.over]
            if drained:
                await self._hand_back(drained)
                continue
            remaining = deadline - self._loop.time()
            if remaining <= 0:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(min(remaining, 0.1)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def abandon(self) -> None:
        """Ends as a crash would: nothing is handed back, nothing more is written."""
        self._stopping = True
        for execution in list(self.executions.values()):
            self._remove(execution)
        self._bodies.stop_all()
        await self._shut_down()
        await self._control.close()

    async def _shut_down(self) -> None:
        for handle in self._looks.values():
            handle.cancel()
        if self._notify_timer is not None:
            self._notify_timer.cancel()
            await self._send_notifications()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.close()
        await self._committer.close()
        await asyncio.to_thread(self._heart.stop)
        self.threads.shutdown(cancel_futures=True)

    async def _quietly(self, awaitable: Any) -> None:
        try:
            await awaitable
        except (psycopg.Error, OSError, TimeoutError, PgflowError) as error:
            log.debug("at the end of the worker: %s", error)

    def poll_now(self) -> None:
        """Sweeps at once instead of at the next poll."""
        self._poll_wanted.set()

    # ================================================================ loops

    async def _claim_loop(self) -> None:
        while True:
            await self._claim_wanted.wait()
            self._claim_wanted.clear()
            while not self._stopping and (count := self._free()) > 0:
                try:
                    if await self._claim(count) < count:
                        break
                except LeaseLost:
                    break
                except (psycopg.Error, OSError, TimeoutError) as error:
                    log.warning("cannot claim: %s", str(error).strip())
                    break

    def _free(self) -> int:
        return min(MAX_CLAIM, self.options.concurrency - len(self.executions) - self._claiming)

    async def _claim(self, count: int) -> int:
        self._claiming += count
        claims: list[Claim] = []
        try:
            query = claim_calls.claim_runs(self.worker_id, list(self._lanes), count, take_suspect=self._running_suspect is None)
            claims = await self._control.ask(query)
        finally:
            self.claims_arrived(claims, count)
        return len(claims)

    async def _poll_loop(self) -> None:
        while True:
            wait = self.options.poll_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreads the load
            try:
                polled = await self._control.ask(wake_calls.poll())
                self.woken(polled.lanes, polled.mail)
                if polled.ended:
                    self.runs_ended(polled.ended)
                if polled.next_due_seconds is not None:
                    wait = min(wait, max(polled.next_due_seconds, 0.005))
                if polled.busy:
                    wait = min(wait, 0.02)
                self._claim_wanted.set()
                for execution in list(self.executions.values()):
                    if execution.waits_for_database and not execution.over:
                        self._guard(execution, execution.poke)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot poll: %s", str(error).strip())
            self._poll_wanted.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._poll_wanted.wait()
            except TimeoutError:
                pass

    async def _sweep_loop(self) -> None:
        """Buffers that nothing else has flushed leave after a tenth of a second."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.ticks += 1
            for execution in self.executions.values():
                oldest = execution.oldest_unflushed_us
                if oldest is not None and execution.estimate_us() - oldest > FLUSH_AFTER_US and not execution.replaying:
                    self._committer.submit(execution)

    async def _upkeep_loop(self) -> None:
        """Leases we do not know we have, and room for the runs to come."""
        partitioned = 0.0
        while True:
            try:
                if time.monotonic() - partitioned > PARTITIONS_EVERY_SECONDS:
                    await self._control.ask(worker_calls.add_unit_partitions())
                    partitioned = time.monotonic()
                strays = await self._control.ask(claim_calls.release_strays(self.worker_id, list(self.executions)))
                if strays:
                    log.warning("%d runs were leased to this worker without its knowledge; handed back", strays)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.debug("upkeep: %s", error)
            await asyncio.sleep(STRAYS_EVERY_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the load

    # ================================================================ claims and executions

    def claim_request(self, ending: int) -> tuple[int, list[int], int, bool] | None:
        """A claim to ride with a commit, where there is a backlog to drain."""
        count = min(MAX_CLAIM, self._free() + ending)
        if self._stopping or not self._backlog or count <= 0:
            return None
        self._claiming += count
        return self.worker_id, list(self._lanes), count, self._running_suspect is None

    def claims_arrived(self, claims: list[Claim], asked: int) -> None:
        """The answer to a claim, however it was asked for."""
        self._claiming -= asked
        self._backlog = len(claims) >= asked
        for claim in claims:
            claim.workflow = self._lanes[claim.lane_id].workflow
            if claim.suspect:
                self._running_suspect = claim.run_id
            if self._stopping:
                self._spawn(self._release([claim]))
            elif len(claim.units) < claim.last_seq:
                self._spawn(self._load_and_begin(claim))
            else:
                self._begin(claim)

    async def _load_and_begin(self, claim: Claim) -> None:
        """A journal too long for the answer of the claim comes in pages."""
        while len(claim.units) < claim.last_seq:
            page = await self._control.insist(claim_calls.load_units(claim.run_id, len(claim.units)))
            if not page:
                break
            claim.units.extend(page)
        self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        workflow = self.definitions.workflows[claim.workflow]
        try:
            result, misfit = workflow.result_codec, None
        except DefinitionError as error:
            result, misfit = ANYTHING, str(error)
        execution = Execution(claim, self, lambda e: self._driver(e, workflow), result, workflow.code_hash)
        self.executions[claim.run_id] = execution
        if misfit is None:
            self._guard(execution, execution.start)
        else:
            log.error("run %s is held: %s", claim.key, misfit)
            execution.hold_for("definition", {"message": misfit}, workflow.code_hash)

    def _driver(self, execution: Execution, workflow: Workflow[..., Any]) -> Driver:
        def yield_control() -> None:
            self._loop.call_soon_threadsafe(self._thread_stands, execution)

        definitions = self.definitions
        return make_driver(
            execution, workflow, definitions.errors, definitions.interceptors, partial(start_daemon, name="pgflow-workflow"), yield_control
        )

    def _thread_stands(self, execution: Execution) -> None:
        self._guard(execution, execution.thread_stands)
        self.turn_changed(execution)

    @property
    def around_step(self) -> Callable[[StepScope], AbstractContextManager[Any]] | None:
        """The interceptors' contexts around a body; None if there are none."""
        interceptors = self.definitions.interceptors
        return (lambda _: around(interceptors, "around_step", run_info)) if interceptors else None

    def _guard(self, execution: Execution, move: Callable[[], None]) -> None:
        """A move of an execution. What goes wrong in it is its own: the run is handed back, the worker goes on."""
        try:
            move()
        except Exception:
            log.exception("run %s: the engine failed; the run is handed back", execution.claim.key)
            self._remove(execution)
            self._spawn(self._release([execution.claim]))

    def _remove(self, execution: Execution) -> None:
        """The run leaves this worker."""
        self.executions.pop(execution.run_id, None)
        if self._running_suspect == execution.run_id:
            self._running_suspect = None
        if (look := self._looks.pop(execution, None)) is not None:
            look.cancel()
        for call in execution.bodies:
            self._bodies.stop(call)
        execution.close()
        self.turn_changed(execution)
        self._changed.set()
        if self._backlog:
            self._claim_wanted.set()

    async def _hand_back(self, executions: list[Execution]) -> None:
        for execution in executions:
            self._remove(execution)
        await self._release([e.claim for e in executions])

    async def _release(self, claims: list[Claim]) -> None:
        if claims:
            await self._quietly(self._control.ask(claim_calls.release_runs(claims)))
            self._notify({c.lane_id for c in claims}, set(), set())

    def discard(self, execution: Execution, why: str) -> None:
        """Takes an execution apart whose run is no longer ours."""
        if self.executions.get(execution.run_id) is execution:
            log.warning("run %s goes on elsewhere: %s", execution.claim.key, why)
            self._remove(execution)

    # ================================================================ what an execution wants

    def start_body(self, execution: Execution, call: StepCall) -> None:
        """Runs a body; an effectful one only while others surely believe us alive."""
        if call.spec.effect != "r" and self._heart.is_stale:
            self._deferred.append((execution, call))
        else:
            self._bodies.start(execution, call)

    def stop_body(self, execution: Execution, call: StepCall) -> None:
        """Nobody waits for a body any more."""
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.stop_body, execution, call)
            return
        self._deferred = [pair for pair in self._deferred if pair != (execution, call)]
        self._bodies.stop(call)

    def retry_body_later(self, execution: Execution, call: StepCall, delay_seconds: float) -> None:
        """The next try of a body, if the run is still here by then."""
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.retry_body_later, execution, call, delay_seconds)
            return
        self._loop.call_later(delay_seconds, self._retry_due, execution, call)

    def _retry_due(self, execution: Execution, call: StepCall) -> None:
        if not execution.over:
            self._guard(execution, lambda: execution.retry_due(call))

    def returned(self, execution: Execution, result: StepResult) -> None:
        """A body has come back."""
        self._guard(execution, lambda: execution.step_returned(result))

    def want_flush(self, execution: Execution) -> None:
        """Something must become durable. (The code of a sync workflow asks from its own thread.)"""
        if threading.get_ident() == self._thread_id:
            self._committer.submit(execution)
        else:
            self._loop.call_soon_threadsafe(self._committer.submit, execution)

    def look_later(self, execution: Execution, delay_seconds: float) -> None:
        """Asks the database again after a delay; the earliest wish counts."""
        when = self._loop.time() + delay_seconds
        known = self._looks.get(execution)
        if known is not None:
            if known.when() <= when + 0.0005:
                return
            known.cancel()
        self._looks[execution] = self._loop.call_at(when, self._look_due, execution)

    def _look_due(self, execution: Execution) -> None:
        self._looks.pop(execution, None)
        if not execution.over:
            self._guard(execution, execution.poke)

    def monotonic_us(self) -> int:
        """Microseconds on a clock that only measures durations."""
        return time.monotonic_ns() // 1000

    # ================================================================ what the committer tells

    @property
    def active(self) -> int:
        """How many runs are worked on."""
        return len(self.executions)

    def committed(self, execution: Execution, flush: Flush, answer: dict[str, Any] | None) -> None:
        """A flush is durable."""
        self._guard(execution, lambda: execution.flush_committed(flush, answer))
        if execution.over and self.executions.get(execution.run_id) is execution:
            if flush.ending is not None:
                self.finished += 1
            elif answer is not None and answer["place"] in ("ended", "held"):
                self.runs_ended([execution.claim.chain_id])
            self._remove(execution)
        self.turn_changed(execution)
        if self._stopping:
            self._changed.set()

    def lost(self, execution: Execution) -> None:
        """Somebody else holds the run."""
        self.discard(execution, "another worker holds it")

    def give_back(self, execution: Execution) -> None:
        """The answer to a question is lost: the run must be replayed to learn it."""
        self._remove(execution)
        self._spawn(self._release([execution.claim]))

    def refused(self, execution: Execution, flush: Flush, error: Exception) -> None:
        """The server cannot store what the run wants to record: a person must look."""
        log.error("run %s is held: the server refused what it wanted to record: %s", execution.claim.key, error)
        if not execution.hold_refused(flush, str(error)):
            self.give_back(execution)

    async def turn_of(self, execution: Execution) -> None:
        """Waits until a step of the run may fence."""
        while not (execution.over or execution.may_fence):
            turn = self._loop.create_future()
            self._turns.setdefault(execution, []).append(turn)
            await turn

    def go_on(self, execution: Execution) -> None:
        """A transaction is over: its outcome is released, and the next may have its turn."""
        if not execution.over:
            self._guard(execution, execution.advance)
        self.turn_changed(execution)

    def turn_changed(self, execution: Execution) -> None:
        """Whoever waits for a turn looks again."""
        for turn in self._turns.pop(execution, ()):
            if not turn.done():
                turn.set_result(None)

    async def ask(self, query: Query[Any]) -> Any:
        """Runs a query that may be run twice, until there is an answer."""
        return await self._control.insist(query)

    # ================================================================ waking and notifying

    def wake_soon(self, chains: list[int], lanes: set[int]) -> None:
        """Wakes runs in a transaction of its own, after the commit that gave a reason to."""
        if lanes:
            self.woken(list(lanes), [])
        if chains:
            if not self._to_wake:
                self._spawn(self._wake())
            self._to_wake.update(chains)

    async def _wake(self) -> None:
        while self._to_wake:
            chains, self._to_wake = self._to_wake, set()
            try:
                woken = await self._control.ask(wake_calls.wake(sorted(chains)))
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.debug("cannot wake, the next poll will: %s", error)
                return
            self.woken(woken.lanes, woken.mail)
            if woken.ended:
                self.runs_ended(woken.ended)
            if woken.busy:
                self._poll_wanted.set()

    def woken(self, lanes: list[int], mail: list[int]) -> None:
        """Lanes with ready runs, and leased runs with mail: ours are looked at, others told."""
        if any(lane in self._lanes for lane in lanes):
            self._claim_wanted.set()
        others = set()
        for run_id in mail:
            execution = self.executions.get(run_id)
            if execution is None:
                others.add(run_id)
            elif not execution.over:
                self._guard(execution, execution.poke)
        self._notify(set(lanes), others, set())

    def runs_ended(self, chains: list[int]) -> None:
        """Tells those who wait for results, here and elsewhere."""
        if self._ended is not None:
            self._ended(chains)
        self._notify(set(), set(), set(chains))

    def _notify(self, lanes: set[int], mail: set[int], done: set[int]) -> None:
        for known, more in zip(self._to_notify, (lanes, mail, done), strict=True):
            known.update(more)
        if any(self._to_notify) and self._notify_timer is None:
            self._notify_timer = self._loop.call_later(NOTIFY_AFTER_SECONDS, lambda: self._spawn(self._send_notifications()))

    async def _send_notifications(self) -> None:
        self._notify_timer = None
        (lanes, mail, done), self._to_notify = self._to_notify, (set(), set(), set())
        messages = [(WORK_CHANNEL, text) for text in payloads(lanes, mail)]
        messages += [(DONE_CHANNEL, text) for text in chunks(done)]
        for channel, text in messages:
            await self._quietly(self._control.ask(worker_calls.notify(channel, text)))

    def _heard(self, payload: str) -> None:
        lanes, mail = parse_work(payload)
        if any(lane in self._lanes for lane in lanes):
            self._claim_wanted.set()
        self._mail(list(mail))

    def _mail(self, run_ids: list[int]) -> None:
        for run_id in run_ids:
            execution = self.executions.get(run_id)
            if execution is not None and not execution.over:
                self._guard(execution, execution.poke)

    # ================================================================ what the heart tells (on its thread)

    def mail_arrived(self, run_ids: list[int]) -> None:
        """Somebody wants to cancel or pause runs of ours."""
        self._loop.call_soon_threadsafe(self._mail, run_ids)

    def reaped(self, lanes: list[int]) -> None:
        """A dead worker's runs are ready again."""
        self._loop.call_soon_threadsafe(self.woken, lanes, [])

    def beat_resumed(self) -> None:
        """What was deferred may start."""
        self._loop.call_soon_threadsafe(self._start_deferred)

    def declared_dead(self) -> None:
        """Others have our runs: drop them and begin anew."""
        self._loop.call_soon_threadsafe(lambda: self._spawn(self._rise_again()))

    def _start_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for execution, call in deferred:
            if not execution.over and execution.wants(call):
                self.start_body(execution, call)

    async def _rise_again(self) -> None:
        log.warning("worker %s was declared dead: its runs go on elsewhere; it registers anew", self.worker_id)
        for execution in list(self.executions.values()):
            self._remove(execution)
        if not self._stopping:
            await self._register()
            self._heart.renew(self.worker_id)
            self._claim_wanted.set()

