"""DBOS as its documentation offers for throughput: several processes, each with threads and
connections for its share of the runs.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bench.engines import dbos, kit

PROCESSES = 2
"""As many as there are processors."""

install = dbos.install


def steps(bench: kit.Bench) -> kit.Figures:
    """Ten steps a run, with so many runs at once, each in a thread of one of the processes."""
    figures: kit.Figures = {}
    given = 0
    for concurrency in (128, 32):
        runs = bench[f"runs_at_{concurrency}"] // PROCESSES
        with ExitStack() as stack:
            workers = [
                stack.enter_context(
                    kit.Worker(bench, number=n, threads=concurrency // PROCESSES, runs=runs)
                )
                for n in range(PROCESSES)
            ]
            for worker in workers:
                worker.wait_until_ready()
            cpu_seconds = -sum(worker.usage()[0] for worker in workers)
            with kit.Span() as span:
                for worker in workers:
                    worker.tell("go")
                for worker in workers:
                    worker.said("done", timeout_seconds=kit.PATIENCE_SECONDS)
            cpu_seconds += sum(worker.usage()[0] for worker in workers)
        made = runs * PROCESSES
        given += made + PROCESSES
        figures[f"steps_per_second_at_{concurrency}"] = made * 10 / span.seconds
        figures[f"client_cpu_seconds_per_1000_steps_at_{concurrency}"] = cpu_seconds / made * 100
    bench.check("steps recorded", dbos.STEPS_RECORDED, given * 10)
    return figures


def work(bench: kit.Bench) -> None:
    """One of the processes: ready once it is connected, and after a run that is not measured."""
    threads = bench["threads"]
    os.environ["DBOS__VMID"] = f"bench-{bench['number']}"
    dbos.launch(bench, sys_db_pool_size=threads, max_executor_threads=threads)
    dbos.ten_steps(-1)
    kit.ready(wait=True)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(dbos.ten_steps, range(bench["runs"])))
    kit.say(done=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    kit.main(globals())
