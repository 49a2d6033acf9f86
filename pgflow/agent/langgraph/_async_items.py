"""The items of a store in a database: what the stores of both colours do."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, SearchOp

from pgflow.agent.langgraph.memories import (
    ITEMS,
    is_found,
    item_of,
    namespaces,
    search_item_of,
    split,
)
from pgflow.documents import AsyncDocuments
from pgflow.errors import InvalidArgument


class AsyncItems:
    """The items of a database.

    Args:
        documents: Its documents.
    """

    def __init__(self, documents: AsyncDocuments) -> None:
        self._documents = documents

    async def batch(self, ops: Iterable[Op]) -> list[Any]:
        """Does operations: it reads first, and then writes all at once, and deletes."""
        asked = list(ops)
        results = [await self._read(op) for op in asked]
        puts, gone = split(op for op in asked if isinstance(op, PutOp))
        await self._documents.put(puts)
        await self._documents.delete(ITEMS, gone)
        return results

    async def _read(self, op: Op) -> Any:
        if isinstance(op, GetOp):
            path = (*op.namespace, op.key)
            found = await self._documents.get(ITEMS, [path], refresh=op.refresh_ttl)
            return item_of(found[path]) if path in found else None
        if isinstance(op, SearchOp):
            return await self._search(op)
        if isinstance(op, ListNamespacesOp):
            return namespaces(await self._documents.folders(ITEMS), op)
        return None

    async def _search(self, op: SearchOp) -> list[Any]:
        if op.query:
            raise InvalidArgument("PgflowStore does not search by meaning: pass filter=, no query=")
        found = []
        async for document in self._documents.walk(ITEMS, op.namespace_prefix):
            if is_found(document, op):
                found.append(document)
                if len(found) == op.offset + op.limit:
                    break
        chosen = list(islice(found, op.offset, None))
        if op.refresh_ttl:
            paths = [document.path for document in chosen]
            await self._documents.get(ITEMS, paths, refresh=True)
        return [search_item_of(document) for document in chosen]

    async def sweep(self) -> int:
        """Deletes items that have expired, and returns how many."""
        return await self._documents.sweep()
