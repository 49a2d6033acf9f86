"""The nodes of a cluster, as an app sees them: which node has a key, and its client there.

A call that finds no run has done nothing. So it goes to the app's own node first, then to the node
that the directory names, or to every other one: the keys of children, schedules and forks, and
those that pgflow made up, are in no directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import psycopg
from psycopg_pool import PoolTimeout

from pgflow._client._async.session import AsyncSession
from pgflow._db.calls import cluster, result, start
from pgflow._db.calls.cluster import Node
from pgflow._db.nodes import dsn_of_node
from pgflow._db.query import Query
from pgflow._model.durations import Duration
from pgflow._model.options import StartOptions
from pgflow.errors import InvalidArgument, RunNotFound, SetupError

HOMES_KEPT = 10_000
"""Keys whose nodes are remembered."""

SILENCE = (psycopg.OperationalError, PoolTimeout, OSError)
"""Errors of a node that does not answer."""

T = TypeVar("T")


class AsyncMember(AsyncSession, Protocol):
    """Interface of an app that works on one node."""

    @property
    def dsn(self) -> str:
        """Its connection string."""

    async def _ask_here(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        """Run a query on its own node."""

    def _sibling(self, dsn: str) -> Self:
        """Return an app of the same definitions on another node."""

    async def close(self) -> None:
        """Close its connections."""


C = TypeVar("C", bound=AsyncMember)


class AsyncCluster(Generic[C]):
    """The nodes of a cluster. It keeps an app for each node that was asked for.

    Args:
        app: The app on its own node.
    """

    def __init__(self, app: C) -> None:
        self._app = app
        self._number: int | None = None
        self._members: dict[int, C] = {}
        self._homes: dict[tuple[str, str], int] = {}

    async def number(self) -> int:
        """Return the number of the app's own node.

        Raises:
            SetupError: The database is not a node of a cluster.
        """
        if self._number is None:
            try:
                self._number = await self._app._ask_here(cluster.this_node())
            except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
                raise SetupError(
                    "this database is not a node of a cluster: run `pgflow cluster init` or "
                    "`pgflow cluster join`"
                ) from error
        return self._number

    async def nodes(self) -> list[Node]:
        """Return all nodes, by number."""
        await self.number()
        return await self._app._ask_here(cluster.list_nodes())

    async def member(self, node: int) -> C:
        """Return the app on a node.

        Raises:
            InvalidArgument: The cluster has no such node.
        """
        if node == await self.number():
            return self._app
        if node not in self._members:
            for one in await self.nodes():
                if one.node == node:
                    sibling = self._app._sibling(dsn_of_node(self._app.dsn, one))
                    return self._members.setdefault(node, sibling)
            raise InvalidArgument(f"the cluster has no node {node}: see `pgflow cluster list`")
        return self._members[node]

    async def at(self, starting: start.StartQuery, tenant: str) -> C:
        """Return the app on the node that a run is to be started on. A key that the caller named is
        claimed, which does no harm if the start fails.
        """
        options = starting.options
        await self.number()
        if options.key is not None:
            claim = cluster.claim(options.key, tenant, options.node, options.near)
            home, _ = await self._app._ask_here(claim)
            return await self._found(tenant, options.key, home)
        return await self._near(options)

    async def at_all(self, options: StartOptions, keys: Sequence[str] | None, tenant: str) -> C:
        """Return the app on the node that all runs of a batch are to be started on.

        Args:
            options: Options that they share.
            keys: Keys that the caller named, which are claimed for one node; None if there are
                none.
            tenant: Tenant of the runs.

        Raises:
            InvalidArgument: Several nodes have some of the keys.
        """
        await self.number()
        if keys is None:
            return await self._near(options)
        claim = cluster.claim_all(keys, tenant, options.node, options.near)
        return await self.member(await self._app._ask_here(claim))

    async def _near(self, options: StartOptions) -> C:
        """Return the app on the node that options name; the app's own if they name none."""
        if options.near is not None and options.node is None:
            return await self.member(await self._app._ask_here(cluster.where_is(options.near)))
        return self._app if options.node is None else await self.member(options.node)

    async def _found(self, tenant: str, key: str, home: int) -> C:
        if len(self._homes) >= HOMES_KEPT:
            self._homes.clear()
        self._homes[tenant, key] = home
        return await self.member(home)

    async def ask(
        self, query: Query[T], tenant: str, *, wakes: bool = False, once: bool = False
    ) -> tuple[T, C]:
        """Run a query on the node that has its key, the first of its parameters.

        Returns:
            The answer, and the app on that node.

        Raises:
            RunNotFound: No node that answers has the key.
        """
        key = str(query.params[0]) if query.params else ""
        home = self._homes.get((tenant, key))
        if home is not None:
            member = await self.member(home)
            try:
                return await member._ask_here(query, wakes=wakes, once=once), member
            except RunNotFound:
                self._homes.pop((tenant, key), None)
        try:
            return await self._app._ask_here(query, wakes=wakes, once=once), self._app
        except RunNotFound as error:
            missing = error
        own = await self.number()
        home = await self._app._ask_here(cluster.node_of(key, tenant))
        if home is None:
            others = [one.node for one in await self.nodes() if one.node != own]
            return await self._search(query, others, missing, wakes=wakes, once=once)
        if home == own:
            raise missing
        member = await self._found(tenant, key, home)
        return await member._ask_here(query, wakes=wakes, once=once), member

    async def _search(
        self,
        query: Query[T],
        others: Iterable[int],
        missing: RunNotFound,
        *,
        wakes: bool,
        once: bool,
    ) -> tuple[T, C]:
        silent: list[str] = []
        for node in others:
            member = await self.member(node)
            try:
                return await member._ask_here(query, wakes=wakes, once=once), member
            except RunNotFound:
                continue
            except SILENCE:
                silent.append(str(node))
        if silent:
            raise RunNotFound(
                f"{missing}; nodes that do not answer may have it: {', '.join(silent)}"
            ) from missing
        raise missing

    async def find(self, query: Query[T | None]) -> T | None:
        """Return the first answer of any node that is not None.

        Raises:
            RunNotFound: There is none, and some nodes do not answer.
        """
        own = await self.number()
        found = await self._app._ask_here(query)
        silent: list[str] = []
        for one in await self.nodes() if found is None else []:
            if found is None and one.node != own:
                try:
                    found = await (await self.member(one.node))._ask_here(query)
                except SILENCE:
                    silent.append(str(one.node))
        if found is None and silent:
            raise RunNotFound(f"nodes that do not answer may have it: {', '.join(silent)}")
        return found

    async def close(self) -> None:
        """Close the apps on other nodes."""
        members, self._members = self._members, {}
        for member in members.values():
            await member.close()


