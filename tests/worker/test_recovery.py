"""Recovery of runs whose workers die, seem dead, or only stop."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from records import SOON, count, eventually, in_a_loop, steps, wait_until
from servers import HANG_SECONDS

import pgflow
from pgflow import App, AsyncApp, Signal, read, step, transaction, workflow
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.executor import RunStarter
from pgflow._worker.options import Rhythm, WorkerOptions

go = Signal("go", int)

FAST = Rhythm(beat=0.05, look=0.05, dead_after=2.0)
"""Long enough for a worker that lives, however busy the machine is."""

CLAIMED_BY_A_GHOST = """
select pgflow.claim_runs(
  pgflow.register_worker('gone', 1, array['default'], 100, '0'), array(select lane_id from pgflow.lane), %s,
  array(select n::bigint from generate_series(1, %s) n)
)
"""
"""A worker that never beats again holds so many runs."""


@step
async def add(a: int, b: int) -> int:
    return a + b


@contextlib.contextmanager
def fleet(dsn: str, *workflows: pgflow.Workflow[..., Any], size: int) -> Iterator[App]:
    with contextlib.ExitStack() as stack:
        apps = [stack.enter_context(App(dsn, include=workflows)) for _ in range(size)]
        for app in apps:
            stack.enter_context(app.worker(poll_seconds=0.05, rhythm=FAST))
        yield apps[0]


@pytest.mark.full
def test_each_run_of_a_dead_worker_goes_on_once_however_many_notice_its_death(dsn, conn):
    bodies: Counter[int] = Counter()

    @read
    async def note(n: int) -> int:
        bodies[n] += 1
        return n

    @workflow
    async def work(n: int) -> int:
        return await note(n)

    with App(dsn, include=[work]) as app:
        runs = app.start_many(work, [(n,) for n in range(40)])
    conn.execute(CLAIMED_BY_A_GHOST, (40, 40))
    assert count(conn, "pgflow.lease") == 40
    with fleet(dsn, work, size=3) as app:
        assert [app.get(run.key, work).result(SOON) for run in runs] == list(range(40))
    assert set(bodies.values()) == {1}


@pytest.mark.parametrize("of", ["code", "read", "step"])
def test_runs_of_a_worker_that_died_go_on_together(dsn, conn, of):
    """None of them is there until all are: one after the other they would wait for ever."""
    count_of_runs = 12
    together = threading.Barrier(count_of_runs, timeout=HANG_SECONDS)

    @step
    def meet() -> None:
        together.wait()

    @read
    def look() -> None:
        together.wait()

    bodies = {"code": None, "read": look, "step": meet}

    @workflow
    async def work(n: int) -> int:
        if (body := bodies[of]) is not None:
            await body.aio()
        await meet.aio()
        return n

    with App(dsn, include=[work]) as app:
        runs = app.start_many(work, [(n,) for n in range(count_of_runs)])
    conn.execute(CLAIMED_BY_A_GHOST, (count_of_runs, count_of_runs))
    conn.execute("select pgflow.reap_worker(worker_id, 0) from pgflow.worker")
    with fleet(dsn, work, size=1) as app:
        assert [app.get(run.key, work).result(SOON) for run in runs] == list(range(count_of_runs))


@pytest.mark.full
@pytest.mark.parametrize("gets_on", ["by what it records", "by living on"])
def test_a_group_of_suspects_that_has_got_on_makes_room_for_the_next(dsn, conn, gets_on):
    count_of_runs = 12
    together = threading.Barrier(count_of_runs, timeout=HANG_SECONDS)

    @transaction
    async def book(mine: psycopg.AsyncConnection[Any], n: int) -> int:
        return n

    @step
    def meet() -> None:
        together.wait()

    @workflow
    async def work(n: int) -> int:
        if gets_on == "by what it records":
            await (book(n) if n % 2 else add(n, 0))
        await meet.aio()
        return n

    with App(dsn, include=[work]) as app:
        runs = app.start_many(work, [(n,) for n in range(count_of_runs)])
    for _ in range(3):
        conn.execute(CLAIMED_BY_A_GHOST, (count_of_runs, count_of_runs))
        conn.execute("select pgflow.reap_worker(worker_id, 0) from pgflow.worker")
    assert conn.execute("select min(suspect), min(company) from pgflow.ready").fetchone() == (2, 3)
    with fleet(dsn, work, size=1) as app:
        assert [app.get(run.key, work).result(SOON) for run in runs] == list(range(count_of_runs))


@pytest.mark.full
def test_a_worker_that_lives_keeps_its_runs_however_long_they_take(dsn, conn):
    release = threading.Event()
    bodies = []

    @step
    def long() -> int:
        bodies.append(1)
        release.wait(HANG_SECONDS)
        return 1

    @workflow
    async def work() -> int:
        return await long.aio()

    with fleet(dsn, work, size=2) as app:
        run = app.start(work)
        wait_until(lambda: bodies, "the body runs")
        (before,) = conn.execute("select min(beat) from pgflow.worker").fetchone()
        beats = int(FAST.dead_after / FAST.beat)
        wait_until(
            lambda: conn.execute(
                "select min(beat) > %s from pgflow.worker", (before + beats,)
            ).fetchone()[0],
            "time passes",
        )
        stale = conn.execute(
            "select (pgflow.reap_worker(worker_id, %s)).reclaimed from pgflow.worker", (before,)
        ).fetchall()
        assert stale == [(0,), (0,)]
        release.set()
        assert run.result(SOON) == 1
    assert bodies == [1]
    assert steps(conn, run.key) == [("long", "completed", 1)]


def test_a_worker_that_was_declared_dead_by_mistake_loses_its_runs_and_comes_back(dsn, conn):
    conn.execute("create table booked (n int)")
    bodies = []

    def reaped(token: int) -> bool:
        conn.execute(
            "select r.* from pgflow.observe_workers() w, pgflow.reap_worker(w.worker_id, w.beat) r"
        )
        return (
            conn.execute("select from pgflow.lease where token = %s", (token,)).fetchone() is None
        )

    @transaction
    async def book(mine: psycopg.AsyncConnection[Any]) -> int:
        bodies.append(1)
        await mine.execute("insert into booked values (%s)", (len(bodies),))
        if len(bodies) == 1:
            (token,) = conn.execute("select token from pgflow.lease").fetchone()
            wait_until(lambda: reaped(token), "no beat comes between the look and the death")
        return len(bodies)

    @workflow
    async def work() -> int:
        return await book()

    with fleet(dsn, work, size=1) as app:
        run = app.start(work)
        assert run.result(SOON) == 2
        assert app.run(work) == 3
    assert conn.execute("select n from booked order by n").fetchall() == [(2,), (3,)]


CLAIM_ONE_RUN = """
import sys

