# Made by tools/colours.py from pgflow/documents/_async_documents.py; edit that one.
"""The documents of a database: written, read, listed and deleted."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
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
from pgflow._db.query import Query, run
from pgflow._flow.scope import current
from pgflow.app import App
from pgflow.documents.document import Document, Path, Put, document_of, names, paths_text, puts_text

T = TypeVar("T")
PAGE = 100


class Documents:
    """The documents of a database.

    Args:
        app: The app whose database has them, and whose codec seals them; or, in the body of a
            transactional step, its connection.
    """

    def __init__(self, app: App | psycopg.Connection[Any]) -> None:
        self._app = app

    def _ask(self, query: Query[T]) -> T:
        if isinstance(self._app, psycopg.Connection):
            return run(self._app, query)
        return self._app.ask(query)

    def _envelopes(self) -> Any:
        if isinstance(self._app, psycopg.Connection):
            scope = current.get()
            return None if scope is None else scope.claim.envelopes
        return self._app.definitions.envelopes

    def put(self, documents: Iterable[Put]) -> int:
        """Write documents, all or none.

        Of two with the same path, the last counts.

        Returns:
            Number of documents written, without existing ones that are ``once``.

        Raises:
            InvalidArgument: A path or a time to live is not valid.
            NotStorable: A value is not JSON, or is longer than 1 MiB.
        """
        text = puts_text(documents, self._envelopes())
        return 0 if text == "[]" else self._ask(put_documents(text))

    def get(
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
        found = self._ask(get_documents(collection, text, refresh=refresh))
        return {stored.path: document_of(stored, self._envelopes()) for stored in found}

    def list(
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
        return [document_of(stored, envelopes) for stored in self._ask(query)]

    def walk(
        self,
        collection: str,
        folder: Sequence[str] = (),
        *,
        after: Sequence[str] | None = None,
        descending: bool = False,
    ) -> Iterator[Document]:
        """Yield all documents of :meth:`list`, page by page."""
        while True:
            page = self.list(collection, folder, after=after, descending=descending)
            for document in page:
                after = document.path
                yield document
            if len(page) < PAGE:
                return

    def folders(self, collection: str) -> builtins.list[Path]:
        """Return the folders of a collection that have documents."""
        return self._ask(list_folders(collection))

    def delete(self, collection: str, paths: Iterable[Sequence[str]]) -> int:
        """Delete the documents of these paths, and return their number."""
        text = paths_text(paths)
        return 0 if text == "[]" else self._ask(delete_documents(collection, text))

    def delete_folder(self, collection: str, folder: Sequence[str]) -> int:
        """Delete the documents in a folder and below, and return their number."""
        return self._ask(delete_folder(collection, names(folder)))

    def sweep(self, most: int = 1000) -> int:
        """Delete expired documents and return their number.

        Reads already skip them, and each write removes a few.
        """
        return self._ask(sweep_documents(most))
