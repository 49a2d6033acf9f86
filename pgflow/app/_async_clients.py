"""Clients of an app, on connections of its pool and in open transactions of the application."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Self, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool

from pgflow._client._async.client import AsyncClient
from pgflow._client._async.cluster import AsyncCluster, AsyncRouted
from pgflow._client._async.handles import AsyncRun
from pgflow._client._async.session import AsyncSession
from pgflow._client.locks import AsyncHeldLock
from pgflow._client.nodes import start_steps
from pgflow._client.starts import Batch, batch_of
from pgflow._db._async_pool import lent_async
from pgflow._db.calls import cluster, mail, result, start
from pgflow._db.failures import (
    is_ambiguous,
    is_answer,
    is_infrastructure,
    is_passing,
    mark_ours,
    ours,
)
from pgflow._db.query import (
    OnAsyncConnection,
    Query,
    Steps,
    in_tenant,
    one_step,
    run_all_async,
    run_async,
    run_steps_async,
    steps_in_tenant,
)
from pgflow._db.tenants import check_tenant
from pgflow._flow.scope import step_scope_of
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import Duration
from pgflow._model.options import NO_CLUSTER
from pgflow._transactions.join import Adapted
from pgflow.app._base import AppBase
from pgflow.errors import InvalidArgument
from pgflow.logs import redacted
from pgflow.schema import naming_refusals, raise_refusal

log = logging.getLogger("pgflow")

TRIES = 5
"""Times that something is sent, if it meets trouble with the server or the way to it."""
CONFLICTS = 20
"""Times that a transaction is tried again which the server rolled back for the sake of another."""
ROLLED_BACK = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""Errors of such a one."""
IDLE_TIMEOUT_MS = 10_000
"""Time after which the server cuts off a transaction in which others wait for a frozen process."""

R = TypeVar("R")
T = TypeVar("T")


async def _sent(
    send: Callable[[psycopg.AsyncConnection[Any], bool], Awaitable[T]],
    connection: psycopg.AsyncConnection[Any],
    *,
    again: bool,
) -> T:
    try:
        return await send(connection, again)
    except Exception as error:
        raise_refusal(error, connection)
        raise