import psycopg

from pgflow._db.calls import claim, worker
from pgflow._db.query import run

with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    me = run(conn, worker.register_worker("host", 1, ["default"], 10, "test"))
    lanes = [lane.lane_id for lane in run(conn, claim.serve_lanes(["default"], ["demo"]))]
    (claimed,) = run(conn, claim.claim_runs(claim.ClaimRequest(me, lanes, 1)))
    print(me, claimed.token)
"""


def claim_in_a_process(dsn: str) -> tuple[int, int]:
    """A process claims the run and is gone: the number of its worker, and its token."""
    answer = subprocess.run(
        [sys.executable, "-c", CLAIM_ONE_RUN, dsn], capture_output=True, text=True, check=True
    )
    worker, token = map(int, answer.stdout.split())
    return worker, token


@pytest.mark.full
def test_a_zombie_is_fenced_off_from_a_run_that_another_process_has_claimed(dsn, conn):
    conn.execute("select pgflow.start_run('demo')")
    zombie, old_token = claim_in_a_process(dsn)
    conn.execute("select pgflow.reap_worker(%s, 0)", (zombie,))
    _, token = claim_in_a_process(dsn)
    commit = (
        "select pgflow.commit_unit(run_id, %s, 1, 1, 'c', 'step', '1', null, 0) from pgflow.lease"
    )
    assert conn.execute(commit, (old_token,)).fetchone() == ("lost",)
    assert conn.execute(commit, (token,)).fetchone() == (None,)


@pytest.mark.full
def test_a_worker_that_stops_lets_its_steps_finish_and_hands_the_rest_back(dsn, conn):
    started, proceed = threading.Event(), threading.Event()
    bodies = []

    @step
    def act(n: int) -> int:
        bodies.append(n)
        started.set()
        if n == 1:
            proceed.wait(HANG_SECONDS)
        return n

    @workflow
    async def work() -> list[int]:
        return [await act.aio(1), await act.aio(2)]

    with App(dsn, include=[work]) as app:
        worker = app.worker()
        worker.__enter__()
        run = app.start(work)
        assert started.wait(HANG_SECONDS)
        stopping = threading.Thread(target=lambda: worker.__exit__(None, None, None))
        stopping.start()
        wait_until(
            lambda: count(conn, "pgflow.worker", "stopping"), "the worker says that it stops"
        )
        proceed.set()
        stopping.join(HANG_SECONDS)
        assert (run.status(), bodies) == ("queued", [1])
        assert count(conn, "pgflow.worker") == count(conn, "pgflow.lease") == 0
        with app.worker():
            assert run.result(SOON) == [1, 2]
    assert bodies == [1, 2]


@pytest.mark.full
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_steps_that_do_not_end_in_time_are_given_up_when_their_worker_stops_and_run_again(
    dsn, colour
):
    runs_at_once = 20
    started, release = threading.Semaphore(0), threading.Event()

    @step(retries=1)
    async def endless(n: int) -> int:
        started.release()
        try:
            while not release.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            if (
                n == 0
                # What the others would wrongly be said to have come to has the time to get into the
                # journal.
            ):
                await asyncio.sleep(0.3)
            raise
        return n

    @step(retries=1)
    def endless_sync(n: int) -> int:
        started.release()
        release.wait(HANG_SECONDS)
        return n

    @workflow
    async def work(n: int) -> int:
        return await (endless(n) if colour == "async" else endless_sync.aio(n))

    with App(dsn, include=[work]) as app:
        with app.worker(grace_seconds=0.05):
            runs = app.start_many(work, [(n,) for n in range(runs_at_once)])
            for _ in runs:
                assert started.acquire(timeout=HANG_SECONDS)
        try:
            assert {run.status() for run in runs} == {"queued"}
        finally:
            release.set()
        with app.worker():
            assert [run.result(SOON) for run in runs] == list(range(runs_at_once))


@in_a_loop
async def test_a_run_whose_journal_is_still_being_read_is_not_handed_back(dsn, conn, monkeypatch):
    """Reading takes longer than the age of a stray where journals are long or the worker is busy."""
    reading, read_on = asyncio.Event(), asyncio.Event()
    load = RunStarter.load

    async def load_later(self: RunStarter, claim: Any) -> bool:
        reading.set()
        await read_on.wait()
        return await load(self, claim)

    @read
    async def large(n: int) -> str:
        return str(n) * 600_000

    @workflow
    async def work(texts: int) -> int:
        return len([await large(n) for n in range(texts)]) + await go.wait()

    async with AsyncApp(dsn, include=[work]) as app:
        run = await app.start(work, 3)
        async with app._work(WorkerOptions()):
            await eventually(lambda: count(conn, "pgflow.parked"), "it waits")
        monkeypatch.setattr(RunStarter, "load", load_later)
        async with app._work(WorkerOptions()) as worker:
            await run.send(go, 1)
            await reading.wait()
            asked = worker.worker_id, worker._claims.run_ids()
            query = "select (pgflow.release_strays(%s, %s, now())).strays"
            strays = conn.execute(query, asked).fetchone()
            read_on.set()
            assert await run.result(SOON) == 4
    assert strays == (0,)


@in_a_loop
async def test_a_run_whose_claim_is_not_answered_yet_is_not_handed_back(
    dsn, conn, monkeypatch, caplog
):
    """The answer is late where the worker's own code blocks its loop."""
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.01)
    looks, claimed, answer_it = 0, asyncio.Event(), asyncio.Event()
    ask = WorkerConnection.ask

    async def ask_and_wait(self: WorkerConnection, query: Any, *args: Any, **options: Any) -> Any:
        nonlocal looks
        answer = await ask(self, query, *args, **options)
        if "claim_runs" in query.sql and answer:
            claimed.set()
            await answer_it.wait()
        looks += "release_strays" in query.sql and claimed.is_set()
        return answer

    @workflow
    async def work() -> int:
        return await go.wait()

    monkeypatch.setattr(WorkerConnection, "ask", ask_and_wait)
    async with AsyncApp(dsn, include=[work]) as app:
        run = await app.start(work)
        await run.send(go, 1)
        async with app._work(WorkerOptions()):
            await eventually(lambda: looks > 5, "upkeep has looked")
            assert count(conn, "pgflow.lease") == 1
            answer_it.set()
            assert await run.result(SOON) == 1
    assert "without its knowledge" not in caplog.text
