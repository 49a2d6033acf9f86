"""The app: which database, which workflows, and everything one does with them.

``AsyncApp`` lives on the event loop that enters it. ``App`` is for sync code; what must go on in the
background - its worker, the waiting for results - runs on a loop in a thread of its own. Either runs
workflows and steps of both colours.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from types import ModuleType, TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from pgflow._calls import mail, result, start, wake
from pgflow._calls import worker as worker_calls
from pgflow._io import Query, is_infrastructure, run, run_async, run_on, run_on_async
from pgflow._io.connect import ConnectOptions, connect, make_pool, make_pool_async
from pgflow.adapters import Adapted, adapt
from pgflow.client import (
    AsyncClient,
    AsyncRun,
    AsyncSession,
    Client,
    Run,
    Session,
    effective_options,
    step_scope_of,
)
from pgflow.dsn import resolve_dsn
from pgflow.errors import DefinitionError, InvalidArgument, WrongColourError
from pgflow.interceptor import Interceptor
from pgflow.listener import WORK_CHANNEL, payloads
from pgflow.model import StartOptions
from pgflow.providers import AsyncPsycopgProvider, PsycopgProvider
from pgflow.schema import migrate_dsn, require_schema
from pgflow.waiter import ResultWaiter
from pgflow.worker import Definitions, Worker, WorkerOptions
from pgflow.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CLIENT_CONNECTIONS = 4
TRANSACTION_CONNECTIONS = 8
WAKE_AGAIN_SECONDS = (0.0, 0.002, 0.008)
"""Waits before each try to wake: a run's place may be locked for a moment by another who looks at it. Then the next poll will."""


def collect_workflows(include: Iterable[Workflow[..., Any] | ModuleType]) -> dict[str, Workflow[..., Any]]:
    """Workflows by name, from workflows and modules.

    Raises:
        DefinitionError: Two different ones have the same name, or something is neither.
    """
    found: dict[str, Workflow[..., Any]] = {}
    for thing in include:
        workflows = [v for v in vars(thing).values() if isinstance(v, Workflow)] if isinstance(thing, ModuleType) else [thing]
        for workflow in workflows:
            if not isinstance(workflow, Workflow):
                raise DefinitionError(f"include= takes workflows and modules, not {thing!r}: is it decorated with @pgflow.workflow?")
            known = found.setdefault(workflow.name, workflow.origin)
            if known is not workflow.origin:
                raise DefinitionError(f"two workflows are named {workflow.name!r}: give one another name with @workflow(name=...)")
    return found


class AppBase:
    """What both colours of app share: where the database is, and what the app brings to it."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        include: Iterable[Workflow[..., Any] | ModuleType] = (),
        providers: Sequence[Any] = (),
        errors: Sequence[type[Exception]] = (),
        interceptors: Sequence[Interceptor] = (),
        prepare_threshold: int | None = 3,
        listen: bool = True,
    ) -> None:
        """Declares an app; nothing is connected yet.

        Args:
            dsn: The database; else ``PGFLOW_DSN``, else ``DATABASE_URL``, else an embedded server is started on demand.
            include: Workflows, or modules whose workflows all belong to it.
            providers: Where transactional steps get connections of other libraries from.
            errors: Classes as which recorded errors may be raised again.
            interceptors: Code around starts, workflows and steps.
            prepare_threshold: After how many uses a statement is prepared; None behind a pooler that cannot.
            listen: Whether LISTEN works on this connection string; False behind a pooler in transaction mode.
        """
        self._interceptors = list(interceptors)
        self._errors = tuple(errors)
        self.definitions = Definitions(
            workflows=collect_workflows(include), errors=self._errors, providers=list(providers), interceptors=self._interceptors
        )
        self._dsn = dsn
        self._prepare_threshold = prepare_threshold
        self._listen = listen
        self._connect: ConnectOptions | None = None
        self._embedded: Any = None
        self._pending_chains: set[int] = set()
        self._pending_lanes: set[int] = set()
        self._pending_lock = threading.Lock()
        self._prepare()

    def _prepare(self) -> None:
        """What the colour needs of its own."""

    @property
    def dsn(self) -> str:
        """The connection string in use, once the app is open."""
        assert self._connect is not None, "the app is not open"
        return self._connect.dsn

    @property
    def queues(self) -> list[str]:
        """The queues of the app's workflows."""
        return sorted({w.start_options.queue for w in self.definitions.workflows.values()})

    @property
    def listens(self) -> bool:
        """Whether LISTEN works on this connection string."""
        return self._listen

    def on(self, dsn: str | None) -> AsyncApp:
        """An async app of the same definitions, on another database if one is named."""
        other = AsyncApp(
            dsn or self._dsn, errors=self._errors, interceptors=self._interceptors, prepare_threshold=self._prepare_threshold,
            listen=self._listen,
        )
        other.definitions = self.definitions
        return other

    def include(self, *things: Workflow[..., Any] | ModuleType) -> None:
        """Adds workflows, or modules of them."""
        self.definitions.workflows.update(collect_workflows([*self.definitions.workflows.values(), *things]))

    def _resolve(self) -> ConnectOptions:
        """Finds the database and makes sure that our schema is there; starts the embedded server if none is named."""
        if self._connect is None:
            dsn = resolve_dsn(self._dsn)
            if dsn is None:
                from pgflow.embedded import acquire

                self._embedded = acquire()
                dsn = self._embedded.dsn
                migrate_dsn(dsn)
            options = ConnectOptions(dsn, self._prepare_threshold)
            with connect(options, "pgflow") as connection:
                require_schema(connection)
            self._connect = options
        return self._connect

    def _let_go(self) -> None:
        self._connect = None
        if self._embedded is not None:
            self._embedded.release()
            self._embedded = None

    def _worker_options(self, concurrency: int, queues: Sequence[str] | None, options: dict[str, Any]) -> WorkerOptions:
        served = self.queues if queues is None else sorted(set(queues))
        return WorkerOptions(queues=served, concurrency=concurrency, listen=self._listen, **options)

    def _note(self, chains: Iterable[int] = (), lanes: Iterable[int] = ()) -> None:
        """Remembers whom to wake once the caller has committed."""
        with self._pending_lock:
            self._pending_chains.update(chains)
            self._pending_lanes.update(lanes)

    def _take_notes(self) -> tuple[list[int], set[int]]:
        with self._pending_lock:
            chains, self._pending_chains = self._pending_chains, set()
            lanes, self._pending_lanes = self._pending_lanes, set()
        return sorted(chains), lanes