class AsyncPoolClient(AppBase, AsyncClient):
    """The part of an app that asks the database. To open the pool,
    to wait and to wake is each colour's own.
    """

    _cluster: AsyncCluster[AsyncPoolClient] | None = None
    _is_member: bool = False
    """True if another app looks for keys, and this one is asked for its node only."""

    def _prepare(self) -> None:
        super()._prepare()
        is_entry = self.definitions.is_in_cluster and not self._is_member
        self._cluster = AsyncCluster[AsyncPoolClient](self) if is_entry else None
        self._claims_keys = is_entry

    async def _open(self) -> AsyncConnectionPool[Any]:
        raise NotImplementedError

    async def _pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def wait(self, key: str, chain_id: int, timeout: Duration | None) -> result.Ended:
        """For handles of runs."""
        raise NotImplementedError

    async def wait_for(
        self,
        what: str,
        chain_id: int,
        query: Query[T],
        is_there: Callable[[T], bool],
        timeout: Duration | None,
    ) -> T | result.Ended:
        """For handles of updates."""
        raise NotImplementedError

    async def nudge(self) -> None:
        """Wake the runs that were sent to or started through :meth:`using`, if the library has no
        hook after its commit.
        """
        raise NotImplementedError

    def _nudge_soon(self) -> None:
        raise NotImplementedError

    async def _wake(self, chains: list[int], lanes: set[int]) -> None:
        raise NotImplementedError

    def using(self, connection: object) -> AsyncBoundClient:
        """A client that works in the open transaction of a connection."""
        raise NotImplementedError

    async def _wake_noted(self) -> None:
        chains, lanes = self._take_notes()
        if not chains and not lanes:
            return
        try:
            await self._wake(chains, lanes)
        except psycopg.Error as error:
            # The message is committed, so sending must not fail, and the
            # next poll wakes too.
            log.log(
                logging.DEBUG if is_passing(error) else logging.WARNING,
                "cannot wake, the next poll will: %s",
                redacted(error),
            )

    async def _send(
        self,
        send: Callable[[psycopg.AsyncConnection[Any], bool], Awaitable[T]],
        *,
        once: bool = False,
    ) -> T:
        """Send something on a connection; after trouble, again (then with True) on another, unless
        it must be sent once and may have been.
        """
        try:
            pool = await self._open()
            tries = 0
            while True:
                try:
                    async with lent_async(pool) as connection:
                        return await _sent(send, connection, again=tries > 0)
                except psycopg.Error as error:
                    tries += 1
                    is_worth_it = tries == 1 or (tries < TRIES and is_answer(error))
                    if (once and is_ambiguous(error)) or not (
                        is_infrastructure(error) and is_worth_it
                    ):
                        raise
                # The other may have died while it was idle: the next is tried at once.
                if tries > 1:
                    await self._pause(random.uniform(0.5, 1) * 0.01 * 2**tries)  # noqa: S311
        except Exception as error:
            mark_ours(error)
            raise

    async def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        return await self._ask_of("", query, wakes=wakes, once=once)

    async def _ask_of(
        self, tenant: str, query: Query[T], *, wakes: bool = False, once: bool = False
    ) -> T:
        """Ask for a tenant, in a cluster the node that has the key."""
        is_start = type(query) is start.StartQuery
        cluster = None if is_start else self._cluster
        if cluster is None:
            return await self._ask_here(query, wakes=wakes, once=once)
        answer, _ = await cluster.ask(query, tenant, wakes=wakes, once=once)
        return answer

    async def _ask_here(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        """Ask this app's own database."""
        answer = await self._send(
            lambda connection, _: run_async(connection, query), once=wakes or once
        )
        if wakes:
            self._note(answer.chains, answer.lanes)  # type: ignore[attr-defined]
            await self.nudge()
        return answer

    async def _perform(self, make: Callable[[int], Steps[T]], *, once: bool) -> T:
        async def work(connection: psycopg.AsyncConnection[Any], _: bool) -> T:
            async with connection.transaction():
                return await run_steps_async(OnAsyncConnection(connection), make(IDLE_TIMEOUT_MS))

        for _ in range(CONFLICTS):
            with contextlib.suppress(*ROLLED_BACK):  # which did nothing
                return await self._send(work, once=once)
        return await self._send(work, once=once)

    async def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """For handles of runs."""
        return await self._ask(query, wakes=wakes)

    def _session(self) -> AsyncSession:
        return self

    def _sibling(self, dsn: str) -> Self:
        """Return an app of the same definitions on another node of the cluster."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close every connection."""
        raise NotImplementedError

    async def _at(self, starting: start.StartQuery) -> AsyncClient:
        if self._cluster is None:
            return await super()._at(starting)
        return await self._cluster.at(starting, "")

    async def _find(self, query: Query[T | None]) -> T | None:
        return await (self._ask_here if self._cluster is None else self._cluster.find)(query)

    def _run_handle(
        self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None
    ) -> AsyncRun[Any]:
        run = super()._run_handle(key, workflow, chain_id)
        return run if chain_id is not None else self._routed(run, "", lambda query: query)

    def _routed(
        self, run: AsyncRun[Any], tenant: str, adapt: Callable[[Query[Any]], Query[Any]]
    ) -> AsyncRun[Any]:
        """Return a handle whose run may be on any node, if there is more than one."""
        if self._cluster is not None:
            run._session = AsyncRouted[AsyncPoolClient](self._cluster, self, tenant, adapt)
        return run

    def _started(self, started: start.Started) -> None:
        self._note(started.chains, [started.lane_id])
        self._nudge_soon()

    async def start_many(
        self,
        workflow: Workflow[..., R],
        inputs: Iterable[tuple[Any, ...]],
        *,
        keys: Sequence[str] | None = None,
    ) -> list[AsyncRun[R]]:
        """Start many runs of one workflow in one transaction, all or none.

        In a cluster they are all on one node: the one that has some of the keys, else that of the
        options, else the app's own.

        Args:
            workflow: The workflow; a key among its options is refused.
            inputs: The arguments of each run.
            keys: The key of each run; made up if not given.

        Raises:
            KeyConflict: One of the keys names another run; nothing was started.
            InvalidArgument: Several nodes of the cluster have some of the keys; nothing was
                started.
        """
        batch = batch_of(workflow, inputs, keys, self._interceptors, self._envelopes)
        return await (await self._at_all(batch, ""))._start_all(workflow, batch)

    async def _at_all(self, batch: Batch, tenant: str) -> AsyncPoolClient:
        """Return the app on the node that the runs of a batch are to be started on."""
        if self._cluster is None:
            if batch.options.is_placed:
                raise InvalidArgument(NO_CLUSTER)
            return self
        keys = None if batch.is_made_up else batch.keys
        return await self._cluster.at_all(batch.options, keys, tenant)

    async def _start_all(self, workflow: Workflow[..., R], batch: Batch) -> list[AsyncRun[R]]:
        started = await self._send(
            lambda connection, again: run_all_async(connection, batch.statements(again=again))
        )
        if started:
            self._started(started[0][0])
        return [self._run_handle(s.key, workflow, s.chain_id) for part in started for s in part]

    def get(self, key: str, workflow: Workflow[..., R], /) -> AsyncRun[R]:
        """Handle of a run by its key; whether there is one is found out by its first use."""
        return self._run_handle(key, workflow)

    def lock(
        self,
        key: str,
        *,
        ttl: Duration,
        shared: bool = False,
        timeout: Duration | None = None,
    ) -> AbstractAsyncContextManager[int]:
        """A block of plain code that at most one holder at a time is in: runs and other processes
        that name the same key wait. The workflow's own is :func:`pgflow.lock`.

        It yields the fence, a number that grows each time the lock is won, for the protected system
        to check.

        Args:
            key: Name of the lock.
            ttl: Time for which it is held at once. It is renewed while the block goes on, and over
                so long after the process has died or was frozen.
            shared: True if others may be in the block too that say the same.
            timeout: Give up waiting after this long.

        Raises:
            LockLost: It could not be renewed in time, or an operator has taken it away.
            TimeoutError: It was not won in time.
        """
        return AsyncHeldLock(self.ask, key, ttl, timeout, shared=shared)

    def tenant(self, name: str) -> AsyncTenantClient:
        """A client of one tenant: it starts, finds and reads runs of this tenant only.

        It uses the connections of the app. The tenant comes from this call alone, never from an
        input, and children and forks of its runs inherit it.

        Args:
            name: Name of the tenant, of 1 to 255 bytes.

        Raises:
            InvalidArgument: It is empty or too long.

        Example::

            acme = app.tenant("acme")
            await acme.start(ship.options(key="order-1"), order)
        """
        return AsyncTenantClient(self, check_tenant(name))


class AsyncAppsClient(AsyncClient):
    """A client that has its connections and definitions from an app."""

    def __init__(self, app: AsyncPoolClient) -> None:
        self._app = app
        self._claims_keys = app._claims_keys
        self._interceptors = app._interceptors
        self._errors = app._errors
        self._envelopes = app._envelopes
        self._mapping = app._mapping


class AsyncTenantClient(AsyncAppsClient):
    """A client of one tenant, on the connections of an app."""

    def __init__(self, app: AsyncPoolClient, tenant: str) -> None:
        super().__init__(app)
        self._tenant = tenant

    async def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        asked = in_tenant(query, self._tenant)
        if isinstance(query, start.StartQuery):
            return await self._app._ask_here(asked, wakes=wakes, once=once)
        return await self._app._ask_of(self._tenant, asked, wakes=wakes, once=once)

    async def _at(self, starting: start.StartQuery) -> AsyncClient:
        if self._app._cluster is None:
            return await super()._at(starting)
        return (await self._app._cluster.at(starting, self._tenant)).tenant(self._tenant)

    async def _find(self, query: Query[T | None]) -> T | None:
        return await self._app._find(in_tenant(query, self._tenant))

    def _run_handle(
        self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None
    ) -> AsyncRun[Any]:
        run = super()._run_handle(key, workflow, chain_id)
        if chain_id is not None:
            return run
        return self._app._routed(run, self._tenant, lambda query: in_tenant(query, self._tenant))

    async def _perform(self, make: Callable[[int], Steps[T]], *, once: bool) -> T:
        return await self._app._perform(
            lambda idle_timeout_ms: steps_in_tenant(make(idle_timeout_ms), self._tenant), once=once
        )

    async def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """For handles of runs, and for questions of :mod:`pgflow.inspect`."""
        return await self._ask(query, wakes=wakes)

    async def wait(self, key: str, chain_id: int, timeout: Duration | None) -> result.Ended:
        """For handles of runs."""
        return await self._app.wait(key, chain_id, timeout)

    async def wait_for(
        self,
        what: str,
        chain_id: int,
        query: Query[T],
        is_there: Callable[[T], bool],
        timeout: Duration | None,
    ) -> T | result.Ended:
        """For handles of updates."""
        asked = in_tenant(query, self._tenant)
        return await self._app.wait_for(what, chain_id, asked, is_there, timeout)

    def _session(self) -> AsyncSession:
        return self

    def _started(self, started: start.Started) -> None:
        self._app._started(started)

    async def start_many(
        self,
        workflow: Workflow[..., R],
        inputs: Iterable[tuple[Any, ...]],
        *,
        keys: Sequence[str] | None = None,
    ) -> list[AsyncRun[R]]:
        """Start many runs of one workflow in one transaction, all or none: as the app's."""
        batch = batch_of(workflow, inputs, keys, self._interceptors, self._envelopes)
        home = await self._app._at_all(batch, self._tenant)
        return await home.tenant(self._tenant)._start_all(workflow, batch)

    async def _start_all(self, workflow: Workflow[..., R], batch: Batch) -> list[AsyncRun[R]]:
        def steps(idle_timeout_ms: int) -> Steps[list[start.Started]]:
            del idle_timeout_ms
            started: list[start.Started] = []
            for make in batch.statements(again=True):
                started += yield make()
            return started

        started = await self._perform(steps, once=False)
        for one in started[:1]:
            self._started(one)
        return [self._run_handle(one.key, workflow, one.chain_id) for one in started]

    def get(self, key: str, workflow: Workflow[..., R], /) -> AsyncRun[R]:
        """Handle of a run by its key; whether there is one is found out by its first use."""
        return self._run_handle(key, workflow)

    def using(self, connection: object) -> AsyncBoundClient:
        """As the app's: a client of the tenant in the open transaction of a connection."""
        bound = self._app.using(connection)
        bound._tenant = self._tenant
        return bound


class AsyncBoundClient(AsyncAppsClient):
    """A client in an open transaction of the application."""

    _tenant: str | None = None

    _send_signal = staticmethod(mail.send_signal)

    def __init__(self, app: AsyncPoolClient, connection: object, adapted: Adapted) -> None:
        super().__init__(app)
        self._connection = connection
        self._adapted = adapted
        if app._cluster is not None:
            self._send_signal = cluster.send_signal
            self._cancel_run = cluster.cancel_run

    async def _at(self, starting: start.StartQuery) -> AsyncClient:
        return await super()._at(starting) if self._app._cluster is None else self

    async def _perform(self, make: Callable[[int], Steps[T]], *, once: bool) -> T:
        del once
        steps = make(0)
        if self._tenant is not None:
            steps = steps_in_tenant(steps, self._tenant)
        with self._judged(), naming_refusals(self._connection):
            return await run_steps_async(self._adapted.executor, steps)  # type: ignore[arg-type]

    async def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        # Nothing is sent twice in a caller's transaction.
        def steps(_: int) -> Steps[Any]:
            if self._app._cluster is not None and isinstance(query, start.StartQuery):
                return start_steps(query, self._tenant or "")
            return one_step(query)

        answer: T = await self._perform(steps, once=once)
        if wakes:
            self._wake_after_commit(answer.chains, answer.lanes)  # type: ignore[attr-defined]
        return answer

    def _judged(self) -> AbstractContextManager[None]:
        """Of a body's own transaction, trouble is ours."""
        return contextlib.nullcontext() if step_scope_of(self._connection) is None else ours()

    def _session(self) -> AsyncSession:
        return self._app if self._tenant is None else self._app.tenant(self._tenant)

    def _run_handle(
        self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None
    ) -> AsyncRun[Any]:
        del chain_id
        # Whether there is such a chain is decided by the caller's commit.
        client = self._app if self._tenant is None else self._app.tenant(self._tenant)
        return client._run_handle(key, workflow)

    def _started(self, started: start.Started) -> None:
        self._wake_after_commit(started.chains, [started.lane_id])

    def _wake_after_commit(self, chains: Iterable[int] = (), lanes: Iterable[int] = ()) -> None:
        scope = step_scope_of(self._connection)
        if scope is not None:
            scope.chains_to_wake += tuple(chains)
            scope.lanes_made_ready |= frozenset(lanes)
            return
        self._app._note(chains, lanes)
        if self._adapted.after_commit is not None:
            self._adapted.after_commit(self._app._nudge_soon)
