"""pgflow, by its public surface and its defaults.

Steps are sequential ``@step``s, each of which is licensed and recorded durably; reads would ride
for free and are not measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg

import pgflow
from bench.engines import floors, idle_floors, jobs, kit, many_floors, rules, sqlflows
from bench.engines.claims import WARM, Claims
from pgflow import App, AsyncApp, Signal, step, transaction, workflow
from pgflow._worker.claims import ClaimCursor
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow._worker.worker import Worker
from pgflow.assets import is_compiled
from pgflow.schema import migrate_dsn

STEPS_RECORDED = "select count(*) from pgflow.unit where kind = 'c'"
RUNS_FINISHED = "select count(*) from pgflow.outcome where status = 'completed'"

poke = Signal("poke", float)
word = Signal("word", int)
seen: set[float] = set()
"""Times of sending that were seen: a workflow's code runs again on every replay, and only its first
run counts.
"""


@step
async def small(i: int) -> dict[str, int]:
    return {"i": i}


@workflow
async def ten_steps(x: int) -> int:
    for i in range(10):
        await small(i)
    return x


@transaction
async def insert(conn: psycopg.AsyncConnection[Any], i: int) -> int:
    await conn.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
    return i


@workflow
async def ten_transactions(x: int) -> int:
    for i in range(10):
        await insert(i)
    return x


@transaction
def insert_sync(conn: psycopg.Connection[Any], i: int) -> int:
    conn.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
    return i


@workflow
def ten_sync_transactions(x: int) -> int:
    for i in range(10):
        insert_sync(i)
    return x


@step
def small_sync(i: int) -> dict[str, int]:
    return {"i": i}


@workflow
def ten_sync_steps(x: int) -> int:
    for i in range(10):
        small_sync(i)
    return x


TEXTS: dict[int, str] = {}
"""Answers of a language model, by size; made before anything is timed."""


@step
async def write(kb: int) -> dict[str, str]:
    return {"text": TEXTS[kb]}


@workflow
async def ten_texts(kb: int) -> int:
    for _ in range(10):
        await write(kb)
    return kb


@workflow
async def job(payload: dict[str, float]) -> None:
    jobs.body(payload)


@step
async def last(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow
async def ruled(payload: dict[str, Any]) -> None:
    began = rules.begin()
    if payload["seconds"]:
        await last(payload["seconds"])
    rules.end(payload, began)


@workflow
async def stamp() -> float:
    return time.time()  # pgflow: ignore[PF101] when the code runs is what is measured


@workflow
async def poked() -> None:
    note(await poke.wait())


@workflow
async def waiting(_x: int) -> int:
    return await word.wait()


@workflow
async def long(steps: int, times: int) -> None:
    for i in range(steps):
        await small(i)
    for _ in range(times):
        note(await poke.wait())


def note(sent: float) -> None:
    """Says how long ago it was sent, once."""
    if sent not in seen:  # pgflow: ignore[PF108] a replay says nothing again
        seen.add(sent)
        late = time.time() - sent  # pgflow: ignore[PF101] said once, by what the process has seen
        kit.say(late=late)


@workflow
async def nap(until: float) -> float:
    await pgflow.sleep(until - pgflow.now().timestamp())
    return time.time()  # pgflow: ignore[PF101] how late it woke is what is measured


@step
async def slow(i: int) -> int:
    await asyncio.sleep(0.05)
    return i


@workflow
async def ten_slow_steps(x: int) -> int:
    for i in range(10):
        await slow(i)
    return x


@step
async def brief(i: int) -> int:
    await asyncio.sleep(0.01)
    return i


@workflow
async def ten_brief_steps(x: int) -> int:
    for i in range(10):
        await brief(i)
    return x


@workflow
async def ten_naps(x: int) -> int:
    for _ in range(10):
        await pgflow.sleep(0.001)
    return x


@workflow
async def ten_children(x: int) -> int:
    for i in range(10):
        await pgflow.run_child(child, i)
    return x


@step
async def hold(i: int) -> int:
    await asyncio.sleep(3600)
    return i


@workflow
async def held(x: int) -> int:
    return await hold(x)


@workflow
async def child(i: int) -> int:
    return i


@workflow
async def family(children: int) -> int:
    return len((await pgflow.map(child, range(children))).values)


FLOWS = [
    ten_steps, ten_transactions, ten_sync_transactions, ten_sync_steps, ten_texts, job, ruled, stamp, poked, waiting, long, nap, ten_slow_steps,
    ten_brief_steps, ten_naps, ten_children, held, child, family,
]  # fmt: skip


def app_of(bench: kit.Bench) -> AsyncApp:
    return AsyncApp(bench.dsn, include=FLOWS, listen=bench.sizes.get("listen", True))


def install(bench: kit.Bench) -> None:
    """Prepare the database, before anything is measured."""
    bench.form = "compiled" if is_compiled() else "interpreted"
    migrate_dsn(bench.dsn)
    with bench.connect() as conn:
        conn.execute(
            "create table bench_app (id bigint generated always as identity primary key, v jsonb)"
        )


# ---------------------------------------------------------------- steps


async def start_all(app: AsyncApp, workflow: Any, inputs: Sequence[tuple[Any, ...]]) -> None:
    for first in range(0, len(inputs), 500):
        await app.start_many(workflow, inputs[first : first + 500])


@asynccontextmanager
async def worker_of(app: AsyncApp, concurrency: int, **options: Any) -> AsyncIterator[Worker]:
    async with app._work(
        WorkerOptions(concurrency=concurrency, queues=("default",), **options)
    ) as worker:
        yield worker


async def until_finished(worker: Worker, count: int) -> None:
    while worker.finished < count:
        await asyncio.sleep(0.01)


async def work_off(
    bench: kit.Bench,
    workflow: Any,
    runs: int,
    concurrency: int,
    *,
    kin: int = 0,
    given: Any = None,
    **options: Any,
) -> kit.Span:
    """Measure this process on so many runs that are there already, each given its number, or this,
    and each with so many children.
    """
    async with app_of(bench) as app:
        await start_all(
            app,
            workflow,
            [
                ({"x": i} if workflow is job else i if given is None else given,)
                for i in range(runs)
            ],
        )
        async with worker_of(app, concurrency, **options) as worker:
            with kit.Span() as span:
                await until_finished(worker, runs * (1 + kin))
    return span


def steps(bench: kit.Bench) -> kit.Figures:
    """Ten steps a run, with so many runs at once."""
    figures: kit.Figures = {}
    given = 0
    for concurrency in (128, 32, 1):
        runs = bench[f"runs_at_{concurrency}"]
        span = asyncio.run(work_off(bench, ten_steps, runs, concurrency))
        given += runs
        bench.counted.clear()
        bench.check("steps recorded", STEPS_RECORDED, given * 10)
        figures[f"steps_per_second_at_{concurrency}"] = runs * 10 / span.seconds
        figures[f"client_cpu_seconds_per_1000_steps_at_{concurrency}"] = (
            span.cpu_seconds / runs * 100
        )
    with kit.settings_of(bench, "pgflow.unit"):
        asyncio.run(work_off(bench, ten_steps, 2, 2))
    return figures


def floor(bench: kit.Bench) -> kit.Figures:
    """Measure the engine's own calls, one run at a time, and the rows of runs that are started, by
    a bare loop.
    """
    runs, many = bench["runs"], bench["runs_at_128"]
    starts, singles = bench["starts"], bench["single_starts"]
    idle = idle_floors.latency(bench, job.name, poked.name)
    idle |= idle_floors.timers(bench, nap.name)

    async def fill(*flows: tuple[Any, int]) -> None:
        async with app_of(bench) as app:
            for flow, count in flows:
                await start_all(app, flow, [(i,) for i in range(count)])

    steps_of_many = kit.Span()

    def start_and_end_many() -> None:
        nonlocal steps_of_many
        asyncio.run(fill((ten_steps, many)))
        steps_of_many = asyncio.run(
            many_floors.measure(bench.dsn, ten_steps.name, many, 128, many_floors.steps)
        )

    costs = kit.costs_of(bench, start_and_end_many)
    asyncio.run(
        fill((ten_steps, many), (ten_steps, runs), (ten_steps, runs), (ten_transactions, runs))
    )
    code_of_many = asyncio.run(
        many_floors.measure(bench.dsn, ten_steps.name, many, 128, many_floors.code)
    )
    bench.check("steps recorded", STEPS_RECORDED, many * 20)
    bench.counted.clear()
    steps = asyncio.run(floors.steps(bench.dsn, ten_steps.name, runs))
    with_bodies = asyncio.run(floors.steps(bench.dsn, ten_steps.name, runs, floors.of_a_task))
    bench.check("steps recorded", STEPS_RECORDED, (many + runs) * 20)
    transactions = asyncio.run(floors.transactions(bench.dsn, ten_transactions.name, runs))
    bench.check("rows of the application", "select count(*) from bench_app", runs * 10)
    lane_id = int(
        bench.scalar("select lane_id from pgflow.lane where workflow = %s", ten_steps.name)
    )
    with bench.connect() as conn:
        rows = floors.starts(conn, lane_id, starts)
        single_rows = floors.starts(conn, lane_id, singles, 1)
    bench.check("rows of starts", "select count(*) from pgflow.ready", starts + singles)
    return {
        **_floors_of_waits(bench),
        **_floors_of_colours(bench),
        **idle,
        **costs.wal_figures("step_of_protocol", many * 10),
        "steps_per_second_of_protocol_at_128": many * 10 / steps_of_many.seconds,
        "client_cpu_seconds_per_1000_steps_of_protocol_at_128": (
            steps_of_many.cpu_seconds / many * 100
        ),
        "steps_per_second_of_protocol_and_code_at_128": many * 10 / code_of_many.seconds,
        "client_cpu_seconds_per_1000_steps_of_protocol_and_code_at_128": (
            code_of_many.cpu_seconds / many * 100
        ),
        "steps_per_second_of_protocol_at_1": runs * 10 / steps.seconds,
        "steps_per_second_of_protocol_and_bodies_at_1": runs * 10 / with_bodies.seconds,
        "transactional_steps_per_second_of_protocol": runs * 10 / transactions.seconds,
        "batched_starts_per_second_of_rows": starts / rows.seconds,
        "single_starts_per_second_of_rows": singles / single_rows.seconds,
    }


def _floors_of_waits(bench: kit.Bench) -> kit.Figures:
    """Measure the same of runs that wait, half of which are on each of two connections."""
    naps, parents, parked = bench["runs_that_sleep"], bench["parents"], bench["runs_that_park"]
    brief, kin = bench["runs_that_await"], bench["children"]

    async def fill() -> None:
        async with app_of(bench) as app:
            for flow, count in (
                (ten_naps, naps),
                (ten_children, parents),
                (waiting, parked),
                (ten_brief_steps, brief),
                (family, 1),
            ):
                await start_all(app, flow, [(i,) for i in range(count)])

    def work_off(flow: Any, runs: int, at_once: int, play: many_floors.Play) -> kit.Span:
        return asyncio.run(many_floors.measure(bench.dsn, flow.name, runs, at_once, play))

    asyncio.run(fill())
    sleeps = work_off(ten_naps, naps, 128, many_floors.sleeps)
    children = work_off(ten_children, parents, 128, many_floors.children)
    parks = work_off(waiting, parked, 200, many_floors.parks)
    bench.check("runs parked", "select count(*) from pgflow.parked", parked)
    awaits = work_off(ten_brief_steps, brief, 100, many_floors.awaiting)
    finished = bench.scalar(RUNS_FINISHED)
    at_once = asyncio.run(many_floors.family(bench.dsn, family.name, kin))
    bench.check("runs finished", RUNS_FINISHED, finished + kin + 1)
    return {
        "awaiting_steps_per_second_of_protocol": brief * 10 / awaits.seconds,
        "children_at_once_per_second_of_protocol": kin / at_once.seconds,
        "sleeps_per_second_of_protocol": naps * 10 / sleeps.seconds,
        "children_in_turn_per_second_of_protocol": parents * 10 / children.seconds,
        "parks_per_second_of_protocol": parked / parks.seconds,
    }


def _floors_of_colours(bench: kit.Bench) -> kit.Figures:
    """Measure the same of plain functions, in threads."""
    plain, transactions = bench["plain_runs"], bench["runs_at_100"]

    async def fill() -> None:
        async with app_of(bench) as app:
            for flow, count in ((ten_sync_steps, plain), (ten_sync_transactions, transactions)):
                await start_all(app, flow, [(i,) for i in range(count)])

    asyncio.run(fill())
    threads = asyncio.run(
        many_floors.measure(bench.dsn, ten_sync_steps.name, plain, 128, many_floors.threads)
    )
    transactional = floors.transactions_in_threads(
        bench.dsn, ten_sync_transactions.name, transactions
    )
    return {
        "def_steps_per_second_of_protocol": plain * 10 / threads.seconds,
        "def_transactional_steps_per_second_of_protocol": transactions * 10 / transactional.seconds,
    }


def transactional(bench: kit.Bench) -> kit.Figures:
    """Transactional steps, one run at a time."""
    runs = bench["runs"]
    span = asyncio.run(work_off(bench, ten_transactions, runs, 1))
    bench.check("rows of the application", "select count(*) from bench_app", runs * 10)
    bench.check("steps recorded", STEPS_RECORDED, runs * 10)
    with kit.settings_of(bench, "bench_app"):
        asyncio.run(work_off(bench, ten_transactions, 1, 1))
    return {"transactional_steps_per_second": runs * 10 / span.seconds}


def payloads(bench: kit.Bench) -> kit.Figures:
    """Ten steps a run that return long texts, 128 runs at once."""
    figures: kit.Figures = {}
    given = 0
    for kb in kit.KB:
        TEXTS[kb] = kit.prose(kb)
        runs = bench[f"runs_of_{kb}_kb"]
        span = asyncio.run(work_off(bench, ten_texts, runs, 128, given=kb))
        given += runs
        bench.counted.clear()
        bench.check("steps recorded", STEPS_RECORDED, given * 10)
        figures[f"steps_per_second_of_{kb}_kb"] = runs * 10 / span.seconds
    with kit.settings_of(bench, "pgflow.unit"):
        asyncio.run(work_off(bench, ten_texts, 2, 2, given=1))
    return figures


def colours(bench: kit.Bench) -> kit.Figures:
    """Workflows and bodies that are plain functions, and transactional steps of both colours, many
    at once.
    """
    steps, runs = bench["runs_at_128"], bench["runs_at_100"]
    span = asyncio.run(work_off(bench, ten_sync_steps, steps, 128))
    bench.check("steps recorded", STEPS_RECORDED, steps * 10)
    figures = {"def_steps_per_second_at_128": steps * 10 / span.seconds}
    for name, flow in (
        ("transactional", ten_transactions),
        ("def_transactional", ten_sync_transactions),
    ):
        span = asyncio.run(work_off(bench, flow, runs, 100))
        figures[f"{name}_steps_per_second_at_100"] = runs * 10 / span.seconds
    bench.check("rows of the application", "select count(*) from bench_app", runs * 20)
    with kit.settings_of(bench, "bench_app"):
        asyncio.run(work_off(bench, ten_sync_transactions, 1, 1))
    return figures


def accounts(bench: kit.Bench) -> kit.Figures:
    """Measure the server's work for a run of ten steps, and for one that does nothing."""

    def work(concurrency: int, flow: Any, runs: int) -> None:
        asyncio.run(work_off(bench, flow, runs, concurrency))

    alone = kit.marginal_costs(bench, partial(work, 1, ten_steps), bench["few"], bench["runs_at_1"])
    among = kit.marginal_costs(bench, partial(work, 128, ten_steps), 128, bench["runs_at_128"])
    noops = kit.marginal_costs(bench, partial(_noops, bench), bench["few"], bench["noop_runs"])
    return {
        **alone.figures("run_at_1"),
        **among.figures("run_at_128"),
        **noops.figures("noop_run"),
        **alone.wal_figures("step_at_1", 10),
        **among.wal_figures("step_at_128", 10),
        **_claim_costs(bench),
    }


