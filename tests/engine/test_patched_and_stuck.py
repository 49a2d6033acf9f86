"""Code that changes under runs: `patched`, and what happens to runs that can go no further."""

from __future__ import annotations

import asyncio
import importlib.util
import linecache
import sys
import textwrap
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from records import (
    HOUR,
    SOON,
    calling,
    count,
    events,
    launch,
    recover,
    run_row,
    settle,
    steps,
    wait_until,
)

import pgflow
from pgflow import App, RunStuck, Signal, step, workflow
from pgflow.errors import WrongState

if TYPE_CHECKING:
    from pathlib import Path

    from pgflow.testing import AsyncHarness

go = Signal("go", int)


@step
async def old(n: int) -> str:
    return f"old {n}"


@step
async def new(n: int) -> str:
    return f"new {n}"


class Code:
    """Deployed code: tests change it between two activations."""

    version = 1


@pytest.fixture(autouse=True)
def _first_version() -> None:
    Code.version = 1


@workflow
async def changing(loops: int = 1) -> list[str]:
    said = []
    for n in range(loops):
        if Code.version == 1:
            said.append(await old(n))
        elif pgflow.patched("use-new"):
            said.append(await new(n))
        else:
            said.append(await old(n))
        await go.wait()
    return said


async def test_a_run_that_passed_before_the_change_keeps_the_old_side_and_a_new_one_takes_the_new(
    aflow,
):
    before = await settle(aflow, changing)
    Code.version = 2
    after = await settle(aflow, changing)
    for run in (before, after):
        await run.send(go, 1)
    assert await before.result(SOON) == ["old 0"]
    assert await after.result(SOON) == ["new 0"]


@pytest.mark.full
async def test_what_comes_after_the_change_in_an_old_run_takes_the_new_side_for_good(aflow):
    run = await settle(aflow, changing, 3)
    Code.version = 2
    for _ in range(3):
        await run.send(go, 1)
        await aflow.until_idle()
        await recover(aflow)
    assert await run.result(SOON) == ["old 0", "new 1", "new 2"]


async def test_a_marker_is_recorded_once_a_place_and_replayed(aflow, conn):
    Code.version = 2
    run = await launch(aflow, changing, 2)
    for _ in range(2):
        await run.send(go, 1)
        await aflow.until_idle()
    await run.result(SOON)
    assert [name for event, name in events(conn, run.key) if event == "patched"] == ["use-new"] * 2


def test_a_marker_works_in_a_sync_workflow(flow):
    version = [1]

    @workflow
    def changing_sync() -> str:
        said = new.sync(1) if version[0] == 2 and pgflow.patched("use-new") else old.sync(1)
        go.sync.wait()
        return said

    before = settle(flow, changing_sync)
    version[0] = 2
    after = flow.start(changing_sync)
    for run in (before, after):
        run.send(go, 1)
    assert (before.result(SOON), after.result(SOON)) == ("old 1", "new 1")


@workflow
async def unsteady() -> str:
    """Version 1 calls old, then waits; later versions differ as their tests say."""
    match Code.version:
        case 1:
            await old(1)
        case 2:
            await new(1)
        case 3:
            await old(1)
            await new(2)
        case 4:
            return "early"
        case 5:
            await pgflow.sleep(HOUR)
        case 6:
            pgflow.set_state(phase="x")
            await old(1)
        case 7:
            await pgflow.run_child(changing, 0)
    await go.wait()
    return f"version {Code.version}"


SAYS = {
    2: ("'old'", "step 'new'"), 4: ("ends where the journal goes on", "'old'"),
    5: ("'old'", "timer started"), 6: ("'old'", "state set"), 7: ("'old'", "child 'changing'"),
}  # fmt: skip


async def deploy(aflow: AsyncHarness, version: int) -> None:
    """Change the code, as another worker has it: this one keeps parked runs in memory."""
    await aflow.crash()
    Code.version = version
    await aflow.until_idle()


