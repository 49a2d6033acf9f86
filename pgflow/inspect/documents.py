"""Documents: values under paths, kept beside the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from pgflow.inspect.listing import SEPARATOR, After, Listing, page
from pgflow.inspect.question import Question, select, statement


@dataclass(frozen=True)
class DocumentRow:
    """A document. A row of the view ``pgflow.documents``.

    Attributes:
        path: Names of its folders, the outermost first, and its own.
        value: Its value, as it is stored.
        created_at: Time at which its path was written first.
        updated_at: Time of the last write.
        expires_at: Time at which it expires; None for never.
    """

    path: list[str]
    value: Any
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None


_DOCUMENTS: LiteralString = select(DocumentRow, "from pgflow.documents where collection = %s")


def list_documents(
    collection: str,
    *,
    folder: Sequence[str] = (),
    after: After = None,
    limit: int | None = 50,
) -> Question[Listing[DocumentRow]]:
    """Ask for a page of the documents of a collection, by their paths.

    Args:
        collection: Name of the collection.
        folder: Only documents in this folder and in those below; all if not given.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    inside: LiteralString = "and path[:%s] = %s::text[]" if folder else ""
    given = (len(folder), list(folder)) if folder else ()
    return page(
        DocumentRow,
        statement(_DOCUMENTS, inside),
        (collection, *given),
        {"path": json.loads},
        after,
        limit,
        place=lambda row: (_place(row.path),),
    )


def _place(path: list[str]) -> str:
    """Return a path as one word of a place, without what separates these."""
    return json.dumps(path).replace(SEPARATOR, f"\\u{ord(SEPARATOR):04x}")
