"""Workers of agents that die at a point they were told, and the book of what they did: roles of a
nursery (`tests.campaigns.nursery`).

Points are places in the agent's own functions, by name, and commits: ``before the commit of`` a
step, and ``after`` it, when the server has it and the worker has not heard so. The book is a file,
each line of which is on the disk before anything else happens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pgflow
from pgflow import AsyncApp
from pgflow._db.calls import commit as commit_calls
from pgflow._engine.flush import Flush
from pgflow._worker.executor import Executor
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow.authority import Pool

RHYTHM = Rhythm(beat=1.0, look=0.3, dead_after=5.0)
"""Patience of workers among themselves; the dead are buried at once by the one who plays."""
POOL = Pool("play", usd=1_000_000)
ASKED, ANSWERED, ENDED = "the question", "the answer", "the end"
"""Commits that have no name of a step."""


@dataclass
class Fate:
    """The arrival, and the point, at which this process dies; never, if there is none."""

    point: str = ""
    arrivals: int = 1
    book: Path = Path(os.devnull)

    def arrive(self, point: str) -> bool:
        """Return True if it is time to die."""
        if point != self.point:
            return False
        self.arrivals -= 1
        return self.arrivals <= 0


fate = Fate()


def arrive(point: str) -> None:
    """Come by a point, and die there if it is time."""
    if fate.arrive(point):
        die()


def die() -> None:
    """End as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def witness(kind: str) -> None:
    """Write down that the body of a step was here, under the step's key."""
    line = f"{pgflow.run_info().key}\t{kind}\t{pgflow.idempotency_key()}\n"
    file = os.open(fate.book, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


def serve(dsn: str, flows: Sequence[Any], *, point: str, arrivals: int, book: str) -> None:
    """Work until it is time to die, or until somebody ends it.

    Args:
        dsn: The database.
        flows: Its workflows.
        point: Place at which it is to die; empty for none.
        arrivals: The arrival at which it does.
        book: File of what it did.
    """
    logging.disable(logging.CRITICAL)
    random.seed()
    fate.point, fate.arrivals, fate.book = point, arrivals, Path(book)
    _watch()
    asyncio.run(_work(dsn, flows))


async def _work(dsn: str, flows: Sequence[Any]) -> None:
    options = WorkerOptions(concurrency=8, poll_seconds=0.2, rhythm=RHYTHM)
    async with AsyncApp(dsn, include=flows, pools=[POOL]) as app, app._work(options):
        await asyncio.Event().wait()


def labels(flush: Flush) -> Iterator[str]:
    """Say what a run's part of a commit has: outcomes by the names of steps, what is asked at a
    gate, an answer that is taken, the end.
    """
    yield from (row.name for row in flush.rows if row.name)
    question = flush.question or {}
    if "new_gates" in question:
        yield ASKED
    if "gates" in question:
        yield ANSWERED
    if flush.ending is not None:
        yield ENDED


def _watch() -> None:
    """Have this process die before or after commits, if it is to."""
    original = Executor.execute

    async def execute(
        self: Executor, wire: Any, items: list[Any], server: Any, *, careful: bool
    ) -> Any:
        found = [label for _, flush in items for label in labels(flush)]
        for label in found:
            arrive(f"before the commit of {label}")
        if any(fate.arrive(f"after the commit of {label}") for label in found):
            apart: list[str] = []
            document = self._document(items, apart)
            await wire.ask(commit_calls.commit_units(document, apart, careful=careful))
            die()
        return await original(self, wire, items, server, careful=careful)

    Executor.execute = execute  # type: ignore[method-assign]
