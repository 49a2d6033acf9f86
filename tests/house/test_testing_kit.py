"""The testing kit: what its harnesses promise, and that its checks at the end of a test really
check.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import worker_jobs
from records import HOUR, SOON, count, eventually
from servers import HANG_SECONDS

import pgflow
from pgflow import AsyncRun, Signal, read, step, transaction, workflow
from pgflow.errors import NonDeterminismError, WrongState
from pgflow.testing import replay_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pgflow.testing import AsyncHarness, Harness

go = Signal("go", int)


@pytest.fixture(autouse=True)
def connections_of_ended_loops() -> Iterator[None]:
    """A loop that ends without a close leaves connections of which Python warns when it collects
    them: here, and not in a test of something else.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@step
async def post(text: str) -> str:
    raise AssertionError(f"the real thing was called with {text}")


@read
def look(n: int) -> int:
    raise AssertionError(f"the real thing was called with {n}")


@transaction
async def write(conn: psycopg.AsyncConnection[Any], n: int) -> int:
    raise AssertionError(f"the real thing was called with {n}")


@workflow
async def order(n: int) -> list[Any]:
    return [await post("a"), await look.aio(n), await write(n), await go.wait()]


# ---------------------------------------------------------------- until_idle


async def test_until_idle_says_when_the_next_timer_is_due(aflow: AsyncHarness) -> None:
    @workflow
    async def sleepy(hours: int) -> None:
        await pgflow.sleep(hours * HOUR)

    aflow.include(sleepy)
    assert await aflow.until_idle() is None
    await aflow.start(sleepy, 3)
    await aflow.start(sleepy, 1)
    due = await aflow.until_idle()
    assert due is not None
    assert abs(due - datetime.now(UTC) - HOUR) < timedelta(minutes=1)
    await aflow.skip(HOUR)
    due = await aflow.until_idle()
    assert due is not None
    assert abs(due - datetime.now(UTC) - 3 * HOUR) < timedelta(minutes=1)


