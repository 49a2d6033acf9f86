"""The documents of a database: written, read, listed and deleted."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, TypeVar

import psycopg

from pgflow._db.calls.documents import (
    delete_documents,
    delete_folder,
    get_documents,
    list_documents,
    list_folders,
    put_documents,
    sweep_documents,
)
from pgflow._db.query import Query, run_async
from pgflow._flow.scope import current
from pgflow.app import AsyncApp
from pgflow.documents.document import Document, Path, Put, document_of, names, paths_text, puts_text

T = TypeVar("T")
PAGE = 100


class AsyncDocuments:
    """The documents of a database.

    Args:
        app: The app whose database has them, and whose codec seals them; or, in the body of a
            transactional step, its connection.
    """

    def __init__(self, app: AsyncApp | psycopg.AsyncConnection[Any]) -> None:
        self._app = app

    async def _ask(self, query: Query[T]) -> T:
        if isinstance(self._app, psycopg.AsyncConnection):
            return await run_async(self._app, query)
        return await self._app.ask(query)

    def _envelopes(self) -> Any:
        if isinstance(self._app, psycopg.AsyncConnection):
            scope = current.get()
            return None if scope is None else scope.claim.envelopes
        return self._app.definitions.envelopes

    async def put(self, documents: Iterable[Put]) -> int:
        """Write documents, all or none.

        Of two with the same path, the last counts.

        Returns:
            Number of documents written, without existing ones that are ``once``.

        Raises:
            InvalidArgument: A path or a time to live is not valid.
            NotStorable: A value is not JSON, or is longer than 1 MiB.
        """
        text = puts_text(documents, self._envelopes())
        return 0 if text == "[]" else await self._ask(put_documents(text))

    async def get(
        self, collection: str, paths: Iterable[Sequence[str]], *, refresh: bool = False
    ) -> dict[Path, Document]:
        """Return the existing documents among these paths, by path.

        Args:
            collection: Name of the collection.
            paths: The paths.
            refresh: True if the time to live of each begins anew.
        """
        text = paths_text(paths)
        if text == "[]":
            return {}
        found = await self._ask(get_documents(collection, text, refresh=refresh))
        return {stored.path: document_of(stored, self._envelopes()) for stored in found}

    async def list(
        self,
        collection: str,
        folder: Sequence[str] = (),
        *,
        after: Sequence[str] | None = None,
        descending: bool = False,
        most: int = PAGE,
    ) -> builtins.list[Document]:
        """Return a page of the documents in a folder and below, by path.

        Args:
            collection: Name of the collection.
            folder: The folder; the whole collection if not given.
            after: Path of the last document of the page before.
            descending: True for the order against that of the paths.
            most: Most documents of the page.
        """
        query = list_documents(
            collection,
            names(folder),
            None if after is None else names(after),
            descending=descending,
            most=most,
        )
        envelopes = self._envelopes()
        return [document_of(stored, envelopes) for stored in await self._ask(query)]

    async def walk(
        self,
        collection: str,
        folder: Sequence[str] = (),
        *,
        after: Sequence[str] | None = None,
        descending: bool = False,
    ) -> AsyncIterator[Document]:
        """Yield all documents of :meth:`list`, page by page."""
        while True:
            page = await self.list(collection, folder, after=after, descending=descending)
            for document in page:
                after = document.path
                yield document
            if len(page) < PAGE:
                return

    async def folders(self, collection: str) -> builtins.list[Path]:
        """Return the folders of a collection that have documents."""
        return await self._ask(list_folders(collection))

    async def delete(self, collection: str, paths: Iterable[Sequence[str]]) -> int:
        """Delete the documents of these paths, and return their number."""
        text = paths_text(paths)
        return 0 if text == "[]" else await self._ask(delete_documents(collection, text))

    async def delete_folder(self, collection: str, folder: Sequence[str]) -> int:
        """Delete the documents in a folder and below, and return their number."""
        return await self._ask(delete_folder(collection, names(folder)))

    async def sweep(self, most: int = 1000) -> int:
        """Delete expired documents and return their number.

        Reads already skip them, and each write removes a few.
        """
        return await self._ask(sweep_documents(most))
