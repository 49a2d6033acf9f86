"""A worker: claims runs, runs their code and the bodies of their steps, commits what they do.

One event loop does all of it but the heart, which has its own thread, and the bodies of ``def`` steps and
workflows. The worker holds five connections: two that commit, one for claims, polls and wakes, one that
listens, one of the heart; four where nothing is to do. However many runs it works on, it needs no more but
for transactional steps, which have a pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import psycopg

from pgflow._db.busy_poll import BusyPoll
from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import wake as wake_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._db.connect import ConnectOptions
from pgflow._db.query import Query
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import duration
from pgflow._version import __version__
from pgflow._worker.bodies import Bodies
from pgflow._worker.claims import Claiming
from pgflow._worker.committer import Committer
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.heartbeat import Heart
from pgflow._worker.listener import WORK_CHANNEL, Listener, parse_work
from pgflow._worker.notifier import Wakes
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.pager import Pager
from pgflow._worker.ref_checks import AT_ONCE
from pgflow._worker.supervision import cancel, is_own_end, keep_going
from pgflow._worker.threads import AppCalls, DaemonThreads, Posts, SpareThreads
from pgflow.errors import WorkerFailed
from pgflow.logs import redacted
from pgflow.schema import Standing, compare_stamp, own_assets

log = logging.getLogger("pgflow")

FLUSH_AFTER_US = 100_000
SWEEP_SECONDS = 0.05
LONGEST_TIMEOUT_MS = 2**31 - 1
"""The longest that a setting of the server can say, 24 days."""
STRAYS_EVERY_SECONDS = 5.0
LANES_EVERY_SECONDS = 5.0
PARTITIONS_EVERY_SECONDS = 60.0


class Sweep(NamedTuple):
    """Result of a worker's single look: True if there was nothing to take, and the seconds until the next timer."""

    was_dry: bool
    next_due_seconds: float | None


