"""Deadlines of waits for a server, for any library.

A frozen server - its machine paused, its disk hanging - keeps its connections: the kernel still
acknowledges packets, so no TCP setting ends the wait. Shutting down the socket on this side does:
the waiting call then gets an error for a lost connection. So each wait of the engine registers its
deadline here, and one thread of the process cuts the connections whose time is up.

For a statement that may take long, the server is asked on another connection first: if it answers
there, it is not frozen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

log = logging.getLogger("pgflow")

LOOK_SECONDS = 0.25
"""Between looks at the time; a deadline is met with this delay at most."""

BEGIN_SECONDS = 10.0
"""Limit of the first statement of a transaction, which waits for no lock."""

COMMIT_SECONDS = 30.0
"""For a commit, which may wait for a disk, a standby or a lock of the engine's, and for what comes
right before it.
"""


class Cord:
    """Means to cut a connection from any thread;
    until it is closed, no other socket can get its number.

    Args:
        fileno: The connection's socket.
    """

    def __init__(self, fileno: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fileno))

    def cut(self) -> None:
        """Cut the connection. Waiting calls get an error for a lost connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The connection itself stays as it is."""
        self._socket.close()


def cut(fileno: int) -> None:
    """Cut a connection, on the thread that owns it."""
    with contextlib.suppress(OSError), contextlib.closing(Cord(fileno)) as cord:
        cord.cut()


class Limit:
    """A wait with a deadline, as a context: if the server does not answer in time,
    the connection is cut.

    Args:
        target: The connection's socket, or its cord if there is one; None if the socket is not
            known.
        seconds: Longest wait.
        is_alive: Function called at the deadline; if it returns True, the server answers and the
            time starts again.
        gave_up: Function called after the connection was cut, on another thread.
    """

    __slots__ = ("_cord", "_gave_up", "_is_alive", "_owns", "_seconds", "deadline", "was_cut")

    def __init__(
        self,
        target: int | Cord | None,
        seconds: float,
        is_alive: Callable[[], bool] | None = None,
        gave_up: Callable[[], None] | None = None,
    ) -> None:
        self._owns = isinstance(target, int)
        try:
            self._cord = Cord(target) if isinstance(target, int) else target
        except OSError as error:
            raise psycopg.OperationalError("the connection is lost") from error
        self._seconds = seconds
        self._is_alive = is_alive
        self._gave_up = gave_up
        self.deadline = 0.0
        self.was_cut = False

    def __enter__(self) -> Self:
        if self._cord is not None:
            self.deadline = time.monotonic() + self._seconds
            _watch.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._cord is None:
            return
        _watch.remove(self)
        if self._owns:
            self._cord.close()
        if self.was_cut and isinstance(error, Exception):
            raise psycopg.OperationalError(
                f"no answer of the server in {self._seconds:g} s"
            ) from error

    def judge(self) -> bool:
        """Return True if the server is known to be there, asked where one may ask."""
        if self._is_alive is None:
            return False
        try:
            return self._is_alive()
        except Exception:  # noqa: BLE001 - any error means no answer
            return False

    def begin_anew(self) -> None:
        """The same time once more."""
        self.deadline = time.monotonic() + self._seconds

    def cut(self) -> None:
        """The time is over."""
        self.was_cut = True
        try:
            if self._gave_up is not None:
                self._gave_up()
        finally:
            if self._cord is not None:
                self._cord.cut()


class _Watch:
    """Looks at the time for all waits of the process. Its thread rests while there are none."""

    def __init__(self) -> None:
        self._waits: dict[int, Limit] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, limit: Limit) -> None:
        self._waits[id(limit)] = limit
        if not self._wanted.is_set():
            self._wanted.set()
        if self._thread is None or not self._thread.is_alive():
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="pgflow-deadlines", daemon=True
                )
                self._thread.start()

    def remove(self, limit: Limit) -> None:
        with self._lock:  # so that nothing is cut any more when this returns
            self._waits.pop(id(limit), None)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(LOOK_SECONDS)
            self._wanted.clear()  # before the look: who comes in between sets it again
            now = time.monotonic()
            for limit in list(self._waits.values()):
                if now >= limit.deadline:
                    try:
                        self._judge(limit)
                    except Exception:  # all others have deadlines too
                        log.exception("a deadline could not be enforced")
            if self._waits:
                self._wanted.set()

    def _judge(self, limit: Limit) -> None:
        is_alive = limit.judge()
        with self._lock:
            if self._waits.get(id(limit)) is not limit:
                return
            if is_alive:
                limit.begin_anew()
            else:
                del self._waits[id(limit)]
                limit.cut()


_watch = _Watch()


def _begin_after_fork() -> None:
    global _watch  # noqa: PLW0603  the parent's thread is not here, and its lock may be held by it
    _watch = _Watch()


os.register_at_fork(after_in_child=_begin_after_fork)