@pytest.mark.full
async def test_until_idle_waits_for_everything_that_needs_no_time(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    @step
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @workflow
    async def leaf(n: int) -> int:
        return await work(n)

    @workflow
    async def tree(n: int) -> int:
        return sum((await pgflow.map(leaf, range(n))).values)

    aflow.include(tree, leaf)
    for _ in range(3):
        await aflow.start(tree, 5)
    await aflow.until_idle()
    assert conn.execute("select distinct status from pgflow.runs").fetchall() == [("completed",)]


async def test_until_idle_gives_up_on_what_never_ends(
    aflow: AsyncHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()

    @step
    async def endless() -> None:
        await release.wait()

    @workflow
    async def busy() -> None:
        await endless()

    monkeypatch.setattr("pgflow.testing.IDLE_TIMEOUT_SECONDS", 0.2)
    aflow.include(busy)
    await aflow.start(busy)
    with pytest.raises(TimeoutError, match=r"not idle after 0\.2 s"):
        await aflow.until_idle()
    release.set()


async def test_until_idle_names_the_workflow_that_nobody_has(aflow: AsyncHarness) -> None:
    @workflow
    async def child(n: int) -> int:
        return n

    @workflow
    async def parent(n: int) -> int:
        return await pgflow.run_child(child, n)

    aflow.include(parent)
    await aflow.start(parent, 1)
    with pytest.raises(
        WrongState, match=r"no worker of queue default has workflow \S+\.child, and 1 of"
    ):
        await aflow.until_idle()


async def test_until_idle_names_the_queue_that_nobody_serves(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    @workflow
    async def work(n: int) -> int:
        return n

    aflow.include(work)
    conn.execute("select pgflow.start_run('work', '{\"n\": 1}', queue => 'reports')")
    with pytest.raises(
        WrongState, match=r"no worker serves queue reports, and 1 of work is queued"
    ):
        await aflow.until_idle()


@pytest.mark.full
async def test_until_idle_knows_what_was_included_while_its_worker_works(
    aflow: AsyncHarness, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()

    @read
    async def endless() -> None:
        await release.wait()

    @workflow
    async def busy() -> None:
        await endless()

    @workflow
    async def late() -> None:
        """Queued until a place is free."""

    aflow.include(busy)
    for _ in range(20):
        await aflow.start(busy)
    await eventually(lambda: count(conn, "pgflow.lease") == 20, "all places taken")
    aflow.include(late)
    await aflow.start(late)
    monkeypatch.setattr("pgflow.testing.UNSERVED_SECONDS", 0)
    monkeypatch.setattr("pgflow.testing.IDLE_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(TimeoutError, match="not idle"):
        await aflow.until_idle()
    release.set()


async def test_a_harness_serves_the_queues_that_it_is_given(aflow: AsyncHarness) -> None:
    @workflow
    async def work(n: int) -> int:
        return n

    aflow(queues=["reports"]).include(work)
    run = await aflow.start(work.options(queue="reports"), 1)
    await aflow.until_idle()
    assert await run.status() == "completed"


async def test_until_idle_leaves_a_paused_queue_alone(
    aflow: AsyncHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow
    async def work(n: int) -> int:
        return n

    monkeypatch.setattr("pgflow.testing.UNSERVED_SECONDS", 0)
    aflow.include(work)
    await aflow.app.pause_queue("default")
    await aflow.start(work, 1)
    assert await aflow.until_idle() is None


# ---------------------------------------------------------------- loops


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def started(aflow: AsyncHarness, anyio_backend: str) -> AsyncIterator[AsyncRun[int]]:
    @workflow
    async def work() -> int:
        return await go.wait()

    aflow.include(work)
    run = await aflow.start(work)
    await aflow.until_idle()
    yield run
    await run.send(go, 5)
    assert await run.result(SOON) == 5


@pytest.mark.anyio
async def test_a_harness_works_on_the_loop_of_the_plugin_that_runs_the_test(
    aflow: AsyncHarness, started: AsyncRun[int]
) -> None:
    assert await started.status() == "waiting"
    await aflow.crash()
    await aflow.until_idle()


def on_a_loop_of_its_own(test: Any) -> Any:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@on_a_loop_of_its_own
async def test_a_harness_works_in_a_test_that_brings_its_loop(aflow: AsyncHarness) -> None:
    @workflow
    async def work() -> int:
        return 1

    aflow.include(work)
    assert await (await aflow.start(work)).result(SOON) == 1


# ---------------------------------------------------------------- skip


async def test_skip_moves_the_databases_clock_and_nobody_elses(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    await aflow.skip(HOUR)
    await aflow.skip(timedelta(minutes=30))
    (ours, theirs, after) = conn.execute(
        "select pgflow.now_(), before, clock_timestamp() from (select clock_timestamp() as before offset 0) b"
    ).fetchone()
    assert theirs <= ours - timedelta(minutes=90) <= after


async def test_skip_lets_happen_everything_that_is_due_by_then(aflow: AsyncHarness) -> None:
    @workflow
    async def steps_of_an_hour(n: int) -> int:
        for _ in range(n):
            await pgflow.sleep(HOUR)
        return n

    aflow.include(steps_of_an_hour)
    one, three = await aflow.start(steps_of_an_hour, 1), await aflow.start(steps_of_an_hour, 3)
    await aflow.until_idle()
    await aflow.skip(5 * HOUR)
    assert await one.status() == "completed"
    for _ in range(2):
        assert await three.status() == "waiting"
        await aflow.skip(HOUR)
    assert await three.status() == "completed"


# ---------------------------------------------------------------- crash


async def test_a_crash_stops_bodies_and_forgets_what_was_not_committed(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    bodies = []
    started = asyncio.Event()

    @read
    async def slow() -> int:
        bodies.append(len(bodies))
        started.set()
        if len(bodies) == 1:
            await asyncio.Event().wait()
        return len(bodies)

    @workflow
    async def work() -> int:
        return await slow()

    aflow.include(work)
    run = await aflow.start(work)
    await started.wait()
    assert await run.status() == "running"
    await aflow.crash()
    assert await run.status() == "queued"
    assert count(conn, "pgflow.lease") == count(conn, "pgflow.worker") == 0
    await aflow.until_idle()
    assert await run.result(SOON) == 2


def test_a_crash_of_a_sync_harness_does_the_same(flow: Harness, conn: psycopg.Connection) -> None:
    bodies = []
    started, release = threading.Event(), threading.Event()

    @read
    def slow() -> int:
        bodies.append(1)
        if len(bodies) == 1:
            started.set()
            release.wait(HANG_SECONDS)
        return len(bodies)

    @workflow
    def work() -> int:
        return slow()

    flow.include(work)
    run = flow.start(work)
    assert started.wait(HANG_SECONDS)
    flow.crash()
    assert run.status() == "queued"
    flow.until_idle()
    release.set()
    assert run.result(SOON) == 2


@pytest.mark.full
def test_crashes_can_follow_each_other(flow: Harness) -> None:
    @workflow
    def work() -> int:
        return go.sync.wait()

    flow.include(work)
    run = flow.start(work)
    for _ in range(3):
        flow.crash()
    flow.until_idle()
    run.send(go, 5)
    assert run.result(SOON) == 5


# ---------------------------------------------------------------- replace and include


async def test_a_fake_runs_instead_of_the_body_and_its_result_is_the_steps(
    aflow: AsyncHarness,
) -> None:
    posted = []

    async def fake_post(text: str) -> str:
        posted.append(
            (
                text,
                pgflow.run_info().step,
                pgflow.idempotency_key().rpartition("/")[0].rpartition("/")[2],
            )
        )
        return "faked"

    def fake_look(n: int) -> int:
        return 10 * n

    async def fake_write(conn: psycopg.AsyncConnection[Any], n: int) -> int:
        return (await (await conn.execute("select 100 * %s", (n,))).fetchone())[0]

    aflow.include(order)
    aflow.replace(post, fake_post)
    aflow.replace(look, fake_look)
    aflow.replace(write, fake_write)  # type: ignore[arg-type]
    run = await aflow.start(order, 3)
    await run.send(go, 1)
    assert await run.result(SOON) == ["faked", 30, 300, 1]
    assert posted == [("a", "post", "post")]


def test_a_fake_also_stands_in_for_the_step_with_options(flow: Harness) -> None:
    @workflow
    async def hurried() -> str:
        return await post.options(retries=1)("a")

    async def fake(text: str) -> str:
        return f"fake {text}"

    flow.include(hurried)
    flow.replace(post, fake)
    assert flow.start(hurried).result(SOON) == "fake a"


def test_a_fake_that_raises_fails_like_a_body(flow: Harness) -> None:
    @workflow
    async def cautious() -> str:
        try:
            return await post.options(retries=1)("a")
        except OSError as error:
            return str(error)

    async def fake(text: str) -> str:
        raise OSError("no network in tests")

    flow.include(cautious)
    flow.replace(post, fake)
    assert flow.start(cautious).result(SOON) == "no network in tests"


def test_include_takes_modules(flow: Harness) -> None:
    flow.include(worker_jobs)
    assert {w for w in vars(worker_jobs).values() if isinstance(w, pgflow.Workflow)} == set(
        flow.app.definitions.workflows.values()
    )


def test_each_test_has_a_database_of_its_own(flow: Harness, conn: psycopg.Connection) -> None:
    assert count(conn, "pgflow.runs") == 0
    flow.include(order)
    flow.app.start(order.options(key="the same in both"), 1)


async def test_each_test_has_a_database_of_its_own_in_the_other_colour_too(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    assert count(conn, "pgflow.runs") == 0
    aflow.include(order)
    await aflow.app.start(order.options(key="the same in both"), 1)


# ---------------------------------------------------------------- what is checked at the end

FAILING_TESTS = """
import random
from datetime import timedelta

import psycopg
import pgflow

@pgflow.step
async def heads() -> str:
    return "heads"

@pgflow.step
async def tails() -> str:
    return "tails"

coin = []

@pgflow.workflow
async def gamble() -> str:
    coin.append(1)
    return await (heads() if len(coin) % 2 else tails())

@pgflow.workflow
async def forgetful() -> int:
    await heads()
    coin.append(1)
    return len(coin)

@pgflow.workflow
def gamble_sync() -> str:
    coin.append(1)
    return heads.sync() if len(coin) % 2 else tails.sync()

@pgflow.workflow
async def steady() -> str:
    return await heads()

async def test_a_steady_workflow(aflow):
    aflow.include(steady)
    assert await (await aflow.start(steady)).result(timedelta(seconds=300)) == "heads"

async def test_another_step_on_replay(aflow):
    coin.clear()
    aflow.include(gamble)
    assert await (await aflow.start(gamble)).result(timedelta(seconds=300)) == "heads"

async def test_another_result_on_replay(aflow):
    coin.clear()
    aflow.include(forgetful)
    assert await (await aflow.start(forgetful)).result(timedelta(seconds=300)) == 1

def test_another_step_on_replay_of_a_sync_workflow(flow):
    coin.clear()
    flow.include(gamble_sync)
    assert flow.start(gamble_sync).result(timedelta(seconds=300)) == "heads"

def test_a_database_that_is_unsound(flow):
    flow.include(steady)
    flow.start(steady).result(timedelta(seconds=300))
    with psycopg.connect(flow.app.dsn) as connection:
        connection.execute("alter table pgflow.unit disable trigger user")
        connection.execute("insert into pgflow.nudge (chain_id) values (99)")
        connection.execute("insert into pgflow.timer (due_at, run_id, call) values ('2041-01-01', 99, 1)")
"""


async def test_a_journal_of_many_pages_is_replayed_to_its_end(aflow: AsyncHarness) -> None:
    pages = []

    @read
    async def fetch(n: int) -> str:
        return "x" * 100_000

    @workflow
    async def collector() -> int:
        pages.extend([len(await fetch(n)) for n in range(12)])
        return len(pages) if changed else 0

    changed = False
    aflow.include(collector)
    assert await (await aflow.start(collector)).result(SOON) == 0
    pages.clear()
    await asyncio.to_thread(replay_all, aflow.app)
    assert len(pages) == 12
    changed = True
    with pytest.raises(NonDeterminismError, match="the code returns"):
        await asyncio.to_thread(replay_all, aflow.app)
    changed = False


@pytest.mark.full
def test_the_replay_and_the_audit_at_the_end_really_fail_a_test(
    tmp_path: Path, server_dsn: str
) -> None:
    (tmp_path / "test_gambling.py").write_text(FAILING_TESTS)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-rA",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            "--noconftest",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={**os.environ, "PGFLOW_TEST_DSN": server_dsn, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert "5 passed, 4 errors" in ran.stdout, ran.stdout + ran.stderr
    assert "step 'heads'" in ran.stdout
    assert "step 'tails'" in ran.stdout
    assert "returned 1, the code returns 2" in ran.stdout
    assert "only parked runs wait" in ran.stdout
    for name in (
        "another_step_on_replay",
        "another_result_on_replay",
        "another_step_on_replay_of_a_sync_workflow",
    ):
        assert f"ERROR test_gambling.py::test_{name} - " in ran.stdout
    assert "ERROR test_gambling.py::test_a_database_that_is_unsound - AssertionError" in ran.stdout
    assert "ERROR test_gambling.py::test_a_steady_workflow" not in ran.stdout


# ---------------------------------------------------------------- what else an app is made with


class NotFoundThere(Exception):
    """An error that no step declares."""


class Labels(pgflow.extensions.Interceptor):
    def start(self, workflow: str, options: pgflow.StartOptions) -> pgflow.StartOptions:
        return replace(options, labels={**options.labels, "by": workflow})


@step(retries=1)
async def looks_there() -> None:
    raise NotFoundThere("nothing")


@workflow
async def searches() -> str:
    try:
        await looks_there()
    except NotFoundThere as error:
        return f"{type(error).__name__}: {error}"
    except pgflow.StepFailed as error:
        return type(error).__name__
    return ""


async def test_aflow_is_given_errors_and_interceptors(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    assert aflow(errors=[NotFoundThere], interceptors=[Labels()]) is aflow
    aflow.include(searches)
    run = await aflow.start(searches)
    assert await run.result(SOON) == "NotFoundThere: nothing"
    assert conn.execute("select labels from pgflow.runs").fetchall() == [({"by": "searches"},)]
    with pytest.raises(pgflow.errors.WrongState, match="before the first start"):
        aflow(errors=[ValueError])


def test_flow_is_given_errors_and_interceptors(flow: Harness, conn: psycopg.Connection) -> None:
    flow(errors=[NotFoundThere], interceptors=[Labels()]).include(searches)
    assert flow.start(searches).result(SOON) == "NotFoundThere: nothing"
    assert conn.execute("select labels from pgflow.runs").fetchall() == [({"by": "searches"},)]


async def test_without_being_given_them_there_are_none(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    aflow.include(searches)
    assert await (await aflow.start(searches)).result(SOON) == "StepFailed"
    assert conn.execute("select labels from pgflow.runs").fetchall() == [(None,)]
