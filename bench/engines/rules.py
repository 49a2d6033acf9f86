"""The measurements of queues with rules, the same way for all: a limit over all workers, one job of
a key at a time, a rate.

Every job writes down when it began and ended, each process in its memory, and all of it goes into a
side table after the timing. A figure counts only if that table has every job, and if the rule held:
jobs that do nothing are timed, then some that last a while show how many ran at once. One machine
has one clock, so times of several processes may be compared.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from typing import Any, Protocol, Self

import psycopg

from bench.engines import jobs, kit

PROCESSES = 2
AT_ONCE = """select coalesce(max(running), 0) from (
    select sum(step) over (partition by {group} order by at, step) as running
    from bench_job, lateral (values (began, 1), (ended, -1)) as e (at, step)) moments"""
MOST_STARTS = """select max(starts) from (
    select count(*) over (order by began range between current row and {window} following) as starts
    from bench_job) windows"""
USED = """select count(*) / whole from bench_job, (
    select min(began) as first, floor(max(began) - min(began)) as whole from bench_job) times
    where began < first + whole group by whole"""
"""Starts a second, over the whole seconds since the first."""
JITTER = 0.1
"""Share of a window by which a body may begin later than its engine has counted it."""

_seen: list[tuple[int, str, float, float]] = []


class RuledJobs(jobs.Jobs, Protocol):
    """An engine whose queues have rules."""

    async def rule(self, bench: kit.Bench, rules: dict[str, Any], /) -> None:
        """Sets ``limit``, ``per_key`` or ``rate`` (a second), where that is said to the database."""


def begin() -> float:
    """Return the time at which a body begins."""
    jobs.FIRST.hit()
    return time.time()


def end(payload: dict[str, Any], began: float) -> None:
    """Writes down that a job has been done."""
    _seen.append((payload["n"], payload["key"], began, time.time()))


def body(payload: dict[str, Any]) -> None:
    """Do a job in a thread of its own."""
    began = begin()
    if payload["seconds"]:
        time.sleep(payload["seconds"])
    end(payload, began)


async def async_body(payload: dict[str, Any]) -> None:
    """Do a job as a coroutine."""
    began = begin()
    if payload["seconds"]:
        await asyncio.sleep(payload["seconds"])
    end(payload, began)


def _write_down() -> dict[str, Any]:
    """Writes down the jobs that this worker process has done."""
    done = list(_seen)
    with (
        psycopg.connect(os.environ[kit.DSN_VARIABLE], autocommit=True) as conn,
        conn.cursor().copy("copy bench_job from stdin") as copy,
    ):
        for row in done:
            copy.write_row(row)
    return {"written": len(done)}


kit.ANSWERS["write"] = _write_down


class _Crew:
    """Worker processes, and the jobs that they are given."""

    def __init__(self, bench: kit.Bench, jobs: RuledJobs, rules: dict[str, Any]) -> None:
        self.bench, self.jobs, self.rules, self.given = bench, jobs, rules, 0
        self._stack = ExitStack()
        with bench.connect() as conn:
            conn.execute("create table bench_job (n int, key text, began float8, ended float8)")

    def give(self, keys: list[str], seconds: float = 0, *, first: bool = False) -> None:
        """Puts in one job for each key, which lasts so long; the first time under the rules."""
        asyncio.run(self._give(keys, seconds, first=first))

    async def _give(self, keys: list[str], seconds: float, *, first: bool) -> None:
        await self.jobs.open(self.bench)
        if first:
            await self.jobs.rule(self.bench, self.rules)
        payloads = [
            {"n": n, "key": key, "seconds": seconds} for n, key in enumerate(keys, self.given)
        ]
        for some in range(0, len(payloads), 500):
            await self.jobs.put_many(payloads[some : some + 500])
        self.given += len(payloads)
        await self.jobs.close()

    def __enter__(self) -> Self:
        self._workers = [
            self._stack.enter_context(kit.Worker(self.bench, wait=True, rules=self.rules))
            for _ in range(PROCESSES)
        ]
        for worker in self._workers:
            worker.wait_until_ready()
        for worker in self._workers:
            worker.tell("go")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def until_done(self) -> float:
        """Return the seconds from the first body to the end of all jobs."""
        ended = self.bench.wait_for(self.jobs.done, self.given)
        self._workers[0].usage()  # what it has said before is here by now
        began = [time for worker in self._workers for time in worker.heard("first")]
        return ended - min(began)

    def look_back(self) -> None:
        """Has the jobs written down, and counts them."""
        for worker in self._workers:
            worker.tell("write")
        for worker in self._workers:
            worker.said("written")
        self.bench.check("jobs under rules", "select count(distinct n) from bench_job", self.given)


def _drain(
    bench: kit.Bench,
    queue: RuledJobs,
    rules: dict[str, Any],
    keys: list[str],
    held: list[str],
) -> float:
    """Jobs a second that do nothing; then these keys get jobs that last a while."""
    crew = _Crew(bench, queue, rules)
    crew.give(keys, first=True)
    with crew:
        rate = crew.given / crew.until_done()
        crew.give(held, bench["held_seconds"])
        crew.until_done()
        crew.look_back()
    return rate


def _refuse_above(what: str, most: int, bound: int) -> None:
    if most > bound:
        raise AssertionError(f"{most} {what}, and no more than {bound} were allowed")


def limited(bench: kit.Bench, jobs: RuledJobs) -> kit.Figures:
    """Drain a queue of which so many jobs may run at once, over all workers."""
    limit = bench["limit"]
    rate = _drain(bench, jobs, {"limit": limit}, ["-"] * bench["runs"], ["-"] * 5 * limit)
    most = int(bench.scalar(AT_ONCE.format(group="true")))
    _refuse_above("jobs at once", most, limit)
    return {"limited_runs_per_second": rate, "limit_used_percent": 100 * most / limit}


def keyed(bench: kit.Bench, jobs: RuledJobs) -> kit.Figures:
    """Drain a queue of which one job of each key may run at once."""
    keys = [str(n) for n in range(bench["keys"])]
    some = keys[: max(2, len(keys) // 200)]
    rate = _drain(bench, jobs, {"per_key": 1}, keys * bench["runs_a_key"], some * 4)
    _refuse_above("jobs of a key at once", int(bench.scalar(AT_ONCE.format(group="key"))), 1)
    return {"keyed_runs_per_second": rate}


def rated(bench: kit.Bench, jobs: RuledJobs) -> kit.Figures:
    """Drain a queue of which so many jobs may begin in any second, for so many seconds."""
    rate = bench["rate"]
    crew = _Crew(bench, jobs, {"rate": rate})
    crew.give(["-"] * (rate * bench["seconds"]), first=True)
    with crew:
        crew.until_done()
        crew.look_back()
    window = 1 - JITTER
    most = int(bench.scalar(MOST_STARTS.format(window=window)))
    used = bench.scalar(USED)
    return {"rate_used_percent": 100 * used / rate, "most_starts_percent": 100 * most / rate}