def _claim_costs(bench: kit.Bench) -> kit.Figures:
    """Measure the server's work for one claim of ten runs, which are handed back at once."""
    with bench.connect() as conn:
        Claims(conn, job.name).start(job.name, 100)

    def work(times: int) -> None:
        with bench.connect() as conn:
            Claims(conn, job.name).median_ms(times)

    return kit.marginal_costs(bench, work, 10, bench["claims"]).figures("claim_and_release_of_10")


def _noops(bench: kit.Bench, runs: int) -> None:
    async def main() -> None:
        async with app_of(bench) as app:
            for i in range(runs):
                await app.start(job, {"x": i})
            async with worker_of(app, 128) as worker:
                await until_finished(worker, runs)

    asyncio.run(main())


def processes(bench: kit.Bench) -> kit.Figures:
    """Steps a second of several worker processes on one queue."""
    figures: kit.Figures = {}
    finished = 0
    for count in (1, 2, 4):
        runs = bench["runs"]

        async def prepare(runs: int = runs) -> None:
            async with app_of(bench) as app:
                await start_all(app, ten_steps, [(i,) for i in range(runs)])

        asyncio.run(prepare())
        workers = [kit.Worker(bench, wait=True, concurrency=128) for _ in range(count)]
        for worker in workers:
            worker.wait_until_ready()
        began = time.time()
        for worker in workers:
            worker.tell("go")
        finished += runs
        with kit.Waits(bench, "pgflow") as waits:
            ended = bench.wait_for(RUNS_FINISHED, finished)
        for worker in workers:
            worker.kill()
        figures[f"steps_per_second_of_{count}_workers"] = runs * 10 / (ended - began)
        figures[f"lock_waits_percent_of_{count}_workers"] = waits.percent("Lock")
    bench.check("steps recorded", STEPS_RECORDED, finished * 10)
    return figures