@pytest.mark.parametrize("version", SAYS)
async def test_code_that_does_not_repeat_its_journal_is_stuck_and_says_what_differs(
    aflow, conn, version
):
    run = await settle(aflow, unsteady, beside=[changing])
    recorded = events(conn, run.key)
    await deploy(aflow, version)
    await run.send(go, 1)
    with pytest.raises(RunStuck) as stuck:
        await run.result(SOON)
    for words in ("nondeterminism", run.key, "unsteady", *SAYS[version]):
        assert words in str(stuck.value)
    assert run_row(conn, run.key, "status, reason") == ("stuck", "nondeterminism")
    assert events(conn, run.key) == recorded


@pytest.mark.parametrize("version", [2, 7])
async def test_a_divergence_names_the_line_that_asks_or_waits_for_something_else(
    aflow, conn, version
):
    run = await settle(aflow, unsteady, beside=[changing])
    await deploy(aflow, version)
    await run.send(go, 1)
    await aflow.until_idle()
    (detail,) = run_row(conn, run.key, "error")
    assert any(
        "test_patched_and_stuck.py" in line and "in unsteady" in line for line in detail["where"]
    )


async def test_a_stuck_run_keeps_its_mail_and_goes_on_once_the_code_is_right_again(aflow, conn):
    run = await settle(aflow, unsteady)
    await deploy(aflow, 2)
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.status() == "stuck"
    await aflow.app.retry(run.key)
    await aflow.until_idle()
    assert await run.status() == "stuck"
    Code.version = 1
    await aflow.app.resume(run.key)
    assert await run.result(SOON) == "version 1"
    assert steps(conn, run.key) == [("old", "completed", 1)]


async def test_a_change_beyond_what_is_recorded_is_no_divergence(aflow, conn):
    run = await settle(aflow, unsteady)
    await deploy(aflow, 3)
    await run.send(go, 1)
    assert await run.result(SOON) == "version 3"
    assert [name for name, _, _ in steps(conn, run.key)] == ["old", "new"]


@pytest.mark.parametrize("change", ["arguments", "name", "order"])
async def test_a_started_step_that_is_asked_for_in_another_way_after_a_crash_is_not_run(
    aflow, conn, change
):
    bodies = []
    hanging = asyncio.Event()

    async def body(n: int) -> None:
        bodies.append(n)
        hanging.set()
        await asyncio.Event().wait()

    first, second = step(name="first")(body), step(name="second")(body)

    @workflow
    async def pays() -> None:
        if Code.version == 1:
            await first(1)
        elif change == "arguments":
            await first(2)
        elif change == "name":
            await second(1)
        else:
            await asyncio.gather(second(1), first(1))

    run = await launch(aflow, pays)
    await hanging.wait()
    await aflow.crash()
    Code.version = 2
    await aflow.until_idle()
    with pytest.raises(RunStuck, match="nondeterminism") as stuck:
        await run.result(SOON)
    assert "'first'" in str(stuck.value)
    if change == "arguments":
        assert "other arguments" in str(stuck.value)
    assert bodies == [1]
    assert run_row(conn, run.key, "status") == ("stuck",)


