"""Signs of life, on a thread and a connection of their own:
a busy loop elsewhere cannot fake a death.

The thread looks after others too: after workers that may be dead (:mod:`pgflow._worker.reaper`),
and after its own worker's loop (:mod:`pgflow._worker.watchdog`).
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
"""Between two lines of the log about beats that are missed one after the other."""


@dataclass(frozen=True)
class Rhythm:
    """Intervals of the heart, in seconds.

    Attributes:
        beat: Between signs of life.
        look: Between looks at the others.
        dead_after: Without a sign of life so long, a worker is dead.
        blocked_after: The worker's loop standing still so long is worth a warning.
    """

    beat: float = 2.0
    look: float = 0.5
    dead_after: float = 10.0
    blocked_after: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is no duration where it is given; a timedelta is taken for its seconds."""
        for field in fields(self):
            object.__setattr__(
                self, field.name, seconds(getattr(self, field.name), f"{field.name} of a rhythm")
            )

    @classmethod
    def within(cls, dead_after: float) -> Self:
        """Return the rhythm of a worker that is to count as dead after so long.

        Args:
            dead_after: Seconds without a sign of life.
        """
        return cls(beat=dead_after / 5, look=min(0.5, dead_after / 10), dead_after=dead_after)

    @property
    def patience(self) -> float:
        """Seconds that the heart waits for an answer: if the server is frozen, another must be
        found before we count as dead.
        """
        return max(2.0, self.dead_after / 2)


class Tidings(NamedTuple):
    """Functions that are called on the worker's loop with what the heart has heard of.

    Attributes:
        mail: Somebody wants to cancel or pause these runs of ours.
        reaped: A dead worker's runs are ready again, in these lanes.
        resumed: The last sign of life is fresh again.
        declared_dead: Others have taken our runs.
        server_changed: Another server is the primary: what was opened or begun before this time
            (``time.monotonic``) is with the old one.
    """

    mail: Callable[[list[int]], object]
    reaped: Callable[[list[int]], object]
    resumed: Callable[[], object]
    declared_dead: Callable[[], object]
    server_changed: Callable[[float], object]


class Heart(Part):
    """See the module. What it keeps is its thread's, but for the number under which it beats.

    Args:
        options: Options of its connection.
        life: Of the worker; signs of life are noted there.
        rhythm: Its intervals.
        told: Called when something is heard of.
        post: Has such a call made on the worker's loop.
        acknowledged: Judges what a fail-over has lost.
        watchdog: Looks after the loop.
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
        self._is_new = False  # the connection: nothing was heard on it yet
        self._server: tuple[Server, int | None] | None = None
        self._heard_at = time.monotonic()
        self._missed = 0
        self._missed_at = self._said_at = 0.0
        self._dead = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="pgflow-heart", daemon=True)

    def start(self) -> None:
        """Starts beating, for the worker as it is registered."""
        self.renew()
        self._heard_at = time.monotonic()
        self._life.beaten(self._heard_at)
        self._watchdog.begin()
        self._thread.start()

    def renew(self) -> None:
        """The worker has registered, or registered anew."""
        self._worker_id = self._life.worker_id
        self._dead = False

    def say_that_it_stops(self) -> None:
        """Has each beat tell from now on that the worker is about to leave."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Stops, and waits for the thread."""
        await asyncio.to_thread(self.join)

    def join(self) -> None:
        """The same, in sync code."""
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def is_beating(self) -> bool:
        """True while the thread goes on: without it the worker would be taken for dead,
        and could not say so.
        """
        return self._thread.is_alive()

    def _run(self) -> None:
        next_beat = time.monotonic()
        while not self._stop.is_set():
            try:
                if self._is_new:
                    next_beat = 0.0  # its answer says which server this is
                if time.monotonic() >= next_beat:
                    self._beat()
                    next_beat = time.monotonic() + self._rhythm.beat
                self._look()
            except BaseException as error:  # noqa: BLE001 - a heart that stops for whatever reason would be taken for a death
                self._lose(error)
            try:
                if not self._stop.is_set():
                    self._watchdog.look()
            except BaseException as error:  # noqa: BLE001 - it looks at objects of the application, which may answer anything
                log.warning(
                    "the heart of worker %s cannot tell what its loop is at: %s",
                    self._worker_id,
                    redacted(error),
                )
            self._stop.wait(min(self._rhythm.look, self._rhythm.beat) * random.uniform(0.8, 1.0))  # noqa: S311 - spreads the load
        self._close()

    def _ask(self, query: Query[T]) -> T:
        """An answer within the heart's patience: a server that is silent for longer is given up."""
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
        self._reaper.forget()
        self._close()

    def _recover(self) -> None:
        """Say that the server answers again, if it has not."""
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
        sent = time.monotonic()
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
        """Compare the server that answered with the one before; tell the worker if the address or
        the timeline is another.
        """
        assert self._connection is not None
        self._is_new = False
        server, before = (self._connection.server, answer.timeline), self._server
        self._server = server
        if before is not None and before != server:
            log.warning(
                "worker %s goes on with the server at %s:%s, which has become the primary",
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
        # Not before: what cannot be written down now is judged again after the next beat.
        self._acknowledged.beaten(answer)

    def _report(self, loss: loss_calls.Loss) -> None:
        keys = ", ".join(run["key"] for run in loss.runs[:5]) + (
            ", ..." if len(loss.runs) > 5 else ""
        )
        log.error(
            "the server's log goes on from %X (timeline %s), and %X (timeline %s) was "
            "acknowledged %.1f s ago: of %s runs of this worker something is lost%s. `pgflow "
            "doctor` says more",
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
        if not self._is_new:  # else it is not said yet whose beats these are
            self._heard_at = looked
        self._reaper.look(
            {worker_id: beat for worker_id, beat in beats.items() if worker_id != self._worker_id},
            looked,
            self._ask,
        )
