"""Blobs: references to large values, which the database stores in chunks (``sql/runs/blobs.sql``).

The journal holds the reference only. The database finds it by its mark in the text of a value. A
codec would hide the mark, so an app with a codec stores no blobs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pgflow._model.tags import known
from pgflow.errors import InvalidArgument, PgflowError

CHUNK_BYTES = 262_144

_NAMED = re.compile(r'"pgflow"\s*:\s*"blob"')


@known
@dataclass(frozen=True)
class Blob:
    """A reference to a large value that the database stores in chunks, beside the journal.

    Store one with :meth:`AsyncBlobs.store` in the body of a transactional step, and return it,
    alone or inside of a larger result. Pass it on like any value. The database keeps the content
    for as long as the history of a run names it.

    Attributes:
        digest: The SHA-256 of the SHA-256 of its chunks of 256 KiB, in hexadecimal digits: equal
            contents have equal digests.
        size_bytes: Length of the content in bytes.
        pgflow: Mark by which the database finds references in values. Do not set it.
    """

    digest: str
    size_bytes: int
    pgflow: Literal["blob"] = field(default="blob", repr=False)


def names_blob(text: str) -> bool:
    """Return True if a JSON text names a blob."""
    return '"blob"' in text and _NAMED.search(text) is not None


def blob_words(value: Mapping[str, Any]) -> str:
    """Return the words for a reference to a blob; an empty text for other objects."""
    size = value.get("size_bytes")
    if value.get("pgflow") != "blob" or "digest" not in value or type(size) is not int:
        return ""
    return f"<a large value of {size:,} bytes>"


class Chunker:
    """Cuts a stream of bytes into chunks; it holds less than one of them."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def cut(self, piece: bytes | bytearray | memoryview[Any]) -> Iterator[bytes]:
        """Yield the chunks that are complete with this piece.

        Raises:
            InvalidArgument: It is not bytes.
        """
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"a blob is made of bytes, not of {type(piece).__qualname__}")
        view = memoryview(piece).cast("B")
        begin = 0
        while len(self._rest) + len(view) - begin >= CHUNK_BYTES:
            end = begin + CHUNK_BYTES - len(self._rest)
            self._rest += view[begin:end]
            begin = end
            yield bytes(self._rest)
            self._rest.clear()
        self._rest += view[begin:]

    def last(self) -> Iterator[bytes]:
        """Yield what is left, if anything is."""
        if self._rest:
            yield bytes(self._rest)


class Verifier:
    """Checks the chunks of a blob as they are read.

    Attributes:
        n: Number of the chunks so far.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._left_bytes = blob.size_bytes
        self._hash = hashlib.sha256()
        self.n = 0

    @property
    def is_missing_any(self) -> bool:
        """True if there are more chunks."""
        return self._left_bytes > 0

    def add(self, chunk: bytes | None) -> bytes:
        """Return the next chunk.

        Raises:
            PgflowError: It is not what was stored.
        """
        data = chunk or b""
        self._hash.update(hashlib.sha256(data).digest())
        self._left_bytes -= len(data)
        self.n += 1
        is_last = self._left_bytes <= 0
        if (
            len(data) != min(CHUNK_BYTES, self._left_bytes + len(data))
            or not data
            or (is_last and self._hash.hexdigest() != self._blob.digest)
        ):
            raise PgflowError(
                f"chunk {self.n - 1} of blob {self._blob.digest} is not what was stored: "
                "run pgflow.check(), and restore the database from a backup"
            )
        return data