# ---------------------------------------------------------------- waits


def sleeps(bench: kit.Bench) -> kit.Figures:
    """Ten sleeps of a millisecond a run, 128 runs at once."""
    span = asyncio.run(work_off(bench, ten_naps, bench["runs"], 128))
    bench.check(
        "sleeps recorded", "select count(*) from pgflow.unit where kind = 'T'", bench["runs"] * 10
    )
    return {
        "sleeps_per_second": bench["runs"] * 10 / span.seconds,
        "client_cpu_ms_per_sleep": span.cpu_seconds / bench["runs"] * 100,
    }


def parks(bench: kit.Bench) -> kit.Figures:
    """Runs that park for a signal, and that are ended by it."""
    parks, wakes = asyncio.run(_parks(bench, bench["runs"]))
    bench.check("runs finished", RUNS_FINISHED, bench["runs"])
    return {
        "parks_per_second": bench["runs"] / parks.seconds,
        "signalled_runs_per_second": bench["runs"] / wakes.seconds,
    }


def children(bench: kit.Bench) -> kit.Figures:
    """Children one after the other, of 128 parents at once, and at once, of one parent."""
    runs, many = bench["runs"], bench["children"]
    in_turn = asyncio.run(work_off(bench, ten_children, runs, 128, kin=10))
    at_once = asyncio.run(_family(bench, many))
    bench.check("runs finished", RUNS_FINISHED, runs * 11 + many + 1)
    return {
        "children_in_turn_per_second": runs * 10 / in_turn.seconds,
        "children_at_once_per_second": many / at_once.seconds,
    }


