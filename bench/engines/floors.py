"""The engine's own calls from a bare loop: nothing is scheduled, judged or answered, and no code
runs but bodies, if any.

No engine that writes the same can be faster on this machine. `bench/goals.toml` names these figures
where a goal may ask for more.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg

from bench.engines import kit
from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._db.calls.commit import commit_and_claim, commit_unit, commit_units
from pgflow._db.calls.transaction import begin_step, fence_step
from pgflow._db.connect import ConnectOptions, connect_async
from pgflow._db.wire import OwnWire, Wire, open_wire
from pgflow._engine.flush import Ending, Flush, Row, batch_document
from pgflow._model.claims import Claim
from pgflow._worker.options import WorkerOptions

STEPS_A_RUN = 10
BATCH = 500

_ROWS_OF_STARTS = """
with given as materialized (
  select (e->0)::bigint as i, e->>1 as k, e->>2 as p from jsonb_array_elements(%s::jsonb) e
), keys as (
  insert into pgflow.run_key (tenant, key, chain_id, root) select '', g.k, g.i, g.k::uuid from given g
), runs as (
  insert into pgflow.run (run_id, chain_id, root_run_id, created_at, root, generation, lane_id, priority, tenant, key, input)
  select g.i, g.i, g.i, now(), g.k::uuid, 1, %s, 0, '', g.k, g.p::json from given g
)
insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority)
select g.i, now(), %s, 0, 0, 0 from given g
"""


@asynccontextmanager
async def worker(
    dsn: str, workflow: str, at_once: int = 1
) -> AsyncIterator[tuple[OwnWire, claim_calls.ClaimRequest, list[Claim]]]:
    """A worker's connection, what it asks for so many runs with, and the first of them."""
    wire = await open_wire(ConnectOptions(dsn), "bench", 30.0)
    worker_id = await wire.ask(worker_calls.register_worker("bench", 1, ["default"], 1, "0"))
    lanes = [
        lane.lane_id for lane in await wire.ask(claim_calls.serve_lanes(["default"], [workflow]))
    ]
    request = claim_calls.ClaimRequest(worker_id, lanes, at_once)
    yield wire, request, await wire.ask(claim_calls.claim_runs(request))
    await wire.close()


async def _end(
    wire: OwnWire, run: Claim, last: list[Row], request: claim_calls.ClaimRequest, *, is_last: bool
) -> Claim | None:
    """Ends a run, and claims the next if there is one."""
    end = Flush(
        run.run_id,
        run.token,
        run.chain_id,
        STEPS_A_RUN,
        STEPS_A_RUN + len(last),
        last,
        ending=Ending("completed", None, "10", None),
    )
    document = batch_document(request.worker_id, [(end, lambda: 0)], [])
    if is_last:
        await wire.ask(commit_units(document))
        return None
    _, (claimed,) = await wire.ask(commit_and_claim(document, request))
    return claimed


async def known(_call: int) -> str:
    """Return the result of a step's body, without one."""
    return '{"i": 1}'


async def of_a_task(call: int) -> str:
    """Return the result of a step's body as JSON: code that may await what it likes is a task of
    its own.
    """

    async def body() -> dict[str, int]:
        return {"i": call}

    return json.dumps(await asyncio.get_running_loop().create_task(body()))


async def steps(
    dsn: str, workflow: str, runs: int, value: Callable[[int], Awaitable[str]] = known
) -> kit.Span:
    """Runs of ten steps, one at a time; there are as many. What a step returns comes from
    ``value``.
    """
    async with worker(dsn, workflow) as (wire, request, (first,)):
        with kit.Span() as span:
            run: Claim | None = first
            for left in reversed(range(runs)):
                assert run is not None
                run_id, token, at_us = run.run_id, run.token, run.now_us
                await wire.ask(
                    commit_unit(
                        request.worker_id,
                        run_id,
                        token,
                        1,
                        1,
                        "s",
                        "small",
                        None,
                        licence(1),
                        at_us,
                    )
                )
                for call in range(1, STEPS_A_RUN):
                    text = await value(call)
                    await wire.ask(
                        commit_unit(
                            request.worker_id,
                            run_id,
                            token,
                            call + 1,
                            call,
                            "c",
                            "small",
                            text,
                            licence(call + 1),
                            at_us,
                        )
                    )
                last = Row(
                    STEPS_A_RUN + 1,
                    STEPS_A_RUN,
                    "c",
                    "small",
                    await value(STEPS_A_RUN),
                    at_us,
                    None,
                )
                run = await _end(wire, run, [last], request, is_last=not left)
    return span


