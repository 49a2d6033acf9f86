"""Sends heartbeats on a thread and a connection of their own, so that a busy loop cannot make the
worker look dead.

The thread also watches others: workers that may be dead (:class:`Reaper`), and its own worker's
loop (:class:`Watchdog`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from pgflow._db.calls import loss as loss_calls
from pgflow._db.calls import worker as calls
from pgflow._db.connect import Connection, Server, connect, deadline, leave
from pgflow._db.query import Query, run
from pgflow._engine.execution import Execution
from pgflow._engine.loop import WorkflowLoop
from pgflow._worker.context import WorkerContext
from pgflow._worker.parts import Part
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Reaper:
    """Watches the other workers. It keeps the last beat seen of each, and for how long it has not
    moved. It runs on the heartbeat's thread.

    Args:
        look_seconds: Between looks.
        dead_after_seconds: A worker without a heartbeat for this long is dead.
        reaped: Called with the lanes of runs that are ready again.
    """

    def __init__(
        self, look_seconds: float, dead_after_seconds: float, reaped: Callable[[list[int]], object]
    ) -> None:
        self._look_seconds = look_seconds
        self._dead_after_seconds = dead_after_seconds
        self._reaped = reaped
        self._seen: dict[int, tuple[int, float]] = {}
        self._last_look: float | None = None

    def look(self, beats: dict[int, int], looked: float, ask: Callable[[Query[Any]], Any]) -> None:
        """Compare the beats of the others with those seen before, and reap workers that were silent
        for too long.

        Args:
            beats: The beats just read, by worker.
            looked: Time of reading them (``time.monotonic``).
            ask: Runs a query on the database.
        """
        gap = 0.0 if self._last_look is None else looked - self._last_look
        # An overlong gap: this process was asleep, and the others may have beaten unseen.
        if gap > max(4 * self._look_seconds, 2.0):
            gap = 0.0
        self._last_look = looked
        self._seen = {
            worker_id: (beat, self._silence(worker_id, beat, gap))
            for worker_id, beat in beats.items()
        }
        for worker_id, (beat, silence) in list(self._seen.items()):
            if silence >= self._dead_after_seconds or beat < 0:
                self._reap(worker_id, beat, ask)

    def forget(self) -> None:
        """Start over after a failed look: nothing seen before counts."""
        self._seen.clear()
        self._last_look = None

    def _silence(self, worker_id: int, beat: int, gap: float) -> float:
        last, silence = self._seen.get(worker_id, (None, 0.0))
        return silence + gap if last == beat else 0.0

    def _reap(self, worker_id: int, beat: int, ask: Callable[[Query[Any]], Any]) -> None:
        reaped: calls.Reaped = ask(calls.reap_worker(worker_id, beat))
        self._seen.pop(worker_id, None)
        if reaped.reclaimed or reaped.stuck:
            log.warning(
                "worker %s is dead: runs that continue elsewhere: %d, that are stuck: %d",
                worker_id,
                reaped.reclaimed,
                len(reaped.stuck),
            )
            self._reaped(reaped.lanes)


class Watchdog:
    """Detects a blocked loop.

    Args:
        ticks: Returns a number that the loop moves while it runs.
        loop_thread_id: Id of the loop's thread.
        blocked_after_seconds: A loop that is blocked for this long is worth a warning.
    """

    def __init__(
        self, ticks: Callable[[], int], loop_thread_id: int, blocked_after_seconds: float
    ) -> None:
        self._ticks = ticks
        self._loop_thread_id = loop_thread_id
        self._blocked_after_seconds = blocked_after_seconds
        self._last = (0, time.monotonic())
        self._warned = False

    def begin(self) -> None:
        """Start watching now."""
        self._last = (self._ticks(), time.monotonic())

    def look(self) -> None:
        """Check whether the loop has moved since the last look, and warn if it is blocked."""
        ticks, now = self._ticks(), time.monotonic()
        if ticks != self._last[0]:
            self._last = (ticks, now)
            self._warned = False
        elif now - self._last[1] > self._blocked_after_seconds and not self._warned:
            self._warned = True
            who, where = _culprit(sys._current_frames().get(self._loop_thread_id))
            log.warning(
                "the worker's loop has been blocked for %.1f s by %s: %s",
                now - self._last[1],
                who,
                where,
            )


def _culprit(frame: FrameType | None) -> tuple[str, str]:
    """Return (name, source line) of the code that blocks the loop: a run's if it is on the stack,
    else a body or the application.
    """
    where = traceback.format_stack(frame)[-1].strip() if frame is not None else "?"
    while frame is not None:
        owner = frame.f_locals.get("self")
        # A compiled execution has no frame of its own.
        execution = owner.host if isinstance(owner, WorkflowLoop) else owner
        if isinstance(execution, Execution):
            return f"the code of run {execution.claim.key!r} ({execution.claim.workflow})", where
        frame = frame.f_back
    return "the body of a step, or the application", where


T = TypeVar("T")

LOG_EVERY_SECONDS = 10.0
"""Interval between log lines about consecutive missed beats."""


class HeartbeatCallbacks(NamedTuple):
    """Callbacks on the worker's loop for what the heartbeat learns.

    Attributes:
        mail: These runs of this worker have mail: a cancel or a pause.
        reaped: A dead worker's runs are ready again, in these lanes.
        resumed: The last heartbeat is fresh again.
        declared_dead: Other workers have taken this worker's runs.
        server_changed: Another server is the primary, and the old one was left.
    """

    mail: Callable[[list[int]], object]
    reaped: Callable[[list[int]], object]
    resumed: Callable[[], object]
    declared_dead: Callable[[], object]
    server_changed: Callable[[], object]


class Heartbeat(Part):
    """Sends heartbeats. Only its own thread changes its state, except for the worker's number.

    Args:
        callbacks: For what it learns. They are called on the worker's loop.
        watchdog: Watches that loop.
    """

    def __init__(
        self, context: WorkerContext, callbacks: HeartbeatCallbacks, watchdog: Watchdog
    ) -> None:
        rhythm = context.options.rhythm
        self._options = context.connect
        self._life = context.life
        self._rhythm = rhythm
        self._callbacks = callbacks
        post: Callable[..., object] = context.tasks.loop.call_soon_threadsafe
        self._post = post
        # Detects what a fail-over has lost.
        self._acknowledged = context.acknowledged
        self._watchdog = watchdog
        self._meter = context.options.meter
        self._reaper = Reaper(rhythm.look, rhythm.dead_after, partial(post, callbacks.reaped))
        self._worker_id = 0
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._is_new = False  # True until the connection has brought its first answer
        self._server: tuple[Server, int | None] | None = None
        self._answered_at = time.monotonic()
        self._missed = 0
        self._missed_at = self._logged_at = 0.0
        self._dead = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="pgflow-heartbeat", daemon=True)

    def start(self) -> None:
        """Start beating for the registered worker."""
        self.renew()
        self._answered_at = time.monotonic()
        self._life.beat_acknowledged(self._answered_at)
        self._watchdog.begin()
        self._thread.start()

    def renew(self) -> None:
        """Beat under the number of a new registration."""
        self._worker_id = self._life.worker_id
        self._dead = False

    def announce_stop(self) -> None:
        """Announce with every further beat that the worker is about to leave."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Stop the thread, and wait for it."""
        await asyncio.to_thread(self.join)

    def join(self) -> None:
        """Stop the thread from sync code, and wait for it."""
        self._stop.set()
        # Bounded: the thread may be waiting for a frozen server.
        self._thread.join(timeout=5)

    @property
    def is_beating(self) -> bool:
        """True while the thread runs. Without it, others would take the worker for dead without its
        knowledge.
        """
        return self._thread.is_alive()

    def _run(self) -> None:
        next_beat = time.monotonic()
        while not self._stop.is_set():
            try:
                if self._is_new:
                    next_beat = 0.0  # beat at once: the answer identifies the server
                if time.monotonic() >= next_beat:
                    self._beat()
                    next_beat = time.monotonic() + self._rhythm.beat
                self._look()
            except BaseException as error:  # noqa: BLE001 - others would take a stopped heartbeat for a death
                self._lose(error)
            try:
                if not self._stop.is_set():
                    self._watchdog.look()
            except BaseException as error:  # noqa: BLE001 - it looks at objects of the application, which may answer anything
                log.warning(
                    "the heartbeat of worker %s cannot inspect the worker's loop: %s",
                    self._worker_id,
                    redacted(error),
                )
            self._stop.wait(min(self._rhythm.look, self._rhythm.beat) * random.uniform(0.8, 1.0))  # noqa: S311 - spreads the load
        self._close()

    def _ask(self, query: Query[T]) -> T:
        """Return the answer to a query. Give up a server that is silent for longer than the
        heartbeat's patience.
        """
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options, "pgflow heartbeat")
            self._is_new = True
        connection = self._connection
        with deadline(connection, self._rhythm.patience):
            return run(connection, query)

    def _lose(self, error: BaseException) -> None:
        now = time.monotonic()
        if not self._missed:
            self._missed_at = now
        if not self._missed or now - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = now
            log.warning("worker %s missed a heartbeat: %s", self._worker_id, redacted(error))
        self._missed += 1
        # Without an answer the others' silence is unknown, so none of it counts.
        self._reaper.forget()
        self._close()

    def _recover(self) -> None:
        """Log that the server answers again, if beats were missed."""
        if self._missed:
            log.info(
                "worker %s sends heartbeats again, %.1f s after it missed the first of %s",
                self._worker_id,
                time.monotonic() - self._missed_at,
                self._missed,
            )
            self._missed = 0

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _beat(self) -> None:
        # Count from here to be safe: the others see this beat only later.
        sent = time.monotonic()
        # Before the query, too: units noted later may lie beyond the position that it returns.
        self._acknowledged.cut()
        answer = self._ask(calls.beat(self._worker_id, stopping=self._is_stopping))
        self._recover()
        self._notice(answer)
        self._look_for_losses(answer)
        if not answer.alive:
            if not self._dead:
                self._dead = True
                self._post(self._callbacks.declared_dead)
            return
        was_stale = time.monotonic() > self._life.stale_at
        self._life.beat_acknowledged(sent)
        if was_stale:
            self._post(self._callbacks.resumed)
        if answer.mail:
            self._post(self._callbacks.mail, answer.mail)

    def _notice(self, answer: calls.Beat) -> None:
        """Compare the server that answered with the one before, and notify the worker if the
        address or the timeline has changed.
        """
        assert self._connection is not None
        self._is_new = False
        server, before = (self._connection.server, answer.timeline), self._server
        self._server = server
        if before is not None and before != server:
            log.warning(
                "worker %s continues with the server at %s:%s, the new primary",
                self._worker_id,
                *server[0],
            )
            # At another address all that leads to the old one is lost, whenever it was begun: that
            # server may have frozen at any time since it answered.
            left_at = time.monotonic() if before[0] != server[0] else self._answered_at
            leave(before[0], left_at)
            self._post(self._callbacks.server_changed)
        self._answered_at = time.monotonic()

    def _look_for_losses(self, answer: calls.Beat) -> None:
        loss = self._acknowledged.judge(answer, self._ask)
        if loss is not None:
            self._report(loss)
        # Only after the report: if that fails, the next beat judges the same stretches again.
        self._acknowledged.beat_acknowledged(answer)

    def _report(self, loss: loss_calls.Loss) -> None:
        keys = ", ".join(run["key"] for run in loss.runs[:5]) + (
            ", ..." if len(loss.runs) > 5 else ""
        )
        log.error(
            "the server's log continues from %X (timeline %s), but %X (timeline %s) was "
            "acknowledged %.1f s ago: %s runs of this worker have lost work%s; see `pgflow "
            "doctor`",
            loss.kept,
            loss.new_timeline,
            loss.acknowledged,
            loss.old_timeline,
            loss.age_seconds,
            len(loss.runs),
            f" ({keys})" if keys else "",
        )
        self._ask(loss_calls.report_loss(self._worker_id, socket.gethostname(), os.getpid(), loss))
        if self._meter is not None:
            self._meter.work_lost(len(loss.runs))

    def _look(self) -> None:
        beats = self._ask(calls.observe_workers())
        looked = time.monotonic()
        if not self._is_new:  # else the server of these beats is not known yet
            self._answered_at = looked
        self._reaper.look(
            {worker_id: beat for worker_id, beat in beats.items() if worker_id != self._worker_id},
            looked,
            self._ask,
        )