def awaiting(bench: kit.Bench) -> kit.Figures:
    """Ten steps a run whose bodies await 10 ms, 100 runs at once: the clock allows 10,000 a
    second.
    """
    span = asyncio.run(work_off(bench, ten_brief_steps, bench["runs"], 100))
    bench.check("steps recorded", STEPS_RECORDED, bench["runs"] * 10)
    return {"awaiting_steps_per_second": bench["runs"] * 10 / span.seconds}


async def _family(bench: kit.Bench, children: int) -> kit.Span:
    """Measure a worker on a parent that maps over so many children."""
    async with app_of(bench) as app:
        await start_all(app, family, [(children,)])
        async with worker_of(app, 128) as worker:
            with kit.Span() as span:
                await until_finished(worker, children + 1)
    return span


async def _parks(bench: kit.Bench, runs: int) -> tuple[kit.Span, kit.Span]:
    """Measure a worker that comes to the waits of so many runs, and then ends them once each has
    its signal.
    """
    parked = "select count(*) from pgflow.parked"
    async with app_of(bench) as app:
        await start_all(app, waiting, [(i,) for i in range(runs)])
        async with worker_of(app, 200) as worker:
            with kit.Span() as parks:
                await asyncio.to_thread(bench.wait_for, parked, runs)
        with bench.connect() as conn:
            conn.execute(
                "select pgflow.send_signal(key, 'word', '1') from pgflow.run where run_id in "
                "(select run_id from pgflow.parked)"
            )
        async with worker_of(app, 200) as worker:
            with kit.Span() as wakes:
                await until_finished(worker, runs)
    return parks, wakes


