"""A worker: claims runs, runs their code and the bodies of their steps, commits the results.

One event loop does everything except the heartbeat, which has its own thread, and the bodies of
``def`` steps and workflows. The worker holds five connections: two that commit, one for claims,
polls and wakes, one that listens, one of the heartbeat. An idle worker holds four. The number does
not grow with its runs, except for transactional steps, which have a pool.

:meth:`pgflow._worker.executor.Executor.execute` is the way of a run through it.

It is a list of parts (:mod:`pgflow._worker.parts`), and does little more than create, start and
stop them.

A worker that stops does this in order:

1. It claims nothing more, and each beat announces that.
2. Runs start no further bodies. A run that is idle and has nothing left to commit is handed back.
   This lasts for the grace at most.
3. Bodies that still run are cancelled. The remaining runs are handed back.
4. The pager looks once more.
5. The parts stop, the last one first. So notifications leave before the loops end, and the
   heartbeat lasts until the committer has ended.
6. The worker leaves the table of workers, and closes its last connection.

Any part of a worker can fail it with ``Life.fail``. Its owner then stops it, in the same order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from pgflow._db.connect import ConnectOptions
from pgflow._engine.execution import Execution
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.bodies import Bodies
from pgflow._worker.body_calls import BodyCalls
from pgflow._worker.claims import Claims
from pgflow._worker.committer import LINES, CommitQueue, Committer, Flusher
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.context import WorkerContext
from pgflow._worker.executor import CommitResults, Executor, RunStarter
from pgflow._worker.heartbeat import Heartbeat, HeartbeatCallbacks, Watchdog
from pgflow._worker.host import RunHost
from pgflow._worker.lanes import Lanes, QueueRates
from pgflow._worker.letters import Letters
from pgflow._worker.listener import WORK_CHANNEL, Listener, ListenerCallbacks
from pgflow._worker.notifications import Notifications
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.pager import Pager
from pgflow._worker.parts import Life, Part, Tasks, Wanted, is_own_end
from pgflow._worker.poller import Poller
from pgflow._worker.progress import Progress
from pgflow._worker.rates import Rates
from pgflow._worker.registration import Registration
from pgflow._worker.relays import Relays
from pgflow._worker.runs import Runs
from pgflow._worker.scheduler import Fired, Scheduler
from pgflow._worker.sql_work import EntityMail, SqlFlows
from pgflow._worker.threads import Posts
from pgflow._worker.transaction_bodies import TransactionBodies, Turns
from pgflow._worker.upkeep import Retirer, Sealer, Upkeep
from pgflow.errors import WorkerFailed

log = logging.getLogger("pgflow")


class Sweep(NamedTuple):
    """Result of a single look: whether there was nothing to take, and the seconds until the next
    timer or slot.
    """

    was_dry: bool
    next_due_seconds: float | None


class Worker:
    """One worker. Create, start and stop it on a running event loop.

    Args:
        connect: Options of its connections.
        definitions: The app's.
        options: The worker's own.
        wake_waiters: Called with the chains that have ended or answered a request, if others in
            this process wait for them.

    Attributes:
        notifications: Routes what other parts of the process learn of runs.
        parts: In the order in which they start. They stop in reverse order.
    """

    def __init__(
        self,
        connect: ConnectOptions,
        definitions: Definitions,
        options: WorkerOptions,
        wake_waiters: Callable[[list[int]], None] | None = None,
    ) -> None:
        self.definitions = definitions
        self.options = options
        # Half of the time-out: effectful bodies stop starting well before others may reap the
        # worker.
        life = Life(options.rhythm.dead_after / 2)
        context = self._context = WorkerContext(
            connect,
            definitions,
            options,
            wake_waiters,
            control=WorkerConnection(connect, "pgflow worker"),
            life=life,
            tasks=Tasks(life),
            wanted=Wanted(),
            posts=Posts(asyncio.get_running_loop()),
            acknowledged=Acknowledged(),
        )
        self._runs = runs = Runs(context)
        self._lanes = lanes = Lanes(context)
        self.notifications = notifications = Notifications(context, runs, lanes)
        self._poller = Poller(context, runs, lanes, notifications)
        self._scheduler = Scheduler(context, notifications)
        self._registration = Registration(context, lanes)
        self._pager = None if definitions.pager is None else Pager(context, definitions.pager)
        self.parts: list[Part] = [*self._run_parts(), *self._other_parts()]

    def _run_parts(self) -> list[Part]:
        """Create the parts that runs pass through, each after those that it needs."""
        context, runs, notifications = self._context, self._runs, self.notifications
        turns = Turns(context, runs)
        calls = BodyCalls(context)
        self._lost = calls.lost_threads
        transactions = TransactionBodies(context, calls, turns, notifications)
        progress = Progress(context, runs, notifications)
        self._bodies = Bodies(context, runs, transactions, progress)
        queue = CommitQueue(runs, LINES)
        host = RunHost(context, runs, self._bodies, queue)
        starter = RunStarter(context, runs, host, turns)
        self._rates = Rates(context)
        self._results = results = CommitResults(context, turns, notifications, self._rates)
        rates = QueueRates(context)
        self._claims = claims = Claims(context, runs, self._lanes, rates)
        self._executor = executor = Executor(context, claims, starter, results)
        committer = Committer(context, queue, executor, results)
        flusher = Flusher(context, runs, queue, calls.lost_threads)
        watchdog = Watchdog(
            lambda: flusher.ticks, threading.get_ident(), self.options.rhythm.blocked_after
        )
        self._heartbeat = heartbeat = Heartbeat(context, self._heartbeat_callbacks(), watchdog)
        callbacks = ListenerCallbacks(
            self.notifications.received, context.wanted.claims.set, context.life.fail
        )
        self._listener = Listener(
            context.connect, [WORK_CHANNEL], callbacks, lambda: context.control.backend_pid
        )
        self._stopped_first = [progress, notifications, host]
        return [
            starter,
            calls.lost_threads,
            calls.lost_threads.transactions,
            heartbeat,
            committer,
            *([self._listener] if self.options.listen else []),
            executor,
            self._poller,
            flusher,
            Upkeep(context, heartbeat, committer, claims),
            self._lanes,
            rates,
        ]

    def _other_parts(self) -> list[Part]:
        context = self._context
        return [
            EntityMail(context),
            self._scheduler,
            Sealer(context),
            self._rates,
            Retirer(context),
            *([Letters(context)] if self.definitions.is_in_cluster else []),
            *([Relays(context, self.notifications)] if self.definitions.relays else []),
            # A worker that drains once leaves them to `call pgflow.work`.
            *([SqlFlows(context)] if self.options.tally is None else []),
            *([self._pager] if self._pager is not None else []),
            self._results.failures,
            context.tasks,  # all loops end together, before anything above
            # Stopped first: their last reports still need `tasks` and the connection.
            *self._stopped_first,
        ]

    def _heartbeat_callbacks(self) -> HeartbeatCallbacks:
        return HeartbeatCallbacks(
            mail=self._runs.poke,
            reaped=lambda lanes: self.notifications.ready(lanes, []),
            resumed=self._bodies.start_deferred,
            declared_dead=self._declared_dead,
            server_changed=self.leave_server,
        )

    # ================================================================ life

    async def start(self) -> None:
        """Register the worker, and start its parts."""
        try:
            # First: every part uses the number that this assigns.
            await self._registration.register(is_patient=False)
            await self._registration.release_stuck()
        except BaseException:
            await self._registration.end()
            await self._context.control.close()
            raise
        for part in self.parts:
            part.start()
        if self.options.meter is not None:
            self.options.meter.worker = self
        self._context.wanted.claims.set()

    async def stop(self) -> None:
        """Stop claiming, let running bodies finish within the grace, hand everything back, and
        leave.
        """
        if not self._context.life.stop():
            return
        # First: operators see a stopping worker during the whole grace.
        self._heartbeat.announce_stop()
        await self._runs.drain(
            asyncio.get_running_loop().time() + self.options.grace_seconds,
            lambda: self._claims.is_waiting,
        )
        # Before the hand-back, so that bodies end before another worker claims their runs.
        await self._bodies.stop_all()
        await self._runs.hand_back_all()
        if self._pager is not None:
            await self._pager.look_once_more(self.options.grace_seconds)
        # Before the parts stop: stopping `tasks` would cancel the calls.
        await self._results.failures.finish(self.options.grace_seconds)
        await self._stop_parts()
        await self._registration.end()
        await self._context.control.close()

    async def abandon(self) -> None:
        """End as a crash would: hand nothing back, and write nothing more."""
        self._context.life.stop()
        self._runs.remove_all()
        self._bodies.abandon()
        await self._stop_parts()
        await self._context.control.close()

    async def _stop_parts(self) -> None:
        for part in reversed(self.parts):
            await part.stop()

    def leave_server(self) -> None:
        """Cut everything that waits for the old primary, so that it need not wait for its deadline,
        and poll the new one.
        """
        self._context.control.leave()
        for part in self.parts:
            part.leave()
        self.poll_now()

    def _declared_dead(self) -> None:
        self._context.tasks.spawn(self._register_again())

    async def _register_again(self) -> None:
        """Drop the runs, which other workers have taken, and register anew."""
        log.warning(
            "worker %s was declared dead: its runs continue elsewhere; registering anew",
            self.worker_id,
        )
        task = asyncio.current_task()
        try:
            self._runs.remove_all()
            if self._context.life.is_stopping:
                return
            await self._registration.register()
        except BaseException as error:  # without a number the worker can do nothing
            if is_own_end(error, task):
                raise
            self._context.life.fail("it cannot register anew", error)
            return
        self._lost.reset_record()
        self._heartbeat.renew()
        self._scheduler.look_now()  # declare the schedules of the code under the new number
        self._context.wanted.claims.set()

    # ================================================================ requests

    def poll_now(self) -> None:
        """Poll at once."""
        self._context.wanted.poll()

    async def sweep(self) -> Sweep:
        """Fire due schedules, poll, and claim if these found nothing new, in addition to the loops.

        The result is dry only if no run has come or left meanwhile: the end of a run may make
        another ready, or let the next slot of its schedule start, after the part of the look that
        would have seen it.
        """
        departures = self._runs.departures
        fired = await self._scheduler.fire()
        polled = await self._poller.poll()
        was_dry = fired.runs == 0 and polled.busy == 0 and not polled.lanes
        count = self._claims.free()
        if was_dry and count > 0:
            was_dry = await self._executor.claim(count) == 0
        was_dry = was_dry and self._runs.departures == departures
        due = [s for s in (polled.next_due_seconds, fired.next_seconds) if s is not None]
        return Sweep(was_dry, min(due, default=None))

    async def fire_schedules(self) -> Fired:
        """Fire due schedules, even if it is another worker's turn."""
        return await self._scheduler.fire()

    @property
    def failed(self) -> asyncio.Event:
        """Set once this worker can no longer work."""
        return self._context.life.failed

    @property
    def failure(self) -> WorkerFailed | None:
        """The reason for that; None before."""
        return self._context.life.failure

    @property
    def worker_id(self) -> int:
        """The worker's number in the database."""
        return self._context.life.worker_id

    @property
    def executions(self) -> dict[int, Execution]:
        """The runs that it works on."""
        return self._runs.executions

    @property
    def is_busy(self) -> bool:
        """True if it holds runs, or is about to."""
        return bool(self._runs.executions) or self._claims.is_waiting

    @property
    def finished(self) -> int:
        """Number of runs that have ended here."""
        return self._results.finished

    @property
    def active(self) -> int:
        """Number of runs that it works on, without parents that wait for their children."""
        return len(self._runs.executions) - len(self._runs.waiting)

    @property
    def concurrency(self) -> int:
        """Most runs that it works on at once."""
        return self.options.concurrency

    @property
    def lost_threads(self) -> int:
        """Number of threads that run abandoned bodies."""
        return self._lost.count

    @property
    def beat_age_seconds(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent."""
        return self._context.life.age_seconds
