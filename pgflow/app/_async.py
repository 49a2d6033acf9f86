"""The app for async code."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

import psycopg
from psycopg_pool import AsyncConnectionPool

from pgflow._client.results import ResultWaiter
from pgflow._db._async_pool import lent_async, make_pool_async
from pgflow._db._sync_pool import make_pool
from pgflow._db.calls import declare, result, wake
from pgflow._db.calls import worker as worker_calls
from pgflow._db.query import Query, run_async
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import Duration, duration
from pgflow._transactions.join import adapt
from pgflow._transactions.psycopg import AsyncPsycopgProvider, PsycopgProvider
from pgflow._worker.listener import WORK_CHANNEL, payloads
from pgflow._worker.options import WorkerOptions
from pgflow._worker.worker import Worker
from pgflow.app._async_clients import AsyncBoundClient, AsyncPoolClient
from pgflow.app._base import CLIENT_CONNECTIONS, NUDGE_SECONDS, WAKE_AGAIN_SECONDS, AppBase
from pgflow.app._declared import declarations, forgive
from pgflow.app._loops import OnLoop, end_with_its_loop
from pgflow.errors import MissingGrant, PgflowError, WrongColourError
from pgflow.inspect import ask_async, find_newest, find_unserved
from pgflow.schema import naming_refusals

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncApp(AsyncPoolClient):
    """An app for async code; see :class:`AppBase` for its arguments.

    One app may be used on several event loops, one after the other or in threads beside each other:
    each has its own connections.

    Example::

        app = AsyncApp(include=[hello])
        async with app, app.worker():
            run = await app.start(hello.options(key="hello-1"), "Ada")
            print(await run.result())
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._on_loops: dict[asyncio.AbstractEventLoop, OnLoop] = {}

    @property
    def _here(self) -> OnLoop:
        """The part of the app that belongs to the event loop that runs here."""
        loop = asyncio.get_running_loop()
        here = self._on_loops.get(loop)
        if here is None:
            self._forget_ended_loops()
            here = self._on_loops[loop] = OnLoop()
        return here

    def _forget_ended_loops(self) -> None:
        for loop in list(self._on_loops):
            if loop.is_closed() and (ended := self._on_loops.pop(loop, None)):
                ended.abandon()

    @property
    def _has_workers(self) -> bool:
        """True if a worker of this app is at work, on any event loop."""
        return any(one.workers for one in list(self._on_loops.values()))

    def _sibling(self, dsn: str) -> Self:
        """Return an app of the same definitions on another node of the cluster."""
        twin = twin_of(self, dsn)
        twin._is_member = True
        twin._prepare()
        return cast("Self", twin)

    def on(self, dsn: str | None) -> AsyncApp:
        """An async app of the same definitions, on another database if one is named."""
        return twin_of(self, dsn)

    async def __aenter__(self) -> Self:
        """Connects, and checks that the schema is there."""
        await self._open()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self.close()

    async def _open(self) -> AsyncConnectionPool[Any]:
        here = self._here
        async with here.opening:
            if here.pool is None:
                connect_options = await asyncio.to_thread(self._resolve)
                pool = make_pool_async(connect_options, "pgflow app", CLIENT_CONNECTIONS)
                end_with_its_loop(pool)
                await pool.open()
                try:
                    await self._declare(pool)
                except BaseException:
                    await pool.close()
                    raise
                here.waiter = ResultWaiter(connect_options, listen=self.listens)
                here.pool = pool
            return here.pool

    async def _declare(self, pool: AsyncConnectionPool[Any]) -> None:
        """Set the declarations of the app that are not set yet."""
        if (declared := declarations(self.definitions)) is None:
            return
        missing: list[str] = []
        try:
            async with lent_async(pool) as connection:
                with naming_refusals(connection):
                    missing = await run_async(connection, declare.undeclared(declared))
                    if missing:
                        await run_async(connection, declare.declare_app(declared))
        except (psycopg.Error, PgflowError) as error:
            forgive(error, missing)

    async def close(self) -> None:
        """Close every connection of this event loop, and of loops that have ended. The app can be
        opened again.
        """
        if self._cluster is not None:
            await self._cluster.close()
        await self._disconnect()
        if not self._on_loops:
            self._let_go()

    async def _disconnect(self) -> None:
        here = self._here
        if here.nudging is not None:
            await asyncio.gather(here.nudging, return_exceptions=True)
            here.nudging = None
        if here.waiter is not None:
            await here.waiter.close()
            here.waiter = None
        if here.pool is not None:
            await here.pool.close()
            here.pool = None
        self._on_loops.pop(asyncio.get_running_loop(), None)
        self._forget_ended_loops()

    async def wait(self, key: str, chain_id: int, timeout: Duration | None) -> result.Ended:
        """For handles of runs."""
        patience = duration(timeout, "timeout of a result", least_seconds=-math.inf)
        await self._open()
        waiter = self._here.waiter
        assert waiter is not None
        try:
            async with asyncio.timeout(None if patience is None else patience.total_seconds()):
                return await waiter.wait(chain_id)
        except TimeoutError:
            why = await self._why_open(chain_id, patience)
            raise TimeoutError(f"run {key!r} has not ended after {patience}{why}") from None

    async def _why_open(self, chain_id: int, patience: timedelta | None) -> str:
        """Return the end of a sentence with the reason why no worker takes the run or a child of
        it, or else with the place of the run; empty for short waits, which just ask again.
        """
        if patience is None or patience < timedelta(seconds=1):
            return ""
        with contextlib.suppress(psycopg.Error, OSError, MissingGrant):
            if (why := await ask_async(self, find_unserved(chain_id))) is not None:
                return f": {why}"
            if (run := await ask_async(self, find_newest(chain_id))) is not None:
                reason = f" ({run.why})" if run.why else ""
                return f": it is {run.status}{reason}, since {run.since:%Y-%m-%dT%H:%M:%S%z}"
        return ""

    async def wait_for(
        self,
        what: str,
        chain_id: int,
        query: Query[T],
        is_there: Callable[[T], bool],
        timeout: Duration | None,
    ) -> T | result.Ended:
        """For handles of updates."""
        patience = duration(timeout, f"timeout of {what}", least_seconds=-math.inf)
        await self._open()
        waiter = self._here.waiter
        assert waiter is not None
        try:
            async with asyncio.timeout(None if patience is None else patience.total_seconds()):
                return await waiter.answered(chain_id, lambda: self.ask(query), is_there)
        except TimeoutError:
            raise TimeoutError(f"{what} has no answer after {patience}") from None

    def _nudge_soon(self) -> None:
        here = self._here
        if here.nudging is None or here.nudging.done():
            here.nudging = asyncio.get_running_loop().create_task(self._nudge_in_turn(here))

    async def _nudge_in_turn(self, here: OnLoop) -> None:
        """Wake all noted runs: at once for one start, in batches for many in turn."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(0)
        while self._has_notes():
            if not here.workers:  # workers of this loop need no message
                await asyncio.sleep(here.next_nudge_at - now())
            await self._wake_noted()
            here.next_nudge_at = now() + NUDGE_SECONDS

    async def nudge(self) -> None:
        """Wake the runs that were sent to or started through :meth:`using`, if the library has no
        hook after its commit.
        """
        await asyncio.sleep(0)
        await self._wake_noted()

    async def _wake(self, chains: list[int], lanes: set[int]) -> None:
        pool = await self._open()
        if not chains and self._here.workers:  # nothing to ask the database for
            for worker in self._here.workers:
                worker.notifications.ready(list(lanes), [])
            return
        async with lent_async(pool) as connection:
            here = list(self._here.workers)
            for delay in WAKE_AGAIN_SECONDS if chains else ():
                await asyncio.sleep(delay)
                woken = await run_async(connection, wake.wake(chains, tell=not here))
                for worker in here:
                    worker.notifications.ready(woken.lanes, woken.mail)
                if not woken.busy:
                    break
            for worker in here:
                worker.notifications.ready(list(lanes), [])
            for text in payloads(lanes, set()) if not here else ():
                await run_async(connection, worker_calls.notify(WORK_CHANNEL, text))

    async def run(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and wait for its result. Work on it in this process if no worker of this app
        is running.
        """
        handle = await self.start(workflow, *args, **kwargs)
        if self._here.workers:
            return await handle.result()
        async with self.worker():
            return await handle.result()

    def using(self, connection: object) -> AsyncBoundClient:
        """A client that works in the open transaction of a connection: what it starts and sends
        exists if that commits.

        Args:
            connection: ``psycopg.AsyncConnection``, SQLAlchemy's ``AsyncSession`` or
                ``AsyncConnection``.
        """
        adapted = adapt(connection)
        if not adapted.is_async:
            raise WrongColourError(
                f"{type(connection).__qualname__} is sync: use it with App, or its async twin here"
            )
        return AsyncBoundClient(self, connection, adapted)

    def _work(self, options: WorkerOptions) -> AbstractAsyncContextManager[Worker]:
        """A worker of this app, while the context is open."""
        return self._run_worker(options)

    @asynccontextmanager
    async def _run_worker(self, options: WorkerOptions) -> AsyncIterator[Worker]:
        await self._open()
        here = self._here
        assert self._connect is not None
        step_pool = make_pool(
            self._connect, "pgflow step", options.transaction_connections, is_lent=True
        )
        async_step_pool = make_pool_async(
            self._connect, "pgflow step", options.transaction_connections, is_lent=True
        )
        step_pool.open(wait=False)
        await async_step_pool.open(wait=False)
        own = [PsycopgProvider(step_pool), AsyncPsycopgProvider(async_step_pool)]
        definitions = replace(
            self.definitions,
            errors=self._errors,
            providers=[*self.definitions.providers, *own],
            interceptors=self._interceptors,
        )
        options = replace(options, listen=options.listen and self.listens)
        try:
            async with self.definitions.hooks.around():
                worker = Worker(self._connect, definitions, options, here.notify)
                with naming_refusals(self._connect.dsn):
                    await worker.start()
                here.workers.append(worker)
                try:
                    yield worker
                finally:
                    here.workers.remove(worker)
                    await worker.stop()
                    if here.waiter is not None:
                        here.waiter.fail(None)
        finally:
            await async_step_pool.close()
            await asyncio.to_thread(step_pool.close)

    @asynccontextmanager
    async def worker(
        self, *, concurrency: int = 100, queues: Sequence[str] | None = None, **options: Any
    ) -> AsyncIterator[Worker]:
        """Work on runs of the app's workflows, on this event loop, while the context is open.

        Args:
            concurrency: Most runs at once; waiting runs do not count.
            queues: Queues to serve; those of the app's workflows if not given.
            **options: Further fields of :class:`pgflow._worker.options.WorkerOptions`, and
                ``dead_after``: time without a sign of life after which a worker is dead.

        Returns:
            The worker, with its ``worker_id``.
        """
        async with (
            self._work(self._worker_options(concurrency, queues, options)) as worker,
            self._told_if_failed(worker),
        ):
            yield worker

    @asynccontextmanager
    async def _told_if_failed(self, worker: Worker) -> AsyncIterator[None]:
        """Cancel the task in the context if the worker fails, like a task group, and raise the
        failure at its end.
        """
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        watching = asyncio.create_task(self._hand_back_if_failed(worker, task.cancel))
        try:
            yield
        except asyncio.CancelledError:
            if worker.failure is None or task.uncancel() > cancelling:
                raise
            raise worker.failure from worker.failure.__cause__
        finally:
            await _ended(watching, worker)
        if worker.failure is not None:
            raise worker.failure

    async def _hand_back_if_failed(self, worker: Worker, tell: Callable[[], object]) -> None:
        """Wait for a failure of the worker, and pass it to the waits for results here. Its runs
        continue elsewhere.
        """
        await worker.failed.wait()
        waiter = self._here.waiter
        assert worker.failure is not None
        assert waiter is not None
        waiter.fail(worker.failure)
        try:
            await worker.stop()
        finally:
            tell()


async def _ended(watching: asyncio.Task[None], worker: Worker) -> None:
    """Let a failed worker finish handing its runs back."""
    if not worker.failed.is_set():
        watching.cancel()
    await asyncio.wait([watching])
    with contextlib.suppress(asyncio.CancelledError):
        # It is one of ours, where the code in the context has not awaited since.
        await asyncio.sleep(0)


def twin_of(app: AppBase, dsn: str | None, *, without_session: bool = False) -> AsyncApp:
    """An async app of the definitions of another, on another database if one is named.

    Args:
        app: The other.
        dsn: The database; that of the other if none is named.
        without_session: True if a pooler may be in between, and may hand out another session for
            each transaction.
    """
    twin = AsyncApp(
        dsn or app._dsn,
        errors=app._errors,
        interceptors=app._interceptors,
        prepare_threshold=None if without_session else app._prepare_threshold,
        listen=app._listen and not without_session,
    )
    twin.definitions, twin._envelopes = app.definitions, app._envelopes
    twin._mapping = app._mapping
    twin._prepare()
    return twin
