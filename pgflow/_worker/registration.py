"""Registers a worker: the database assigns its number, and records its lanes and code."""

from __future__ import annotations

import os
import socket
from typing import Any

from pgflow._db.calls import budgets, declare
from pgflow._db.calls import worker as calls
from pgflow._flow.workflow import Workflow
from pgflow._model.protocol import CodeRow
from pgflow._worker.context import WorkerContext
from pgflow._worker.lanes import Lanes
from pgflow._worker.parts import quietly
from pgflow.schema import own_assets


class Registration:
    """Registers a worker. The worker's :class:`Life` keeps the number."""

    def __init__(self, context: WorkerContext, lanes: Lanes) -> None:
        self._control = context.control
        self._life = context.life
        self._definitions = context.definitions
        self._options = context.options
        self._lanes = lanes

    async def register(self, *, is_patient: bool = True) -> None:
        """Register the worker. With `is_patient` False, as at its start, a missing or forbidden
        function raises at once.
        """
        options, definitions = self._options, self._definitions
        worker_id = await self._control.insist(
            calls.register_worker(
                socket.gethostname(),
                os.getpid(),
                options.queues,
                options.concurrency,
                own_assets().stamp.brief,
                str(own_assets().stamp),
            ),
            is_patient=is_patient,
        )
        self._life.registered(worker_id)
        codes = [
            code_of(name, workflow, is_readable=definitions.envelopes is None)
            for name, workflow in self._definitions.workflows.items()
        ]
        await self._control.insist(calls.register_code(worker_id, codes))
        if definitions.pools:
            await self._control.insist(
                budgets.declare_pools(definitions.pools), is_patient=is_patient
            )
        if definitions.queues:
            await self._control.insist(
                declare.declare_queues(definitions.queues), is_patient=is_patient
            )
        await self._lanes.look(self._control.insist)

    async def release_stuck(self) -> None:
        """Release runs that older code could not replay, for this code to try."""
        await self._control.insist(
            calls.release_stuck(
                {name: workflow.code_hash for name, workflow in self._definitions.workflows.items()}
            )
        )

    async def end(self) -> None:
        """Remove the worker from the table of workers."""
        if self._life.worker_id:
            await quietly(self._control.ask(calls.leave_worker(self._life.worker_id)))


def code_of(name: str, workflow: Workflow[..., Any], *, is_readable: bool = True) -> CodeRow:
    """Return the registration of a workflow that a worker serves under a name, which may be an old
    one.

    Args:
        name: The name.
        workflow: The workflow.
        is_readable: True if its values may be read in the database: the app has no codec.
    """
    alias_of = workflow.name if name != workflow.name else None
    shapes = {signal.name: signal.codec.shape for signal in workflow.signals}
    return CodeRow(
        name,
        workflow.version,
        workflow.code_hash,
        workflow.is_pinned,
        alias_of,
        workflow.patches,
        shapes,
        workflow.defaults_text if is_readable else None,
        workflow.parameters,
    )
