"""Absurd's SDK for Python, by its public surface and its defaults."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from absurd_sdk import Absurd

from bench.engines import jobs, kit

RUNS_FINISHED = "select count(*) from absurd.t_default where state = 'completed'"
STEPS_RECORDED = "select count(*) from absurd.c_default"
CLAIM_SECONDS = 120


def install(bench: kit.Bench) -> None:
    """The schema that comes with the command line, and a queue."""
    command = [str(Path(sys.executable).with_name("absurdctl")), "init", "-d", bench.dsn]
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "PGDATABASE": bench.dsn}
    )
    client = Absurd(bench.dsn, queue_name="default")
    client.create_queue("default")
    client.close()


def client_of(bench: kit.Bench) -> Absurd:
    client = Absurd(bench.dsn, queue_name="default")

    @client.register_task(name="ten_steps")
    def ten_steps(params: Any, ctx: Any) -> Any:
        jobs.FIRST.hit()
        for i in range(10):
            ctx.step(f"small-{i}", lambda i=i: {"i": i})
        return params

    @client.register_task(name="job")
    def job(params: Any, _ctx: Any) -> None:
        jobs.body(params)

    @client.register_task(name="stamp")
    def stamp(_params: Any, _ctx: Any) -> float:
        return time.time()

    @client.register_task(name="poked")
    def poked(params: Any, ctx: Any) -> None:
        sent = ctx.await_event(f"poke-{params['i']}")
        kit.say(late=time.time() - sent["at"])

    @client.register_task(name="long")
    def long(params: Any, ctx: Any) -> None:
        for i in range(params["steps"]):
            ctx.step(f"small-{i}", lambda i=i: {"i": i})
        sent = ctx.await_event("poke")
        kit.say(late=time.time() - sent["at"])

    @client.register_task(name="nap")
    def nap(params: Any, ctx: Any) -> None:
        due = ctx.step("due", lambda: time.time() + params["seconds"])
        ctx.sleep_until("nap", due)
        kit.say(late=time.time() - due)

    @client.register_task(name="ten_slow_steps")
    def ten_slow_steps(_params: Any, ctx: Any) -> None:
        for i in range(10):
            ctx.step(f"slow-{i}", partial(_slow, i))

    return client


def _slow(i: int) -> int:
    time.sleep(0.05)
    return i


def work(bench: kit.Bench) -> None:
    """A worker process."""
    client = client_of(bench)
    kit.ready(wait=bench.sizes.get("wait", False))
    client.start_worker(
        worker_id=str(os.getpid()),
        concurrency=bench.sizes.get("concurrency", 8),
        claim_timeout=bench.sizes.get("dead_after", CLAIM_SECONDS),
    )


# ---------------------------------------------------------------- steps


def steps(bench: kit.Bench) -> kit.Figures:
    """Ten steps a run, with so many runs at once in the threads of a worker, and alone."""
    figures: kit.Figures = {}
    given = 0
    client = client_of(bench)
    for concurrency in (128, 32):
        runs = bench[f"runs_at_{concurrency}"]
        for i in range(runs):
            client.spawn("ten_steps", {"x": i})
        given += runs
        with kit.Worker(bench, wait=True, concurrency=concurrency).wait_until_ready() as worker:
            cpu_before, _ = worker.usage()
            worker.tell("go")
            seconds = bench.wait_for(RUNS_FINISHED, given) - worker.said("first")[0]
            cpu_after, _ = worker.usage()
        figures[f"steps_per_second_at_{concurrency}"] = runs * 10 / seconds
        figures[f"client_cpu_seconds_per_1000_steps_at_{concurrency}"] = (
            (cpu_after - cpu_before) / runs * 100
        )
    runs = bench["runs_at_1"]
    for i in range(runs):
        client.spawn("ten_steps", {"x": i})
    with kit.Span() as span:
        for _ in range(runs):
            client.work_batch(batch_size=1)
    figures["steps_per_second_at_1"] = runs * 10 / span.seconds
    figures["client_cpu_seconds_per_1000_steps_at_1"] = span.cpu_seconds / runs * 100
    bench.check("steps recorded", STEPS_RECORDED, (given + runs) * 10)
    with kit.settings_of(bench, "absurd.c_default"):
        client.spawn("ten_steps", {"x": 0})
        client.work_batch(batch_size=1)
    return figures


def accounts(bench: kit.Bench) -> kit.Figures:
    """Measure the server's work for a run of ten steps, and for one that does nothing."""

    def work(runs: int) -> None:
        client = client_of(bench)
        for i in range(runs):
            client.spawn("ten_steps", {"x": i})
            client.work_batch(batch_size=1)
        client.close()

    alone = kit.marginal_costs(bench, work, bench["few"], bench["runs_at_1"])
    return {
        **alone.figures("run_at_1"),
        **alone.wal_figures("step_at_1", 10),
        **jobs.accounts(bench, Queue(), int(bench.scalar(RUNS_FINISHED))),
    }


