"""The registration of a worker: the database knows it by a number,
with the lanes and the code that it serves.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from pgflow._db.calls import budgets
from pgflow._db.calls import worker as calls
from pgflow._flow.workflow import Workflow
from pgflow._version import __version__
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.lanes import Lanes
from pgflow._worker.life import Life
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.supervision import quietly
from pgflow.schema import own_assets


class Registration:
    """See the module. The number is kept by the :class:`Life` of the worker."""

    def __init__(
        self,
        control: WorkerConnection,
        life: Life,
        lanes: Lanes,
        definitions: Definitions,
        options: WorkerOptions,
    ) -> None:
        self._control = control
        self._life = life
        self._lanes = lanes
        self._workflows = definitions.workflows
        self._is_readable = definitions.envelopes is None
        self._pools = definitions.pools
        self._options = options

    async def register(self, *, is_patient: bool = True) -> None:
        """Registers; at the start of a worker what is missing or forbidden is said at once."""
        options = self._options
        worker_id = await self._control.insist(
            calls.register_worker(
                socket.gethostname(),
                os.getpid(),
                options.queues,
                options.concurrency,
                __version__,
                str(own_assets().stamp),
            ),
            is_patient=is_patient,
        )
        self._life.registered(worker_id)
        codes = [
            code_of(name, workflow, is_readable=self._is_readable)
            for name, workflow in self._workflows.items()
        ]
        await self._control.insist(calls.register_code(worker_id, codes))
        if self._pools:
            await self._control.insist(budgets.declare_pools(self._pools), is_patient=is_patient)
        await self._lanes.look(self._control.insist)

    async def release_stuck(self) -> None:
        """Releases runs that older code could not replay, for this code to try."""
        await self._control.insist(
            calls.release_stuck(
                {name: workflow.code_hash for name, workflow in self._workflows.items()}
            )
        )

    async def end(self) -> None:
        """Says that the worker is no more."""
        if self._life.worker_id:
            await quietly(self._control.ask(calls.leave_worker(self._life.worker_id)))


def code_of(name: str, workflow: Workflow[..., Any], *, is_readable: bool = True) -> calls.Code:
    """Return the registration of a workflow that a worker serves under a name,
    which may be an old one.

    Args:
        name: The name.
        workflow: It.
        is_readable: True if its values may be read in the database: the app has no codec.
    """
    alias_of = workflow.name if name != workflow.name else None
    shapes = {signal.name: signal.codec.shape for signal in workflow.signals}
    return calls.Code(
        name,
        workflow.version,
        workflow.code_hash,
        workflow.is_pinned,
        alias_of,
        workflow.patches,
        shapes,
        workflow.defaults_text if is_readable else None,
    )
