"""Sends heartbeats on a thread and a connection of their own, so that a busy loop cannot make the
worker look dead.

The thread also watches others: workers that may be dead (:mod:`pgflow._worker.reaper`), and its own
worker's loop (:mod:`pgflow._worker.watchdog`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple, Self, TypeVar

from pgflow._db.calls import loss as loss_calls
from pgflow._db.calls import worker as calls
from pgflow._db.connect import Connection, ConnectOptions, Server, connect, give_up, leave
from pgflow._db.deadlines import Limit
from pgflow._db.query import Query, run
from pgflow._model.durations import seconds
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.life import Life
from pgflow._worker.parts import Part
from pgflow._worker.reaper import Reaper
from pgflow._worker.watchdog import Watchdog
from pgflow.logs import redacted
from pgflow.meter import Meter

log = logging.getLogger("pgflow")

T = TypeVar("T")

SAY_EVERY_SECONDS = 10.0
"""Interval between log lines about consecutive missed beats."""


@dataclass(frozen=True)
class Rhythm:
    """Intervals of the heart, in seconds.

    Attributes:
        beat: Between heartbeats.
        look: Between looks at the other workers.
        dead_after: A worker without a heartbeat for this long is dead.
        blocked_after: A worker's loop that is blocked for this long is worth a warning.
    """

    beat: float = 2.0
    look: float = 0.5
    dead_after: float = 10.0
    blocked_after: float = 1.0

    def __post_init__(self) -> None:
        """Reject invalid durations where they are given, and convert timedeltas to seconds."""
        for field in fields(self):
            object.__setattr__(
                self, field.name, seconds(getattr(self, field.name), f"{field.name} of a rhythm")
            )

    @classmethod
    def within(cls, dead_after: float) -> Self:
        """Return the rhythm of a worker that counts as dead after `dead_after`.

        Args:
            dead_after: Seconds without a heartbeat.
        """
        # Five beats per time-out: a single lost one makes no worker look dead.
        return cls(beat=dead_after / 5, look=min(0.5, dead_after / 10), dead_after=dead_after)

    @property
    def patience(self) -> float:
        """Seconds that the heart waits for an answer: if the server is frozen, the heart must find
        another before this worker counts as dead.
        """
        return max(2.0, self.dead_after / 2)


class Tidings(NamedTuple):
    """Callbacks on the worker's loop for what the heart learns.

    Attributes:
        mail: These runs of this worker have mail: a cancel or a pause.
        reaped: A dead worker's runs are ready again, in these lanes.
        resumed: The last heartbeat is fresh again.
        declared_dead: Other workers have taken this worker's runs.
        server_changed: Another server is the primary. What was opened or begun before this time
            (``time.monotonic``) belongs to the old one.
    """

    mail: Callable[[list[int]], object]
    reaped: Callable[[list[int]], object]
    resumed: Callable[[], object]
    declared_dead: Callable[[], object]
    server_changed: Callable[[float], object]


class Heart(Part):
    """Sends heartbeats. Only its own thread changes its state, except for the worker's number.

    Args:
        options: Options of its connection.
        life: Records the heartbeats.
        rhythm: Its intervals.
        told: Callbacks for what it learns.
        post: Schedules such a callback on the worker's loop.
        acknowledged: Detects what a fail-over has lost.
        watchdog: Watches the loop.
        meter: Counts losses.
    """

    def __init__(
        self,
        options: ConnectOptions,
        life: Life,
        rhythm: Rhythm,
        told: Tidings,
        post: Callable[..., object],
        acknowledged: Acknowledged,
        watchdog: Watchdog,
        meter: Meter | None = None,
    ) -> None:
        self._options = options
        self._life = life
        self._rhythm = rhythm
        self._told = told
        self._post = post
        self._acknowledged = acknowledged
        self._watchdog = watchdog
        self._meter = meter
        self._reaper = Reaper(rhythm.look, rhythm.dead_after, partial(post, told.reaped))
        self._worker_id = 0
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._is_new = False  # True until the connection has brought its first answer
        self._server: tuple[Server, int | None] | None = None
        self._heard_at = time.monotonic()
        self._missed = 0
        self._missed_at = self._said_at = 0.0
        self._dead = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="pgflow-heart", daemon=True)

    def start(self) -> None:
        """Start beating for the registered worker."""
        self.renew()
        self._heard_at = time.monotonic()
        self._life.beaten(self._heard_at)
        self._watchdog.begin()
        self._thread.start()

    def renew(self) -> None:
        """Beat under the number of a new registration."""
        self._worker_id = self._life.worker_id
        self._dead = False

    def say_that_it_stops(self) -> None:
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
            except BaseException as error:  # noqa: BLE001 - others would take a stopped heart for a death
                self._lose(error)
            try:
                if not self._stop.is_set():
                    self._watchdog.look()
            except BaseException as error:  # noqa: BLE001 - it looks at objects of the application, which may answer anything
                log.warning(
                    "the heart of worker %s cannot inspect the worker's loop: %s",
                    self._worker_id,
                    redacted(error),
                )
            self._stop.wait(min(self._rhythm.look, self._rhythm.beat) * random.uniform(0.8, 1.0))  # noqa: S311 - spreads the load
        self._close()

    def _ask(self, query: Query[T]) -> T:
        """Return the answer to a query. Give up a server that is silent for longer than the heart's
        patience.
        """
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options, "pgflow heart")
            self._is_new = True
        connection = self._connection
        with Limit(
            connection.pgconn.socket,
            self._rhythm.patience,
            gave_up=lambda: give_up(connection.server),
        ):
            return run(connection, query)

    def _lose(self, error: BaseException) -> None:
        now = time.monotonic()
        if not self._missed:
            self._missed_at = now
        if not self._missed or now - self._said_at >= SAY_EVERY_SECONDS:
            self._said_at = now
            log.warning(
                "the heart of worker %s missed a beat: %s", self._worker_id, redacted(error)
            )
        self._missed += 1
        # Without an answer the others' silence is unknown, so none of it counts.
        self._reaper.forget()
        self._close()

    def _recover(self) -> None:
        """Log that the server answers again, if beats were missed."""
        if self._missed:
            log.info(
                "the heart of worker %s beats again, %.1f s after it missed the first of %s",
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
                self._post(self._told.declared_dead)
            return
        was_stale = time.monotonic() > self._life.stale_at
        self._life.beaten(sent)
        if was_stale:
            self._post(self._told.resumed)
        if answer.mail:
            self._post(self._told.mail, answer.mail)

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
            leave(before[0], time.monotonic() if before[0] != server[0] else self._heard_at)
            self._post(self._told.server_changed, self._heard_at)
        self._heard_at = time.monotonic()

    def _look_for_losses(self, answer: calls.Beat) -> None:
        loss = self._acknowledged.judge(answer, self._ask)
        if loss is not None:
            self._report(loss)
        # Only after the report: if that fails, the next beat judges the same stretches again.
        self._acknowledged.beaten(answer)

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
            self._heard_at = looked
        self._reaper.look(
            {worker_id: beat for worker_id, beat in beats.items() if worker_id != self._worker_id},
            looked,
            self._ask,
        )
