"""The calls of many runs at once, from a bare loop: see :mod:`bench.engines.floors`.

Half of the runs are on each of two connections, and each commit is one of all of these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from queue import SimpleQueue
from threading import Lock
from types import coroutine
from typing import Any, TypeAlias

from bench.engines import floors, kit
from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls.commit import CommitAnswer, commit_and_claim, commit_units
from pgflow._db.calls.wake import wake
from pgflow._db.wire import OwnWire
from pgflow._engine.flush import MAX_FLUSH_CHILDREN
from pgflow._model.claims import Claim

WAITS_A_RUN = 10
RESULT = json.dumps('{"i": 1}')

Play: TypeAlias = (
    "Callable[[OwnWire, claim_calls.ClaimRequest, list[Claim], str], Awaitable[str | None]]"
)
"""Plays claimed runs; returns the document that ends them, or None if they have left.
The text is a queue of its own.
"""


async def measure(dsn: str, workflow: str, runs: int, at_once: int, play: Play) -> kit.Span:
    """Work off so many runs, so many at once."""
    rounds, rest = divmod(runs, at_once)
    assert not rest, "a whole number of rounds"
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(floors.worker(dsn, workflow, at_once // 2))
            for _ in range(2)
        ]
        with kit.Span() as span:
            await asyncio.gather(
                *(_rounds(*worker, f"bench-{n}", rounds, play) for n, worker in enumerate(workers))
            )
    return span


async def _rounds(
    wire: OwnWire,
    request: claim_calls.ClaimRequest,
    claims: list[Claim],
    queue: str,
    rounds: int,
    play: Play,
) -> None:
    for left in reversed(range(rounds)):
        document = await play(wire, request, claims, queue)
        if document is None:
            if left:
                claims = await wire.ask(claim_calls.claim_runs(request))
        elif left:
            _, claims = await wire.ask(commit_and_claim(document, request))
        else:
            await wire.ask(commit_units(document))


async def steps(
    wire: OwnWire, request: claim_calls.ClaimRequest, claims: list[Claim], _queue: str
) -> str:
    """Ten steps: the result of the last goes with the end."""

    async def results() -> list[str]:
        return [RESULT] * len(claims)

    return await _steps(wire, request, claims, results)


async def code(
    wire: OwnWire, request: claim_calls.ClaimRequest, claims: list[Claim], _queue: str
) -> str:
    """The same, with the code of each run and its bodies, and their values in JSON: everything but
    the engine. No engine in any language does with less that runs this code.
    """
    runs = [_ten_steps() for _ in claims]
    asked = [run.send(None) for run in runs]

    async def results() -> list[str]:
        texts = [json.dumps(_end_of(_small(i), None)) for i in asked]
        for n, (run, text) in enumerate(zip(runs, texts, strict=True)):
            value = json.loads(text)
            if asked[n] < floors.STEPS_A_RUN - 1:
                asked[n] = run.send(value)
            else:
                _end_of(run, value)
        return [json.dumps(text) for text in texts]

    return await _steps(wire, request, claims, results)


async def awaiting(
    wire: OwnWire, request: claim_calls.ClaimRequest, claims: list[Claim], _queue: str
) -> str:
    """The same, with bodies that await 10 ms, each as a task."""

    async def results() -> list[str]:
        texts = await asyncio.gather(*(_brief(n) for n in range(len(claims))))
        return [json.dumps(text) for text in texts]

    return await _steps(wire, request, claims, results)


async def _brief(i: int) -> str:
    await asyncio.sleep(0.01)
    return json.dumps({"i": i})


THREADS = ThreadPoolExecutor(128)


async def threads(
    wire: OwnWire, request: claim_calls.ClaimRequest, claims: list[Claim], _queue: str
) -> str:
    """The same of plain functions: each run is in a thread of its own, which hands over what a body
    returns and is let go on once that is committed.
    """
    said: SimpleQueue[tuple[int, str]] = SimpleQueue()
    turns = [Lock() for _ in claims]

    def run(n: int) -> None:
        for i in range(floors.STEPS_A_RUN):
            turns[n].acquire()
            said.put((n, json.dumps({"i": i})))

    async def results() -> list[str]:
        for turn in turns:
            turn.release()
        texts = dict(said.get() for _ in claims)
        return [json.dumps(texts[n]) for n in range(len(claims))]

    for n, turn in enumerate(turns):
        turn.acquire()
        THREADS.submit(run, n)
    return await _steps(wire, request, claims, results)


async def _steps(
    wire: OwnWire,
    request: claim_calls.ClaimRequest,
    claims: list[Claim],
    results: Callable[[], Awaitable[list[str]]],
) -> str:
    values = ["null"] * len(claims)
    for seq in range(1, floors.STEPS_A_RUN + 1):
        units = _units(claims, values, seq, floors.licence(seq))
        document = f'{{"worker":{request.worker_id},"runs":[{_heads(claims, seq - 1)}],"units":[{",".join(units)}]}}'
        await wire.ask(commit_units(document))
        values = await results()
    units = _units(claims, values, floors.STEPS_A_RUN + 1, None)
    return ends(request, claims, floors.STEPS_A_RUN, units=units)


def _units(claims: list[Claim], values: list[str], seq: int, licence: str | None) -> list[str]:
    """A unit of each run: the first licenses the first body, each other has a result."""
    first = f'{seq},{max(1, seq - 1)},"{"s" if seq == 1 else "c"}","small"'
    last = json.dumps(licence)
    return [
        f"[{c.run_id},{first},{value},{last},{c.now_us},null,{c.token}]"
        for c, value in zip(claims, values, strict=True)
    ]


async def _ten_steps() -> None:
    for i in range(floors.STEPS_A_RUN):
        await _call(i)


@coroutine
def _call(i: int) -> Generator[int, Any, Any]:
    """A step, asked of whoever runs the code."""
    return (yield i)


async def _small(i: int) -> dict[str, int]:
    return {"i": i}


def _end_of(code: Coroutine[Any, Any, Any], value: Any) -> Any:
    """Run this to its end, and return its result."""
    try:
        code.send(value)
    except StopIteration as end:
        return end.value
    raise AssertionError("it asks for more")


async def sleeps(
    wire: OwnWire, request: claim_calls.ClaimRequest, claims: list[Claim], _queue: str
) -> str:
    """Ten sleeps that are due when they are asked for."""
    for call in range(1, WAITS_A_RUN + 1):
        seq = 2 * call - 1
        units = [
            f'[{c.run_id},{seq},{call},"t",null,"0.001",null,{c.now_us},0,{c.token}]'
            for c in claims
        ]
        asked = {"park": False, "timers": [[call, seq, "T"]], "idle": True}
        answer = await ask(wire, request, claims, seq - 1, units, asked, seq)
        assert all(len(settled["units"]) == 1 for settled in answer.settled.values())
    return ends(request, claims, 2 * WAITS_A_RUN)


async def parks(
    wire: OwnWire, request: claim_calls.ClaimRequest, claims: list[Claim], _queue: str
) -> None:
    """A wait for a signal, which parks the run."""
    asked = {"park": True, "signals": [[1, "word"]], "idle": True}
    answer = await ask(wire, request, claims, 0, [], asked, 0)
    assert all(settled["place"] == "parked" for settled in answer.settled.values())


async def children(
    wire: OwnWire, request: claim_calls.ClaimRequest, claims: list[Claim], queue: str
) -> str:
    """Ten children one after the other, of parents that stay in memory."""
    lanes = [lane.lane_id for lane in await wire.ask(claim_calls.serve_lanes([queue], ["child"]))]
    of_children = request._replace(lanes=lanes)
    for call in range(1, WAITS_A_RUN + 1):
        seq = 2 * (call - 1)
        calls = f"{{[{call},{call}]}}"
        child = [call, "child", queue, '{"x":1}', None, 0, None, None, None, None, "c"]
        asked = {"children": [child], "child_calls": calls, "idle": False}
        await ask(wire, request, claims, seq, [], asked, seq)
        started = await wire.ask(claim_calls.claim_runs(of_children))
        assert len(started) == len(claims)
        answer = await wire.ask(commit_units(ends(request, started, 0, has_kin=True)))
        await wire.ask(wake(answer.wake, tell=False))
        asked = {"park": False, "child_calls": calls, "idle": True}
        answer = await ask(wire, request, claims, seq + 1, [], asked, seq + 1)
        assert all(len(settled["units"]) == 1 for settled in answer.settled.values())
    return ends(request, claims, 2 * WAITS_A_RUN, has_kin=True)


async def family(dsn: str, parent: str, children: int) -> kit.Span:
    """A parent that starts so many children at once, which end 64 a commit on each of two
    connections, and takes all of their results.
    """
    async with (
        floors.worker(dsn, parent) as (wire, request, claims),
        floors.worker(dsn, parent) as (other, others_request, _),
    ):
        with kit.Span() as span:
            for first in range(1, children + 1, MAX_FLUSH_CHILDREN):
                calls = range(first, min(first + MAX_FLUSH_CHILDREN, children + 1))
                asked = {
                    "children": [
                        [call, "child", "family", '{"x":1}', None, 0, None, None, None, None, "c"]
                        for call in calls
                    ],
                    "child_calls": "{}",
                    "idle": False,
                }
                await ask(wire, request, claims, first - 1, [], asked, first - 1)
            found = await wire.ask(claim_calls.serve_lanes(["family"], ["child"]))
            lanes = [lane.lane_id for lane in found]
            await asyncio.gather(
                _end_all(wire, request._replace(lanes=lanes, max_runs=64)),
                _end_all(other, others_request._replace(lanes=lanes, max_runs=64)),
            )
            seq = children
            while seq < 2 * children:
                asked = {
                    "park": False,
                    "child_calls": f"{{[{seq - children + 1},{children}]}}",
                    "idle": True,
                }
                answer = await ask(wire, request, claims, seq, [], asked, seq)
                (settled,) = answer.settled.values()
                assert settled["units"]
                seq += len(settled["units"])
            await wire.ask(commit_units(ends(request, claims, seq, has_kin=True)))
    return span


async def _end_all(wire: OwnWire, request: claim_calls.ClaimRequest) -> None:
    claims = await wire.ask(claim_calls.claim_runs(request))
    while claims:
        document = ends(request, claims, 0, has_kin=True)
        _, claims = await wire.ask(commit_and_claim(document, request))


async def ask(
    wire: OwnWire,
    request: claim_calls.ClaimRequest,
    claims: list[Claim],
    expected_seq: int,
    units: list[str],
    asked: dict[str, Any],
    seq: int,
) -> CommitAnswer:
    """Commit units, and ask the same of each run."""
    rest = json.dumps({**asked, "cancelled": False})[1:]
    questions = [
        f'{{"run":{c.run_id},"token":{c.token},"chain":{c.chain_id},"seq":{seq},{rest}'
        for c in claims
    ]
    document = (
        f'{{"worker":{request.worker_id},"runs":[{_heads(claims, expected_seq)}],'
        f'"units":[{",".join(units)}],"questions":[{",".join(questions)}]}}'
    )
    answer = await wire.ask(commit_units(document))
    assert not answer.bad
    return answer


def _heads(claims: list[Claim], seq: int) -> str:
    return ",".join([f"[{c.run_id},{c.token},{seq}]" for c in claims])


def ends(
    request: claim_calls.ClaimRequest,
    claims: list[Claim],
    seq: int,
    *,
    has_kin: bool = False,
    units: Sequence[str] = (),
) -> str:
    outcomes = ",".join(
        [f'[{c.run_id},"completed",null,"1",null,{c.chain_id},{c.token}]' for c in claims]
    )
    kin = f',"kin":[{",".join([str(c.run_id) for c in claims])}]' if has_kin else ""
    return f'{{"worker":{request.worker_id},"runs":[{_heads(claims, seq)}],"units":[{",".join(units)}],"ends":[{outcomes}]{kin}}}'
