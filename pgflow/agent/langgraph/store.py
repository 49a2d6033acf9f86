"""Stores: the memory of agents, over threads, in the database of an app.

An item is a document whose path is its namespace and its key. A search walks through a namespace
and compares values; it does not search by meaning. A time to live is in minutes, as the framework
has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from langgraph.store.base import BaseStore, Op, Result, TTLConfig

from pgflow import App, AsyncApp
from pgflow.agent.langgraph._async_items import AsyncItems
from pgflow.agent.langgraph._sync_items import Items
from pgflow.documents import AsyncDocuments, Documents
from pgflow.errors import WrongColourError


class PgflowStore(BaseStore):
    """Keeps items. Its async methods are the sync ones, in a thread.

    Args:
        app: The app whose database has them, and whose codec seals them.
        ttl: Time to live of items, and whether reads prolong it.

    Example::

        graph = builder.compile(store=PgflowStore(app))
    """

    supports_ttl = True

    def __init__(self, app: App, *, ttl: TTLConfig | None = None) -> None:
        self._items = Items(Documents(app))
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Does several operations."""
        return self._items.batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As :meth:`batch`."""
        return await asyncio.to_thread(self.batch, list(ops))

    def sweep_ttl(self) -> int:
        """Delete items that have expired, and return how many. They are invisible from their expiry
        on.
        """
        return self._items.sweep()


class AwaitedStore(BaseStore):
    """Keeps items of graphs that are called by ``ainvoke`` and ``astream``.

    Args:
        app: The app whose database has them, and whose codec seals them.
        ttl: Time to live of items, and whether reads prolong it.
    """

    supports_ttl = True

    def __init__(self, app: AsyncApp, *, ttl: TTLConfig | None = None) -> None:
        self._items = AsyncItems(AsyncDocuments(app))
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:  # noqa: ARG002
        """Refuses: this store has async methods only.

        Raises:
            WrongColourError: Always.
        """
        raise WrongColourError("AsyncPgflowStore has async methods only: take PgflowStore")

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Does several operations."""
        return await self._items.batch(ops)

    async def sweep_ttl(self) -> int:
        """Delete items that have expired, and return how many. They are invisible from their expiry
        on.
        """
        return await self._items.sweep()