class AsyncRouted(Generic[C]):
    """The session of a handle whose run may be on any node: it stays with the one that has it.

    Args:
        cluster: The nodes.
        tenant: Tenant of the run.
        adapt: Makes a query one of the tenant.
    """

    def __init__(
        self,
        cluster: AsyncCluster[C],
        app: C,
        tenant: str,
        adapt: Callable[[Query[Any]], Query[Any]],
    ) -> None:
        self._cluster = cluster
        self._tenant = tenant
        self._adapt = adapt
        self._member = app

    async def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """For handles of runs."""
        adapted: Query[T] = self._adapt(query)
        answer, self._member = await self._cluster.ask(adapted, self._tenant, wakes=wakes)
        return answer

    async def wait(self, key: str, chain_id: int, timeout: Duration | None) -> result.Ended:
        """For handles of runs."""
        return await self._member.wait(key, chain_id, timeout)

    async def wait_for(
        self,
        what: str,
        chain_id: int,
        query: Query[T],
        is_there: Callable[[T], bool],
        timeout: Duration | None,
    ) -> T | result.Ended:
        """Wait for an update on the node of its run; see the client's own method."""
        adapted: Query[T] = self._adapt(query)
        return await self._member.wait_for(what, chain_id, adapted, is_there, timeout)
