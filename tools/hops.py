"""Count how far a reader walks to follow a run: `python -m tools.hops DSN`.

A workflow of one step goes from `start` to its result, and a signal to a parked run to its, in one
process with one worker. For each trip you get the Python calls inside pgflow, the functions and the
files that they are in, and the number of times that a call goes to another file than its caller.
Each trip is made several times, and the shortest counts: in the others, loops of the worker had a
round of their own. The database needs the schema; runs stay in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import pgflow

PRODUCT = f"{Path(pgflow.__file__).parent}{os.sep}"
PATIENCE = timedelta(minutes=1)
TRIPS = 6

word = pgflow.Signal("word", int)


@pgflow.step
async def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


@pgflow.workflow
async def one_step() -> int:
    """Call one step."""
    return await add(1, 2)


@pgflow.workflow
async def parks() -> int:
    """Wait for one signal."""
    return await word.wait()


class Walk:
    """Counts the calls of this thread, which does all but what bodies do in theirs."""

    def __init__(self) -> None:
        self.calls = 0
        self.turns = 0
        self.codes: set[CodeType] = set()

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PRODUCT):
            return
        self.calls += 1
        self.codes.add(code)
        caller = frame.f_back
        self.turns += caller is not None and caller.f_code.co_filename != code.co_filename

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def __str__(self) -> str:
        files = {code.co_filename for code in self.codes}
        return f"{self.calls:6} {len(self.codes):6} {len(files):6} {self.turns:6}"


async def walk_one_step(app: pgflow.AsyncApp) -> None:
    """Start a run of one step, and wait for its result."""
    run = await app.start(one_step)
    await run.result(timeout=PATIENCE)


async def walk_signal(app: pgflow.AsyncApp, walk: Walk) -> None:
    """Send a signal to a parked run, and wait for its result."""
    run = await app.start(parks)
    while await run.status() != "waiting":  # noqa: ASYNC110  the database has no event for it
        await asyncio.sleep(0.01)
    with walk:
        await run.send(word, 1)
        await run.result(timeout=PATIENCE)


async def measure(dsn: str) -> None:
    """Print a line for each trip."""
    app = pgflow.AsyncApp(dsn, include=[one_step, parks])
    print(" calls  funcs  files  turns")
    async with app, app.worker():
        steps, signals = list[Walk](), list[Walk]()
        for _ in range(TRIPS):
            with Walk() as walk:
                await walk_one_step(app)
            steps.append(walk)
            signals.append(walk := Walk())
            await walk_signal(app, walk)
        print(min(steps, key=turns), "a run of one step, from start to result")
        print(min(signals, key=turns), "a signal to a parked run, to its result")


def turns(walk: Walk) -> int:
    """Return how often a walk went to another file."""
    return walk.turns


def main() -> None:
    """Measure both trips."""
    parser = argparse.ArgumentParser(prog="python -m tools.hops", description=__doc__)
    parser.add_argument("dsn", help="a database with the schema")
    asyncio.run(measure(parser.parse_args().dsn))


if __name__ == "__main__":
    main()
