"""Workers of files that die at a commit they were told: the role of a nursery
(`tests.campaigns.nursery`).

Each writes down what its commits carry, before they leave. So whoever plays knows at which commits
a worker can die, and how far a run has come.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "apps"))

import declared_agents  # noqa: F401 - so that no child has to import it
import jsonschema  # noqa: F401
import sop_agents  # noqa: F401

from pgflow import AsyncApp
from pgflow._db.calls import commit as commit_calls
from pgflow._engine.flush import Flush
from pgflow._worker.executor import Executor
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow.declare.durable import declared

RHYTHM = Rhythm(beat=0.2, look=0.05, dead_after=1.0)
COMMITS = "commits"
"""File with the labels of all commits, a line each."""


def files(dsn: str, *, folder: str, at: list[str] | None = None) -> None:
    """Works on files until it is killed.

    Args:
        dsn: The database.
        folder: Folder of the run.
        at: Commit at which it dies: ``before`` or ``after``, and a label of it.
    """
    logging.disable(logging.CRITICAL)
    random.seed()
    _watch(Path(folder, COMMITS), at or ["", ""])
    asyncio.run(_work(dsn))


async def _work(dsn: str) -> None:
    options = WorkerOptions(["declared"], concurrency=8, poll_seconds=0.2, rhythm=RHYTHM)
    async with AsyncApp(dsn, include=[declared]) as app, app._work(options):
        await asyncio.Event().wait()


def labels(flush: Flush) -> Iterator[str]:
    """Labels of a run's part of a commit: outcomes by name, starts of bodies, a park, an end."""
    yield from (row.name or row.kind for row in flush.rows)
    yield from (f"start of {call.spec.name}" for call in flush.starts)
    if flush.question and flush.question.get("park"):
        yield "park"
    if flush.ending is not None:
        yield "end"


def _watch(path: Path, at: list[str]) -> None:
    """Write down each commit, and die at the one that was named."""
    original = Executor.execute
    when, wanted = at

    async def execute(
        self: Executor, wire: Any, items: list[Any], server: Any, *, careful: bool
    ) -> Any:
        found = [label for _, flush in items for label in labels(flush)]
        with path.open("a") as file:
            file.writelines(f"{label}\n" for label in found)
        if wanted in found and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if wanted in found and when == "after":
            apart: list[str] = []
            document = self._document(items, apart)
            await wire.ask(commit_calls.commit_units(document, apart, careful=careful))
            os.kill(os.getpid(), signal.SIGKILL)
        return await original(self, wire, items, server, careful=careful)

    Executor.execute = execute  # type: ignore[method-assign]