def licence(call: int) -> str:
    """The licence of a body, as a unit carries it."""
    return f'[[{call},"s","small",{call},7]]'


def transactions_in_threads(dsn: str, workflow: str, runs: int) -> kit.Span:
    """The same by threads, as many as a worker opens at once, each with a connection of its own:
    one run after the other in each.
    """
    idle_ms = round(WorkerOptions().transaction_idle_seconds * 1000)

    def work(claims: list[Claim]) -> None:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
            for run in claims:
                for call in range(1, STEPS_A_RUN + 1):
                    begin = begin_step(run.run_id, run.token, call, idle_ms)
                    unit = f'[{run.run_id},{call},{call},"c","insert","1",null,{run.now_us},null,{run.token}]'
                    fence = fence_step(run.run_id, run.token, call, unit, 7)
                    with connection.pipeline():
                        connection.execute("begin")
                        connection.execute(begin.sql, begin.params)
                    connection.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
                    with connection.pipeline():
                        connection.execute(fence.sql, fence.params)
                        connection.execute("commit")

    async def measure() -> kit.Span:
        at_once = WorkerOptions().transaction_connections
        async with worker(dsn, workflow, runs) as (_, _, claims):
            assert len(claims) == runs
            with kit.Span() as span:
                await asyncio.gather(
                    *(asyncio.to_thread(work, claims[n::at_once]) for n in range(at_once))
                )
        return span

    return asyncio.run(measure())


async def transactions(dsn: str, workflow: str, runs: int) -> kit.Span:
    """Runs of ten transactional steps, one at a time; there are as many."""
    connection = await connect_async(ConnectOptions(dsn), "bench")
    application = Wire(connection, prepares=True)
    idle_ms = round(WorkerOptions().transaction_idle_seconds * 1000)
    async with worker(dsn, workflow) as (wire, request, (first,)):
        with kit.Span() as span:
            run: Claim | None = first
            for left in reversed(range(runs)):
                assert run is not None
                for call in range(1, STEPS_A_RUN + 1):
                    begin = begin_step(run.run_id, run.token, call, idle_ms)
                    await application.rows(("begin", ()), (begin.sql, begin.params))
                    await connection.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
                    unit = f'[{run.run_id},{call},{call},"c","insert","1",null,{run.now_us},null,{run.token}]'
                    fence = fence_step(run.run_id, run.token, call, unit, 7)
                    await application.rows((fence.sql, fence.params), ("commit", ()))
                run = await _end(wire, run, [], request, is_last=not left)
    await connection.close()
    return span


def starts(conn: psycopg.Connection, lane_id: int, count: int, batch: int = BATCH) -> kit.Span:
    """The rows of runs that are started, so many a commit, each with its input written as JSON."""
    row = conn.execute(
        "select setval('pgflow.run_id_seq', nextval('pgflow.run_id_seq') + %s)", (count,)
    ).fetchone()
    assert row is not None
    ids = range(row[0] - count, row[0])
    batches = [
        [(n, str(uuid.UUID(int=n))) for n in ids[first : first + batch]]
        for first in range(0, count, batch)
    ]
    with kit.Span() as span:
        for batch in batches:
            document = json.dumps([(n, key, json.dumps({"payload": {"i": n}})) for n, key in batch])
            conn.execute(_ROWS_OF_STARTS, (document, lane_id, lane_id), prepare=True)
    return span
