"""Savers: the checkpoints of graphs in the database of an app.

They have all that the interface of the framework has, copies, pruning and channels of deltas too.
``PgflowSaver`` takes an ``App``, ``AsyncPgflowSaver`` an ``AsyncApp``. Both read what the other has
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from pgflow import App, AsyncApp
from pgflow.agent.langgraph._async_checkpoints import AsyncCheckpoints
from pgflow.agent.langgraph._sync_checkpoints import Checkpoints
from pgflow.agent.langgraph.bridge import OnTheirLoop, handed_over
from pgflow.agent.langgraph.checkpoint import checkpoint_puts, next_version, write_puts
from pgflow.documents import AsyncDocuments, Documents

P = ParamSpec("P")
T = TypeVar("T")


def _named(config: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
    """Return the config of a checkpoint that was put."""
    asked = config["configurable"]
    return {
        "configurable": {
            "thread_id": asked["thread_id"],
            "checkpoint_ns": asked.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint_id,
        }
    }


def in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the async method that calls a sync one in a thread."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    return call


class PgflowSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of graphs. Its async methods are the sync ones, in a thread.

    Args:
        app: The app whose database has them, and whose codec seals them.
        serde: Another serialiser of the framework, such as one with an allowlist of classes.
            Pickled values are refused.

    Example::

        graph = builder.compile(checkpointer=PgflowSaver(app))
    """

    def __init__(self, app: App, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._checkpoints = Checkpoints(Documents(app))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Returns the next version of a channel."""
        return next_version(current)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns the checkpoint of a config, or the newest one of its thread."""
        return self._checkpoints.find(self.serde, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yields checkpoints, of each thread and namespace the newest first."""
        return self._checkpoints.list(self.serde, config, filter, before, limit)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint with the values that are new in it, all at once."""
        puts = checkpoint_puts(self.serde, config, checkpoint, metadata, new_versions)
        self._checkpoints.put(puts)
        return _named(config, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores what a task has written after a checkpoint."""
        self._checkpoints.put(write_puts(self.serde, config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Deletes all of a thread."""
        self._checkpoints.delete_thread(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes what these runs have made. It looks through all threads."""
        self._checkpoints.delete_for_runs(self.serde, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all of a thread."""
        self._checkpoints.copy_thread(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes all checkpoints of threads but the newest, or these too (``delete``).

        Ancestors stay as far as the channels of deltas of the newest need them.
        """
        self._checkpoints.prune(self.serde, thread_ids, strategy)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As :meth:`list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    aget_tuple = in_thread(get_tuple)
    aput = in_thread(put)
    aput_writes = in_thread(put_writes)
    adelete_thread = in_thread(delete_thread)
    adelete_for_runs = in_thread(delete_for_runs)
    acopy_thread = in_thread(copy_thread)
    aprune = in_thread(prune)


class AwaitedSaver(OnTheirLoop, BaseCheckpointSaver[str]):
    """Keeps the checkpoints of graphs that are called by ``ainvoke`` and ``astream``. In other
    threads than that of its event loop, sync methods work too: for ``def`` nodes.

    Args:
        app: The app whose database has them, and whose codec seals them.
        serde: Another serialiser of the framework; see :class:`PgflowSaver`.

    Example::

        graph = builder.compile(checkpointer=AsyncPgflowSaver(app))
    """

    def __init__(self, app: AsyncApp, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._checkpoints = AsyncCheckpoints(AsyncDocuments(app))
        self._stay()

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Returns the next version of a channel."""
        return next_version(current)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns the checkpoint of a config, or the newest one of its thread."""
        self._stay()
        return await self._checkpoints.find(self.serde, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yields checkpoints, of each thread and namespace the newest first."""
        async for found in self._checkpoints.list(self.serde, config, filter, before, limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint with the values that are new in it, all at once."""
        self._stay()
        puts = checkpoint_puts(self.serde, config, checkpoint, metadata, new_versions)
        await self._checkpoints.put(puts)
        return _named(config, checkpoint["id"])

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores what a task has written after a checkpoint."""
        await self._checkpoints.put(write_puts(self.serde, config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes all of a thread."""
        await self._checkpoints.delete_thread(str(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes what these runs have made. It looks through all threads."""
        await self._checkpoints.delete_for_runs(self.serde, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all of a thread."""
        await self._checkpoints.copy_thread(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes all checkpoints of threads but the newest; see :meth:`PgflowSaver.prune`."""
        await self._checkpoints.prune(self.serde, thread_ids, strategy)

    get_tuple = handed_over(aget_tuple)
    put = handed_over(aput)
    put_writes = handed_over(aput_writes)
    delete_thread = handed_over(adelete_thread)
    delete_for_runs = handed_over(adelete_for_runs)
    copy_thread = handed_over(acopy_thread)
    prune = handed_over(aprune)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """As :meth:`alist`, in a thread."""
        found = self.alist(config, filter=filter, before=before, limit=limit)
        while (one := self._hand_over(_next(found))) is not None:
            yield one


async def _next(found: AsyncIterator[CheckpointTuple]) -> CheckpointTuple | None:
    return await anext(found, None)