# ================================================================ async


class AsyncApp(AppBase, AsyncClient):
    """An app for async code; see :class:`AppBase` for its arguments.

    Example::

        app = AsyncApp(include=[hello])
        async with app, app.worker():
            run = await app.start(hello.options(key="hello-1"), "Ada")
            print(await run.result())
    """

    def _prepare(self) -> None:
        self._pool: AsyncConnectionPool[Any] | None = None
        self._step_pools: list[Any] = []
        self._waiter: ResultWaiter | None = None
        self._workers: list[Worker] = []
        self._opening = asyncio.Lock()
        self._nudging: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connects, and checks that the schema is there."""
        await self._open()
        return self

    async def __aexit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        """Closes every connection."""
        await self.close()

    async def _open(self) -> AsyncConnectionPool[Any]:
        async with self._opening:
            if self._pool is None:
                connect_options = await asyncio.to_thread(self._resolve)
                pool = make_pool_async(connect_options, "pgflow app", CLIENT_CONNECTIONS)
                await pool.open()
                self._waiter = ResultWaiter(connect_options, listen=self._listen)
                self._pool = pool
            return self._pool

    async def close(self) -> None:
        """Closes every connection; the app can be opened again."""
        if self._nudging:
            await asyncio.gather(*self._nudging, return_exceptions=True)
        if self._waiter is not None:
            await self._waiter.close()
            self._waiter = None
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        self._let_go()

    async def _ask(self, query: Query[T], *, wakes: bool = False) -> T:
        pool = await self._open()
        try:
            async with pool.connection() as connection:
                answer = await run_async(connection, query)
        except psycopg.OperationalError as error:
            if wakes or not is_infrastructure(error):
                raise
            async with pool.connection() as connection:  # a connection that had died while it was idle
                answer = await run_async(connection, query)
        if wakes:
            self._note(chains=[answer])  # type: ignore[list-item]
            await self.nudge()
        return answer

    async def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """For handles of runs."""
        return await self._ask(query, wakes=wakes)

    async def wait(self, key: str, chain_id: int, timeout: timedelta | None) -> result.Ended:
        """For handles of runs."""
        await self._open()
        assert self._waiter is not None
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                return await self._waiter.wait(chain_id)
        except TimeoutError:
            raise TimeoutError(f"run {key!r} has not ended after {timeout}") from None

    def _session(self) -> AsyncSession:
        return self

    def _started(self, started: start.Started) -> None:
        self._note(lanes=[started.lane_id])
        self._nudge_soon()

    def _nudge_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self.nudge())
        self._nudging.add(task)
        task.add_done_callback(self._nudging.discard)

    async def nudge(self) -> None:
        """Wakes what was sent or started through :meth:`using`, where the library has no hook after its commit."""
        await asyncio.sleep(0)
        chains, lanes = self._take_notes()
        if not chains and not lanes:
            return
        pool = await self._open()
        async with pool.connection() as connection:
            mailed: set[int] = set()
            for delay in WAKE_AGAIN_SECONDS if chains else ():
                await asyncio.sleep(delay)
                woken = await run_async(connection, wake.wake(chains))
                lanes.update(woken.lanes)
                mailed.update(woken.mail)
                if not woken.busy:
                    break
            for worker in self._workers:
                worker.woken(list(lanes), list(mailed))
            for text in payloads(lanes, mailed) if not self._workers else ():
                await run_async(connection, worker_calls.notify(WORK_CHANNEL, text))

    async def start_many(
        self, workflow: Workflow[..., R], inputs: Iterable[tuple[Any, ...]], *, keys: Sequence[str] | None = None
    ) -> list[AsyncRun[R]]:
        """Starts many runs of one workflow in one transaction: all of them, or none.

        Args:
            workflow: The workflow; a key among its options is refused.
            inputs: The arguments of each run.
            keys: The key of each run; made up if not given.

        Raises:
            KeyConflict: One of the keys names another run; nothing was started.
        """
        batch, options = _batch(workflow, inputs, keys, self._interceptors)
        started = await self._ask(start.start_runs(workflow.name, batch, options))
        if started:
            self._started(started[0])
        return [self._run_handle(s.key, workflow, s.chain_id) for s in started]

    async def run(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Starts a run and waits for its result; works on it in this process if no worker of this app is running."""
        handle = await self.start(workflow, *args, **kwargs)
        if self._workers:
            return await handle.result()
        async with self.worker():
            return await handle.result()

    def get(self, key: str, workflow: Workflow[..., R], /) -> AsyncRun[R]:
        """Handle of a run by its key; whether there is one is found out by its first use."""
        return self._run_handle(key, workflow)

    async def pause(self, key: str, *, why: str = "paused") -> None:
        """Holds a run until :meth:`resume`."""
        await self._ask(mail.pause_run(key, why), wakes=True)

    async def resume(self, key: str, *, why: str = "resumed") -> None:
        """Lets a paused or stuck run go on."""
        await self._ask(mail.resume_run(key, why), wakes=True)

    async def retry(self, key: str, *, why: str = "retried") -> None:
        """Gives a stuck run a fresh budget of attempts; WrongState if it has ended."""
        await self._ask(mail.retry_run(key, why), wakes=True)

    def using(self, connection: object) -> AsyncClient:
        """A client that works in the open transaction of a connection: what it starts and sends exists if that commits.

        Args:
            connection: ``psycopg.AsyncConnection``, SQLAlchemy's ``AsyncSession`` or ``AsyncConnection``.
        """
        adapted = adapt(connection)
        if not adapted.is_async:
            raise WrongColourError(f"{type(connection).__qualname__} is sync: use it with App, or its async twin here")
        return _BoundAsyncClient(self, connection, adapted)

    @asynccontextmanager
    async def _work(self, options: WorkerOptions) -> AsyncIterator[Worker]:
        await self._open()
        assert self._connect is not None
        step_pool = make_pool(self._connect, "pgflow step", TRANSACTION_CONNECTIONS)
        async_step_pool = make_pool_async(self._connect, "pgflow step", TRANSACTION_CONNECTIONS)
        step_pool.open(wait=False)
        await async_step_pool.open(wait=False)
        definitions = Definitions(
            self.definitions.workflows, self._errors,
            [*self.definitions.providers, PsycopgProvider(step_pool), AsyncPsycopgProvider(async_step_pool)],
            self._interceptors, self.definitions.replacements,
        )
        worker = Worker(self._connect, definitions, options, self._results_ended)
        try:
            await worker.start()
            self._workers.append(worker)
            try:
                yield worker
            finally:
                self._workers.remove(worker)
                await worker.stop()
        finally:
            await async_step_pool.close()
            await asyncio.to_thread(step_pool.close)

    def _results_ended(self, chains: list[int]) -> None:
        if self._waiter is not None:
            self._waiter.ended(chains)

    @asynccontextmanager
    async def worker(
        self, *, concurrency: int = 100, queues: Sequence[str] | None = None, **options: Any
    ) -> AsyncIterator[None]:
        """Works on runs of the app's workflows, on this event loop, while the context is open.

        Args:
            concurrency: How many runs at once; waiting runs do not count.
            queues: Queues to serve; those of the app's workflows if not given.
            **options: Further fields of :class:`pgflow.worker.WorkerOptions`.
        """
        async with self._work(self._worker_options(concurrency, queues, options)):
            yield


