"""``pgflow workers``: a process that drains queues."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from types import ModuleType
from typing import Annotated

import typer

from pgflow.app import App, AppBase, AsyncApp
from pgflow.errors import DefinitionError
from pgflow.heart import Rhythm
from pgflow.worker import Worker, WorkerOptions
from pgflow.workflow import Workflow
from pgflow_cli.database import Dsn


def load_app(target: str, dsn: str | None) -> AsyncApp:
    """The app of ``MODULE[:APP]``: the one named, the only one of the module, or one made of the module's workflows.

    Raises:
        DefinitionError: The module cannot be imported, or there is nothing in it to work on.
    """
    module_name, _, attribute = target.partition(":")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - what the user sees is the working directory
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        where = os.getcwd()  # noqa: PTH109 - as above
        raise DefinitionError(f"there is no module {module_name!r} here: pass MODULE or MODULE:APP, importable from {where}") from error
    return _as_async(_pick(module, attribute), dsn)


def _pick(module: ModuleType, attribute: str) -> AppBase:
    if attribute:
        found = getattr(module, attribute, None)
        if isinstance(found, AppBase):
            return found
        raise DefinitionError(f"{module.__name__}:{attribute} is not an App or AsyncApp")
    apps = [value for value in vars(module).values() if isinstance(value, AppBase)]
    if len(apps) == 1:
        return apps[0]
    if apps:
        raise DefinitionError(f"module {module.__name__} holds {len(apps)} apps: name one with {module.__name__}:APP")
    if any(isinstance(value, Workflow) for value in vars(module).values()):
        return AsyncApp(include=[module])
    raise DefinitionError(f"module {module.__name__} holds no App, AsyncApp or @workflow")


def _as_async(app: AppBase, dsn: str | None) -> AsyncApp:
    return app.on(dsn) if isinstance(app, (App, AsyncApp)) else AsyncApp(dsn)


def workers(
    target: Annotated[str, typer.Argument(help="MODULE[:APP] with the workflows.", metavar="MODULE[:APP]")],
    *,
    dsn: Dsn = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs to work on at once; waiting runs do not count.")] = 100,
    queue: Annotated[list[str] | None, typer.Option(help="Queue to serve; may be given again. Else those of the workflows.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that running steps may go on after SIGTERM.")] = 10.0,
    poll: Annotated[float, typer.Option(min=0.01, help="Seconds between sweeps where nothing is notified.")] = 1.0,
    dead_after: Annotated[float, typer.Option(min=0.5, help="Seconds without a sign of life after which a worker is dead.")] = 10.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Works on runs until SIGTERM: then it claims nothing more, finishes or hands back what it has, and exits 0.

    A second signal is a crash: nothing is handed back, and the runs go on elsewhere once this worker is found dead.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = _Stop()
    app = load_app(target, dsn)
    options = WorkerOptions(
        queues=sorted(set(queue)) if queue else app.queues, concurrency=concurrency, poll_seconds=poll, grace_seconds=grace,
        rhythm=Rhythm(beat=dead_after / 5, look=min(0.5, dead_after / 10), dead_after=dead_after), listen=app.listens,
    )
    code = asyncio.run(_serve(app, options, stop))
    logging.shutdown()
    os._exit(code)  # a thread that a step never gives back must not keep the process


class _Stop:
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


async def _serve(app: AsyncApp, options: WorkerOptions, stop: _Stop) -> int:
    asked = stop.event()
    async with app, app._work(options) as worker:
        logging.getLogger("pgflow").info("worker %s serves %s", worker.worker_id, ", ".join(options.queues))
        return await _until_asked(asked, worker)


async def _until_asked(asked: asyncio.Event, worker: Worker) -> int:
    """0 once a signal asks; 1 if a part of the worker has died, so that whoever watches starts another."""
    waits = [asyncio.ensure_future(asked.wait()), asyncio.ensure_future(worker.failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return 1 if worker.failed.is_set() else 0