def load(folder: Path, version: int, body: str) -> Any:
    """A module with a workflow `deployed`, as it would be deployed."""
    name = f"deployed_{version}"
    path = folder / f"{name}.py"
    path.write_text(
        "import pgflow\n\ngo = pgflow.Signal('go', int)\n\n\n"
        "@pgflow.step\nasync def first() -> int:\n    return 1\n\n\n@pgflow.step\nasync def "
        "second() -> int:\n    return 2\n\n\n"
        "@pgflow.workflow(name='deployed')\nasync def deployed() -> "
        f"int:\n{textwrap.indent(body, '    ')}\n"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    linecache.checkcache()
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_a_worker_with_other_code_tries_what_was_stuck_and_one_with_the_same_code_does_not(
    dsn, conn, tmp_path
):
    original = load(tmp_path, 1, "n = await first()\nreturn n + await go.wait()")
    broken = load(tmp_path, 2, "n = await second()\nreturn n + await go.wait()")
    fixed = load(tmp_path, 3, "n = await first()\nreturn 10 * n + await go.wait()")

    with App(dsn, include=[original]) as app, app.worker():
        run = app.start(original.deployed.options(key="k"))
        wait_until(lambda: run.status() == "waiting", "the run waits")
    with App(dsn, include=[broken]) as app:
        run = app.get("k", broken.deployed)
        run.send(broken.go, 5)
        with app.worker(), pytest.raises(RunStuck, match=r"step 'first'.*step 'second'"):
            run.result(SOON)
        with app.worker(poll_seconds=0.05):
            assert run_row(conn, "k", "status, reason") == ("stuck", "nondeterminism")
    with App(dsn, include=[fixed]) as app:
        assert run_row(conn, "k", "status") == ("stuck",)
        with app.worker():
            assert app.get("k", fixed.deployed).result(SOON) == 15


def test_a_workflow_that_no_worker_knows_stays_queued_and_blocks_nobody(dsn, conn):
    @workflow
    async def known() -> int:
        return 1

    for _ in range(5):
        conn.execute("select pgflow.start_run('nobody knows it', priority => -9)")
    with App(dsn, include=[known]) as app, app.worker(poll_seconds=0.05):
        assert app.start(known).result(SOON) == 1
    assert count(conn, "pgflow.runs", "status = 'queued'") == 5


DEADLOCKS: dict[str, Any] = {
    "an event that nobody sets": lambda: asyncio.Event().wait(),
    "an empty queue": lambda: asyncio.Queue().get(),
    "a lock that is held": None,
}


@pytest.mark.parametrize("kind", DEADLOCKS)
async def test_a_run_that_waits_for_what_nothing_can_bring_is_stuck_and_says_where(
    aflow, conn, kind
):
    @workflow
    async def dead_end() -> None:
        await old(1)
        if kind == "a lock that is held":
            lock = asyncio.Lock()
            await lock.acquire()
            await lock.acquire()
        else:
            await DEADLOCKS[kind]()

    run = await launch(aflow, dead_end)
    with pytest.raises(RunStuck, match=r"deadlock.*nothing can bring"):
        await run.result(SOON)
    (status, reason, detail) = run_row(conn, run.key, "status, reason, error")
    assert (status, reason) == ("stuck", "deadlock")
    assert any("in dead_end" in line for line in detail["where"])


async def test_a_wait_for_time_or_mail_is_no_deadlock(aflow):
    @workflow
    async def patient() -> None:
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()

    run = await settle(aflow, patient)
    assert await run.status() == "waiting"
    await aflow.skip(HOUR)
    assert await run.status() == "failed"


async def test_a_stuck_run_can_be_cancelled(aflow):
    cleaned = []

    @workflow
    async def dead_end() -> None:
        await old(1)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(await new(1))

    run = await settle(aflow, dead_end)
    assert await run.status() == "stuck"
    await run.cancel()
    with pytest.raises(pgflow.RunCancelled):
        await run.result(SOON)
    assert cleaned == ["new 1"]


@pytest.mark.full
async def test_a_run_on_which_too_many_workers_died_is_stuck_and_a_retry_gives_it_a_fresh_budget(
    aflow, conn
):
    deaths = []
    hanging = asyncio.Event()

    @pgflow.read
    async def poison() -> int:
        if len(deaths) < 3:
            hanging.set()
            await asyncio.Event().wait()
        return len(deaths)

    @workflow
    async def harmless() -> int:
        return 1

    conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 2))")
    run = await launch(aflow, calling(poison), beside=[harmless])
    for _ in range(2):
        # It ends before the worker does: with another suspect beside it, the run would not be stuck.
        await (await aflow.start(harmless)).result(SOON)
        await hanging.wait()
        hanging.clear()
        await aflow.crash()
        deaths.append(1)
    await aflow.until_idle()
    with pytest.raises(RunStuck, match="poison.*2 workers died"):
        await run.result(SOON)
    await aflow.app.retry(run.key)
    await hanging.wait()
    await aflow.crash()
    deaths.append(1)
    await aflow.until_idle()
    assert await run.result(SOON) == 3
    assert count(conn, "pgflow.runs", "status = 'completed'") == 3
    with pytest.raises(WrongState):
        await aflow.app.retry(run.key)


@pytest.mark.full
async def test_a_worker_that_dies_while_a_run_waits_is_no_death_of_the_run(aflow, conn):
    conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1))")
    run = await settle(aflow, changing)
    for _ in range(3):
        await aflow.crash()
        await aflow.skip(timedelta(seconds=1))
    await run.send(go, 1)
    assert await run.result(SOON) == ["old 0"]