def _batch(
    workflow: Workflow[..., Any], inputs: Iterable[tuple[Any, ...]], keys: Sequence[str] | None, interceptors: Sequence[Interceptor]
) -> tuple[list[tuple[str | None, str]], StartOptions]:
    if workflow.start_options.key is not None:
        raise DefinitionError("start_many() starts runs of different inputs: they cannot share options(key=...), pass keys=[...]")
    texts = [workflow.encode_input(args, {}) for args in inputs]
    if keys is not None and len(keys) != len(texts):
        raise InvalidArgument(f"start_many() was given {len(texts)} inputs and {len(keys)} keys")
    named: Sequence[str | None] = keys if keys is not None else [None] * len(texts)
    return list(zip(named, texts, strict=True)), effective_options(workflow, interceptors)


class _BoundAsyncClient(AsyncClient):
    """A client in somebody's open transaction."""

    def __init__(self, app: AsyncApp, connection: object, adapted: Adapted) -> None:
        self._app = app
        self._connection = connection
        self._adapted = adapted
        self._interceptors = app._interceptors
        self._errors = app._errors

    async def _ask(self, query: Query[T], *, wakes: bool = False) -> T:
        answer = await run_on_async(self._adapted.executor, query)  # type: ignore[arg-type]
        if wakes:
            self._wake_after_commit(chains=[answer])  # type: ignore[list-item]
        return answer

    def _session(self) -> AsyncSession:
        return self._app

    def _run_handle(self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None) -> AsyncRun[Any]:
        del chain_id
        return super()._run_handle(key, workflow)  # whether there is such a chain is decided by the caller's commit

    def _started(self, started: start.Started) -> None:
        self._wake_after_commit(lanes=[started.lane_id])

    def _wake_after_commit(self, chains: Iterable[int] = (), lanes: Iterable[int] = ()) -> None:
        scope = step_scope_of(self._connection)
        if scope is not None:
            scope.chains_to_wake.extend(chains)
            scope.lanes_made_ready.update(lanes)
            return
        self._app._note(chains, lanes)
        if self._adapted.after_commit is not None:
            self._adapted.after_commit(self._app._nudge_soon)


