"""A document as it is written, and as it is read: what both colours share.

A value is JSON. An app with a codec seals it, so that the database sees an envelope; paths stay
readable, since folders are made of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pgflow._db.calls.documents import Stored
from pgflow._model.codecs import ANYTHING, encode_plain
from pgflow._model.durations import Duration, duration
from pgflow._model.envelopes import Envelopes, open_text, seal_text
from pgflow.errors import InvalidArgument

Path = tuple[str, ...]
MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Put:
    """A document to be written.

    Attributes:
        collection: Name of its collection, of at most 100 bytes.
        path: Names of folders, the outermost first, and its own: 50 at most, of 2,000 bytes in all.
        value: Its value, anything that is JSON.
        ttl: Time that it lives; for ever if not given.
        once: True to leave a document that is there as it is.
    """

    collection: str
    path: Path
    value: Any
    ttl: Duration | None = None
    once: bool = False


@dataclass(frozen=True)
class Document:
    """A document that was read.

    Attributes:
        path: Names of its folders, the outermost first, and its own.
        value: Its value.
        created_at: Time at which its path was written first.
        updated_at: Time of the last write.
    """

    path: Path
    value: Any
    created_at: datetime
    updated_at: datetime


def document_of(stored: Stored, envelopes: Envelopes | None) -> Document:
    """Return a document in clear."""
    what = f"document {list(stored.path)}"
    return Document(
        stored.path,
        ANYTHING.decode(open_text(envelopes, stored.value, what), what),
        EPOCH + timedelta(microseconds=stored.created_us),
        EPOCH + timedelta(microseconds=stored.updated_us),
    )


def puts_text(documents: Iterable[Put], envelopes: Envelopes | None) -> str:
    """Return the JSON that writes documents."""
    return f"[{','.join(_put_text(document, envelopes) for document in documents)}]"


def _put_text(document: Put, envelopes: Envelopes | None) -> str:
    what = f"document {list(document.path)} of collection {document.collection!r}"
    named: dict[str, Any] = {
        "collection": checked(document.collection, "the name of a collection"),
        "path": names(document.path),
        "once": document.once,
    }
    if document.ttl is not None:
        ttl = duration(document.ttl, f"the ttl of {what}", least_seconds=0.001)
        named["ttl_ms"] = ttl // MILLISECOND
    value = seal_text(envelopes, encode_plain(document.value, what), what)
    return f'{json.dumps(named)[:-1]},"value":{value}}}'


def paths_text(paths: Iterable[Sequence[str]]) -> str:
    """Return paths as the database takes them."""
    return json.dumps([names(path) for path in paths])


def names(path: Sequence[str]) -> list[str]:
    """Return the names of a path.

    Raises:
        InvalidArgument: The database could not store one of them.
    """
    if isinstance(path, str):
        raise InvalidArgument(f"a path is a list of names, not the text {path!r}")
    return [checked(name, f"a name in the path {list(path)}") for name in path]


def checked(name: str, what: str) -> str:
    """Return a text that can be a part of a path.

    Raises:
        InvalidArgument: It holds what no text in the database does.
    """
    if not isinstance(name, str) or not name or "\0" in name or not _is_text(name):
        raise InvalidArgument(f"{what} must be a text without NUL, and not empty, not {name!r}")
    return name


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