# ---------------------------------------------------------------- as a queue


class Queue:
    """See :class:`bench.engines.jobs.Jobs`."""

    done = RUNS_FINISHED
    table = "pgflow.outcome"

    async def open(self, bench: kit.Bench) -> None:
        self._app = await app_of(bench).__aenter__()

    async def close(self) -> None:
        await self._app.close()

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        assert not delay_seconds
        await self._app.start(job, payload)

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        await self._app.start_many(job, [(payload,) for payload in payloads])


# Half of the active runs go in one commit: a hundred, as many as pgmq's worker archives in one.
drain = partial(jobs.drain, jobs=Queue(), notes_settings=False, concurrency=200)
enqueue = partial(jobs.enqueue, jobs=Queue())


class RuledQueue(Queue):
    """See :class:`bench.engines.rules.RuledJobs`."""

    async def rule(self, _bench: kit.Bench, rules: dict[str, Any]) -> None:
        if "limit" in rules:
            await self._app.set_queue("default", concurrency=rules["limit"])
        if "per_key" in rules:
            await self._app.set_queue("default", key="input.payload.key", per_key=rules["per_key"])
        if "rate" in rules:
            await self._app.set_queue("default", rate=f"{rules['rate']}/1s")

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        await self._app.start_many(ruled, [(payload,) for payload in payloads])