# ================================================================ sync


class Portal:
    """An event loop in a thread, for what a sync app does in the background."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pgflow-loop", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for it here."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class App(AppBase, Client):
    """An app for sync code; see :class:`AppBase` for its arguments.

    Example::

        app = App(include=[checkout])
        with app, app.worker():
            print(app.start(checkout.options(key="order-1"), order).result())
    """

    def _prepare(self) -> None:
        self._pool: ConnectionPool[Any] | None = None
        self._portal: Portal | None = None
        self._background: AsyncApp | None = None
        self._opening = threading.RLock()

    def __enter__(self) -> Self:
        """Connects, and checks that the schema is there."""
        self._open()
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        """Closes every connection."""
        self.close()

    def _open(self) -> ConnectionPool[Any]:
        with self._opening:
            if self._pool is None:
                pool = make_pool(self._resolve(), "pgflow app", CLIENT_CONNECTIONS)
                pool.open()
                self._pool = pool
            return self._pool

    def _async_app(self) -> tuple[Portal, AsyncApp]:
        """The loop in the background, with an app of its own on the same definitions."""
        with self._opening:
            if self._portal is None or self._background is None:
                self._open()
                self._portal = Portal()
                self._background = self.on(self.dsn)
            return self._portal, self._background

    def close(self) -> None:
        """Closes every connection; the app can be opened again."""
        with self._opening:
            if self._portal is not None and self._background is not None:
                self._portal.call(self._background.close())
                self._portal.close()
                self._portal, self._background = None, None
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            self._let_go()

    def _ask(self, query: Query[T], *, wakes: bool = False) -> T:
        pool = self._open()
        try:
            with pool.connection() as connection:
                answer = run(connection, query)
        except psycopg.OperationalError as error:
            if wakes or not is_infrastructure(error):
                raise
            with pool.connection() as connection:  # a connection that had died while it was idle
                answer = run(connection, query)
        if wakes:
            self._note(chains=[answer])  # type: ignore[list-item]
            self.nudge()
        return answer

    def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """For handles of runs."""
        return self._ask(query, wakes=wakes)

    def wait(self, key: str, chain_id: int, timeout: timedelta | None) -> result.Ended:
        """For handles of runs."""
        portal, background = self._async_app()
        return portal.call(background.wait(key, chain_id, timeout))

    def _session(self) -> Session:
        return self

    def _started(self, started: start.Started) -> None:
        self._note(lanes=[started.lane_id])
        self.nudge()

    def nudge(self) -> None:
        """Wakes what was sent or started through :meth:`using`, where the library has no hook after its commit."""
        chains, lanes = self._take_notes()
        if not chains and not lanes:
            return
        with self._open().connection() as connection:
            mailed: set[int] = set()
            for delay in WAKE_AGAIN_SECONDS if chains else ():
                time.sleep(delay)
                woken = run(connection, wake.wake(chains))
                lanes.update(woken.lanes)
                mailed.update(woken.mail)
                if not woken.busy:
                    break
            for text in payloads(lanes, mailed):
                run(connection, worker_calls.notify(WORK_CHANNEL, text))

    def start_many(
        self, workflow: Workflow[..., R], inputs: Iterable[tuple[Any, ...]], *, keys: Sequence[str] | None = None
    ) -> list[Run[R]]:
        """Starts many runs of one workflow in one transaction; see :meth:`AsyncApp.start_many`."""
        batch, options = _batch(workflow, inputs, keys, self._interceptors)
        started = self._ask(start.start_runs(workflow.name, batch, options))
        if started:
            self._started(started[0])
        return [self._run_handle(s.key, workflow, s.chain_id) for s in started]

    def run(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Starts a run and waits for its result; works on it in this process if no worker of this app is running."""
        handle = self.start(workflow, *args, **kwargs)
        if self._background is not None and self._background._workers:
            return handle.result()
        with self.worker():
            return handle.result()

    def get(self, key: str, workflow: Workflow[..., R], /) -> Run[R]:
        """Handle of a run by its key; whether there is one is found out by its first use."""
        return self._run_handle(key, workflow)

    def pause(self, key: str, *, why: str = "paused") -> None:
        """Holds a run until :meth:`resume`."""
        self._ask(mail.pause_run(key, why), wakes=True)

    def resume(self, key: str, *, why: str = "resumed") -> None:
        """Lets a paused or stuck run go on."""
        self._ask(mail.resume_run(key, why), wakes=True)

    def retry(self, key: str, *, why: str = "retried") -> None:
        """Gives a stuck run a fresh budget of attempts; WrongState if it has ended."""
        self._ask(mail.retry_run(key, why), wakes=True)

    def using(self, connection: object) -> Client:
        """A client that works in the open transaction of a connection: what it starts and sends exists if that commits.

        Args:
            connection: ``psycopg.Connection``, SQLAlchemy's ``Session`` or ``Connection``, or ``django.db.connection``.
        """
        adapted = adapt(connection)
        if adapted.is_async:
            raise WrongColourError(f"{type(connection).__qualname__} is async: use it with AsyncApp, or its sync twin here")
        return _BoundClient(self, connection, adapted)

    @contextmanager
    def worker(
        self, *, concurrency: int = 100, queues: Sequence[str] | None = None, **options: Any
    ) -> Iterator[None]:
        """Works on runs of the app's workflows, in the background, while the context is open; see :meth:`AsyncApp.worker`."""
        portal, background = self._async_app()
        work: AbstractAsyncContextManager[Worker] = background._work(self._worker_options(concurrency, queues, options))
        portal.call(work.__aenter__())
        try:
            yield
        finally:
            portal.call(work.__aexit__(None, None, None))


