"""Signs of life, on a thread and a connection of their own: a busy loop elsewhere cannot fake a death.

The thread also watches the others. It declares a worker dead only if it has seen the same beat over the
whole time-out, adding up the gaps between successful looks of its own; a gap longer than it should be -
this process was asleep - counts for nothing. The database compares the beat once more under a lock.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, fields
from types import FrameType
from typing import Protocol, TypeVar

from pgflow._db.calls import loss as loss_calls
from pgflow._db.calls import worker as calls
from pgflow._db.connect import Connection, ConnectOptions, Server, connect, give_up, leave
from pgflow._db.deadlines import Limit
from pgflow._db.query import Query, run
from pgflow._engine.execution import Execution
from pgflow._engine.loop import WorkflowLoop
from pgflow._model.durations import seconds
from pgflow._worker.acknowledged import Acknowledged
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

T = TypeVar("T")


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
            object.__setattr__(self, field.name, seconds(getattr(self, field.name), f"{field.name} of a rhythm"))

    @property
    def patience(self) -> float:
        """Seconds that the heart waits for an answer: if the server is frozen, another must be found before we count as dead."""
        return max(2.0, self.dead_after / 2)


class HeartHost(Protocol):
    """Interface of the worker, as the heart needs it. All are called on the heart's thread."""

    def mail_arrived(self, run_ids: list[int]) -> None:
        """Somebody wants to cancel or pause these runs of ours."""

    def declared_dead(self) -> None:
        """Others have taken our runs."""

    def reaped(self, lanes: list[int]) -> None:
        """A dead worker's runs are ready again."""

    def beat_resumed(self) -> None:
        """The last sign of life is fresh again."""

    def server_changed(self, left_at: float) -> None:
        """Another server is the primary: what was opened or begun before this time (``time.monotonic``) is with the old one."""

    def acknowledged_lost(self, runs: int) -> None:
        """Report that acknowledged work of so many runs is lost."""

    @property
    def ticks(self) -> int:
        """A number that the worker's loop moves while it runs."""


