"""Rates of entities and locks, on one key and on sixteen: ``python -m tests.rates DSN``.

Prints figures and judges none. The database must have the schema.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pgflow
from pgflow import AsyncApp, step, workflow

CALLERS = 32
"""Callers at once, and runs at once."""


@pgflow.entities.entity("rates counter")
@dataclass
class Counter:
    """A number that everybody raises."""

    n: int = 0

    @pgflow.entities.update
    def add(self, n: int) -> int:
        """Raises it."""
        self.n += n
        return self.n


@step
async def touch(fence: int) -> int:
    """Stands for what a lock protects."""
    return fence


@workflow
async def updating(key: str, times: int) -> None:
    """Raises a counter from a run."""
    for _ in range(times):
        await Counter.add(key, 1)


@workflow
async def locking(key: str, times: int) -> None:
    """Takes a lock and gives it back."""
    for _ in range(times):
        async with pgflow.lock(key) as fence:
            await touch(fence)


async def rate_of(seconds: float, keys: int, act: Callable[[str], Awaitable[object]]) -> float:
    """Return how often a second callers have acted, over so many keys."""
    done, end = 0, time.monotonic() + seconds

    async def call(number: int) -> None:
        nonlocal done
        while time.monotonic() < end:
            await act(f"rate/{keys}/{number % keys}")
            done += 1

    began = time.monotonic()
    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    return done / (time.monotonic() - began)


async def rate_in_runs(app: AsyncApp, kind: str, keys: int, times: int) -> float:
    """Return how often a second runs have acted, each so many times, over so many keys."""
    flow = updating if kind == "updates" else locking
    began = time.monotonic()
    runs = [await app.start(flow, f"run/{keys}/{i % keys}", times) for i in range(CALLERS)]
    for run in runs:
        await run.result()
    return CALLERS * times / (time.monotonic() - began)


async def main() -> None:
    """Measures, and prints one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--times", type=int, default=20, help="Updates and locks of each run.")
    options = parser.parse_args()
    async with (
        AsyncApp(options.dsn, include=[updating, locking]) as app,
        app.worker(concurrency=CALLERS, transaction_connections=16),
    ):
        for keys in (1, 16):
            rate = await rate_of(options.seconds, keys, lambda key: app.update(Counter.add, key, 1))
            print(f"app.update, {keys:2} keys, {CALLERS} callers: {rate:8,.0f}/s", flush=True)
        for kind in ("updates", "locks"):
            for keys in (1, 16):
                rate = await rate_in_runs(app, kind, keys, options.times)
                print(f"{kind} in runs, {keys:2} keys, {CALLERS} runs: {rate:8,.0f}/s", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
