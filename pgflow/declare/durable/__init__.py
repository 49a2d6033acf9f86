"""Durable runs of declared workflows: the same graphs that are drawn and dry-run, for good.

`execute_workflow` runs one to its end. `freeze` makes a document of a workflow with every text that
a run of it can read, and `declared` is the workflow of pgflow that runs such a document::

    app = AsyncApp(include=[declared])
    async with app, app.worker():
        frozen = freeze(parse_workflow("flows/review.yaml"))
        run = await app.start(declared, frozen, Settings(cwd="."), "PR 7")
        print((await run.result()).output)
"""

from __future__ import annotations

from pgflow.declare.durable.children import missing_inputs
from pgflow.declare.durable.executing import execute_workflow
from pgflow.declare.durable.freezing import freeze, refuse_unbuilt
from pgflow.declare.durable.frozen import Frozen, Settings
from pgflow.declare.durable.parameters import wanted_inputs
from pgflow.declare.durable.results import Result, WorkflowFailed
from pgflow.declare.durable.workflow import declared

__all__ = [
    "Frozen", "Result", "Settings", "WorkflowFailed", "declared", "execute_workflow", "freeze",
    "missing_inputs", "refuse_unbuilt", "wanted_inputs",
]  # fmt: skip
