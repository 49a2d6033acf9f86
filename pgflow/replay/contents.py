"""Contents of large values in an export: a line for each chunk, before the histories that name it.

A line is a JSON object: ``pgflow_blob`` (the version of the format, 1), tenant, digest and size of
the value, and ``n`` and ``data``, the number of the chunk and its bytes in base64. Writer and
reader hold one chunk in memory.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple, Protocol

import psycopg

from pgflow._db.calls import blobs, transfer
from pgflow._db.query import run
from pgflow._model.blobs import Blob, Verifier
from pgflow.errors import InvalidArgument

_MARK = '{"pgflow_blob": 1, '


def is_content(line: str) -> bool:
    """Return True if a line has a chunk of a large value."""
    return line.startswith(_MARK)


class Output(Protocol):
    """A text file, or a writer that makes another format of the lines."""

    def write(self, text: str, /) -> object:
        """Take a part of the text."""


class Contents:
    """Writes the contents of large values, each once."""

    def __init__(self) -> None:
        self._written: set[tuple[str, str]] = set()

    def write(self, connection: psycopg.Connection[Any], chain_id: int, out: Output) -> None:
        """Write what the runs of a chain name.

        Raises:
            PgflowError: A content has been damaged.
        """
        for named in run(connection, transfer.export_blobs([chain_id])):
            if (named.tenant, named.digest) in self._written:
                continue
            self._written.add((named.tenant, named.digest))
            verifier = Verifier(Blob(named.digest, named.size_bytes))
            head = _MARK + json.dumps(named._asdict()).strip("{}")
            if not verifier.is_missing_any:
                out.write(head + ', "n": 0, "data": ""}\n')
            while verifier.is_missing_any:
                n = verifier.n
                query = blobs.read_chunk(named.digest, n, named.tenant)
                data = base64.b64encode(verifier.add(run(connection, query))).decode()
                out.write(f'{head}, "n": {n}, "data": "{data}"}}\n')


class _Named(NamedTuple):
    tenant: str
    digest: str
    size_bytes: int


class ContentReader:
    """Stores the contents of large values line by line, in the transaction of an import."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._named: _Named | None = None
        self._blob = 0
        self._left_bytes = 0

    def take(self, where: str, line: str) -> None:
        """Store a chunk.

        Args:
            where: Name of the line for errors.
            line: The line.

        Raises:
            InvalidArgument: It is not the next chunk, or the content does not have its digest.
        """
        try:
            parts = json.loads(line)
            named = _Named(parts["tenant"], parts["digest"], parts["size_bytes"])
            n, data = parts["n"], base64.b64decode(parts["data"], validate=True)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument(f"{where} is not a chunk of a large value: {error}") from error
        if n == 0:
            self.end(where)
            self._named, self._left_bytes = named, named.size_bytes
            self._blob = run(self._connection, blobs.open_blob(named.tenant))
        if named != self._named:
            raise InvalidArgument(f"{where} has chunk {n} of a large value, without those before")
        if data:
            run(self._connection, blobs.add_chunk(self._blob, n, data))
        self._left_bytes -= len(data)
        if self._left_bytes <= 0:
            self._named = None
            if run(self._connection, blobs.finish_blob(self._blob)) != named[1:]:
                raise InvalidArgument(f"{where}: the large value {named.digest} is damaged")

    def end(self, where: str) -> None:
        """Refuse what comes before the last chunk of a large value.

        Raises:
            InvalidArgument: A chunk is missing.
        """
        if self._named is not None:
            raise InvalidArgument(f"{where} comes before the end of {self._named.digest}")
