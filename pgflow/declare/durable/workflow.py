"""The durable run of a declared workflow: one workflow of pgflow runs any graph.

Each turn of an agent, each shell, check, child and question is a step, under a key that names its
place and every round around it. So what has been done is never done again, whatever becomes of the
worker.
"""

from __future__ import annotations

from typing import Final

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.families import player_of
from pgflow.declare.durable.frozen import Frozen, Settings
from pgflow.declare.durable.logfile import tail
from pgflow.declare.durable.long import KIND, is_there
from pgflow.declare.durable.results import Result, WorkflowFailed
from pgflow.declare.durable.worktrees import entered, left, wants_one

QUEUE: Final = "declared"
"""Queue of these runs. Their workers must see the folders that they work in."""


@pgflow.workflow(name="pgflow.declared", queue=QUEUE, raises=[WorkflowFailed])
async def declared(
    frozen: Frozen,
    settings: Settings,
    message: str = "",
    inputs: dict[str, JsonValue] | None = None,
) -> Result:
    """Run a declared workflow.

    Args:
        frozen: The workflow, with every text that it can read.
        settings: Its settings.
        message: Words of the person who starts it.
        inputs: Values of its inputs; the others have their defaults.
    """
    is_apart = wants_one(frozen.graph, settings)
    if is_apart:
        settings = await entered(settings)
    make = player_of(frozen.graph.family)
    player = make(declared, frozen, settings, message, inputs or {})
    log = player.log
    log.tell("workflow_start", workflow_name=frozen.graph.name, content=tail(message))
    try:
        async with player.lease:
            result = await player.play()
    except WorkflowFailed as error:
        log.tell("workflow_error", error=tail(str(error)))
        raise
    log.tell("workflow_complete")
    if is_apart:
        await left(settings)
    return result


declared.ref_checkers[KIND] = is_there
