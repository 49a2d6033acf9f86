"""The app for sync code, and the loop behind it."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import psycopg
from psycopg_pool import ConnectionPool

from pgflow._db._sync_pool import lent, make_pool
from pgflow._db.calls import declare, result, wake
from pgflow._db.calls import worker as worker_calls
from pgflow._db.query import Query, run
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import Duration
from pgflow._transactions.join import adapt
from pgflow._worker.listener import WORK_CHANNEL, payloads
from pgflow._worker.worker import Worker
from pgflow.app._async import AsyncApp, twin_of
from pgflow.app._base import CLIENT_CONNECTIONS, NUDGE_SECONDS, WAKE_AGAIN_SECONDS
from pgflow.app._declared import declarations, forgive
from pgflow.app._sync_clients import BoundClient, PoolClient
from pgflow.errors import PgflowError, WrongColourError
from pgflow.schema import naming_refusals

log = logging.getLogger("pgflow")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def wake_and_tell(
    connection: psycopg.Connection[Any], chains: Sequence[int], lanes: Iterable[int]
) -> list[int]:
    """Wake the runs of these chains and notify the workers of them and of these lanes. Return the
    chains that ended.
    """
    ended: list[int] = []
    for delay in WAKE_AGAIN_SECONDS if chains else ():
        time.sleep(delay)
        woken = run(connection, wake.wake(chains, tell=True))
        ended += woken.ended
        if not woken.busy:
            break
    for text in payloads(set(lanes), set()):
        run(connection, worker_calls.notify(WORK_CHANNEL, text))
    return ended


class Portal:
    """An event loop in a thread, for what a sync app does in the background."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="pgflow-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Run the loop until it is stopped. Tasks that raise KeyboardInterrupt or SystemExit have
        failed, and the loop continues.
        """
        while not self._ending:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                log.error(  # noqa: TRY400
                    "a task raised %s and has failed; the loop continues",
                    type(error).__name__,
                    exc_info=error,
                )

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it here."""
        return self.spawn(coroutine).result()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """End the thread."""
        self._ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class App(PoolClient):
    """An app for sync code; see :class:`AppBase` for its arguments.

    Example::

        app = App(include=[checkout])
        with app, app.worker():
            print(app.start(checkout.options(key="order-1"), order).result())
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._pool: ConnectionPool[Any] | None = None
        self._portal: Portal | None = None
        self._background: AsyncApp | None = None
        self._opening = threading.RLock()
        self._nudging: threading.Timer | None = None
        self._next_nudge_at = -math.inf

    def _sibling(self, dsn: str) -> Self:
        """Return an app of the same definitions on another node of the cluster."""
        other = type(self)(
            dsn,
            errors=self._errors,
            interceptors=self._interceptors,
            prepare_threshold=self._prepare_threshold,
            listen=self._listen,
        )
        other.definitions, other._envelopes = self.definitions, self._envelopes
        other._mapping, other._is_member = self._mapping, True
        other._prepare()
        return other

    def on(self, dsn: str | None) -> AsyncApp:
        """An async app of the same definitions, on another database if one is named."""
        return twin_of(self, dsn)

    @property
    def dsn(self) -> str:
        """The connection string in use. Connects first if that has not happened yet."""
        self._open()
        return super().dsn

    def __enter__(self) -> Self:
        """Connects, and checks that the schema is there."""
        self._open()
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close every connection."""
        self.close()

    def _open(self) -> ConnectionPool[Any]:
        with self._opening:
            if self._pool is None:
                pool = make_pool(self._resolve(), "pgflow app", CLIENT_CONNECTIONS)
                pool.open()
                try:
                    self._declare(pool)
                except BaseException:
                    pool.close()
                    raise
                self._pool = pool
            return self._pool

    def _declare(self, pool: ConnectionPool[Any]) -> None:
        """Set the declarations of the app that are not set yet."""
        if (told := declarations(self.definitions)) is None:
            return
        missing: list[str] = []
        try:
            with lent(pool) as connection, naming_refusals(connection):
                missing = run(connection, declare.undeclared(told))
                if missing:
                    run(connection, declare.declare_app(told))
        except (psycopg.Error, PgflowError) as error:
            forgive(error, missing)

    def _async_app(self) -> tuple[Portal, AsyncApp]:
        """The loop in the background, with an app of its own on the same definitions."""
        with self._opening:
            if self._portal is None or self._background is None:
                self._background = twin_of(self, self.dsn)
                self._portal = Portal()
            return self._portal, self._background

    def close(self) -> None:
        """Close every connection. The app can be opened again."""
        if self._cluster is not None:
            self._cluster.close()
        if (nudging := self._nudging) is not None:
            nudging.join()
        with self._opening:
            if self._portal is not None and self._background is not None:
                self._portal.call(self._background.close())
                self._portal.close()
                self._portal, self._background = None, None
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            self._let_go()

    def wait(self, key: str, chain_id: int, timeout: Duration | None) -> result.Ended:
        """For handles of runs."""
        portal, background = self._async_app()
        return portal.call(background.wait(key, chain_id, timeout))

    def wait_for(
        self,
        what: str,
        chain_id: int,
        query: Query[T],
        is_there: Callable[[T], bool],
        timeout: Duration | None,
    ) -> T | result.Ended:
        """For handles of updates."""
        portal, background = self._async_app()
        waiting = background.wait_for(what, chain_id, query, is_there, timeout)
        return portal.call(waiting)

    def nudge(self) -> None:
        """Wake the runs that were sent to or started through :meth:`using`, if the library has no
        hook after its commit.
        """
        self._wake_noted()

    def _nudge_soon(self) -> None:
        """Wake all noted runs: at once for one start, in batches for many in turn."""
        with self._pending_lock:
            if self._nudging is not None:
                return
            delay = self._next_nudge_at - time.monotonic()
            if delay > 0:
                self._nudging = threading.Timer(delay, self._nudge_in_turn)
                self._nudging.start()
                return
        self.nudge()
        self._next_nudge_at = time.monotonic() + NUDGE_SECONDS

    def _nudge_in_turn(self) -> None:
        """Wake what is noted, in a thread that ends with the notes."""
        while True:
            try:
                self.nudge()
            except PgflowError as error:
                log.warning("cannot wake, the next poll will: %s", error)
            time.sleep(NUDGE_SECONDS)
            with self._pending_lock:
                if not self._has_notes():
                    self._nudging = None
                    return

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _wake(self, chains: list[int], lanes: set[int]) -> None:
        with lent(self._open()) as connection:
            wake_and_tell(connection, chains, lanes)

    def run(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and wait for its result. Work on it in this process if no worker of this app
        is running.
        """
        handle = self.start(workflow, *args, **kwargs)
        if self._background is not None and self._background._has_workers:
            return handle.result()
        with self.worker():
            return handle.result()

    def using(self, connection: object) -> BoundClient:
        """A client that works in the open transaction of a connection: what it starts and sends
        exists if that commits.

        Args:
            connection: ``psycopg.Connection``, SQLAlchemy's ``Session`` or ``Connection``, or
                ``django.db.connection``.
        """
        adapted = adapt(connection)
        if adapted.is_async:
            raise WrongColourError(
                f"{type(connection).__qualname__} is async: use it with AsyncApp, or its sync twin "
                "here"
            )
        return BoundClient(self, connection, adapted)

    @contextmanager
    def worker(
        self, *, concurrency: int = 100, queues: Sequence[str] | None = None, **options: Any
    ) -> Iterator[Worker]:
        """Work on runs of the app's workflows, in the background, while the context is open; see
        :meth:`AsyncApp.worker`.
        """
        portal, background = self._async_app()
        work: AbstractAsyncContextManager[Worker] = background._work(
            self._worker_options(concurrency, queues, options)
        )
        worker = portal.call(work.__aenter__())
        watching = portal.spawn(background._hand_back_if_failed(worker, lambda: None))
        try:
            yield worker
        finally:
            if worker.failed.is_set():
                watching.result()
            watching.cancel()
            portal.call(work.__aexit__(None, None, None))
        if worker.failure is not None:
            raise worker.failure
