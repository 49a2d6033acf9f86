"""Delays of bare calls, in processes that are idle: from a start, a signal or the time of a timer to
the moment at which the code would go on. See :mod:`bench.engines.floors`.
"""

from __future__ import annotations

import asyncio
import json
import time

from bench.engines import jobs, kit
from bench.engines.many_floors import ask, ends
from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import mail, start
from pgflow._db.calls import worker as worker_calls
from pgflow._db.calls.commit import commit_units
from pgflow._db.calls.wake import poll, wake
from pgflow._db.connect import ConnectOptions, connect_async
from pgflow._db.query import run
from pgflow._db.wire import OwnWire, open_wire
from pgflow._model.claims import Claim
from pgflow._model.options import StartOptions
from pgflow._worker.listener import WORK_CHANNEL

QUEUE = "idle"
WARM = 3
ACROSS_MS = 20
"""Length of a timer, in milliseconds."""


class _Bare:
    """A worker's connection, for runs that do one thing."""

    def __init__(self, wire: OwnWire, request: claim_calls.ClaimRequest) -> None:
        self.wire = wire
        self.request = request

    async def claim(self) -> list[Claim]:
        return await self.wire.ask(claim_calls.claim_runs(self.request))

    async def park(self, run_: Claim, units: list[str], **asked: object) -> None:
        waits = {"park": True, **asked, "idle": True}
        answer = await ask(self.wire, self.request, [run_], 0, units, waits, len(units))
        assert answer.settled[run_.run_id]["place"] == "parked"

    async def end(self, run_: Claim) -> None:
        await self.wire.ask(commit_units(ends(self.request, [run_], run_.last_seq)))


async def _worker(dsn: str, workflows: list[str]) -> _Bare:
    """Waits at rest, as a worker does that has nothing to do."""
    wire = await open_wire(ConnectOptions(dsn), "bench", 30.0)
    worker_id = await wire.ask(worker_calls.register_worker("bench", 1, [QUEUE], 1, "0"))
    lanes = await wire.ask(claim_calls.serve_lanes([QUEUE], workflows))
    request = claim_calls.ClaimRequest(worker_id, [lane.lane_id for lane in lanes], 1)
    return _Bare(wire, request)


async def work(dsn: str, job: str, waits: str) -> None:
    """In a process of its own: says how late each start and each signal is. The runs of ``waits``
    park for a signal.
    """
    bare = await _worker(dsn, [job, waits])
    listener = await connect_async(ConnectOptions(dsn), "bench")
    await listener.execute(f"listen {WORK_CHANNEL}".encode())
    kit.ready()
    async for _ in listener.notifies():
        for claim in await bare.claim():
            if claim.offer is not None:
                kit.say(signal=time.time() - json.loads(claim.offer.payload))
                await bare.end(claim)
            elif sent := json.loads(claim.input).get("payload"):
                kit.say(start=time.time() - sent)
                await bare.end(claim)
            else:
                await bare.park(claim, [], signals=[[1, "poke"]])


def latency(bench: kit.Bench, job: str, waits: str) -> kit.Figures:
    """Starts and signals, each sent on one connection and told on another, as by an app."""
    count = WARM + bench["delays"]
    with (
        kit.Worker(bench, bare=True).wait_until_ready() as worker,
        bench.connect() as conn,
        bench.connect() as teller,
    ):

        def begin(workflow: str, given: str) -> start.Started:
            started = run(conn, start.start_run(workflow, given, StartOptions(queue=QUEUE)))
            run(teller, worker_calls.notify(WORK_CHANNEL, str(started.lane_id)))
            return started

        for n in range(count):
            time.sleep(jobs.pause_seconds())
            begin(job, json.dumps({"payload": time.time()}))
            worker.said("start", n + 1)
        for n in range(count):
            waiting = begin(waits, "{}")
            bench.wait_for(
                "select count(*) from pgflow.parked where run_id = %s", 1, waiting.chain_id
            )
            time.sleep(jobs.pause_seconds())
            sent = run(conn, mail.deliver_signal(waiting.key, "poke", repr(time.time())))
            if sent.lane_id is None:
                run(teller, wake([sent.chain_id], tell=True))
            else:
                run(teller, worker_calls.notify(WORK_CHANNEL, str(sent.lane_id)))
            worker.said("signal", n + 1)
        starts, signals = worker.said("start", count), worker.said("signal", count)
    return {
        "start_latency_p50_ms_of_protocol": kit.quantile(starts[WARM:], 0.5) * 1000,
        "signal_latency_p50_ms_of_protocol": kit.quantile(signals[WARM:], 0.5) * 1000,
    }


def timers(bench: kit.Bench, workflow: str) -> kit.Figures:
    """Parked runs whose timers fall due one after the other."""

    async def main() -> list[float]:
        bare = await _worker(bench.dsn, [workflow])
        late: list[float] = []
        with bench.connect() as conn:
            for _ in range(WARM + bench["delays"]):
                run(conn, start.start_run(workflow, "{}", StartOptions(queue=QUEUE)))
                (claim,) = await bare.claim()
                unit = (
                    f'[{claim.run_id},1,1,"t",null,"{ACROSS_MS / 1000}",null,{claim.now_us},'
                    f"{ACROSS_MS / 1000},{claim.token}]"
                )
                await bare.park(claim, [unit], timers=[[1, 1, "T"]])
                row = conn.execute(
                    "select extract(epoch from due_at)::float8 from pgflow.timer"
                ).fetchone()
                assert row is not None
                await asyncio.sleep(row[0] - time.time())
                claims: list[Claim] = []
                while not claims:
                    await bare.wire.ask(poll())
                    claims = await bare.claim()
                late.append(time.time() - row[0])
                await bare.end(claims[0])
        await bare.wire.close()
        return late

    late = asyncio.run(main())
    return {"timer_lateness_p50_ms_of_protocol": kit.quantile(late[WARM:], 0.5) * 1000}
