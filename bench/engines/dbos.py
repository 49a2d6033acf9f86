"""DBOS Transact for Python, by its public surface and its defaults."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, SQLAlchemyDatasource

from bench.engines import jobs, kit, rules

RUNS_FINISHED = "select count(*) from dbos.workflow_status where status = 'SUCCESS'"
STEPS_RECORDED = "select count(*) from dbos.operation_outputs"
QUEUE = "bench"
TOPIC = "poke"


@DBOS.step()
def small(i: int) -> dict[str, int]:
    return {"i": i}


@DBOS.workflow()
def ten_steps(x: int) -> int:
    for i in range(10):
        small(i)
    return x


@DBOS.workflow()
def job(payload: dict[str, Any]) -> None:
    jobs.body(payload)


@DBOS.workflow()
def ruled(payload: dict[str, Any]) -> None:
    rules.body(payload)


@DBOS.workflow()
def stamp() -> float:
    return time.time()


@DBOS.workflow()
def poked(times: int) -> None:
    for _ in range(times):
        sent = DBOS.recv(TOPIC, timeout_seconds=120)
        kit.say(late=time.time() - sent)


@DBOS.workflow()
async def nap(seconds: float) -> float:
    due = time.time() + seconds
    await DBOS.sleep_async(seconds)
    return time.time() - due


@DBOS.step()
def slow(i: int) -> int:
    time.sleep(0.05)
    return i


@DBOS.workflow()
def ten_slow_steps(x: int) -> int:
    for i in range(10):
        slow(i)
    return x


@DBOS.workflow()
def child(i: int) -> int:
    return i


@DBOS.workflow()
def family(children: int) -> int:
    handles = [DBOS.start_workflow(child, i) for i in range(children)]
    return sum(handle.get_result() >= 0 for handle in handles)


def launch(bench: kit.Bench, **config: Any) -> None:
    DBOS(config={"name": "bench", "system_database_url": bench.dsn, "log_level": "ERROR", **config})
    DBOS.launch()


def alchemy_url(bench: kit.Bench) -> str:
    return bench.dsn.replace("postgresql://", "postgresql+psycopg://")


def install(bench: kit.Bench) -> None:
    """Tables, and the queue."""
    launch(bench)
    DBOS.register_queue(QUEUE)
    DBOS.destroy()
    with bench.connect() as conn:
        conn.execute(
            "create table bench_app (id bigint generated always as identity primary key, v jsonb)"
        )


# ---------------------------------------------------------------- steps


def steps(bench: kit.Bench) -> kit.Figures:
    """Ten steps a run, with so many runs at once, each in a thread."""
    figures: kit.Figures = {}
    launch(bench)
    ten_steps(-1)
    given = 1
    for concurrency in (128, 32, 1):
        runs = bench[f"runs_at_{concurrency}"]
        with ThreadPoolExecutor(concurrency) as pool, kit.Span() as span:
            list(pool.map(ten_steps, range(runs)))
        given += runs
        figures[f"steps_per_second_at_{concurrency}"] = runs * 10 / span.seconds
        figures[f"client_cpu_seconds_per_1000_steps_at_{concurrency}"] = (
            span.cpu_seconds / runs * 100
        )
    bench.check("steps recorded", STEPS_RECORDED, given * 10)
    with kit.settings_of(bench, "dbos.operation_outputs"):
        ten_steps(0)
    return figures


def transactional(bench: kit.Bench) -> kit.Figures:
    """Steps of a datasource, one run at a time."""
    source = SQLAlchemyDatasource.create(alchemy_url(bench))

    @source.transaction()
    def insert(i: int) -> int:
        source.sql_session().execute(
            sa.text("insert into bench_app (v) values (cast(:v as jsonb))"), {"v": '{"a": 1}'}
        )
        return i

    @DBOS.workflow()
    def ten_transactions(x: int) -> int:
        for i in range(10):
            insert(i)
        return x

    launch(bench)
    ten_transactions(-1)
    with kit.Span() as span:
        for i in range(bench["runs"]):
            ten_transactions(i)
    bench.check(
        "rows of the application", "select count(*) from bench_app", (bench["runs"] + 1) * 10
    )
    with kit.settings_of(bench, "bench_app"):
        ten_transactions(0)
    return {"transactional_steps_per_second": bench["runs"] * 10 / span.seconds}


def accounts(bench: kit.Bench) -> kit.Figures:
    """Measure the server's work for a run of ten steps, and for one that does nothing."""

    def work(concurrency: int, runs: int) -> None:
        launch(bench)
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(ten_steps, range(runs)))
        DBOS.destroy()

    alone = kit.marginal_costs(bench, partial(work, 1), bench["few"], bench["runs_at_1"])
    given = int(bench.scalar(RUNS_FINISHED))
    return {
        **alone.figures("run_at_1"),
        **alone.wal_figures("step_at_1", 10),
        **jobs.accounts(bench, Queue(), given),
    }


# ---------------------------------------------------------------- as a queue


class Queue:
    """See :class:`bench.engines.jobs.Jobs`."""

    done = RUNS_FINISHED
    table = "dbos.workflow_status"

    async def open(self, bench: kit.Bench) -> None:
        self.client = DBOSClient(system_database_url=bench.dsn)
        self._engine = sa.create_engine(alchemy_url(bench))

    async def close(self) -> None:
        self.client.destroy()
        self._engine.dispose()

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        assert not delay_seconds
        self.client.enqueue({"queue_name": QUEUE, "workflow_name": "job"}, payload)

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        with self._engine.begin() as conn:
            for payload in payloads:
                self.client.enqueue_in_transaction(
                    conn, {"queue_name": QUEUE, "workflow_name": "job"}, payload
                )