limited = partial(rules.limited, jobs=RuledQueue())
keyed = partial(rules.keyed, jobs=RuledQueue())
rated = partial(rules.rated, jobs=RuledQueue())


def work(bench: kit.Bench) -> None:
    """A worker process."""

    if bench.sizes.get("bare"):
        asyncio.run(idle_floors.work(bench.dsn, job.name, poked.name))
        return

    async def main() -> None:
        rhythm = (
            Rhythm(beat=bench["dead_after"] / 5, dead_after=bench["dead_after"])
            if "dead_after" in bench.sizes
            else Rhythm()
        )
        async with app_of(bench) as app:
            if bench.sizes.get("wait"):
                kit.ready(wait=True)
            async with app.worker(concurrency=bench.sizes.get("concurrency", 128), rhythm=rhythm):
                if not bench.sizes.get("wait"):
                    kit.ready()
                await asyncio.Event().wait()

    asyncio.run(main())


# ---------------------------------------------------------------- latency


def latency(bench: kit.Bench) -> kit.Figures:
    """Delays with notifications: a start, a signal, the news of a result."""
    with (
        kit.Worker(bench).wait_until_ready() as worker,
        App(bench.dsn, include=FLOWS, listen=bench.sizes.get("listen", True)) as app,
    ):
        time.sleep(bench["settle_seconds"])
        warm = 3
        for _ in range(warm + bench["starts"]):
            app.start(job, {"sent": time.time()})
            time.sleep(jobs.pause_seconds())
        starts = worker.said("late", warm + bench["starts"])
        results = [_result_lateness(app) for _ in range(warm + bench["results"])]
        signals = _signal_latency(bench, app, worker, len(starts), warm + bench["signals"])
    return {
        **kit.latency("start_latency", starts[warm:]),
        **kit.latency("result_latency", results[warm:]),
        **kit.latency("signal_latency", signals[warm:]),
    }


def _result_lateness(app: App) -> float:
    time.sleep(jobs.pause_seconds())
    returned = app.start(stamp).result()
    return time.time() - returned


def _signal_latency(
    bench: kit.Bench, app: App, worker: kit.Worker, before: int, count: int
) -> list[float]:
    """Runs that wait, each for its signal, as Absurd's tasks do for their events."""
    runs = [app.start(poked) for _ in range(count)]
    bench.wait_for("select count(*) from pgflow.parked", count)
    for i, run in enumerate(runs):
        time.sleep(jobs.pause_seconds())
        run.send(poke, time.time())
        worker.said("late", before + i + 1)
    return worker.said("late", before + count)[before:]


def latency_polling(bench: kit.Bench) -> kit.Figures:
    """The same where nobody listens."""
    bench.sizes["listen"] = False
    return {
        name.replace("latency", "latency_polling"): value for name, value in latency(bench).items()
    }


def timers(bench: kit.Bench) -> kit.Figures:
    """Measure how late sleeping runs go on: started one after the other, due at the same moment,
    and many over a while.
    """

    async def in_turn(app: AsyncApp) -> None:
        for _ in range(bench["timers"]):
            await app.start(nap, time.time() + bench["seconds"])

    async def at_once(app: AsyncApp) -> None:
        await start_all(app, nap, [(time.time() + bench["seconds"],)] * bench["timers"])

    async def many(app: AsyncApp) -> None:
        first, apart = time.time() + bench["many_seconds"], bench["spread_seconds"] / bench["many"]
        await start_all(app, nap, [(first + i * apart,) for i in range(bench["many"])])

    with kit.Worker(bench).wait_until_ready():
        return {
            **kit.latency("timer_lateness", _timer_lateness(bench, in_turn, bench["timers"])),
            **kit.latency(
                "timer_lateness_at_once", _timer_lateness(bench, at_once, bench["timers"])
            ),
            **kit.latency("timer_lateness_under_load", _timer_lateness(bench, many, bench["many"])),
        }


