"""Selftest: the speed of a server and this machine together, measured in a database of its own.

The workflows do nothing, so that what is measured is pgflow, Postgres and the way between them.
Nothing here is compared with anything else; `python -m bench` in the repository does that.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgflow import AsyncApp, AsyncRun, step, workflow
from pgflow.schema import migrate_dsn
from pgflow_cli.look.failures import Mistake

STEPS = 10
TOGETHER = 100
BATCH, FEW = 200, 5

BUSY_SHARE = 0.7
"""A process that computes for so much of the time is what the others wait for."""


@step
async def selftest_step(i: int) -> int:
    return i


@workflow
async def selftest_steps(x: int) -> int:
    for i in range(STEPS):
        await selftest_step(i)
    return x


@workflow
async def selftest_stamp() -> float:
    return time.perf_counter()  # pgflow: ignore[PF101] when the code runs is what is measured


def measure(dsn: str, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Return all figures, and their bottleneck, in about so many seconds."""
    with scratch_database(dsn) as scratch:
        say("commits")
        figures = measure_commits(scratch, seconds * 0.2)
        figures |= asyncio.run(_measure_runs(scratch, seconds * 0.8, say))
    return {**figures, **judge(figures)}


@contextmanager
def scratch_database(dsn: str) -> Iterator[str]:
    """A database beside the one that is named, with the schema; dropped in the end.

    Raises:
        Mistake: The role may not make one.
    """
    name = f"pgflow_bench_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        try:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise Mistake(
                "this role may not make a database to measure in: "
                "name one who may (createdb) with --dsn"
            ) from error
        try:
            scratch = make_conninfo(dsn, dbname=name)
            migrate_dsn(scratch)
            yield scratch
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


# ---------------------------------------------------------------- the server alone


def measure_commits(dsn: str, seconds: float) -> dict[str, Any]:
    """Measure a round trip and a commit, in milliseconds, and the part of a commit that waits for
    the disk.
    """
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as conn:
        conn.execute("create table selftest (i int)")
        settings = {
            name: str(_scalar(conn, f"show {name}")) for name in ("fsync", "synchronous_commit")
        }
        trip_ms = _median_ms(lambda: conn.execute("select 1"), seconds / 3)
        commit_ms = _median_ms(lambda: conn.execute("insert into selftest values (1)"), seconds / 3)
        conn.execute("set synchronous_commit = off")
        unsynced_ms = _median_ms(
            lambda: conn.execute("insert into selftest values (1)"), seconds / 3
        )
    return {
        **settings,
        "round_trip_ms": trip_ms,
        "commit_ms": commit_ms,
        "sync_ms": max(0.0, commit_ms - unsynced_ms),
    }


def _scalar(conn: psycopg.Connection[Any], query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def _median_ms(action: Callable[[], object], seconds: float) -> float:
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


# ---------------------------------------------------------------- runs


async def _measure_runs(dsn: str, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    async with AsyncApp(dsn, include=[selftest_steps, selftest_stamp]) as app:
        say("runs together")
        figures = await _together(app, seconds * 0.5)
        say("runs alone")
        figures |= await _alone(app, seconds * 0.25)
        say("latency")
        return {**figures, **await _latency(app, seconds * 0.25)}


async def _together(app: AsyncApp, seconds: float) -> dict[str, Any]:
    """Many runs at once, in batches until the time is over."""
    started = starting = working = computing = 0.0
    while started == 0 or starting + working < seconds:
        began = time.perf_counter()
        runs = await app.start_many(selftest_steps, [(i,) for i in range(BATCH)])
        starting += time.perf_counter() - began
        started += BATCH
        wall, processor = await _work_off(app, runs, TOGETHER)
        working += wall
        computing += processor
    return {
        "starts_per_second": started / starting,
        "steps_per_second": started * STEPS / working,
        "client_busy": computing / working,
    }


async def _alone(app: AsyncApp, seconds: float) -> dict[str, Any]:
    """One run at a time."""
    started, working = 0, 0.0
    while started == 0 or working < seconds:
        runs = await app.start_many(selftest_steps, [(i,) for i in range(FEW)])
        working += (await _work_off(app, runs, 1))[0]
        started += FEW
    return {"steps_per_second_alone": started * STEPS / working}


async def _work_off(
    app: AsyncApp, runs: list[AsyncRun[int]], concurrency: int
) -> tuple[float, float]:
    """Seconds of wall and of processor for runs that are there already."""
    async with app.worker(concurrency=concurrency):
        began, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(run.result() for run in runs))
        return time.perf_counter() - began, time.process_time() - processor


async def _latency(app: AsyncApp, seconds: float) -> dict[str, Any]:
    """Measure the time from a start to the first line of its workflow,
    where nothing else goes on.
    """
    taken: list[float] = []
    async with app.worker():
        end = time.perf_counter() + seconds
        while len(taken) < 5 or time.perf_counter() < end:
            began = time.perf_counter()
            run = await app.start(selftest_stamp)
            taken.append(await run.result() - began)
            await asyncio.sleep(0.01)
    taken.sort()
    return {
        "start_latency_p50_ms": statistics.median(taken) * 1000,
        "start_latency_p99_ms": taken[int(len(taken) * 0.99)] * 1000,
    }


# ---------------------------------------------------------------- what limits it


def judge(figures: dict[str, Any]) -> dict[str, str]:
    """Return the verdict on what limits a run alone, and many runs."""
    alone = _server_limit(figures)
    together = "python" if figures["client_busy"] >= BUSY_SHARE else alone
    verdict = f"{_ALONE[alone]}. {_TOGETHER[together]}.".format(**figures)
    if "off" in (figures["fsync"], figures["synchronous_commit"]):
        verdict += " Commits are not synced here, so a durable server is slower."
    return {"limit_alone": alone, "limit_together": together, "verdict": verdict}


def _server_limit(figures: dict[str, Any]) -> str:
    if figures["sync_ms"] >= figures["commit_ms"] / 2:
        return "disk"
    return "network" if figures["round_trip_ms"] >= figures["commit_ms"] / 2 else "server"


_ALONE = {
    "disk": "A run alone waits for the disk: {sync_ms:.2g} of the {commit_ms:.2g} ms of a commit",
    "network": "A run alone waits for the network: {round_trip_ms:.2g} of the {commit_ms:.2g} ms "
    "of a commit are the way there and back",
    "server": "A run alone waits for the server: a commit takes {commit_ms:.2g} ms, and neither "
    "disk nor network explain it",
}
_TOGETHER = {
    "python": "Many runs wait for this process, which computes for {client_busy:.0%} of the time: "
    "start more worker processes",
    "disk": "Many runs share their commits and still wait for the disk: faster storage for the "
    "WAL, or more runs at once",
    "network": "Many runs share their round trips and still wait for the network: bring workers "
    "closer, or work on more runs at once",
    "server": "Many runs wait for the server: see what else it does, then its processors",
}
