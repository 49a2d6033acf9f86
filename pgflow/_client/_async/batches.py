"""Batches: many runs, and one that begins once all of them have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pgflow._client._async.handles import AsyncRun
from pgflow._client._async.queues import AsyncQueues
from pgflow._client.batches import parts_of
from pgflow._db.calls import batches, start
from pgflow._db.query import Steps
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.workflow import Workflow
from pgflow._model.batches import BatchCount

R = TypeVar("R")
T = TypeVar("T")


class AsyncBatches(AsyncQueues):
    """The part of a client that starts and counts batches."""

    _interceptors: list[Interceptor]

    async def _perform(self, make: Callable[[int], Steps[T]], *, once: bool) -> T:
        raise NotImplementedError

    def _run_handle(
        self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None
    ) -> AsyncRun[Any]:
        raise NotImplementedError

    def _started(self, started: start.Started) -> None:
        raise NotImplementedError

    async def start_batch(
        self,
        workflow: Workflow[..., Any],
        inputs: Iterable[tuple[Any, ...]],
        *,
        then: Workflow[..., R],
        args: tuple[Any, ...] = (),
        keys: Iterable[str] | None = None,
        on_failure: Workflow[..., Any] | None = None,
        failure_args: tuple[Any, ...] = (),
    ) -> AsyncRun[R]:
        """Start many runs, and one that begins once all of them have ended, with any outcome.

        It is sent in parts of 5,000 runs, each a transaction; through :meth:`App.using` all of it
        is in the caller's. If it was cut short, call it again with the same key: existing runs are
        not started twice.

        Args:
            workflow: Workflow of the members.
            inputs: The arguments of each member.
            then: Workflow of the run that waits for them. Its ``options(key=...)`` names the batch.
            args: Arguments of that run.
            keys: The key of each member; the key of the batch and a number if not given. Each
                member has the label ``batch``, too, which is the key of the batch.
            on_failure: Workflow of a run that begins as soon as the first member has failed, once.
                Its key is that of the batch with ``/failed`` behind it, and its label ``failed``
                is the key of that member.
            failure_args: Arguments of that run.

        Returns:
            Handle of the run that waits.

        Raises:
            KeyConflict: A key names another run; nothing of that part was started.
            InvalidArgument: The options of ``then`` or ``on_failure`` say themselves when it
                begins.
            WrongState: The batch is over, or its run was started without one.
        """
        failure = None if on_failure is None else (on_failure, failure_args)
        for part in parts_of(
            workflow, inputs, then, args, keys, self._interceptors, self._envelopes, failure
        ):
            waits, members = await self._perform(part.statements, once=False)
            if members:
                self._started(members[0])
        return self._run_handle(waits.key, then, waits.chain_id)

    async def count_batch(self, key: str) -> BatchCount:
        """Count the members of a batch by status.

        Args:
            key: Key of the run that waits for them.

        Raises:
            RunNotFound: No run that has a batch has the key.
        """
        return await self._ask(batches.count_batch(key))
