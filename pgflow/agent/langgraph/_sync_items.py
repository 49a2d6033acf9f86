# Made by tools/colours.py from pgflow/agent/langgraph/_async_items.py; edit that one.
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
from pgflow.documents import Documents
from pgflow.errors import InvalidArgument


class Items:
    """The items of a database.

    Args:
        documents: Its documents.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def batch(self, ops: Iterable[Op]) -> list[Any]:
        """Does operations: it reads first, and then writes all at once, and deletes."""
        asked = list(ops)
        results = [self._read(op) for op in asked]
        puts, gone = split(op for op in asked if isinstance(op, PutOp))
        self._documents.put(puts)
        self._documents.delete(ITEMS, gone)
        return results

    def _read(self, op: Op) -> Any:
        if isinstance(op, GetOp):
            path = (*op.namespace, op.key)
            found = self._documents.get(ITEMS, [path], refresh=op.refresh_ttl)
            return item_of(found[path]) if path in found else None
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return namespaces(self._documents.folders(ITEMS), op)
        return None

    def _search(self, op: SearchOp) -> list[Any]:
        if op.query:
            raise InvalidArgument("PgflowStore does not search by meaning: pass filter=, no query=")
        found = []
        for document in self._documents.walk(ITEMS, op.namespace_prefix):
            if is_found(document, op):
                found.append(document)
                if len(found) == op.offset + op.limit:
                    break
        chosen = list(islice(found, op.offset, None))
        if op.refresh_ttl:
            paths = [document.path for document in chosen]
            self._documents.get(ITEMS, paths, refresh=True)
        return [search_item_of(document) for document in chosen]

    def sweep(self) -> int:
        """Deletes items that have expired, and returns how many."""
        return self._documents.sweep()
