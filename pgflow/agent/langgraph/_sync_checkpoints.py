# Made by tools/colours.py from pgflow/agent/langgraph/_async_checkpoints.py; edit that one.
"""The checkpoints of threads in a database: what the savers of both colours do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.base import SerializerProtocol

from pgflow.agent.langgraph.checkpoint import (
    CHECKPOINTS,
    COLLECTIONS,
    PARTS,
    VALUES,
    WRITES,
    Path,
    folder_of,
    is_parted,
    kept,
    matches,
    part_folder,
    parted,
    thread_of,
    tuple_of,
    value_paths,
    versions_of,
)
from pgflow.agent.langgraph.values import from_json
from pgflow.documents import Document, Documents, Put
from pgflow.errors import InvalidArgument

BATCH = 50
"""Documents that are copied at once."""


class Checkpoints:
    """The checkpoints of a database.

    Args:
        documents: Its documents.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def put(self, puts: Sequence[Put]) -> None:
        """Writes documents, all at once."""
        self._documents.put(parted(puts))

    def find(self, serde: SerializerProtocol, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns the checkpoint that a config names, or the newest one of its namespace."""
        folder, checkpoint_id = folder_of(config), get_checkpoint_id(config)
        if checkpoint_id:
            named = self._documents.get(CHECKPOINTS, [(*folder, checkpoint_id)])
            found = list(named.values())
        else:
            found = self._documents.list(CHECKPOINTS, folder, descending=True, most=1)
        return self._read(serde, found[0]) if found else None

    def _read(self, serde: SerializerProtocol, document: Document) -> CheckpointTuple:
        paths = value_paths(document.path[:2], versions_of(serde, document))
        found = self._documents.get(VALUES, paths.values())
        values = {path: self._whole(VALUES, value) for path, value in found.items()}
        writes = [
            (write.path, self._whole(WRITES, write))
            for write in self._documents.walk(WRITES, document.path)
        ]
        return tuple_of(serde, document, values, writes)

    def _whole(self, collection: str, document: Document) -> Any:
        """Returns the value of a document, put together if it is in parts."""
        if not is_parted(document.value):
            return document.value
        folder = part_folder(collection, document.path)
        parts = [part.value for part in self._documents.walk(PARTS, folder)]
        return json.loads("".join(parts))

    def list(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig | None,
        wanted: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        """Yields checkpoints, of each thread and namespace the newest first."""
        folder: Path = ()
        if config is not None:
            is_one = "checkpoint_ns" in config["configurable"]
            folder = folder_of(config) if is_one else (thread_of(config),)
        only = get_checkpoint_id(config) if config else None
        end = get_checkpoint_id(before) if before else None
        left = limit
        for document in self._documents.walk(CHECKPOINTS, folder, descending=True):
            checkpoint_id = document.path[2]
            if (only and checkpoint_id != only) or (end and checkpoint_id >= end):
                continue
            if not matches(from_json(serde, document.value["metadata"]), wanted):
                continue
            if left is not None:
                if left <= 0:
                    return
                left -= 1
            yield self._read(serde, document)

    def delete_thread(self, thread: str) -> None:
        """Deletes all of a thread, its checkpoints first."""
        for collection in reversed(COLLECTIONS):
            self._documents.delete_folder(collection, (thread,))

    def delete_for_runs(self, serde: SerializerProtocol, runs: Iterable[str]) -> None:
        """Deletes the checkpoints that these runs have made. It looks through all threads."""
        names = set(runs)
        gone = [
            document
            for document in self._documents.walk(CHECKPOINTS)
            if from_json(serde, document.value["metadata"]).get("run_id") in names
        ]
        self._drop(serde, gone)

    def copy_thread(self, source: str, target: str) -> None:
        """Copies all of a thread, its checkpoints last."""
        for collection in COLLECTIONS:
            puts = []
            for document in self._documents.walk(collection, (source,)):
                puts.append(Put(collection, (target, *document.path[1:]), document.value))
                if len(puts) == BATCH:
                    self._documents.put(puts)
                    puts = []
            self._documents.put(puts)

    def prune(self, serde: SerializerProtocol, threads: Iterable[str], strategy: str) -> None:
        """Delete all checkpoints of threads but the newest of each namespace, or with the strategy
        ``delete`` these too.

        Raises:
            InvalidArgument: The strategy is unknown, or the threads are one text.
        """
        if isinstance(threads, str):
            raise InvalidArgument(f"prune() takes a list of thread ids, not the text {threads!r}")
        if strategy not in ("keep_latest", "delete"):
            raise InvalidArgument(f"strategy={strategy!r} is neither 'keep_latest' nor 'delete'")
        for thread in threads:
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._keep_latest(serde, thread)

    def _keep_latest(self, serde: SerializerProtocol, thread: str) -> None:
        namespaces: dict[Path, list[Document]] = {}
        for document in self._documents.walk(CHECKPOINTS, (thread,), descending=True):
            namespaces.setdefault(document.path[:2], []).append(document)
        for folder, documents in namespaces.items():
            values = [value.path for value in self._documents.walk(VALUES, folder)]
            stay = {document.path for document in kept(serde, documents, values)}
            self._drop(serde, [each for each in documents if each.path not in stay])

    def _drop(self, serde: SerializerProtocol, documents: Sequence[Document]) -> None:
        """Deletes checkpoints with their writes, and the values that no other checkpoint has."""
        self._documents.delete(CHECKPOINTS, [document.path for document in documents])
        for document in documents:
            self._documents.delete_folder(WRITES, document.path)
            self._documents.delete_folder(PARTS, part_folder(WRITES, document.path))
        for folder in {document.path[:2] for document in documents}:
            used: set[Path] = set()
            for document in self._documents.walk(CHECKPOINTS, folder):
                used.update(value_paths(folder, versions_of(serde, document)).values())
            values = [value.path for value in self._documents.walk(VALUES, folder)]
            self._documents.delete(VALUES, [path for path in values if path not in used])
            parts = self._documents.walk(PARTS, (*folder, VALUES))
            used_folders = {part_folder(VALUES, path) for path in used}
            gone = [part.path for part in parts if part.path[:-1] not in used_folders]
            self._documents.delete(PARTS, gone)