drain = partial(jobs.drain, jobs=Queue(), notes_settings=False)
enqueue = partial(jobs.enqueue, jobs=Queue())


RULED = "ruled"
POLL_SECONDS = 0.05
"""Time between two looks at a queue with rules: a limit that is used up waits for the next look,
which is a second by default.
"""


class RuledQueue(Queue):
    """See :class:`bench.engines.rules.RuledJobs`."""

    async def rule(self, bench: kit.Bench, rules: dict[str, Any]) -> None:
        self._has_keys = "per_key" in rules
        options: dict[str, Any] = {
            "global_concurrency": rules.get("limit"),
            "partition_concurrency": rules.get("per_key"),
        }
        if "rate" in rules:
            options["limiter"] = {"limit": rules["rate"], "period": 1.0}
        await asyncio.to_thread(self._register, bench, options)

    def _register(self, bench: kit.Bench, options: dict[str, Any]) -> None:
        launch(bench)
        DBOS.register_queue(RULED, polling_interval_sec=POLL_SECONDS, **options)
        DBOS.destroy()

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        with self._engine.begin() as conn:
            for payload in payloads:
                options: Any = {"queue_name": RULED, "workflow_name": "ruled"}
                if self._has_keys:
                    options["queue_partition_key"] = payload["key"]
                self.client.enqueue_in_transaction(conn, options, payload)


limited = partial(rules.limited, jobs=RuledQueue())
keyed = partial(rules.keyed, jobs=RuledQueue())
rated = partial(rules.rated, jobs=RuledQueue())


def work(bench: kit.Bench) -> None:
    """A worker process."""
    if bench.sizes.get("wait"):
        kit.ready(wait=True)
    launch(bench)
    if not bench.sizes.get("wait"):
        kit.ready()
    while True:
        time.sleep(60)


# ---------------------------------------------------------------- latency


def latency(bench: kit.Bench) -> kit.Figures:
    """A start, a signal, the news of a result."""
    figures = jobs.start_latency(bench, Queue())
    client = DBOSClient(system_database_url=bench.dsn)
    with kit.Worker(bench).wait_until_ready() as worker:
        results = []
        for _ in range(bench["results"]):
            returned = client.enqueue({"queue_name": QUEUE, "workflow_name": "stamp"}).get_result()
            results.append(time.time() - returned)
        count, warm = bench["signals"], 3
        run = client.enqueue(
            {"queue_name": QUEUE, "workflow_name": "poked"}, warm + count
        ).get_workflow_id()
        bench.wait_for(
            "select count(*) from dbos.workflow_status where workflow_uuid = %s and status = "
            "'PENDING'",
            1,
            run,
        )
        time.sleep(1)
        for i in range(warm + count):
            client.send(run, time.time(), TOPIC)
            worker.said("late", i + 1)
            time.sleep(jobs.pause_seconds())
        signals = worker.said("late", warm + count)
    return {
        **figures,
        **kit.latency("result_latency", results),
        **kit.latency("signal_latency", signals[warm:]),
    }


def timers(bench: kit.Bench) -> kit.Figures:
    """Measure how late sleeping runs go on: some at the same moment, and many over a while."""

    async def measure() -> kit.Figures:
        launch(bench)
        some = await asyncio.gather(*[nap(bench["seconds"]) for _ in range(bench["timers"])])
        count, spread = bench["many"], bench["spread_seconds"]
        many = await asyncio.gather(
            *[nap(bench["many_seconds"] + i * spread / count) for i in range(count)]
        )
        return {
            **kit.latency("timer_lateness", some),
            **kit.latency("timer_lateness_under_load", many),
        }

    return asyncio.run(measure())


# ---------------------------------------------------------------- recovery, families, memory


def recovery(bench: kit.Bench) -> kit.Figures:
    """kill -9 of a worker: when the first of its steps was recorded by its successor, which is
    started at once.
    """
    client = DBOSClient(system_database_url=bench.dsn)
    for i in range(bench["runs"]):
        client.enqueue({"queue_name": QUEUE, "workflow_name": "ten_slow_steps"}, i)
    with kit.Worker(bench).wait_until_ready() as doomed:
        bench.wait_for(STEPS_RECORDED, bench["runs"])
        doomed.kill()
    killed = time.time()
    before = int(bench.scalar(STEPS_RECORDED))
    with kit.Worker(bench):
        went_on = bench.wait_for(STEPS_RECORDED, before + 1)
        bench.wait_for(RUNS_FINISHED, bench["runs"])
    bench.check("steps recorded", STEPS_RECORDED, bench["runs"] * 10)
    return {"recovery_beyond_timeout_seconds": went_on - killed}


def fanout(bench: kit.Bench) -> kit.Figures:
    """Child runs a second, from the start of their parent to its result."""
    launch(bench)
    family(2)
    began = time.perf_counter()
    assert family(bench["children"]) == bench["children"]
    return {"children_per_second": bench["children"] / (time.perf_counter() - began)}


def memory(bench: kit.Bench) -> kit.Figures:
    """Resident memory of a process whose runs all sleep, each as a coroutine."""
    live = bench["live"]

    async def measure() -> kit.Figures:
        launch(bench)
        await nap(0.1)
        bare_mb = kit.resident_mb()
        naps = [asyncio.ensure_future(nap(3600)) for _ in range(live)]
        await asyncio.to_thread(bench.wait_for, STEPS_RECORDED, live + 1)
        live_mb = kit.resident_mb()
        for waiting in naps:
            waiting.cancel()
        return {
            "resident_mb_idle": bare_mb,
            "resident_mb_with_live_runs": live_mb,
            "resident_kb_per_live_run": (live_mb - bare_mb) * 1000 / live,
        }

    return asyncio.run(measure())


if __name__ == "__main__":
    kit.main(globals())
