"""The figures: each function measures one thing on an open app and returns {metric: value}.

Steps are sequential `@step`s, each of which is licensed and recorded durably; reads would ride for free and
are not counted. After timing, the outcomes in the journal are counted: a figure for work that was not
recorded would be worth nothing.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import psycopg

from bench import jobs
from pgflow.app import AsyncApp
from pgflow.options import WorkerOptions
from pgflow.worker import Worker

Figures = dict[str, float]


async def _finished(worker: Worker, count: int) -> None:
    while worker.finished < count:
        await asyncio.sleep(0.002)


async def _scalar(app: AsyncApp, query: str) -> Any:
    async with await psycopg.AsyncConnection.connect(app.dsn, autocommit=True) as conn:
        row = await (await conn.execute(query)).fetchone()
        assert row is not None
        return row[0]


async def _start(app: AsyncApp, workflow: Any, count: int) -> None:
    for first in range(0, count, 500):
        await app.start_many(workflow, [(i,) for i in range(first, min(first + 500, count))])


async def _drain(app: AsyncApp, workflow: Any, runs: int, concurrency: int) -> tuple[float, float]:
    """Seconds of wall and of processor that a worker needs for so many runs."""
    await _start(app, workflow, runs)
    async with app._work(WorkerOptions(concurrency=concurrency, queues=("default",))) as worker:
        started, processor = time.perf_counter(), time.process_time()
        await _finished(worker, runs)
        return time.perf_counter() - started, time.process_time() - processor


async def steps(app: AsyncApp, concurrency: int, runs: int) -> Figures:
    """Steps a second, ten to a run, with so many runs at once."""
    before = await _scalar(app, "select count(*) from pgflow.timeline where event = 'step_completed'")
    wal = await _scalar(app, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    wall, processor = await _drain(app, jobs.ten_steps, runs, concurrency)
    wal = await _scalar(app, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn") - wal
    recorded = await _scalar(app, "select count(*) from pgflow.timeline where event = 'step_completed'") - before
    assert recorded == runs * 10, f"{recorded} steps recorded of {runs * 10}"
    return {
        f"steps_per_second_at_{concurrency}": recorded / wall,
        f"client_cpu_seconds_per_1000_steps_at_{concurrency}": processor / recorded * 1000,
        f"wal_bytes_per_step_at_{concurrency}": float(wal) / recorded,
    }


async def transactions(app: AsyncApp, runs: int) -> Figures:
    """Transactional steps a second, one run at a time, and the bare transaction beside them."""
    wall, _ = await _drain(app, jobs.ten_transactions, runs, 1)
    async with await psycopg.AsyncConnection.connect(app.dsn, autocommit=True, prepare_threshold=0) as conn:
        started = time.perf_counter()
        for _ in range(runs * 10):
            await conn.execute("begin")
            await conn.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
            await conn.execute("commit")
        bare = time.perf_counter() - started
    return {"transactional_steps_per_second": runs * 10 / wall, "transactional_step_over_bare_transaction": wall / bare}


async def lone_run(app: AsyncApp, runs: int) -> Figures:
    """Steps a second with one run at a time, and the bare one-row commit beside them."""
    figures = await steps(app, 1, runs)
    async with await psycopg.AsyncConnection.connect(app.dsn, autocommit=True, prepare_threshold=0) as conn:
        started = time.perf_counter()
        for _ in range(runs * 10):
            await conn.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
        bare = (time.perf_counter() - started) / (runs * 10)
    return {**figures, "lone_step_over_bare_commit": 1 / figures["steps_per_second_at_1"] / bare}


async def drain(app: AsyncApp, runs: int) -> Figures:
    """Runs of a workflow that does nothing, a second, one worker."""
    wall, processor = await _drain(app, jobs.noop, runs, 128)
    return {"noop_runs_per_second": runs / wall, "client_cpu_seconds_per_1000_noops": processor / runs * 1000}


async def enqueue(app: AsyncApp, runs: int) -> Figures:
    """Starts a second, in batches of 500 on one connection, and one by one."""
    started = time.perf_counter()
    await _start(app, jobs.noop, runs)
    batched = runs / (time.perf_counter() - started)
    started = time.perf_counter()
    for i in range(500):
        await app.start(jobs.noop, i)
    single = 500 / (time.perf_counter() - started)
    async with app._work(WorkerOptions(concurrency=128, queues=("default",))) as worker:
        await _finished(worker, runs + 500)
    return {"batched_starts_per_second": batched, "single_starts_per_second": single}


async def start_latency(app: AsyncApp, count: int) -> Figures:
    """Milliseconds from a start to the first line of its workflow, and from a signal to the line after the wait."""
    async with app._work(WorkerOptions(queues=("default",))):
        jobs.latencies.clear()
        for _ in range(count):
            await (await app.start(jobs.stamp, time.time())).result()
        starts = sorted(jobs.latencies.values())
        jobs.latencies.clear()
        run = await app.start(jobs.poked, count)
        for i in range(count):
            while await run.status() != "waiting":
                await asyncio.sleep(0.002)
            await run.send(jobs.poke, time.time())
            while len(jobs.latencies) <= i:
                await asyncio.sleep(0.001)
        signals = sorted(jobs.latencies.values())
    return {
        "start_latency_ms_p50": statistics.median(starts) * 1000, "start_latency_ms_p99": starts[int(len(starts) * 0.99)] * 1000,
        "signal_latency_ms_p50": statistics.median(signals) * 1000, "signal_latency_ms_p99": signals[int(len(signals) * 0.99)] * 1000,
    }
