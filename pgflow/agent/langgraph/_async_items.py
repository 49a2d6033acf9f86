"""The items of a store in a database: what the stores of both colours do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, SearchItem, SearchOp

from pgflow.agent.langgraph.memories import (
    ITEMS,
    VECTORS,
    Index,
    by_meaning,
    checked,
    is_found,
    item_of,
    namespaces,
    search_item_of,
    split,
    vector_puts,
)
from pgflow.documents import AsyncDocuments, Document, Put


class AsyncItems:
    """The items of a database.

    Args:
        documents: Its documents.
        index: Its search by meaning; None if it has none.
    """

    def __init__(self, documents: AsyncDocuments, index: Index | None) -> None:
        self._documents = documents
        self._index = index

    async def batch(self, ops: Iterable[Op]) -> list[Any]:
        """Does operations: it reads first, and then writes all at once, and deletes."""
        asked = checked(ops)
        results = [await self._read(op) for op in asked]
        written = [op for op in asked if isinstance(op, PutOp)]
        puts, gone = split(written)
        vectors = await self._embed(written, puts)
        await self._documents.put([*vectors, *puts])
        await self._documents.delete(ITEMS, gone)
        if self._index is not None:
            embedded = {put.path for put in vectors}
            plain = [put.path for put in puts if put.path not in embedded]
            await self._documents.delete(VECTORS, [*gone, *plain])
        return results

    async def _embed(self, ops: Iterable[PutOp], puts: Iterable[Put]) -> list[Put]:
        """Embeds the texts of items: returns the documents with their vectors."""
        if self._index is None:
            return []
        last = {(*op.namespace, op.key): self._index.texts_of(op) for op in ops}
        texts = {path: several for path, several in last.items() if several}
        if not texts:
            return []
        all_texts = [text for several in texts.values() for text in several]
        return vector_puts(puts, texts, await self._index.embed_texts(all_texts))

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
        if op.query and self._index is not None:
            chosen = await self._search_by_meaning(self._index, op)
        else:
            chosen = [search_item_of(document) for document in await self._walk(op)]
        if op.refresh_ttl:
            paths = [(*item.namespace, item.key) for item in chosen]
            for collection in (ITEMS, VECTORS):
                await self._documents.get(collection, paths, refresh=True)
        return chosen

    async def _walk(self, op: SearchOp) -> list[Document]:
        """Returns the page of a search that compares values only."""
        found = []
        async for document in self._documents.walk(ITEMS, op.namespace_prefix):
            if is_found(document, op):
                found.append(document)
                if len(found) == op.offset + op.limit:
                    break
        return found[op.offset :]

    async def _search_by_meaning(self, index: Index, op: SearchOp) -> list[SearchItem]:
        """Returns the page of a search by similarity: it compares all items of the namespace."""
        vector = await index.embed_query(op.query or "")
        found = [
            document
            async for document in self._documents.walk(ITEMS, op.namespace_prefix)
            if is_found(document, op)
        ]
        vectors = await self._documents.get(VECTORS, [document.path for document in found])
        return by_meaning(found, vectors, vector)[op.offset : op.offset + op.limit]

    async def sweep(self) -> int:
        """Deletes items that have expired, and returns how many."""
        return await self._documents.sweep()