# ---------------------------------------------------------------- as a queue


class Queue:
    """See :class:`bench.engines.jobs.Jobs`; there is no call that takes many at once."""

    done = RUNS_FINISHED
    table = "absurd.t_default"

    async def open(self, bench: kit.Bench) -> None:
        self._client = client_of(bench)

    async def close(self) -> None:
        self._client.close()

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        assert not delay_seconds
        self._client.spawn("job", payload)

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        for payload in payloads:
            self._client.spawn("job", payload)


drain = partial(jobs.drain, jobs=Queue(), notes_settings=False)
enqueue = partial(jobs.enqueue, jobs=Queue())


# ---------------------------------------------------------------- latency, recovery, history


def latency(bench: kit.Bench) -> kit.Figures:
    """A start, a signal, the news of a result."""
    figures = jobs.start_latency(bench, Queue())
    client = client_of(bench)
    with kit.Worker(bench).wait_until_ready() as worker:
        results = []
        for _ in range(bench["results"]):
            snapshot = client.await_task_result(client.spawn("stamp", {})["task_id"])
            results.append(time.time() - snapshot.result)
        count = bench["signals"]
        for i in range(count):
            client.spawn("poked", {"i": i})
        bench.wait_for("select count(*) from absurd.t_default where state = 'sleeping'", count)
        for i in range(count):
            client.emit_event(f"poke-{i}", {"at": time.time()})
            time.sleep(jobs.pause_seconds())
        signals = worker.said("late", count)
    return {
        **figures,
        **kit.latency("result_latency", results),
        **kit.latency("signal_latency", signals),
    }


def timers(bench: kit.Bench) -> kit.Figures:
    """Measure how late sleeping runs go on."""
    client = client_of(bench)
    for _ in range(bench["timers"]):
        client.spawn("nap", {"seconds": bench["seconds"]})
    with kit.Worker(bench).wait_until_ready() as worker:
        return kit.latency("timer_lateness", worker.said("late", bench["timers"]))


def recovery(bench: kit.Bench) -> kit.Figures:
    """kill -9 of a worker: when its first run went on elsewhere, beyond the time of its claims."""
    client = client_of(bench)
    for i in range(bench["runs"]):
        client.spawn("ten_slow_steps", {"x": i})
    dead_after = max(int(bench["dead_after"]), 1)
    options = {"concurrency": bench["runs"], "dead_after": dead_after}
    with kit.Worker(bench, **options).wait_until_ready() as doomed:
        bench.wait_for(STEPS_RECORDED, bench["runs"])
        doomed.kill()
    killed = time.time()
    before = int(bench.scalar(STEPS_RECORDED))
    with kit.Worker(bench, **options):
        went_on = bench.wait_for(STEPS_RECORDED, before + 1)
        bench.wait_for(RUNS_FINISHED, bench["runs"])
    return {"recovery_beyond_timeout_seconds": went_on - killed - dead_after}


def replay(bench: kit.Bench) -> kit.Figures:
    """Measure from an event to the line after the wait, behind a long history."""
    client = client_of(bench)
    with kit.Worker(bench).wait_until_ready() as worker:
        client.spawn("long", {"steps": bench["steps"]})
        bench.wait_for("select count(*) from absurd.t_default where state = 'sleeping'", 1)
        client.emit_event("poke", {"at": time.time()})
        late = worker.said("late")
    bench.check(
        "steps recorded",
        "select count(*) from absurd.c_default where checkpoint_name like 'small-%'",
        bench["steps"],
    )
    return {"replay_of_1000_steps_ms": late[0] * 1000 * 1000 / bench["steps"]}


if __name__ == "__main__":
    kit.main(globals())
