"""Blobs: values that are too large for the journal, such as files, images or long answers.

The journal holds a small reference, a :class:`Blob`. The content is stored in chunks beside it, in
the transaction of the step that returns the reference: both are there, or neither. Equal contents
are stored once for each tenant. They stay until the last run that names them is removed.

``AsyncBlobs`` and ``Blobs`` take the connection of a transactional step, to store and to read; or
an app, to read.

Example::

    @pgflow.transaction
    def fetch(connection: psycopg.Connection, path: str) -> Blob:
        with open(path, "rb") as file:
            return Blobs(connection).store(iter(lambda: file.read(65536), b""))
"""

from pgflow._model.blobs import Blob
from pgflow.blobs._async_blobs import AsyncBlobs
from pgflow.blobs._sync_blobs import Blobs

__all__ = ["AsyncBlobs", "Blob", "Blobs"]
