"""Stores: the memory of agents, over threads, in the database of an app.

An item is a document whose path is its namespace and its key. A search walks through a namespace
and compares values. With an index it compares the vectors of items, too, which are documents beside
them: that is for the memory of a person or a team, not for a library. A time to live is in minutes,
as the framework has it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterable
from typing import Any

from langgraph.store.base import BaseStore, IndexConfig, Op, Result, TTLConfig
from langgraph.store.base.embed import ensure_embeddings

import pgflow
from pgflow import App, AsyncApp
from pgflow.agent.langgraph._async_items import AsyncItems
from pgflow.agent.langgraph._sync_items import Items
from pgflow.agent.langgraph.bridge import OnTheirLoop
from pgflow.agent.langgraph.memories import Index
from pgflow.documents import AsyncDocuments, Documents

SWEEP_MINUTES = 5


def _interval(given: int | None, config: TTLConfig | None) -> float:
    """Return the seconds between two sweeps."""
    configured = (config or {}).get("sweep_interval_minutes")
    return 60.0 * (given or configured or SWEEP_MINUTES)


class PgflowStore(BaseStore):
    """Keeps items. Its async methods are the sync ones, in a thread.

    Args:
        app: The app whose database has them, and whose codec seals them.
        index: Embedding for ``search(query=)``, as in the framework: ``embed``, ``dims`` and
            ``fields``. Without it, a search ignores its query.
        ttl: Time to live of items, and whether reads prolong it.

    Example::

        graph = builder.compile(store=PgflowStore(app))
    """

    supports_ttl = True

    def __init__(
        self, app: App, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None
    ) -> None:
        self._items = Items(Documents(app), _index(index, is_async=False))
        self.ttl_config = ttl
        self._sweeping: concurrent.futures.Future[None] | None = None
        self._stopping = threading.Event()

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

    def start_ttl_sweeper(
        self, sweep_interval_minutes: int | None = None
    ) -> concurrent.futures.Future[None]:
        """Delete expired items now and periodically, in a thread, until :meth:`stop_ttl_sweeper`.

        Args:
            sweep_interval_minutes: Minutes between sweeps; else that of the configuration, else 5.
        """
        if self._sweeping is None or self._sweeping.done():
            self._stopping.clear()
            done: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._sweeping = done
            every = _interval(sweep_interval_minutes, self.ttl_config)
            threading.Thread(
                target=self._sweep, args=(every, done), name="pgflow-sweeper", daemon=True
            ).start()
        return self._sweeping

    def _sweep(self, every_seconds: float, done: concurrent.futures.Future[None]) -> None:
        try:
            self.sweep_ttl()
            while not self._stopping.wait(every_seconds):
                self.sweep_ttl()
        except Exception as error:  # noqa: BLE001 - the future has it
            done.set_exception(error)
        else:
            done.set_result(None)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper, and return True once it has ended.

        Args:
            timeout: Seconds to wait for that.
        """
        self._stopping.set()
        if self._sweeping is None:
            return True
        return bool(concurrent.futures.wait([self._sweeping], timeout).done)


class AwaitedStore(OnTheirLoop, BaseStore):
    """Keeps items of graphs that are called by ``ainvoke`` and ``astream``. In other threads than
    that of its event loop, sync methods work too: for ``def`` nodes.

    Args:
        app: The app whose database has them, and whose codec seals them.
        index: Embedding for ``asearch(query=)``; see :class:`PgflowStore`.
        ttl: Time to live of items, and whether reads prolong it.
    """

    supports_ttl = True

    def __init__(
        self, app: AsyncApp, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None
    ) -> None:
        self._items = AsyncItems(AsyncDocuments(app), _index(index, is_async=True))
        self.ttl_config = ttl
        self._sweeping: asyncio.Task[None] | None = None
        self._stay()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """As :meth:`abatch`, in a thread.

        Raises:
            WrongColourError: This is the thread of the event loop.
        """
        return self._hand_over(self.abatch(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Does several operations."""
        self._stay()
        return await self._items.batch(ops)

    async def sweep_ttl(self) -> int:
        """Delete items that have expired, and return how many. They are invisible from their expiry
        on.
        """
        return await self._items.sweep()

    async def start_ttl_sweeper(
        self, sweep_interval_minutes: int | None = None
    ) -> asyncio.Task[None]:
        """Delete expired items now and periodically, in a task, until :meth:`stop_ttl_sweeper`.

        Args:
            sweep_interval_minutes: Minutes between sweeps; else that of the configuration, else 5.
        """
        if self._sweeping is None or self._sweeping.done():
            every = _interval(sweep_interval_minutes, self.ttl_config)
            self._sweeping = asyncio.create_task(self._sweep(every))
        return self._sweeping

    async def _sweep(self, every_seconds: float) -> None:
        while True:
            await self.sweep_ttl()
            await asyncio.sleep(every_seconds)

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper, and return True once it has ended.

        Args:
            timeout: Seconds to wait for that.
        """
        if self._sweeping is None:
            return True
        self._sweeping.cancel()
        return bool((await asyncio.wait([self._sweeping], timeout=timeout))[0])


def _index(config: IndexConfig | None, *, is_async: bool) -> Index | None:
    """Return the search by meaning. In a workflow, embedding is a step."""
    if config is None:
        return None
    embeddings: Any = ensure_embeddings(config["embed"])
    if is_async:
        return Index(
            config,
            lambda texts: pgflow.call("embed", embeddings.aembed_documents, texts),
            lambda text: pgflow.call("embed", embeddings.aembed_query, text),
        )
    return Index(
        config,
        lambda texts: pgflow.sync.call("embed", embeddings.embed_documents, texts),
        lambda text: pgflow.sync.call("embed", embeddings.embed_query, text),
    )
