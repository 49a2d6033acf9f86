"""Checkpoints as documents: their paths and their values, without a database.

A checkpoint is one document, each value of a channel one for each version of it, and each pending
write one. So a value that does not change is stored once, however many checkpoints have it. The
paths begin with thread and namespace: what belongs to a thread is a folder in each collection.

A document holds 1 MiB. What is longer, such as a message with an image, is cut into parts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from pgflow.agent.langgraph.values import from_json, to_json
from pgflow.documents import Document, Put

CHECKPOINTS = "langgraph.checkpoint"
VALUES = "langgraph.value"
WRITES = "langgraph.write"
PARTS = "langgraph.part"
COLLECTIONS = (PARTS, VALUES, WRITES, CHECKPOINTS)
"""All of them; the one that makes the others visible is last."""

Path = tuple[str, ...]
PART_CHARACTERS = 256 * 1024
"""Length of a part. As a string in JSON it may be twice as long."""
NAMESPACE = "ns:"
"""Beginning of the name of a namespace in a path: the one of a graph itself is empty."""


def thread_of(config: RunnableConfig) -> str:
    """Return the id of the thread."""
    return str(config["configurable"]["thread_id"])


def folder_of(config: RunnableConfig) -> Path:
    """Return the folder of a thread and a namespace."""
    return thread_of(config), NAMESPACE + config["configurable"].get("checkpoint_ns", "")


def config_of(path: Path) -> RunnableConfig:
    """Return the config of a checkpoint at this path."""
    thread, namespace, checkpoint_id = path
    configurable = {
        "thread_id": thread,
        "checkpoint_ns": namespace.removeprefix(NAMESPACE),
        "checkpoint_id": checkpoint_id,
    }
    return {"configurable": configurable}


def next_version(current: Any) -> str:
    """Return a version of a channel behind this one, which no other branch of the thread has."""
    number = 0 if current is None else int(str(current).partition(".")[0])
    return f"{number + 1:032}.{secrets.token_hex(8)}"


def value_paths(folder: Path, versions: ChannelVersions) -> dict[str, Path]:
    """Return the path of each channel's value in these versions."""
    return {channel: (*folder, channel, str(version)) for channel, version in versions.items()}


def checkpoint_puts(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> list[Put]:
    """Return the documents of a checkpoint and of the values that are new in it."""
    folder, values = folder_of(config), checkpoint["channel_values"]
    puts = [
        Put(VALUES, path, to_json(serde, values[channel], f"channel {channel!r}"))
        for channel, path in value_paths(folder, new_versions).items()
        if channel in values
    ]
    rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
    stored = {
        "checkpoint": to_json(serde, rest, "a checkpoint"),
        "metadata": to_json(serde, get_checkpoint_metadata(config, metadata), "its metadata"),
        "parent": config["configurable"].get("checkpoint_id"),
    }
    return [*puts, Put(CHECKPOINTS, (*folder, checkpoint["id"]), stored)]


def write_puts(
    serde: SerializerProtocol,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> list[Put]:
    """Return the documents of pending writes. A write that is there stays, but for the marks of a
    task: its error, say.
    """
    folder = (*folder_of(config), config["configurable"]["checkpoint_id"], task_id)
    puts = []
    for n, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, n)
        stored = {
            "channel": channel,
            "value": to_json(serde, value, f"a write to channel {channel!r}"),
            "task_path": task_path,
        }
        puts.append(Put(WRITES, (*folder, str(index)), stored, once=index >= 0))
    return puts


def part_folder(collection: str, path: Path) -> Path:
    """Return the folder of the parts of a document."""
    return (*path[:2], collection, *path[2:])


def parted(puts: Iterable[Put]) -> list[Put]:
    """Return documents with those that are too long cut into parts."""
    found = []
    for put in puts:
        text = json.dumps(put.value)
        if len(text) <= 2 * PART_CHARACTERS:
            found.append(put)
            continue
        folder = part_folder(put.collection, put.path)
        for n, start in enumerate(range(0, len(text), PART_CHARACTERS)):
            part = text[start : start + PART_CHARACTERS]
            found.append(Put(PARTS, (*folder, f"{n:06}"), part, once=put.once))
        found.append(Put(put.collection, put.path, {"$parts": True}, once=put.once))
    return found


def is_parted(value: Any) -> bool:
    """Return True if a document has its value in parts."""
    return value == {"$parts": True}


def tuple_of(
    serde: SerializerProtocol,
    document: Document,
    values: dict[Path, Any],
    writes: Iterable[tuple[Path, Any]],
) -> CheckpointTuple:
    """Return a checkpoint of what is stored."""
    folder, parent = document.path[:2], document.value["parent"]
    checkpoint = from_json(serde, document.value["checkpoint"])
    checkpoint["channel_values"] = {
        channel: from_json(serde, values[path])
        for channel, path in value_paths(folder, checkpoint["channel_versions"]).items()
        if path in values
    }
    return CheckpointTuple(
        config_of(document.path),
        checkpoint,
        from_json(serde, document.value["metadata"]),
        config_of((*folder, parent)) if parent else None,
        [
            (path[3], write["channel"], from_json(serde, write["value"]))
            for path, write in sorted(writes, key=_place)
        ],
    )


def _place(stored: tuple[Path, Any]) -> tuple[str, str, int]:
    path, write = stored
    return writes_sort_key(write["task_path"], path[3], int(path[4]))


def versions_of(serde: SerializerProtocol, document: Document) -> ChannelVersions:
    """Return the versions of the channels in a checkpoint that is stored."""
    versions: ChannelVersions = from_json(serde, document.value["checkpoint"])["channel_versions"]
    return versions


def matches(metadata: dict[str, Any], wanted: dict[str, Any] | None) -> bool:
    """Return True if metadata have all that is wanted."""
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())


def kept(
    serde: SerializerProtocol, documents: Sequence[Document], values: Iterable[Path]
) -> list[Document]:
    """Return those of a namespace's checkpoints, the newest first, that must stay where only the
    newest is wanted.

    A channel of deltas has no value of its own in most checkpoints: it is made of the writes since
    the last one that has. So the ancestors back to that one stay, too.
    """
    by_id = {document.path[2]: document for document in documents}
    stored = set(values)
    latest = documents[0]
    metadata = from_json(serde, latest.value["metadata"])
    missing = set(metadata.get("counters_since_delta_snapshot") or ())
    result: list[Document] = []
    current: Document | None = latest
    while current is not None:
        result.append(current)
        paths = value_paths(current.path[:2], versions_of(serde, current))
        missing -= {channel for channel, path in paths.items() if path in stored}
        current = by_id.get(current.value["parent"]) if missing else None
    return result
