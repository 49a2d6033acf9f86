"""Signs of life, on a thread and a connection of their own: a busy loop elsewhere cannot fake a death.

The thread also watches the others. It declares a worker dead only if it has seen the same beat over the
whole time-out, adding up the gaps between successful looks of its own; a gap longer than it should be -
this process was asleep - counts for nothing. The database compares the beat once more under a lock.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import psycopg

from pgflow._calls import worker as calls
from pgflow._engine.execution import Execution
from pgflow._engine.loop import WorkflowLoop
from pgflow._io import run
from pgflow._io.connect import ConnectOptions, connect
from pgflow.logs import said

log = logging.getLogger("pgflow")


@dataclass(frozen=True)
class Rhythm:
    """How often what happens, in seconds.

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


class HeartHost(Protocol):
    """What the heart tells its worker. All are called on the heart's thread."""

    def mail_arrived(self, run_ids: list[int]) -> None:
        """Somebody wants to cancel or pause these runs of ours."""

    def declared_dead(self) -> None:
        """Others have taken our runs."""

    def reaped(self, lanes: list[int]) -> None:
        """A dead worker's runs are ready again."""

    def beat_resumed(self) -> None:
        """The last sign of life is fresh again."""

    @property
    def ticks(self) -> int:
        """A number that the worker's loop moves while it runs."""


class Heart:
    """See the module."""

    def __init__(self, host: HeartHost, options: ConnectOptions, worker_id: int, rhythm: Rhythm, loop_thread_id: int) -> None:
        self._host = host
        self._options = options
        self._worker_id = worker_id
        self._rhythm = rhythm
        self._loop_thread_id = loop_thread_id
        self._stop = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
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
        """Since the last acknowledged sign of life."""
        return time.monotonic() - self._last_beat

    @property
    def is_stale(self) -> bool:
        """Whether that is so long ago that others might soon believe us dead."""
        return self.age_seconds > self._rhythm.dead_after / 2

    @property
    def is_beating(self) -> bool:
        """Whether the thread goes on: without it the worker would be taken for dead, and could not say so."""
        return self._thread.is_alive()

    def renew(self, worker_id: int) -> None:
        """The worker has registered anew."""
        self._worker_id = worker_id
        self._dead = False

    def _run(self) -> None:
        next_beat = time.monotonic()
        while not self._stop.is_set():
            try:
                if time.monotonic() >= next_beat:
                    self._beat()
                    next_beat = time.monotonic() + self._rhythm.beat
                self._look()
            except Exception as error:  # noqa: BLE001 - a heart that stops for whatever reason would be taken for a death
                self._lose(error)
            self._watch_loop()
            self._stop.wait(min(self._rhythm.look, self._rhythm.beat) * random.uniform(0.8, 1.0))  # noqa: S311 - spreads the load
        self._close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options, "pgflow heart")
        return self._connection

    def _lose(self, error: Exception) -> None:
        log.warning("the heart of worker %s missed a beat: %s", self._worker_id, said(error))
        self._seen.clear()
        self._last_look = None
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _beat(self) -> None:
        sent = time.monotonic()
        answer = run(self._connected(), calls.beat(self._worker_id, stopping=self.stopping))
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

    # ------------------------------------------------------------ the others

    def _look(self) -> None:
        beats = run(self._connected(), calls.observe_workers())
        looked = time.monotonic()
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
        reaped = run(self._connected(), calls.reap_worker(worker_id, beat))
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
    """Who holds up the loop: the run whose code is on its stack, else a body or the application."""
    where = traceback.format_stack(frame)[-1].strip() if frame is not None else "?"
    while frame is not None:
        owner = frame.f_locals.get("self")
        execution = owner.host if isinstance(owner, WorkflowLoop) else owner  # which has no frame of its own, compiled
        if isinstance(execution, Execution):
            return f"the code of run {execution.claim.key!r} ({execution.claim.workflow})", where
        frame = frame.f_back
    return "the body of a step, or the application", where


