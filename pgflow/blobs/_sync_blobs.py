# Made by tools/colours.py from pgflow/blobs/_async_blobs.py; edit that one.
"""Large values: stored within a transaction, and read chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, TypeVar

from pgflow._db.calls.blobs import add_chunk, finish_blob, open_blob, read_chunk
from pgflow._db.query import Query, run_on
from pgflow._model.blobs import Blob, Chunker, Verifier
from pgflow.app import App
from pgflow.blobs._places import executor_of, refuse_codec, tenant_of
from pgflow.errors import InvalidArgument

T = TypeVar("T")


class Blobs:
    """The large values of a database.

    Args:
        place: The connection of a transactional step, or another with an open transaction, as
            ``app.using`` takes it; or, to read only, the app.
        tenant: Tenant of the runs; that of the running step, or of the session, if not given.
    """

    def __init__(self, place: Any, *, tenant: str = "") -> None:
        self._place = place
        self._tenant = tenant

    def _ask(self, query: Query[T]) -> T:
        if isinstance(self._place, App):
            return self._place.ask(query)
        return run_on(executor_of(self._place, App), query)

    def store(self, content: bytes | Iterable[bytes]) -> Blob:
        """Store a large value, and return the reference to it.

        It is there once the transaction has committed, and stays if a run names it by then: return
        it from the step, or start a run or send a signal with it.

        Args:
            content: The bytes, whole or in pieces of any length: at most one chunk of 256 KiB is
                held in memory besides the present piece.

        Raises:
            InvalidArgument: The connection has no open transaction, this is an app, or a piece is
                not bytes.
            NotStorable: The app has a codec, which would not encode the content.
        """
        if isinstance(self._place, App):
            raise InvalidArgument(
                "a blob is stored in the transaction that names it: pass the connection of a "
                "transactional step, not the app"
            )
        refuse_codec()
        blob = self._ask(open_blob(tenant_of(self._tenant)))
        numbers = count()
        for chunk in _chunks(content):
            self._ask(add_chunk(blob, next(numbers), chunk))
        return Blob(*self._ask(finish_blob(blob)))

    def read(self, blob: Blob) -> Iterator[bytes]:
        """Yield the content of a blob, in chunks of 256 KiB.

        Args:
            blob: The reference.

        Raises:
            InvalidArgument: The blob is not in this database: it was removed with the last run that
                named it.
            PgflowError: The content has been damaged.
        """
        verifier = Verifier(blob)
        while verifier.is_missing_any:
            chunk = self._ask(read_chunk(blob.digest, verifier.n, tenant_of(self._tenant)))
            yield verifier.add(chunk)
        if verifier.n == 0:  # it has no chunks, and may not be there
            self._ask(read_chunk(blob.digest, 0, tenant_of(self._tenant)))

    def read_all(self, blob: Blob) -> bytes:
        """Return the whole content of a blob; see :meth:`read`."""
        content = bytearray()
        for chunk in self.read(blob):
            content += chunk
        return bytes(content)


def _chunks(content: bytes | Iterable[bytes]) -> Iterator[bytes]:
    chunker = Chunker()
    if isinstance(content, (bytes, bytearray, memoryview)):
        for chunk in chunker.cut(content):
            yield chunk
    else:
        for piece in content:
            for chunk in chunker.cut(piece):
                yield chunk
    for chunk in chunker.last():
        yield chunk
