"""Results that claim that something exists: checked when a run goes on, made anew where that may
be, and never handed back lost.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import SOON, count, eventually, run_row, settle, steps, wait_until
from servers import HANG_SECONDS

import pgflow
import pgflow._worker.hooks
from pgflow import Signal, read, step, transaction, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Ref, effect
from pgflow.errors import DefinitionError

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness


@dataclass
class Store:
    """Somewhere outside, where things are made under keys and may vanish."""

    things: set[str] = field(default_factory=set)
    made: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    names: Any = None

    def make(self, name: str, key: str) -> Ref:
        self.made.append((name, key))
        made = f"{name}-{len(self.made)}" if self.names == "anew" else name
        self.things.add(made)
        return Ref("store", made)

    async def has(self, ref: Ref) -> bool:
        self.asked.append(ref.id)
        return ref.id in self.things


STORES: list[Store] = []


@pytest.fixture
def store() -> Store:
    STORES.append(Store())
    return STORES[-1]


@dataclass
class Report:
    """A value that holds Refs."""

    pages: list[Ref]
    cover: Ref | None = None


@step
async def render(name: str) -> Report:
    return Report([STORES[-1].make(name, pgflow.idempotency_key())])


@read
async def find(name: str) -> Any:
    return {"found": STORES[-1].make(name, "read")}


@step
async def send(names: list[str]) -> str:
    return ", ".join(names)


go = Signal("go", int)


@workflow
async def publish() -> str:
    report = await render("a")
    assert isinstance(report.pages[0], Ref)
    found = await find("b")
    await go.wait()
    return await send([report.pages[0].id, found["found"].id])


async def parked(aflow: AsyncHarness, what: Any = publish) -> Any:
    """A run that waits for a signal, with its results recorded."""
    return await settle(aflow, what)


async def retried(conn: psycopg.Connection[Any], run: Any) -> Any:
    """The result of a run that was stuck."""
    conn.execute("select pgflow.retry_run(%s)", (run.key,))
    await eventually(lambda: run_row(conn, run.key, "status")[0] == "completed", "it is completed")
    return await run.result(SOON)


def kinds(conn: psycopg.Connection[Any]) -> str:
    return "".join(
        kind
        for (kind,) in conn.execute("select kind from pgflow.unit order by run_id, seq").fetchall()
    )


async def test_what_exists_is_handed_back_and_asked_after_once(aflow, conn, store):
    aflow.app.ref_checker("store")(store.has)
    run = await parked(aflow)
    assert store.asked == [], "not during the first run"
    await run.send(go, 1)
    assert await run.result(SOON) == "a, b"
    assert sorted(store.asked) == ["a", "b"]
    assert len(store.made) == 2
    assert "r" not in kinds(conn)


async def test_kinds_without_a_checker_are_believed(aflow, store):
    aflow.app.ref_checker("elsewhere")(store.has)
    run = await parked(aflow)
    store.things.clear()
    await run.send(go, 1)
    assert await run.result(SOON) == "a, b"
    assert store.asked == []


async def test_a_lost_ref_is_made_anew_and_not_handed_back(aflow, conn, store):
    aflow.app.ref_checker("store")(store.has)
    store.names = "anew"
    run = await parked(aflow)
    store.things.clear()
    await run.send(go, 1)
    assert await run.result(SOON) == "a-3, b-4"
    (first, _, again, _) = store.made
    assert again == first, "under the same key"
    assert kinds(conn).count("r") == 2
    assert steps(conn, run.key)[:2] == [("render", "completed", 2), ("find", "completed", 2)]
    ((output,),) = conn.execute(
        "select output->'pages'->0->>'id' from pgflow.steps where step = 'render'"
    ).fetchall()
    assert output == "a-3", "the newest"


async def test_what_was_made_anew_counts_in_every_replay_from_then_on(aflow, conn, store):
    @workflow
    async def patient() -> list[str]:
        seen = [(await render("a")).pages[0].id]
        for _ in range(3):
            await go.wait()
            seen.append((await render(f"after {seen[0]}")).pages[0].id)
        return seen

    aflow.app.ref_checker("store")(store.has)
    store.names = "anew"
    run = await parked(aflow, patient)
    store.things.clear()
    for number in range(3):
        await run.send(go, number)
        await aflow.until_idle()
    assert await run.result(SOON) == ["a-2", "after a-2-3", "after a-2-4", "after a-2-5"]
    assert kinds(conn).count("r") == 1
    assert "a-1" in store.asked
    assert store.asked.count("a-1") == 1, "what has been replaced is not asked after"


@pytest.mark.full
async def test_a_rewind_hands_on_what_was_made_anew(aflow, conn, store):
    aflow.app.ref_checker("store")(store.has)
    store.names = "anew"
    run = await parked(aflow)
    store.things.clear()
    await run.send(go, 1)
    assert await run.result(SOON) == "a-3, b-4"
    await aflow.app.rewind(run.key, to=0, effects="reuse")
    assert await aflow.app.get(run.key, publish).result(SOON) == "a-3, b-5"


@pytest.mark.full
async def test_a_worker_lost_while_something_is_made_anew_loses_nothing(aflow, conn, store):
    aflow.app.ref_checker("store")(store.has)
    run = await parked(aflow)
    store.things.clear()
    entered = asyncio.Event()

    async def hangs(name: str) -> Report:
        del name
        entered.set()
        await asyncio.sleep(60)
        return Report([])

    aflow.replace(render, hangs)
    await run.send(go, 1)
    await asyncio.wait_for(entered.wait(), HANG_SECONDS)
    before = count(conn, "pgflow.unit")
    await aflow.crash()
    assert count(conn, "pgflow.unit") == before
    aflow.app.definitions.replacements.clear()
    await aflow.until_idle()
    assert await run.result(SOON) == "a, b"


def test_sync_workflows_and_checkers_do_alike(flow, conn, store):
    @step
    def draw(name: str) -> Ref:
        return STORES[-1].make(name, pgflow.idempotency_key())

    @workflow
    def draws() -> str:
        drawn = draw("d")
        go.sync.wait()
        return drawn.id

    @flow.app.ref_checker("store")
    def exists(ref: Ref) -> bool:
        store.asked.append(ref.id)
        return ref.id in store.things

    store.names = "anew"
    run = settle(flow, draws)
    store.things.clear()
    run.send(go, 1)
    assert run.result(SOON) == "d-2"
    assert store.asked == ["d-1"]
    assert store.made[0] == store.made[1]


async def test_a_body_that_fails_on_its_way_is_tried_again(aflow, conn, store):
    tries: list[int] = []

    @step(retries=pgflow.Retries(max_attempts=3, first_delay=timedelta(milliseconds=1)))
    async def build(name: str) -> Ref:
        if store.made and len(tries) < 2:
            tries.append(1)
            raise ConnectionResetError(name)
        return store.make(name, pgflow.idempotency_key())

    @workflow
    async def builder() -> str:
        built = await build("x")
        await go.wait()
        return built.id

    aflow.app.ref_checker("store")(store.has)
    run = await parked(aflow, builder)
    store.things.clear()
    await run.send(go, 1)
    assert await run.result(SOON) == "x"
    assert len(tries) == 2
    assert "a" not in kinds(conn), "the past has no attempts added to it"


@effect(risk="reversible")
async def buy(name: str) -> Ref:
    return STORES[-1].make(name, pgflow.idempotency_key())


@decision()
async def choose(name: str) -> Choice[Ref]:
    return Choice(STORES[-1].make(name, "decision"), why="the only one")


@transaction
async def put(conn: psycopg.AsyncConnection[Any], name: str) -> Ref:
    del conn
    return STORES[-1].make(name, "transaction")


@workflow
async def buyer() -> str:
    bought = await buy("e")
    await go.wait()
    return bought.id


@workflow
async def chooser() -> str:
    chosen = await choose("e")
    await go.wait()
    return chosen.value.id


@workflow
async def putter() -> str:
    there = await put("e")
    await go.wait()
    return there.id


@pytest.mark.full
async def test_an_act_is_not_repeated_for_a_lost_ref_and_the_run_goes_on_once_it_is_there_again(
    aflow, conn, store
):
    aflow.app.ref_checker("store")(store.has)
    aflow.include(buyer, chooser, putter)
    runs = [await parked(aflow, what) for what in (buyer, chooser, putter)]
    store.things.clear()
    before = count(conn, "pgflow.unit")
    for run in runs:
        await run.send(go, 1)
        await eventually(
            lambda run=run: run_row(conn, run.key, "status")[0] == "stuck", "it is stuck"
        )  # type: ignore[misc]
        reason, error = run_row(conn, run.key, "reason, error")
        assert reason == "ref_lost"
        assert "store 'e', which is gone" in error["message"]
    assert count(conn, "pgflow.unit") == before
    conn.execute("select pgflow.retry_run(%s)", (run.key,))
    await eventually(
        lambda: len(store.asked) == 4 and run_row(conn, run.key, "status")[0] == "stuck",
        "it is stuck again: nothing has changed",
    )
    store.things.add("e")
    for run in runs:
        assert await retried(conn, run) == "e"
    assert len(store.made) == 3


@pytest.mark.full
async def test_a_body_that_cannot_make_it_again_leaves_the_run_stuck(aflow, conn, store):
    @step(raises=[LookupError])
    async def once(name: str) -> Ref:
        if store.made:
            raise LookupError(name)
        return store.make(name, pgflow.idempotency_key())

    @workflow
    async def maker() -> str:
        made = await once("m")
        await go.wait()
        return made.id

    aflow.app.ref_checker("store")(store.has)
    run = await parked(aflow, maker)
    store.things.clear()
    await run.send(go, 1)
    await eventually(lambda: run_row(conn, run.key, "status")[0] == "stuck", "it is stuck")
    found = run_row(conn, run.key, "error")[0]["message"]
    assert "running it again failed with LookupError" in found
    store.things.add("m")
    assert await retried(conn, run) == "m"


@pytest.mark.full
async def test_a_step_is_not_made_again_with_other_arguments(aflow, conn, store):
    @step
    async def copy(of: str) -> Ref:
        return store.make(f"copy of {of}", pgflow.idempotency_key())

    @workflow
    async def copier() -> str:
        report = await render("a")
        copied = await copy(report.pages[0].id)
        await go.wait()
        return copied.id

    aflow.app.ref_checker("store")(store.has)
    store.names = "anew"
    run = await parked(aflow, copier)
    store.things.clear()
    await run.send(go, 1)
    await eventually(lambda: run_row(conn, run.key, "status")[0] == "stuck", "it is stuck")
    assert "other arguments than before" in run_row(conn, run.key, "error")[0]["message"]
    store.things.update({"a-1", "copy of a-1-2"})
    assert await retried(conn, run) == "copy of a-1-2"


@pytest.mark.full
async def test_a_checker_that_does_not_answer_is_asked_again(aflow, store):
    @aflow.app.ref_checker("store", timeout=timedelta(milliseconds=50))
    async def exists(ref: Ref) -> Any:
        store.asked.append(ref.id)
        match len(store.asked):
            case 1:
                raise ConnectionResetError
            case 2:
                await asyncio.sleep(60)
            case 3:
                return None
        return ref.id in store.things

    run = await parked(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == "a, b"
    assert len(store.made) == 2


@pytest.mark.full
async def test_a_checker_that_is_cancelled_has_not_answered(aflow, store):
    @aflow.app.ref_checker("store")
    async def exists(ref: Ref) -> bool:
        store.asked.append(ref.id)
        if len(store.asked) == 1:
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner
        return ref.id in store.things

    run = await parked(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == "a, b"
    assert len(store.asked) == 3


@pytest.mark.full
def test_a_sync_checker_that_is_cancelled_has_not_answered(flow, store):
    @flow.app.ref_checker("store")
    def exists(ref: Ref) -> bool:
        store.asked.append(ref.id)
        if len(store.asked) == 1:
            raise concurrent.futures.CancelledError
        return ref.id in store.things

    run = settle(flow, publish)
    run.send(go, 1)
    assert run.result(SOON) == "a, b"
    assert len(store.asked) == 3


@pytest.mark.full
def test_a_sync_checker_that_hangs_is_not_called_again_while_it_does(flow, store, caplog):
    answer = threading.Event()
    names: set[str] = set()

    @flow.app.ref_checker("store", timeout=timedelta(milliseconds=50))
    def exists(ref: Ref) -> bool:
        store.asked.append(ref.id)
        names.add(threading.current_thread().name)
        answer.wait(HANG_SECONDS)
        return ref.id in store.things

    run = settle(flow, publish)
    run.send(go, 1)
    wait_until(lambda: caplog.text.count("did not answer") >= 4, "each was asked for twice")
    assert sorted(store.asked) == ["a", "b"]
    assert names == {"pgflow-check"}
    answer.set()
    assert run.result(SOON) == "a, b"


async def test_a_run_whose_check_breaks_off_is_handed_back(aflow, conn, store, monkeypatch):
    begun: list[int] = []

    async def breaks_off_once(*args: Any) -> Any:
        begun.append(1)
        if len(begun) == 1:
            raise asyncio.CancelledError
        return await pgflow._worker.hooks.find_lost(*args)

    aflow.app.ref_checker("store")(store.has)
    run = await parked(aflow)
    monkeypatch.setattr("pgflow._worker.executor.find_lost", breaks_off_once)
    await run.send(go, 1)
    assert await run.result(SOON) == "a, b"
    assert len(begun) == 2


@pytest.mark.full
async def test_a_worker_that_stops_does_not_wait_for_checkers_that_fail(aflow, conn, store):
    @aflow.app.ref_checker("store")
    async def exists(ref: Ref) -> bool:
        store.asked.append(ref.id)
        raise ConnectionResetError

    run = await parked(aflow)
    await run.send(go, 1)
    await eventually(lambda: bool(store.asked), "it is asked")
    assert run_row(conn, run.key, "status") == ("running",)
    await (await aflow._work()).stop()
    assert run_row(conn, run.key, "status") == ("queued",)


def test_a_checker_that_can_never_work_is_refused():
    app = pgflow.App("")
    app.ref_checker("store")(lambda _: True)
    with pytest.raises(DefinitionError, match="each kind has one checker"):
        app.ref_checker("store")(lambda _: True)
    with pytest.raises(DefinitionError, match="must be a function"):
        app.ref_checker("s3")(3)  # type: ignore[type-var]
    with pytest.raises(DefinitionError, match="takes the kind"):
        app.ref_checker("")(lambda _: True)
    with pytest.raises(DefinitionError, match="greater than zero"):
        app.ref_checker("s3", timeout=timedelta(0))(lambda _: True)
