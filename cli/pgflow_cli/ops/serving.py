"""A process that works: the signals that end it, its end, the endpoint that answers probes, and
several of them under one (``pgflow workers --processes N``).

Each of several is ``pgflow workers`` with the options of its supervisor and a standard input that
stays open as long as the supervisor lives. To stop them, the supervisor closes it. A second signal
would be a crash, and systemd has already sent SIGTERM to all processes; and a closed pipe reaches
them even if the supervisor is killed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgflow_cli.look.failures import FAILED, USAGE, Mistake
from pgflow_cli.ops.options import Endpoints

if TYPE_CHECKING:
    from pgflow.app import AsyncApp
    from pgflow.meter import Meter


Beside = Callable[[], AbstractAsyncContextManager[None]]
"""Maker of a context that is open while a worker works."""

GARBAGE_THRESHOLD = 5_000
"""Objects more than there were, at which the collector looks at the newest: 128 runs that begin at
once make about so many.
"""


def leave(code: int) -> None:
    """Ends the process: a thread that a step never gives back must not keep it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def spare_what_is_loaded() -> None:
    """Takes all that is there out of the garbage collector's sight, and lets it come less often;
    for a process that only works.

    Code stays as long as the process does. That the collector went through it again and again was a
    third of what a run that does nothing cost.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


class Stop:
    """Remembers a signal from the first moment on: one that comes during the start is not lost.

    Attributes:
        crash: Called at a second signal, before this process ends at once.
    """

    def __init__(self) -> None:
        self.crash: Callable[[], None] = lambda: None
        self._asked = self._has_signal = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    def _received(self, _number: int, _frame: object) -> None:
        if self._has_signal:
            self.crash()
            os._exit(1)
        self._has_signal = True
        self.ask()

    def ask(self) -> None:
        """Stop, as a first signal does; may be called in any thread, and again."""
        self._asked = True
        if self._loop is not None and self._event is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    def event(self) -> asyncio.Event:
        """Set once a signal has come."""
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        if self._asked:
            self._event.set()
        return self._event


async def serve(
    app: AsyncApp,
    settings: Mapping[str, Any],
    stop: Stop,
    endpoints: Endpoints = Endpoints(),  # noqa: B008 - it is immutable
    beside: Beside = nullcontext,
) -> int:
    """Work until a signal asks to stop, and return the exit code: 1 once a part of the worker has
    failed, so that a supervisor restarts the process.

    Args:
        app: The app.
        settings: Options of the worker, as `AsyncApp.worker` takes them.
        stop: Receives the signal.
        endpoints: Endpoints with figures and for probes.
        beside: Maker of a context that is open while the worker works, as the app is.

    Raises:
        Mistake: The address cannot serve metrics or probes, or a package for that is missing.
    """
    from pgflow.app.probes import Probes, answering
    from pgflow.errors import WorkerFailed

    asked = stop.event()
    probes = Probes(settings["dead_after"] / 2, asked)
    # Probes are answered before the worker has begun and until it has handed its runs back.
    async with answering(probes, endpoints.probes), app:
        with _metrics(app, endpoints.metrics) as meter:
            try:
                async with app.worker(meter=meter, **settings) as worker, beside():
                    probes.worker = worker
                    logging.getLogger("pgflow").info(
                        "worker %s serves %s", worker.worker_id, ", ".join(worker.options.queues)
                    )
                    await asked.wait()
            except WorkerFailed:
                if probes.worker is None:  # it has not started, and has logged nothing
                    raise
                return FAILED
    return 0


@contextmanager
def _metrics(app: AsyncApp, address: tuple[str, int] | None) -> Iterator[Meter | None]:
    """Serve the figures of a worker with the meter that is yielded, if an address is given."""
    if address is None:
        yield None
        return
    try:
        from pgflow import prometheus
    except ImportError as error:
        raise Mistake(f"--metrics-port: {error}") from None
    from pgflow.meter import Meter

    host, port = address
    meter = Meter()
    try:
        server = prometheus.serve(meter, app.dsn, port=port, host=host)
    except (OSError, UnicodeError) as error:  # the latter: no name of a host
        raise Mistake(
            f"no metrics at {host}:{port}: {getattr(error, 'strerror', None) or error}"
        ) from None
    logging.getLogger("pgflow").info("metrics at %s", server.url)
    try:
        yield meter
    finally:
        server.close()


# ---------------------------------------------------------------- several

_PAUSES_SECONDS = (0.5, 30.0)
"""Pause before a process is started again after its first death in a row, and the longest one."""

_SOUND_SECONDS = 60.0
"""Seconds that a process works before its death is the first in a row again."""

_log = logging.getLogger("pgflow")


def follow_supervisor(stop: Stop) -> None:
    """Stop once standard input has ended; for a process that has a supervisor."""

    def wait() -> None:
        with suppress(OSError):
            os.read(sys.stdin.fileno(), 1)
        stop.ask()

    threading.Thread(target=wait, name="pgflow supervisor", daemon=True).start()


@dataclass
class Supervisor:
    """Keeps worker processes at work.

    A process that dies is started again, later each time. One that ends with a mistake, such as a
    module that does not exist, ends all of them with its code.

    Attributes:
        arguments: Arguments of the command, of which each process gets a copy.
        endpoints: Endpoints of the first process; those of the others have the ports that follow.
        nodes: Node of the cluster for each process; empty without a cluster.
    """

    arguments: Sequence[str]
    endpoints: Endpoints
    nodes: Sequence[int] = ()
    _code: int = 0
    _pids: set[int] = field(default_factory=set)

    async def run(self, number: int, stop: Stop) -> int:
        """Keep so many processes at work until they are asked to stop; return the exit code."""
        self._asked, stop.crash = stop.event(), self._kill
        async with asyncio.TaskGroup() as group:
            for place in range(number):
                group.create_task(self._keep(place))
        return self._code

    async def _keep(self, place: int) -> None:
        """Keep one process at work."""
        command = [sys.executable, "-m", "pgflow_cli", *self.arguments, *self._own(place)]
        pause = first = _PAUSES_SECONDS[0]
        while not self._asked.is_set():
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
            self._pids.add(process.pid)
            _log.info("worker process %d has pid %d", place + 1, process.pid)
            code = await self._end_of(process)
            self._pids.discard(process.pid)
            if code == USAGE or self._asked.is_set():
                self._code = self._code or (code if code >= 0 else FAILED)
                self._asked.set()
                return
            pause = first if time.monotonic() - began > _SOUND_SECONDS else pause
            _log.error(
                "worker process %d (pid %d) %s; starting another in %g s",
                place + 1,
                process.pid,
                f"exited with {code}" if code >= 0 else f"was killed by signal {-code}",
                pause,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), pause)
            pause = min(2 * pause, _PAUSES_SECONDS[1])

    def _kill(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _end_of(self, process: asyncio.subprocess.Process) -> int:
        """Wait until a process has ended, which it is asked to do with the others."""
        ended = asyncio.create_task(process.wait())
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if process.stdin is not None:
            process.stdin.close()
        return await ended

    def _own(self, place: int) -> list[str]:
        """Options that one process has instead of those given."""
        own = ["--processes", "1", "--supervised"]
        if self.nodes:
            own += ["--node", str(self.nodes[place])]
        for name, address in (
            ("--metrics-port", self.endpoints.metrics),
            ("--health-port", self.endpoints.probes),
        ):
            if address is not None and address[1]:
                own += [name, str(address[1] + place)]
        return own
