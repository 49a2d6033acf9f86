"""Runs of declared workflows in tests: a file made of a few lines, started, worked on, and what
became of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from pgflow import RunCancelled, RunFailed
from pgflow.declare import parse_workflow
from pgflow.declare.durable import declared, freeze
from pgflow.declare.durable.frozen import Settings

HEAD = "name: w\ndescription: d\n"


def write(folder: Path, nodes: str, more: str = "", name: str = "w") -> Path:
    """A workflow file of these nodes, written as the items of a YAML list."""
    path = folder / f"{name}.yaml"
    head = HEAD.replace("name: w", f"name: {name}")
    path.write_text(
        f"{head}{dedent(more).strip()}\nnodes:\n{indent(dedent(nodes).strip(), '  ')}\n"
    )
    return path


@dataclass
class Run:
    """Outcome of a run.

    Attributes:
        status: Its status.
        output: Words of it.
        error: Reason of its failure or cancel.
        ends: Entries on the nodes that ended.
    """

    status: str
    output: str = ""
    error: str = ""
    ends: list[dict[str, Any]] = field(default_factory=list)

    @property
    def states(self) -> dict[str, str]:
        """The states of its nodes, the last round of each."""
        return {end["id"]: end["state"] for end in self.ends}


async def start(aflow: Any, path: Path, message: str = "", key: str | None = None, **options: Any):
    """Starts a run of a file in its own folder."""
    inputs = options.pop("inputs", None)
    settings = Settings(cwd=options.pop("cwd", str(path.parent)), **options)
    frozen = freeze(parse_workflow(path))
    if declared.name not in aflow.app.definitions.workflows:
        aflow.include(declared)
    workflow = declared if key is None else declared.options(key=key)
    return await aflow.start(workflow, frozen, settings, message, inputs or {})


async def ended(run: Any) -> Run:
    """The outcome of a run that has nothing left to do."""
    answer = Run(await run.status())
    if answer.status == "completed":
        answer.output = (await run.result()).output
    elif answer.status in ("failed", "cancelled"):
        try:
            with contextlib.suppress(TypeError):
                await run.result()
        except RunFailed as error:
            answer.error = str(error.__cause__)
        except RunCancelled as error:
            answer.error = str(error)
    answer.ends = [end async for end in run.stream("nodes")] if answer.status in ENDED else []
    return answer


ENDED = ("completed", "failed", "cancelled")


async def play(aflow: Any, path: Path, message: str = "", **options: Any) -> Run:
    """Runs a file to its end, or until it waits for somebody."""
    run = await start(aflow, path, message, **options)
    await aflow.until_idle()
    return await ended(run)
