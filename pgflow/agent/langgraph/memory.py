"""The checkpoints of a thread while a run works on it: in memory, since the journal keeps the rest.

A run reads the newest checkpoint of its thread once. What its graph stores after that stays here
until the graph has ended, and is written then in one transaction with the outcome of a step: all of
it once, however often the run is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

import pgflow
from pgflow.agent.colour import perform
from pgflow.agent.langgraph._async_checkpoints import AsyncCheckpoints
from pgflow.agent.langgraph.checkpoint import checkpoint_puts, next_version, write_puts
from pgflow.agent.langgraph.values import from_json, to_json
from pgflow.documents import AsyncDocuments, Put


class ThreadMemory(InMemorySaver):
    """The checkpoints of a thread in a run.

    Attributes:
        puts: Documents of all that was stored since the run has read the thread.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__(serde=serde)
        self.puts: list[Put] = []

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Returns the next version of a channel."""
        return next_version(current)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keeps a checkpoint."""
        self.puts += checkpoint_puts(self.serde, config, checkpoint, metadata, new_versions)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keeps what a task has written."""
        self.puts += write_puts(self.serde, config, writes, task_id, task_path)
        super().put_writes(config, writes, task_id, task_path)

    def take(self, stored: list[Any]) -> None:
        """Takes the checkpoints of :func:`load`, the newest first."""
        for parts in reversed(stored):
            saved = CheckpointTuple(*(from_json(self.serde, part) for part in parts))
            config = {"configurable": dict(saved.config["configurable"])}
            config["configurable"].pop("checkpoint_id")
            if saved.parent_config:
                parent = saved.parent_config["configurable"]["checkpoint_id"]
                config["configurable"]["checkpoint_id"] = parent
            versions = saved.checkpoint["channel_versions"]
            self.put(config, saved.checkpoint, saved.metadata, versions)  # type: ignore[arg-type]
            for task_id, channel, value in saved.pending_writes or ():
                self.put_writes(saved.config, [(channel, value)], task_id)
        self.puts = []


async def load(serde: SerializerProtocol, config: RunnableConfig) -> list[Any]:
    """Reads the newest checkpoint of a thread, and those that its channels of deltas need."""

    async def load_thread(connection: psycopg.AsyncConnection[Any]) -> list[Any]:
        checkpoints = AsyncCheckpoints(AsyncDocuments(connection))
        found = await checkpoints.find(serde, config)
        stored: list[Any] = []
        missing = set((found and found.metadata.get("counters_since_delta_snapshot")) or ())
        while found is not None:
            stored.append([to_json(serde, part, "a checkpoint") for part in found])
            missing -= found.checkpoint["channel_values"].keys()
            parent = found.parent_config if missing else None
            found = await checkpoints.find(serde, parent) if parent else None
        return stored

    found: list[Any] = await perform(pgflow.transaction(load_thread))
    return found


async def save(puts: list[Put]) -> None:
    """Writes documents, in one transaction with the outcome of the step."""

    async def save_thread(connection: psycopg.AsyncConnection[Any]) -> None:
        await AsyncDocuments(connection).put(puts)

    if puts:
        await perform(pgflow.transaction(save_thread))