def _timer_lateness(
    bench: kit.Bench, start: Callable[[AsyncApp], Awaitable[None]], count: int
) -> list[float]:
    finished = bench.scalar(RUNS_FINISHED)
    last = bench.scalar("select coalesce(max(run_id), 0) from pgflow.run")

    async def fill() -> None:
        async with app_of(bench) as app:
            await start(app)

    asyncio.run(fill())
    bench.wait_for(RUNS_FINISHED, finished + count)
    with bench.connect() as conn:
        found = conn.execute(
            """select (o.output::text)::float8 - extract(epoch from u.due_at)::float8 from pgflow.outcome o
               join pgflow.unit u on u.run_id = o.run_id and u.kind = 't' where o.run_id > %s""",
            (last,),
        ).fetchall()
    assert len(found) == count, f"{len(found)} of {count} runs have slept"
    return [late for (late,) in found]


# ---------------------------------------------------------------- recovery, history, families


def recovery(bench: kit.Bench) -> kit.Figures:
    """kill -9 of a worker: when the last of its runs went on elsewhere, beyond the time after which
    it counts as dead.
    """

    async def prepare() -> None:
        async with app_of(bench) as app:
            await start_all(app, ten_slow_steps, [(i,) for i in range(bench["runs"])])

    asyncio.run(prepare())
    held_by = "select w.worker_id from pgflow.worker w where w.pid = %s"
    with kit.Worker(bench, concurrency=bench["runs"] // 2).wait_until_ready() as doomed:
        worker_id = bench.scalar(held_by, doomed.process.pid)
        begun = """select count(*) from pgflow.lease l where worker_id = %s
            and exists (select from pgflow.unit u where u.run_id = l.run_id and u.seq > l.last_seq)"""
        bench.wait_for(begun, bench["runs"] // 2, worker_id)
        with kit.Worker(bench, concurrency=bench["runs"]).wait_until_ready():
            doomed.kill()
            killed = time.time()
            went_on = _last_to_go_on(bench, worker_id)
            bench.wait_for(RUNS_FINISHED, bench["runs"])
    bench.check("steps recorded", STEPS_RECORDED, bench["runs"] * 10)
    return {"recovery_beyond_timeout_seconds": went_on - killed - bench["dead_after"]}


def _last_to_go_on(bench: kit.Bench, worker_id: int) -> float:
    """Return the time at which the last run that a dead worker has begun got its first unit from
    another.
    """
    with bench.connect() as conn:
        left = conn.execute(
            "select run_id, token from pgflow.lease where worker_id = %s", (worker_id,)
        ).fetchall()
        assert left, "the worker that was killed held nothing"
        runs, tokens = [run for run, _ in left], [token for _, token in left]
        query = """select count(*), extract(epoch from max(began))::float8 from (
            select min(u.recorded_at) as began from unnest(%s::bigint[], %s::bigint[]) l (run_id, token)
            join pgflow.unit u on u.run_id = l.run_id and u.token <> l.token group by l.run_id) r"""
        deadline = time.monotonic() + 60
        while True:
            count, last = conn.execute(query, (runs, tokens)).fetchone()  # type: ignore[misc]
            if count == len(left):
                return float(last)
            assert time.monotonic() < deadline, f"{count} of {len(left)} runs went on"
            time.sleep(0.05)


def replay(bench: kit.Bench) -> kit.Figures:
    """Measure from a signal to the line after the wait, behind a long history that has to be
    replayed first.
    """
    times = bench["times"]
    with kit.Worker(bench).wait_until_ready() as worker, App(bench.dsn, include=FLOWS) as app:
        run = app.start(long, bench["steps"], times)
        for i in range(times):
            bench.wait_for("select count(*) from pgflow.parked", 1)
            time.sleep(jobs.pause_seconds())
            run.send(poke, time.time())
            worker.said("late", i + 1)
        late = worker.said("late", times)
    bench.check("steps recorded", STEPS_RECORDED, bench["steps"])
    return {"replay_of_1000_steps_ms": kit.quantile(late, 0.5) * 1000 * 1000 / bench["steps"]}


def fanout(bench: kit.Bench) -> kit.Figures:
    """Child runs a second, from the start of their parent to its result."""
    children = bench["children"]
    with kit.Worker(bench).wait_until_ready(), App(bench.dsn, include=FLOWS) as app:
        app.start(family, 2).result()
        began = time.perf_counter()
        assert app.start(family, children).result() == children
        seconds = time.perf_counter() - began
    bench.check("runs finished", RUNS_FINISHED, children + 1 + 3)
    return {"children_per_second": children / seconds}


sql_steps = sqlflows.measure


# ---------------------------------------------------------------- claims and memory


def claim(bench: kit.Bench) -> kit.Figures:
    """Milliseconds of a claim of ten runs: in an empty database, with much that is finished and
    ready, behind what it may not take.
    """
    figures: kit.Figures = {}
    with bench.connect() as conn:
        claims = Claims(conn, job.name)
        claims.start(job.name, 20 * 10)
        figures["claim_of_10_ms_empty"] = claims.median_ms()
        claims.start(job.name, bench["parked"], parked=True)
        conn.execute("vacuum analyze")
        figures["claim_of_10_ms_with_parked"] = claims.median_ms()
        claims.finish(job.name, bench["finished"])
        claims.start(job.name, bench["ready"])
        conn.execute("vacuum analyze")
        figures["claim_of_10_ms_with_finished_and_ready"] = claims.median_ms()
        conn.execute("delete from pgflow.ready")
        claims.start("elsewhere", bench["unclaimable"])
        claims.start(job.name, 20 * 10)
        conn.execute("vacuum analyze")
        figures["claim_of_10_ms_behind_unclaimable"] = claims.median_ms()
    return figures


def snapshot(bench: kit.Bench) -> kit.Figures:
    """Work while somebody holds a snapshot open since so many runs: before it, with it, and once it
    is gone.
    """
    with psycopg.connect(bench.dsn) as holder, bench.connect() as conn:
        figures = _pace(bench, conn, "before_snapshot")
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pgflow.run")
        asyncio.run(work_off(bench, job, bench["since"], 128))
        figures |= _pace(bench, conn, "with_snapshot", from_head=True)
        holder.rollback()
        return figures | _pace(bench, conn, "after_snapshot")


def _pace(
    bench: kit.Bench, conn: psycopg.Connection[Any], when: str, *, from_head: bool = False
) -> kit.Figures:
    """Runs a second that a worker drains, and what a claim takes on the average where claims follow
    each other.
    """
    runs, times = bench["runs"], bench["claims"]
    span = asyncio.run(work_off(bench, job, runs, 128))
    claims = Claims(conn, job.name)
    claims.start(job.name, 2 * 10 * (WARM + times))
    figures = {
        f"noop_runs_per_second_{when}": runs / span.seconds,
        f"claim_of_10_ms_{when}": claims.mean_ms(times, ClaimCursor()),
    }
    if from_head:
        figures[f"claim_of_10_ms_from_head_{when}"] = claims.mean_ms(times)
    conn.execute("delete from pgflow.ready")
    conn.execute("delete from pgflow.lease")
    return figures


def memory(bench: kit.Bench) -> kit.Figures:
    """Resident memory of a worker whose runs are all in a step, and of one whose runs all wait."""
    live, parked = bench["live"], bench["parked"]

    async def start(flow: Any, inputs: list[tuple[Any, ...]]) -> None:
        async with app_of(bench) as app:
            await start_all(app, flow, inputs)

    with kit.Worker(bench, concurrency=live).wait_until_ready() as worker:
        _, bare_mb = worker.usage()
        asyncio.run(start(held, [(1,)] * live))
        bench.wait_for("select count(*) from pgflow.unit where kind = 's'", live)
        _, live_mb = worker.usage()
    with kit.Worker(bench).wait_until_ready() as worker:
        asyncio.run(start(poked, [()] * parked))
        bench.wait_for("select count(*) from pgflow.parked", parked)
        time.sleep(1)
        _, parked_mb = worker.usage()
    return {
        "resident_mb_idle": bare_mb,
        "resident_mb_with_live_runs": live_mb,
        "resident_kb_per_live_run": (live_mb - bare_mb) * 1000 / live,
        "resident_mb_with_parked_runs": parked_mb,
    }


if __name__ == "__main__":
    kit.main(globals())
