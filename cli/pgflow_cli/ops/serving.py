"""A process that works: the signals that end it, and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from pgflow_cli.look.failures import Mistake
from pgflow_cli.ops.probes import Probes, answering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgflow._worker.options import WorkerOptions
    from pgflow._worker.worker import Worker
    from pgflow.app import AsyncApp

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
    """Remembers a signal from the first moment on: one that comes during the start is not lost."""

    def __init__(self) -> None:
        self._asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    def _received(self, _number: int, _frame: object) -> None:
        if self._asked:
            os._exit(1)
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


def serve(
    app: AsyncApp,
    options: WorkerOptions,
    stop: Stop,
    metrics_at: tuple[str, int] | None = None,
    beside: Beside = nullcontext,
    *,
    probes_at: tuple[str, int] | None = None,
) -> int:
    """Work until a signal asks to stop; return the exit code.

    Args:
        app: The app.
        options: Options of the worker.
        stop: Receives the signal.
        metrics_at: Host and port of an endpoint with figures.
        beside: Maker of a context that is open while the worker works, as the app is.
        probes_at: Host and port of an endpoint for probes.

    Raises:
        Mistake: The address cannot serve metrics or probes, or a package for that is missing.
    """
    return asyncio.run(_serve(app, options, stop, (metrics_at, probes_at), beside))


async def _serve(
    app: AsyncApp,
    options: WorkerOptions,
    stop: Stop,
    addresses: tuple[tuple[str, int] | None, tuple[str, int] | None],
    beside: Beside,
) -> int:
    asked = stop.event()
    metrics_at, probes_at = addresses
    probes = Probes(options.rhythm.dead_after / 2, asked)
    # Probes are answered before the worker has begun and until it has handed its runs back.
    async with answering(probes, probes_at), app:
        with _metrics(app, options, metrics_at):
            async with app._work(options) as worker, beside():
                probes.worker = worker
                logging.getLogger("pgflow").info(
                    "worker %s serves %s", worker.worker_id, ", ".join(options.queues)
                )
                return await _until_asked(asked, worker)


@contextmanager
def _metrics(
    app: AsyncApp, options: WorkerOptions, address: tuple[str, int] | None
) -> Iterator[None]:
    """Serves the figures of the worker with these options, if an address is given."""
    if address is None:
        yield
        return
    try:
        from pgflow import prometheus
    except ImportError as error:
        raise Mistake(f"--metrics-port: {error}") from None
    from pgflow.meter import Meter

    host, port = address
    options.meter = Meter()
    try:
        server = prometheus.serve(options.meter, app.dsn, port=port, host=host)
    except (OSError, UnicodeError) as error:  # the latter: no name of a host
        raise Mistake(
            f"no metrics at {host}:{port}: {getattr(error, 'strerror', None) or error}"
        ) from None
    logging.getLogger("pgflow").info("metrics at %s", server.url)
    try:
        yield
    finally:
        server.close()


async def _until_asked(asked: asyncio.Event, worker: Worker) -> int:
    """Return 0 once a signal asks to stop, or 1 once a part of the worker has died, so that a
    supervisor restarts the process.
    """
    waits = [asyncio.ensure_future(asked.wait()), asyncio.ensure_future(worker.failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return 1 if worker.failed.is_set() else 0