class _BoundClient(Client):
    """A client in somebody's open transaction."""

    def __init__(self, app: App, connection: object, adapted: Adapted) -> None:
        self._app = app
        self._connection = connection
        self._adapted = adapted
        self._interceptors = app._interceptors
        self._errors = app._errors

    def _ask(self, query: Query[T], *, wakes: bool = False) -> T:
        answer = run_on(self._adapted.executor, query)  # type: ignore[arg-type]
        if wakes:
            self._wake_after_commit(chains=[answer])  # type: ignore[list-item]
        return answer

    def _session(self) -> Session:
        return self._app

    def _run_handle(self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None) -> Run[Any]:
        del chain_id
        return super()._run_handle(key, workflow)  # whether there is such a chain is decided by the caller's commit

    def _started(self, started: start.Started) -> None:
        self._wake_after_commit(lanes=[started.lane_id])

    def _wake_after_commit(self, chains: Iterable[int] = (), lanes: Iterable[int] = ()) -> None:
        scope = step_scope_of(self._connection)
        if scope is not None:
            scope.chains_to_wake.extend(chains)
            scope.lanes_made_ready.update(lanes)
            return
        self._app._note(chains, lanes)
        if self._adapted.after_commit is not None:
            self._adapted.after_commit(self._app.nudge)