class Worker(Claiming):
    """See the module. Start and stop it on a running event loop."""

    def __init__(
        self, connect: ConnectOptions, definitions: Definitions, options: WorkerOptions, ended: Callable[[list[int]], None] | None = None
    ) -> None:
        self.busy_poll = BusyPoll(options.busy_poll_seconds, self._is_quiet)
        idle = duration(options.transaction_idle_seconds, "transaction_idle_seconds of a worker", least_seconds=0.001)
        self.transaction_idle_ms = min(round(idle.total_seconds() * 1000), LONGEST_TIMEOUT_MS)
        super().__init__(definitions, options, WorkerConnection(connect, "pgflow worker", self.busy_poll))
        self.ticks = 0
        self._connect = connect
        self._ended = ended
        self._committer = Committer(self, connect, self.busy_poll)
        self._poll_wanted = asyncio.Event()
        self._lanes_wanted = asyncio.Event()
        self._newest_lane = 0
        self._foreign_lanes: set[int] = set()
        self._lost_told = 0
        self._telling_lost = False
        self._lost_since: float | None = None
        self.failed = asyncio.Event()
        self.failure: WorkerFailed | None = None
        self._seen_stamp: str | None = str(own_assets().stamp)
        self._wakes = Wakes(self, self._control)

    def prepare_no_more(self, error: BaseException) -> None:
        """A prepared statement was lost: see :class:`pgflow._db.connect.Preparing`."""
        self._connect.preparing.end(error)

    def _is_quiet(self) -> bool:
        """Return True if there is nothing to do while an answer is waited for."""
        return len(self.executions) <= 1

    # ================================================================ life

    async def start(self) -> None:
        """Registers, and begins to work."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self.posts = Posts(self._loop)
        self.code_threads = SpareThreads(self.options.concurrency, "pgflow-workflow")
        self.threads = DaemonThreads(self.options.concurrency, "pgflow-step", max_lost=self.max_lost_threads)
        self.checks = AppCalls(AT_ONCE, "pgflow-check")
        self._bodies = Bodies(self, self._loop)
        await self._register(is_patient=False)
        code = {name: workflow.code_hash for name, workflow in self.definitions.workflows.items()}
        await self._control.insist(worker_calls.release_stuck(code))
        self._heart = Heart(self, self._connect, self.worker_id, self.options.rhythm, self._thread_id, self.acknowledged)
        self._heart.start()
        self._committer.start()
        self._listener = Listener(self._connect, WORK_CHANNEL, self._heard, self._claim_wanted.set, self.fail)
        if self.options.listen:
            self._listener.start()
        loops = {
            "the loop of claims": self._claim_loop, "the loop of polls": self._poll_loop, "the loop of flushes": self._sweep_loop,
            "the loop of upkeep": self._upkeep_loop, "the loop of lanes": self._lanes_loop,
        }  # fmt: skip
        if self.definitions.pager is not None:
            self.pager = Pager(self.definitions.pager, self._control)
            loops["the pager"] = self.pager.loop
        for name, loop in loops.items():
            self.spawn(keep_going(name, loop, self.fail)).add_done_callback(partial(self._part_ended, name))
        if self.meter is not None:
            self.meter.worker = self
        self._claim_wanted.set()

    async def _register(self, *, is_patient: bool = True) -> None:
        """Registers; at the start of a worker what is missing or forbidden is said at once."""
        options = self.options
        self.worker_id = await self._control.insist(
            worker_calls.register_worker(
                socket.gethostname(), os.getpid(), options.queues, options.concurrency, __version__, str(own_assets().stamp)
            ),
            is_patient=is_patient,
        )
        codes = [code_of(name, workflow) for name, workflow in self.definitions.workflows.items()]
        await self._control.insist(worker_calls.register_code(self.worker_id, codes))
        await self._look_for_lanes(self._control.insist)

    def _part_ended(self, name: str, task: asyncio.Task[Any]) -> None:
        """A loop that must go on has ended: this worker is of no more use."""
        if not self._stopping:
            self.fail(name, asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception())

    def fail(self, part: str, error: BaseException | None = None) -> None:
        """This worker is of no more use: it claims nothing more, and whoever runs it is told."""
        if self.failure is not None or self._stopping:
            return
        because = "" if error is None else f": {type(error).__name__}: {redacted(error)}"
        failure = WorkerFailed(f"worker {self.worker_id} has failed and hands its runs back: {part}{because}")
        failure.__cause__ = error
        self._has_failed(failure)

    def _has_failed(self, failure: WorkerFailed) -> None:
        self.failure = failure
        log.error("%s", failure, exc_info=failure.__cause__)
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
        if self._releases:
            await asyncio.wait(self._releases)
        await self._page_at_the_end()
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

    async def _page_at_the_end(self) -> None:
        """A worker that drains queues and leaves would never look again after its last run."""
        if self.pager is not None:
            await self._quietly(asyncio.wait_for(self.pager.look(), self.options.grace_seconds))

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
        await self._wakes.send()
        await cancel(self._tasks)
        await self._listener.close()
        await self._committer.close()
        await asyncio.to_thread(self._heart.stop)
        self.threads.shutdown(cancel_futures=True)
        self.code_threads.close()
        self.checks.close()
        if self.pager is not None:
            self.pager.close()

    @property
    def lost_threads(self) -> int:
        """Number of threads at bodies that nobody waits for any more."""
        return self.threads.lost

    @property
    def max_lost_threads(self) -> int:
        """Number of lost threads that are replaced; with so many this worker ends."""
        most = self.options.max_lost_threads
        return max(32, self.options.concurrency) if most is None else most

    def poll_now(self) -> None:
        """Sweeps at once instead of at the next poll."""
        self._poll_wanted.set()
        if self.pager is not None:
            self.pager.look_now()

    @property
    def is_busy(self) -> bool:
        """True if it holds runs, or is about to."""
        return bool(self.executions) or self._claiming > 0

    async def sweep(self) -> Sweep:
        """Polls, and claims what there is if that found nothing new, beside what its loops do."""
        polled = await self._poll()
        was_dry = polled.busy == 0 and not polled.lanes
        count = self._free()
        if was_dry and count > 0:
            was_dry = await self._claim(count) < count
        return Sweep(was_dry, polled.next_due_seconds)

    # ================================================================ loops

    async def _poll_loop(self) -> None:
        while True:
            wait = self.options.poll_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreads the load
            try:
                polled = await self._poll()
                if polled.next_due_seconds is not None:
                    wait = min(wait, max(polled.next_due_seconds, 0.005))
                if polled.busy:
                    wait = min(wait, 0.02)
                self._claim_wanted.set()
                self._poke_waiting()
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot poll: %s", redacted(error))
            self._poll_wanted.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._poll_wanted.wait()
            except TimeoutError:
                pass

    def _poke_waiting(self) -> None:
        """Not in the loop itself, whose variables would hold the last execution for as long as the loop rests."""
        for execution in list(self.executions.values()):
            if execution.waits_for_database and not execution.over:
                self._guard(execution, execution.poke)

    async def _look_for_lanes(self, ask: Callable[[Query[list[claim_calls.Lane]]], Awaitable[list[claim_calls.Lane]]]) -> None:
        """Reads which lanes there are to serve: a start may have named one since, of a version that nothing was pinned to before."""
        workflows = self.definitions.workflows
        versions = [workflow.version for workflow in workflows.values()]
        lanes = await ask(claim_calls.serve_lanes(self.options.queues, list(workflows), versions))
        is_new = any(lane.lane_id not in self._lanes for lane in lanes)
        self._lanes = {lane.lane_id: lane for lane in lanes}
        if is_new:
            self._claim_wanted.set()

    async def _lanes_loop(self) -> None:
        """Looks for new lanes when one is heard of; and now and then, since a lane may be committed after one with a higher number."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LANES_EVERY_SECONDS):
                    await self._lanes_wanted.wait()
            self._lanes_wanted.clear()
            try:
                await self._look_for_lanes(self._control.ask)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot look for lanes: %s", redacted(error))

    def _heard_of_lanes(self, lanes: Iterable[int]) -> None:
        """There are ready runs in these lanes: ours are claimed from, and one that was never heard of may be ours."""
        for lane in lanes:
            if lane in self._lanes:
                self._claim_wanted.set()
            elif lane not in self._foreign_lanes:
                self._foreign_lanes.add(lane)
                self._lanes_wanted.set()

    async def _poll(self) -> wake_calls.Polled:
        polled = await self._control.ask(wake_calls.poll())
        if (polled.newest_lane or 0) > self._newest_lane:
            self._newest_lane = polled.newest_lane or 0
            self._lanes_wanted.set()
        self.woken(polled.lanes, polled.mail)
        if polled.ended:
            self.runs_ended(polled.ended)
        return polled

    async def _sweep_loop(self) -> None:
        """Buffers that nothing else has flushed leave after a tenth of a second."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.ticks += 1
            self._flush_old()
            self._count_lost_threads()

    def _flush_old(self) -> None:
        for execution in self.executions.values():
            oldest = execution.oldest_unflushed_us
            if oldest is not None and execution.estimate_us() - oldest > FLUSH_AFTER_US and not execution.replaying:
                self._committer.submit(execution)

    def _count_lost_threads(self) -> None:
        """Tells the database how many there are, and ends where there are too many and they do not come back."""
        lost, now = self.lost_threads, self._loop.time()
        if lost != self._lost_told and not self._telling_lost:
            self._telling_lost = True
            self.spawn(self._tell_lost_threads(lost))
        if lost < max(1, self.max_lost_threads):
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = now
            log.error(
                "%d of %d threads that worker %s may lose are lost to bodies that do not end: it hands its runs back in %.1f s",
                lost, self.max_lost_threads, self.worker_id, self.options.grace_seconds,
            )
        elif now - self._lost_since > self.options.grace_seconds:
            self.fail(f"{lost} of its threads are lost to bodies that do not end, as many as it may lose")

    async def _tell_lost_threads(self, lost: int) -> None:
        try:
            await self._quietly(self._control.ask(worker_calls.count_lost_threads(self.worker_id, lost)))
            self._lost_told = lost
        finally:
            self._telling_lost = False

    async def _upkeep_loop(self) -> None:
        """Leases we do not know we have, room for the runs to come, and a schema that is no longer the one of our code."""
        partitioned = 0.0
        while True:
            try:
                if not self._heart.is_beating:
                    self.fail("its heart has stopped")
                await self._committer.close_idle()
                self._compare_schema(await self._control.ask(worker_calls.read_stamp()))
                if time.monotonic() - partitioned > PARTITIONS_EVERY_SECONDS:
                    await self._control.ask(worker_calls.add_unit_partitions())
                    await self._control.ask(worker_calls.sweep_keys())
                    for shrunk in await self._control.ask(worker_calls.shrink_journal()):
                        log.info("partition %s of the journal shrunk from %d to %d bytes: %d units are left in it", *shrunk)
                    partitioned = time.monotonic()
                if await self._control.ask(worker_calls.release_outdated(self.worker_id)):
                    self._claim_wanted.set()
                strays = await self._control.ask(claim_calls.release_strays(self.worker_id, list(self.executions)))
                if strays:
                    log.warning("%d runs were leased to this worker without its knowledge; handed back", strays)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.debug("upkeep: %s", redacted(error))
            await asyncio.sleep(STRAYS_EVERY_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the load

    def _compare_schema(self, comment: str | None) -> None:
        """Says once what has become of the schema, and takes no further runs if this code cannot work with it."""
        if comment == self._seen_stamp:
            return
        self._seen_stamp = comment
        ours, standing = own_assets().stamp, compare_stamp(comment)
        self.is_outgrown = standing is Standing.BREAKING
        if standing is Standing.NEWER:
            log.warning("the schema is now of %s; this worker is of %s and goes on: start the new version in its place", comment, ours)
        elif standing is Standing.BREAKING:
            why = f"the schema is now of {comment}, with which {ours} cannot work: this worker takes no further runs"
            self._has_failed(WorkerFailed(why))
        elif standing is Standing.OLDER:
            log.warning("the schema is now of %s, older than this worker's %s: run `pgflow migrate`", comment or "nobody known", ours)
        else:
            self._claim_wanted.set()

    # ================================================================ waking and notifying

    def wake_soon(self, chains: list[int], lanes: set[int]) -> None:
        """Wakes runs in a transaction of its own, after the commit that gave a reason to."""
        if lanes:
            self.woken(list(lanes), [])
        self._wakes.wake_soon(chains)

    def woken(self, lanes: list[int], mail: list[int]) -> None:
        """Lanes with ready runs, and leased runs with mail: ours are looked at, others told."""
        self._heard_of_lanes(lanes)
        self._mail([run_id for run_id in mail if run_id in self.executions])
        self._wakes.tell(lanes=lanes, mail=(run_id for run_id in mail if run_id not in self.executions))

    def runs_ended(self, chains: list[int]) -> None:
        """Tells those who wait for results, here and elsewhere."""
        if self._ended is not None:
            self._ended(chains)
        self._wakes.tell(done=chains)

    def _heard(self, payload: str) -> None:
        lanes, mail = parse_work(payload)
        self._heard_of_lanes(lanes)
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
        """Start the deferred bodies."""
        self._loop.call_soon_threadsafe(self._start_deferred)

    def server_changed(self, left_at: float) -> None:
        """Another server is the primary: whatever waits for the old one need not wait for its deadline."""
        self._loop.call_soon_threadsafe(self._leave_server, left_at)

    def _leave_server(self, left_at: float) -> None:
        for part in (self._committer, self._control, self._listener, self._bodies):
            part.leave(left_at)
        self.poll_now()

    def acknowledged_lost(self, runs: int) -> None:
        """A fail-over has lost what we were told is durable."""
        if self.meter is not None:
            self.meter.losses += 1
            self.meter.lost_runs += runs

    def declared_dead(self) -> None:
        """Others have our runs: drop them and begin anew."""
        self._loop.call_soon_threadsafe(lambda: self.spawn(self._rise_again()))

    async def _rise_again(self) -> None:
        log.warning("worker %s was declared dead: its runs go on elsewhere; it registers anew", self.worker_id)
        task = asyncio.current_task()
        try:
            for execution in list(self.executions.values()):
                self._remove(execution)
            if self._stopping:
                return
            await self._register()
        except BaseException as error:  # without a number of its own it can do nothing
            if is_own_end(error, task):
                raise
            self.fail("it cannot register anew", error)
            return
        self._lost_told = 0
        self._heart.renew(self.worker_id)
        self._claim_wanted.set()


def code_of(name: str, workflow: Workflow[..., Any]) -> worker_calls.Code:
    """Return the registration of a workflow that a worker serves under a name, which may be an old one."""
    alias_of = workflow.name if name != workflow.name else None
    shapes = {signal.name: signal.codec.shape for signal in workflow.signals}
    return worker_calls.Code(name, workflow.version, workflow.code_hash, workflow.is_pinned, alias_of, workflow.patches, shapes)
