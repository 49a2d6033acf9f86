"""Queues: who serves which, how many run at once over all workers, and pausing one while others go
on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence

import psycopg
import pytest
from records import SOON, count, wait_until
from servers import HANG_SECONDS

import pgflow
from pgflow import App, Signal, read, workflow
from pgflow._db.calls.claim import ClaimRequest
from pgflow._engine.flush import Flush
from pgflow._model.claims import Claim
from pgflow._worker.claims import Claims

go = Signal("go", int)


class Works:
    """Bodies that stand still until they are let go, and who counts them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.release = threading.Semaphore(0)
        self.now = 0
        self.most = 0

    def work(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.release.acquire(timeout=HANG_SECONDS)
        with self.lock:
            self.now -= 1


@pytest.fixture
def works() -> Iterator[Works]:
    works = Works()
    yield works
    works.release.release(1000)


def make_workflow(works: Works) -> pgflow.Workflow[[int], int]:
    @read
    def hold() -> None:
        works.work()

    @workflow(queue="narrow")
    async def narrow(n: int) -> int:
        await hold.aio()
        return n

    return narrow


@contextlib.contextmanager
def fleet(
    dsn: str, made: pgflow.Workflow[[int], int], size: int, concurrency: int = 100
) -> Iterator[App]:
    """Worker processes of the same code, as far as the database can tell."""
    with contextlib.ExitStack() as stack:
        apps = [stack.enter_context(App(dsn, include=[made])) for _ in range(size)]
        for app in apps:
            stack.enter_context(app.worker(poll_seconds=0.05, concurrency=concurrency))
        yield apps[0]


@pytest.mark.full
def test_a_worker_with_a_backlog_claims_as_many_as_end_though_other_ends_are_on_their_way(
    dsn, monkeypatch
):
    asked: list[tuple[int, int | None]] = []
    request_with = Claims.request_with
    now = most = 0

    def watched(claims: Claims, flushes: Sequence[Flush]) -> ClaimRequest | None:
        has_backlog = claims._has_backlog
        request = request_with(claims, flushes)
        ending = sum(flush.ending is not None for flush in flushes)
        if has_backlog and ending:
            asked.append((ending, request and request.max_runs))
        return request

    @read
    async def look() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    @workflow
    async def looking(n: int) -> int:
        await look()
        return n

    monkeypatch.setattr(Claims, "request_with", watched)
    with App(dsn, include=[looking]) as app:
        runs = app.start_many(looking, [(n,) for n in range(400)])
        with app.worker(concurrency=16):
            assert [run.result(SOON) for run in runs] == list(range(400))
    assert len(asked) > 10
    assert [pair for pair in asked if pair[1] is None or pair[1] < pair[0]] == []
    assert most == 16


@pytest.mark.full
def test_a_worker_with_a_backlog_claims_for_the_places_of_runs_that_park_and_for_no_others(
    dsn, conn, monkeypatch
):
    rode: list[tuple[int, int]] = []
    arrived = Claims.arrived
    most = 0

    def watched(
        claims: Claims, request: ClaimRequest, found: list[Claim], parked: int = 0
    ) -> ClaimRequest:
        nonlocal most
        answered = arrived(claims, request, found, parked)
        most = max(most, len(claims._runs.executions) - parked - request.replaces)
        if request.parks:
            rode.append((request.parks, parked))
            assert len(found) <= request.max_runs + parked
        return answered

    @workflow
    async def waiting(_n: int) -> int:
        return await go.wait()

    monkeypatch.setattr(Claims, "arrived", watched)
    with App(dsn, include=[waiting]) as app:
        runs = app.start_many(waiting, [(n,) for n in range(200)])
        for run in runs[::3]:
            run.send(go, 1)
            run.send(go, 2)  # so that no claim brings what it waits for
        with app.worker(concurrency=8):
            wait_until(lambda: count(conn, "pgflow.parked") == 133, "those without a signal park")
            assert [run.result(SOON) for run in runs[::3]] == [1] * 67
    assert len(rode) > 5
    assert any(parked < parks for parks, parked in rode)
    assert most <= 8


@pytest.mark.full
def test_a_limit_holds_over_all_workers_and_is_used_in_full(dsn, conn, works):
    narrow = make_workflow(works)
    conn.execute("select pgflow.set_queue('narrow', jsonb_build_object('concurrency', 3))")
    with fleet(dsn, narrow, 2) as app:
        runs = app.start_many(narrow, [(n,) for n in range(12)])
        for _ in range(3):
            wait_until(lambda: works.now == 3, "three are at work")
            assert count(conn, "pgflow.lease") == 3
            works.release.release(3)
        works.release.release(100)
        assert [run.result(SOON) for run in runs] == list(range(12))
    assert works.most == 3


@pytest.mark.full
def test_a_limit_can_be_changed_while_workers_run(dsn, conn, works):
    narrow = make_workflow(works)
    conn.execute("select pgflow.set_queue('narrow', jsonb_build_object('concurrency', 2))")
    with fleet(dsn, narrow, 1) as app:
        runs = app.start_many(narrow, [(n,) for n in range(12)])
        wait_until(lambda: works.now == 2, "two are at work")
        conn.execute("select pgflow.set_queue('narrow', jsonb_build_object('concurrency', 5))")
        wait_until(lambda: works.now == 5, "five are at work")
        conn.execute("select pgflow.set_queue('narrow', jsonb_build_object('concurrency', 1))")
        works.release.release(5)
        wait_until(lambda: works.now == 1, "one is at work")
        works.most = 0
        works.release.release(100)
        assert [run.result(SOON) for run in runs] == list(range(12))
    assert works.most <= 1


@pytest.mark.full
def test_a_worker_works_on_no_more_runs_at_once_than_it_is_told(dsn, conn, works):
    narrow = make_workflow(works)
    with fleet(dsn, narrow, 2, concurrency=2) as app:
        runs = app.start_many(narrow, [(n,) for n in range(10)])
        wait_until(lambda: works.now == 4, "two workers do two each")
        assert conn.execute("select running from pgflow.workers").fetchall() == [(2,), (2,)]
        works.release.release(100)
        assert [run.result(SOON) for run in runs] == list(range(10))
    assert works.most == 4


def test_a_worker_serves_only_the_queues_it_is_told(dsn):
    @workflow
    async def where() -> int:
        return 1

    with App(dsn, include=[where]) as app:
        there, elsewhere = (
            app.start(where.options(queue="there")),
            app.start(where.options(queue="elsewhere")),
        )
        with app.worker(queues=["there"], poll_seconds=0.05):
            assert there.result(SOON) == 1
            assert elsewhere.status() == "queued"
        with app.worker(queues=["elsewhere"], poll_seconds=0.05):
            assert elsewhere.result(SOON) == 1


@pytest.mark.full
def test_a_paused_queue_holds_up_no_other(flow, conn):
    @workflow(queue="paused")
    async def held() -> int:
        return 1

    @workflow
    async def free() -> int:
        return 2

    flow.include(held, free)
    conn.execute("select pgflow.pause_queue('paused')")
    waiting, going = flow.start(held), flow.start(free)
    assert going.result(SOON) == 2
    flow.until_idle()
    assert waiting.status() == "queued"
    conn.execute("select pgflow.resume_queue('paused')")
    flow.until_idle()
    assert waiting.result(SOON) == 1


@pytest.mark.parametrize(
    "call",
    [
        "set_queue('q', jsonb_build_object('concurrency', 0))",
        "set_queue('q', jsonb_build_object('max_deaths', 0))",
        "set_queue('', jsonb_build_object('concurrency', null))",
        "pause_queue(repeat('q', 256))",
    ],
)
def test_limits_that_make_no_sense_are_refused(conn, call):
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(f"select pgflow.{call}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == "PF003"
