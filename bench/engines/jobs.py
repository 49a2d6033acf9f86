"""The measurements that any queue allows, the same way for all: taking jobs in, working them off,
starting one soon, delaying one.

An engine brings a :class:`Jobs`. Its workers are processes of their own, started once the jobs are
there and timed from the first body: what a library does to start up is not its speed.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Protocol

from bench.engines import kit

FIRST = kit.First()


class Jobs(Protocol):
    """An engine as a queue of jobs.

    Attributes:
        done: A query that answers how many jobs are finished.
        table: A table that changes whenever a job does.
    """

    done: str
    table: str

    async def open(self, bench: kit.Bench) -> None:
        """Connects as a client."""

    async def close(self) -> None:
        """Closes every connection."""

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        """Commits one job."""

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        """Commits so many jobs at once."""


def body(payload: dict[str, Any]) -> None:
    """Do a job: next to nothing."""
    FIRST.hit()
    if "sent" in payload:
        kit.say(late=time.time() - payload["sent"])


async def fill(jobs: Jobs, count: int, batch: int = 500) -> None:
    """Put in so many jobs that do nothing."""
    for first in range(0, count, batch):
        await jobs.put_many([{"x": i} for i in range(first, min(first + batch, count))])


def drain(
    bench: kit.Bench, jobs: Jobs, *, notes_settings: bool = True, **options: Any
) -> kit.Figures:
    """Jobs a second that one worker finishes, and its processor time; with these options, where an
    engine has its own.
    """
    runs = bench["runs"]

    async def prepare() -> None:
        await jobs.open(bench)
        await fill(jobs, runs)
        await jobs.close()

    asyncio.run(prepare())
    with kit.Worker(bench, wait=True, **options).wait_until_ready() as worker:
        cpu_before, _ = worker.usage()
        worker.tell("go")
        ended = bench.wait_for(jobs.done, runs)
        began = worker.said("first")[0]
        cpu_after, _ = worker.usage()
    bench.check("jobs finished", jobs.done, runs)
    if notes_settings:
        _note_settings(bench, jobs)
    return {
        "noop_runs_per_second": runs / (ended - began),
        "client_cpu_seconds_per_1000_noop_runs": (cpu_after - cpu_before) / runs * 1000,
    }


def _note_settings(bench: kit.Bench, jobs: Jobs) -> None:
    """One more job, with an eye on the settings of the sessions that commit its changes."""

    async def one() -> None:
        await jobs.open(bench)
        await jobs.put({"x": -1})
        await jobs.close()

    with kit.settings_of(bench, jobs.table):
        done = int(bench.scalar(jobs.done))
        asyncio.run(one())
        with kit.Worker(bench).wait_until_ready():
            bench.wait_for(jobs.done, done + 1)


def enqueue(bench: kit.Bench, jobs: Jobs) -> kit.Figures:
    """Jobs a second that one connection takes in, many a commit and one a commit."""

    async def measure() -> kit.Figures:
        await jobs.open(bench)
        await fill(jobs, bench["batch"], bench["batch"])
        with kit.Span() as batched:
            await fill(jobs, bench["batched"], bench["batch"])
        with kit.Span() as single:
            for i in range(bench["single"]):
                await jobs.put({"x": i})
        await jobs.close()
        return {
            "batched_starts_per_second": bench["batched"] / batched.seconds,
            "single_starts_per_second": bench["single"] / single.seconds,
        }

    return asyncio.run(measure())


def start_latency(bench: kit.Bench, jobs: Jobs, **options: Any) -> kit.Figures:
    """Milliseconds from before a job is put to its first line, in another process that has nothing
    else to do.
    """
    count, warm = bench["starts"], 3

    async def measure() -> kit.Figures:
        await jobs.open(bench)
        with kit.Worker(bench, **options).wait_until_ready() as worker:
            await asyncio.sleep(bench["settle_seconds"])
            for _ in range(warm + count):
                await jobs.put({"sent": time.time()})
                await asyncio.sleep(pause_seconds())
            late = await asyncio.to_thread(worker.said, "late", warm + count)
        await jobs.close()
        return kit.latency("start_latency", late[warm:])

    return asyncio.run(measure())


def pause_seconds() -> float:
    """Between two things whose delays are measured, so that nothing falls into step."""
    return random.uniform(0.02, 0.1)


def timers(bench: kit.Bench, jobs: Jobs) -> kit.Figures:
    """Milliseconds by which delayed jobs begin too late."""
    count, seconds = bench["timers"], bench["seconds"]

    async def measure() -> kit.Figures:
        await jobs.open(bench)
        with kit.Worker(bench).wait_until_ready() as worker:
            for _ in range(count):
                await jobs.put({"sent": time.time() + seconds}, seconds)
            late = await asyncio.to_thread(worker.said, "late", count)
        await jobs.close()
        return kit.latency("timer_lateness", late)

    return asyncio.run(measure())


def accounts(bench: kit.Bench, jobs: Jobs, given: int = 0) -> kit.Figures:
    """Measure the server's work for a job that does nothing, from putting it in to its end."""

    def work(count: int) -> None:
        nonlocal given
        given += count
        asyncio.run(_put_one_by_one(bench, jobs, count))
        with kit.Worker(bench).wait_until_ready():
            bench.wait_for(jobs.done, given)

    costs = kit.marginal_costs(bench, work, bench["few"], bench["noop_runs"]).figures("noop_run")
    del costs["client_cpu_ms_per_noop_run"]  # another process did the work
    return costs


async def _put_one_by_one(bench: kit.Bench, jobs: Jobs, count: int) -> None:
    await jobs.open(bench)
    for i in range(count):
        await jobs.put({"x": i})
    await jobs.close()
