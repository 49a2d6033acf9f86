"""Runs of declared workflows in tests: a file made of a few lines, started, worked on, and what
became of it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import psycopg

from pgflow import RunCancelled, RunFailed
from pgflow.declare import parse_workflow
from pgflow.declare.durable import declared, freeze
from pgflow.declare.durable.frozen import Settings

HEAD = "name: w\ndescription: d\n"
MARK = Path(tempfile.gettempdir(), f"pgflow-injected-{os.getpid()}")
"""File that is there if a value has run."""
MARK.unlink(missing_ok=True)  # left by another process of this number

WITNESS = """
alive="alive-${PGFLOW_STEP//\\//:}"
echo "$PGFLOW_STEP begins" >> witness; sync witness
test ! -e "$alive" || ! kill -0 $(cat "$alive") 2>/dev/null || echo "$PGFLOW_STEP twice" >> witness
echo $$ > "$alive"
sleep 0.15
echo "$PGFLOW_STEP ends" >> witness; sync witness
"""
"""A shell's line in the file of witnesses, which also says if another of its kind is alive."""


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
    inputs, budget = options.pop("inputs", None), options.pop("budget", None)
    options["has_budget"] = budget is not None
    settings = Settings(cwd=options.pop("cwd", str(path.parent)), **options)
    frozen = freeze(parse_workflow(path))
    if declared.name not in aflow.app.definitions.workflows:
        aflow.include(declared)
    workflow = declared.options(key=key, budget=budget)
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


def recorded(conn: psycopg.Connection, key: str) -> set[str]:
    """Keys of the steps of a run that have ended well, but for the look at its folder."""
    rows = conn.execute(
        "select step from pgflow.steps where key = %s and status = 'completed' "
        "union select name from pgflow.decisions where key = %s",
        (key, key),
    )
    return {name for (name,) in rows} - {"pgflow.folder"}


def seen(folder: Path) -> Counter[str]:
    """Lines of the file of witnesses, and how often each is there."""
    path = folder / "witness"
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()
