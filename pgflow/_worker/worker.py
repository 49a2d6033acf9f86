"""A worker: claims runs, runs their code and the bodies of their steps, commits the results.

One event loop does everything except the heart, which has its own thread, and the bodies of ``def``
steps and workflows. The worker holds five connections: two that commit, one for claims, polls and
wakes, one that listens, one of the heart. An idle worker holds four. The number does not grow with
its runs, except for transactional steps, which have a pool.

It is a list of parts (:mod:`pgflow._worker.parts`), and does little more than create, start and
stop them.

A worker that stops does this in order:

1. It claims nothing more, and each beat announces that.
2. Runs start no further bodies. A run that is idle and has nothing left to commit is handed back.
   This lasts for the grace at most.
3. Bodies that still run are cancelled. The remaining runs are handed back.
4. The pager looks once more.
5. The parts stop, the last one first. So notifications leave before the loops end, and the heart
   beats until the committer has ended.
6. The worker leaves the table of workers, and closes its last connection.

Any part of a worker can fail it with ``Life.fail``. Its owner then stops it, in the same order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from pgflow._db.busy_poll import BusyPoll
from pgflow._db.connect import ConnectOptions
from pgflow._engine.execution import Execution
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.aftermath import Aftermath
from pgflow._worker.beginnings import Beginnings
from pgflow._worker.bodies import Bodies
from pgflow._worker.body_calls import BodyCalls
from pgflow._worker.claims import Claims
from pgflow._worker.commit_queue import CommitQueue
from pgflow._worker.committer import LINES, Committer
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.effect_bodies import Acts
from pgflow._worker.entities import EntityMail
from pgflow._worker.failures import Failures
from pgflow._worker.fencing import Turns
from pgflow._worker.flusher import Flusher
from pgflow._worker.heartbeat import Heart, Tidings
from pgflow._worker.host import RunHost
from pgflow._worker.lanes import Lanes
from pgflow._worker.life import Life
from pgflow._worker.lines import Lines
from pgflow._worker.listener import WORK_CHANNEL, Listener
from pgflow._worker.lost_threads import LostThreads, most_lost
from pgflow._worker.news import News
from pgflow._worker.notifier import Notifier
from pgflow._worker.open_transactions import OpenTransactions
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.pager import Pager
from pgflow._worker.parts import Part, Tasks
from pgflow._worker.poller import Poller
from pgflow._worker.progress import Progress
from pgflow._worker.registration import Registration
from pgflow._worker.relays import Relays
from pgflow._worker.runs import Runs
from pgflow._worker.scheduler import Fired, Scheduler
from pgflow._worker.sealer import Sealer
from pgflow._worker.sqlflows import SqlFlows
from pgflow._worker.supervision import is_own_end
from pgflow._worker.suspects import Suspects
from pgflow._worker.threads import DaemonThreads, Posts
from pgflow._worker.transaction_bodies import TransactionBodies
from pgflow._worker.upkeep import Upkeep
from pgflow._worker.wakes import Wakes
from pgflow._worker.watchdog import Watchdog
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
        tell: Called with the chains that have ended or answered a request, to wake waiters in this
            process.

    Attributes:
        parts: In the order in which they start. They stop in reverse order.
    """

    # As long as the list of parts: each is created once, after those that it needs.
    def __init__(
        self,
        connect: ConnectOptions,
        definitions: Definitions,
        options: WorkerOptions,
        tell: Callable[[list[int]], None] | None = None,
    ) -> None:
        loop, meter, rhythm = asyncio.get_running_loop(), options.meter, options.rhythm
        want_claims = asyncio.Event()
        self.definitions = definitions
        self.options = options
        self._want_claims = want_claims.set

        # Used by all.
        # Half of the time-out: effectful bodies stop starting well before others may reap the
        # worker.
        life = self._life = Life(rhythm.dead_after / 2)
        tasks = self._tasks = Tasks(life)
        busy_poll = BusyPoll(options.busy_poll_seconds, self._is_quiet)
        control = self._control = WorkerConnection(connect, "pgflow worker", busy_poll)
        acknowledged = self._acknowledged = Acknowledged()
        posts = Posts(loop)

        # Runs, and news of them.
        notifier = Notifier(control, tasks)
        runs = self._runs = Runs(
            control, notifier, tasks, meter, tells_errors=definitions.envelopes is None
        )
        lanes = Lanes(tasks, control, definitions, options, want_claims.set)
        news = self._news = News(runs, lanes, notifier, tell)
        pager = self._pager = (
            None if definitions.pager is None else Pager(tasks, control, definitions.pager)
        )
        poller = self._poller = Poller(
            tasks, control, runs, lanes, news, want_claims.set, pager, options.poll_seconds
        )
        scheduler = self._scheduler = Scheduler(tasks, control, life, definitions, news, poller)
        wakes = Wakes(control, tasks, runs, news, poller)
        suspects = Suspects(want_claims.set, rhythm.dead_after)
        turns = Turns(runs, suspects, acknowledged, control)

        # Bodies.
        threads = DaemonThreads(options.concurrency, "pgflow-step", max_lost=most_lost(options))
        open_transactions = OpenTransactions()
        lost = self._lost = LostThreads(threads, open_transactions, tasks, control, life, options)
        calls = BodyCalls(threads, posts, lost, definitions.interceptors, connect.preparing, meter)
        transactions = TransactionBodies(
            calls, open_transactions, turns, posts, wakes, busy_poll, definitions, options
        )
        acts = Acts(calls, definitions.replacements)
        progress = Progress(control, runs, tasks, news)
        bodies = self._bodies = Bodies(
            runs,
            calls,
            transactions,
            acts,
            progress,
            threads,
            posts,
            lost,
            life,
            definitions,
            options,
        )

        # The path of a run: claimed, started, hosted, committed.
        queue = CommitQueue(runs, LINES)
        host = RunHost(runs, bodies, queue, posts, options.concurrency)
        beginnings = Beginnings(runs, host, turns, posts, tasks, definitions, options)
        lines = Lines(tasks, control, options.queues, want_claims.set)
        claims = self._claims = Claims(
            tasks,
            control,
            life,
            want_claims,
            runs,
            lanes,
            suspects,
            beginnings,
            lines,
            options,
        )
        failures = self._failures = Failures(tasks, definitions.on_failure)
        aftermath = self._aftermath = Aftermath(
            runs, turns, suspects, acknowledged, news, pager, meter, definitions.envelopes, failures
        )
        committer = Committer(
            connect, queue, claims, aftermath, wakes, news, life, busy_poll, meter
        )
        flusher = Flusher(tasks, runs, queue, lost)

        # The others.
        self._registration = Registration(control, life, lanes, definitions, options)
        told = Tidings(
            mail=runs.poke,
            reaped=lambda lanes: news.woken(lanes, []),
            resumed=bodies.start_deferred,
            declared_dead=self._declared_dead,
            server_changed=self.leave_server,
        )
        watchdog = Watchdog(lambda: flusher.ticks, threading.get_ident(), rhythm.blocked_after)
        heart = self._heart = Heart(
            connect, life, rhythm, told, loop.call_soon_threadsafe, acknowledged, watchdog, meter
        )
        listener = self._listener = Listener(
            connect, WORK_CHANNEL, news.heard, want_claims.set, life.fail
        )

        self.parts: list[Part] = [
            beginnings,
            lost,
            open_transactions,
            heart,
            committer,
            *([listener] if options.listen else []),
            claims,
            poller,
            flusher,
            Upkeep(tasks, control, life, heart, committer, claims, want_claims.set, runs),
            lanes,
            lines,
            EntityMail(tasks, control, definitions, options.poll_seconds),
            scheduler,
            Sealer(tasks, control),
            *self._relays(tasks, control, news),
            # A worker that drains once leaves them to `call pgflow.work`.
            *(
                [SqlFlows(tasks, connect, control, options.queues, options.poll_seconds)]
                if options.tally is None
                else []
            ),
            *([pager] if pager is not None else []),
            failures,
            tasks,  # all loops end together, before anything above
            # Stopped first: their last reports still need `tasks` and the connection.
            progress,
            notifier,
            host,
        ]

    def _relays(self, tasks: Tasks, control: WorkerConnection, news: News) -> list[Part]:
        if not self.definitions.relays:
            return []
        return [Relays(tasks, control, news, self.definitions, self.options.poll_seconds)]

    def _is_quiet(self) -> bool:
        """Return True if there is nothing else to do while waiting for an answer."""
        return len(self._runs.executions) <= 1

    # ================================================================ life

    async def start(self) -> None:
        """Register the worker, and start its parts."""
        try:
            # First: every part uses the number that this assigns.
            await self._registration.register(is_patient=False)
            await self._registration.release_stuck()
        except BaseException:
            await self._registration.end()
            await self._control.close()
            raise
        for part in self.parts:
            part.start()
        if self.options.meter is not None:
            self.options.meter.worker = self
        self._want_claims()

    async def stop(self) -> None:
        """Stop claiming, let running bodies finish within the grace, hand everything back, and
        leave.
        """
        if not self._life.stop():
            return
        # First: operators see a stopping worker during the whole grace.
        self._heart.say_that_it_stops()
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
        await self._failures.finish(self.options.grace_seconds)
        await self._stop_parts()
        await self._registration.end()
        await self._control.close()

    async def abandon(self) -> None:
        """End as a crash would: hand nothing back, and write nothing more."""
        self._life.stop()
        self._runs.remove_all()
        self._bodies.abandon()
        await self._stop_parts()
        await self._control.close()

    async def _stop_parts(self) -> None:
        for part in reversed(self.parts):
            await part.stop()

    def leave_server(self, left_at: float) -> None:
        """Cut everything that waits for the old primary, so that it need not wait for its deadline,
        and poll the new one.
        """
        self._control.leave(left_at)
        for part in self.parts:
            part.leave(left_at)
        self.poll_now()

    def _declared_dead(self) -> None:
        self._tasks.spawn(self._rise_again())

    async def _rise_again(self) -> None:
        """Drop the runs, which other workers have taken, and register anew."""
        log.warning(
            "worker %s was declared dead: its runs continue elsewhere; registering anew",
            self.worker_id,
        )
        task = asyncio.current_task()
        try:
            self._runs.remove_all()
            if self._life.is_stopping:
                return
            await self._registration.register()
        except BaseException as error:  # without a number the worker can do nothing
            if is_own_end(error, task):
                raise
            self._life.fail("it cannot register anew", error)
            return
        self._lost.registered_anew()
        self._heart.renew()
        self._scheduler.look_now()  # declare the schedules of the code under the new number
        self._want_claims()

    # ================================================================ requests

    def poll_now(self) -> None:
        """Poll at once."""
        self._poller.look_now()

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
            was_dry = await self._claims.claim(count) == 0
        was_dry = was_dry and self._runs.departures == departures
        due = [s for s in (polled.next_due_seconds, fired.next_seconds) if s is not None]
        return Sweep(was_dry, min(due, default=None))

    async def fire_schedules(self) -> Fired:
        """Fire due schedules, even if it is another worker's turn."""
        return await self._scheduler.fire()

    def woken(self, lanes: list[int], mail: list[int]) -> None:
        """Handle lanes with ready runs and leased runs with mail: look at this worker's own, and
        notify other workers.
        """
        self._news.woken(lanes, mail)

    @property
    def failed(self) -> asyncio.Event:
        """Set once this worker can no longer work."""
        return self._life.failed

    @property
    def failure(self) -> WorkerFailed | None:
        """The reason for that; None before."""
        return self._life.failure

    @property
    def worker_id(self) -> int:
        """The worker's number in the database."""
        return self._life.worker_id

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
        return self._aftermath.finished

    @property
    def active(self) -> int:
        """Number of runs that it works on."""
        return len(self._runs.executions)

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
        return self._life.age_seconds