class Heart:
    """See the module."""

    def __init__(
        self, host: HeartHost, options: ConnectOptions, worker_id: int, rhythm: Rhythm, loop_thread_id: int,
        acknowledged: Acknowledged | None = None,
    ) -> None:
        self._host = host
        self._options = options
        self._worker_id = worker_id
        self._rhythm = rhythm
        self._loop_thread_id = loop_thread_id
        self._acknowledged = acknowledged or Acknowledged()
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._is_new = False  # the connection: nothing was heard on it yet
        self._server: tuple[Server, int | None] | None = None
        self._heard_at = time.monotonic()
        self._last_beat = time.monotonic()
        self._was_stale = False
        self._seen: dict[int, tuple[int, float]] = {}
        self._last_look: float | None = None
        self._last_ticks = (0, time.monotonic())
        self._warned = False
        self._dead = False
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name="pgflow-heart", daemon=True)

    def start(self) -> None:
        """Starts beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stops, and waits for the thread."""
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def age_seconds(self) -> float:
        """Seconds since the last acknowledged sign of life."""
        return time.monotonic() - self._last_beat

    @property
    def is_stale(self) -> bool:
        """True if that is so long ago that others might soon believe us dead."""
        return self.age_seconds > self._rhythm.dead_after / 2

    @property
    def is_beating(self) -> bool:
        """True while the thread goes on: without it the worker would be taken for dead, and could not say so."""
        return self._thread.is_alive()

    def renew(self, worker_id: int) -> None:
        """The worker has registered anew."""
        self._worker_id = worker_id
        self._dead = False

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
                self._watch_loop()
            except BaseException as error:  # noqa: BLE001 - it looks at objects of the application, which may answer anything
                log.warning("the heart of worker %s cannot tell what its loop is at: %s", self._worker_id, redacted(error))
            self._stop.wait(min(self._rhythm.look, self._rhythm.beat) * random.uniform(0.8, 1.0))  # noqa: S311 - spreads the load
        self._close()

    def _ask(self, query: Query[T]) -> T:
        """An answer within the heart's patience: a server that is silent for longer is given up."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options, "pgflow heart")
            self._is_new = True
        connection = self._connection
        with Limit(connection.pgconn.socket, self._rhythm.patience, gave_up=lambda: give_up(connection.server)):
            return run(connection, query)

    def _lose(self, error: BaseException) -> None:
        log.warning("the heart of worker %s missed a beat: %s", self._worker_id, redacted(error))
        self._seen.clear()
        self._last_look = None
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _beat(self) -> None:
        sent = time.monotonic()
        self._acknowledged.cut()
        answer = self._ask(calls.beat(self._worker_id, stopping=self.stopping))
        self._notice(answer)
        self._look_for_losses(answer)
        if not answer.alive:
            if not self._dead:
                self._dead = True
                self._host.declared_dead()
            return
        was_stale = self.is_stale
        self._last_beat = sent
        if was_stale:
            self._host.beat_resumed()
        if answer.mail:
            self._host.mail_arrived(answer.mail)

    def _notice(self, answer: calls.Beat) -> None:
        """Compare the server that answered with the one before; tell the host if the address or the timeline is another."""
        assert self._connection is not None
        self._is_new = False
        server, before = (self._connection.server, answer.timeline), self._server
        self._server = server
        if before is not None and before != server:
            log.warning("worker %s goes on with the server at %s:%s, which has become the primary", self._worker_id, *server[0])
            leave(before[0], time.monotonic() if before[0] != server[0] else self._heard_at)
            self._host.server_changed(self._heard_at)
        self._heard_at = time.monotonic()

    def _look_for_losses(self, answer: calls.Beat) -> None:
        loss = self._acknowledged.judge(answer, self._ask)
        if loss is not None:
            self._report(loss)
        self._acknowledged.beaten(answer)  # not before: what cannot be written down now is judged again after the next beat

    def _report(self, loss: loss_calls.Loss) -> None:
        keys = ", ".join(run["key"] for run in loss.runs[:5]) + (", ..." if len(loss.runs) > 5 else "")
        log.error(
            "the server's log goes on from %X (timeline %s), and %X (timeline %s) was acknowledged %.1f s ago: of %s runs of this worker "
            "something is lost%s. `pgflow doctor` says more",
            loss.kept, loss.new_timeline, loss.acknowledged, loss.old_timeline, loss.age_seconds, len(loss.runs),
            f" ({keys})" if keys else "",
        )
        self._ask(loss_calls.report_loss(self._worker_id, socket.gethostname(), os.getpid(), loss))
        self._host.acknowledged_lost(len(loss.runs))

    # ------------------------------------------------------------ the others

    def _look(self) -> None:
        beats = self._ask(calls.observe_workers())
        looked = time.monotonic()
        if not self._is_new:  # else it is not said yet whose beats these are
            self._heard_at = looked
        gap = 0.0 if self._last_look is None else looked - self._last_look
        if gap > max(4 * self._rhythm.look, 2.0):
            gap = 0.0
        self._last_look = looked
        self._seen = {w: (b, self._silence(w, b, gap)) for w, b in beats.items() if w != self._worker_id}
        for worker_id, (beat, silence) in list(self._seen.items()):
            if silence >= self._rhythm.dead_after or beat < 0:
                self._reap(worker_id, beat)

    def _silence(self, worker_id: int, beat: int, gap: float) -> float:
        last, silence = self._seen.get(worker_id, (None, 0.0))
        return silence + gap if last == beat else 0.0

    def _reap(self, worker_id: int, beat: int) -> None:
        reaped = self._ask(calls.reap_worker(worker_id, beat))
        self._seen.pop(worker_id, None)
        if reaped.reclaimed or reaped.stuck:
            log.warning("worker %s is dead: %d runs go on elsewhere, %d are stuck", worker_id, reaped.reclaimed, len(reaped.stuck))
            self._host.reaped(reaped.lanes)

    # ------------------------------------------------------------ our own loop

    def _watch_loop(self) -> None:
        ticks, now = self._host.ticks, time.monotonic()
        if ticks != self._last_ticks[0]:
            self._last_ticks = (ticks, now)
            self._warned = False
        elif now - self._last_ticks[1] > self._rhythm.blocked_after and not self._warned and not self._stop.is_set():
            self._warned = True
            who, where = _culprit(sys._current_frames().get(self._loop_thread_id))
            log.warning("the worker's loop has stood still for %.1f s in %s: %s", now - self._last_ticks[1], who, where)


def _culprit(frame: FrameType | None) -> tuple[str, str]:
    """Return (name, source line) of the code that holds up the loop: a run's if it is on the stack, else a body or the application."""
    where = traceback.format_stack(frame)[-1].strip() if frame is not None else "?"
    while frame is not None:
        owner = frame.f_locals.get("self")
        execution = owner.host if isinstance(owner, WorkflowLoop) else owner  # which has no frame of its own, compiled
        if isinstance(execution, Execution):
            return f"the code of run {execution.claim.key!r} ({execution.claim.workflow})", where
        frame = frame.f_back
    return "the body of a step, or the application", where


