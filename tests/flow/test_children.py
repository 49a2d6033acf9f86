"""Children: runs that a run starts, what their results and failures are to it, and what its end is
to them.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import (
    HOUR,
    SOON,
    calling,
    count,
    events,
    eventually,
    launch,
    recover,
    result_of,
    run_row,
    settle,
)

import pgflow
from pgflow import App, KeyConflict, RunCancelled, RunFailed, Signal, StepFailed, step, workflow
from pgflow.errors import DefinitionError, NotStorable

if TYPE_CHECKING:
    from collections.abc import Callable


go = Signal("go", int)


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def double(n: int) -> int:
    return await add(n, n)


@workflow
async def wait_for_go(first: int = 0) -> int:
    return first + await go.wait()


class SoldOutError(Exception):
    pass


@workflow(raises=[SoldOutError])
async def sell(sku: str) -> None:
    raise SoldOutError(sku)


def statuses(conn: psycopg.Connection) -> dict[str, str]:
    return dict(conn.execute("select key, status from pgflow.runs").fetchall())


@pytest.mark.full
def test_the_end_of_a_child_wakes_its_parent_without_a_poll(dsn):
    """A poll an hour after the first, so that nothing but the wake that follows the commit brings
    the parent on.
    """

    @workflow
    async def parent(n: int) -> int:
        return await pgflow.run_child(double, n)

    with App(dsn, include=[parent, double]) as app, app.worker(poll_seconds=3600):
        assert app.start(double, 1).result(SOON) == 2  # the first poll is over by then
        assert app.start(parent, 4).result(SOON) == 8


@pytest.mark.full
def test_a_parent_gets_the_results_of_its_children_in_both_colours(flow, conn):
    @workflow
    async def parent(n: int) -> list[int]:
        return [
            await pgflow.run_child(double, n),
            *await asyncio.gather(*(pgflow.run_child(double, n + i) for i in (1, 2))),
        ]

    @workflow
    def parent_sync(n: int) -> list[int]:
        return [pgflow.sync.run_child(double, n), pgflow.sync.run_child(double, n=n + 1)]

    assert result_of(flow, parent, 1, beside=[parent_sync, double]) == [2, 4, 6]
    assert flow.start(parent_sync, 5).result(SOON) == [10, 12]
    assert count(conn, "pgflow.run", "parent_run_id is not null") == 5


@pytest.mark.full
def test_children_of_children_reach_the_root(flow, conn):
    @workflow
    async def tower(height: int) -> int:
        return 1 + (await pgflow.run_child(tower, height - 1) if height > 1 else 0)

    assert result_of(flow, tower, 5) == 5
    assert conn.execute(
        "select count(*), count(distinct root_run_id), count(distinct parent_run_id) from "
        "pgflow.run"
    ).fetchone() == (5, 1, 4)


@pytest.mark.full
async def test_the_result_of_a_child_is_recorded_by_its_parent_whose_replay_needs_no_child(
    aflow, conn
):
    @workflow
    async def parent() -> int:
        return await pgflow.run_child(double.options(key="child"), 4) + await go.wait()

    run = await settle(aflow, parent, beside=[double])
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == 9
    assert events(conn, run.key) == [
        ("child_started", "double"),
        ("child_finished", "double"),
        ("signal_received", "go"),
    ]
    assert count(conn, "pgflow.run") == 2


bodies: list[str] = []
"""Names of the bodies that ran, in order."""


@step
async def visit(place: str) -> int:
    bodies.append(place)
    return len(place)


@workflow
async def visit_both(first: str, second: str) -> int:
    bodies.append("inside")
    return await visit(first) + await visit(second)


@workflow
async def tour() -> int:
    return (
        await pgflow.run_child(visit_both, "Lima", "Quito") + await go.wait() + await visit("Rio")
    )


@workflow
def tour_in_sync() -> int:
    seen = pgflow.sync.run_child(visit_both, "Lima", "Quito")
    return seen + go.sync.wait() + visit.sync("Rio")


@pytest.mark.parametrize("whole", [tour, tour_in_sync], ids=["async", "sync"])
async def test_steps_with_one_result_are_not_run_again_after_a_crash_nor_by_a_fork(
    aflow, conn, whole
):
    bodies.clear()
    run = await settle(aflow, whole, beside=[visit_both])
    inside = ["inside", "Lima", "Quito"]
    assert bodies == inside
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == 13
    assert bodies == [*inside, "Rio"]

    end = "select seq from pgflow.timeline where key = %s and event = 'child_finished'"
    (cut,) = conn.execute(end, [run.key]).fetchone() or (0,)
    key = await aflow.app.fork(run.key, at=cut, effects="repeat")
    fork = aflow.app.get(key, whole)
    await fork.send(go, 2)
    assert await fork.result(SOON) == 14
    assert bodies == [*inside, "Rio", "Rio"]
    assert count(conn, "pgflow.run") == 3


@pytest.mark.full
async def test_the_failure_of_a_child_is_run_failed_with_its_error_as_the_cause_on_replay_too(
    aflow,
):
    caught = []

    @workflow
    async def parent() -> str:
        try:
            await pgflow.run_child(sell, "sku-7")
        except RunFailed as error:
            caught.append((str(error), repr(error.__cause__)))
        await go.wait()
        return "coped"

    run = await settle(aflow, parent, beside=[sell])
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == "coped"
    assert set(caught) == {("child sell failed: sku-7", "SoldOutError('sku-7')")}
    assert len(caught) > 1


async def test_the_cause_of_a_childs_failure_reaches_the_client_of_the_root(aflow):
    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, calling(pgflow.run_child, sell, "sku-7"), beside=[sell])
    assert isinstance(failed.value.__cause__, RunFailed)
    assert "child sell failed: sku-7" in str(failed.value.__cause__)
    assert isinstance(failed.value.__cause__.__cause__, (SoldOutError, StepFailed))


@pytest.mark.full
async def test_a_child_that_was_cancelled_is_run_cancelled_to_its_parent(aflow):
    @workflow
    async def parent() -> str:
        try:
            await pgflow.run_child(wait_for_go.options(key="child"))
        except RunCancelled as error:
            return str(error)
        return ""

    run = await settle(aflow, parent, beside=[wait_for_go])
    await aflow.app.cancel("child", why="no longer wanted")
    assert await run.result(SOON) == "child wait_for_go was cancelled: no longer wanted"


@pytest.mark.full
async def test_a_child_that_is_stuck_keeps_its_parent_waiting_until_it_goes_on(aflow, conn):
    helped = []

    @workflow
    async def dead_end() -> int:
        if not helped:
            await asyncio.get_running_loop().create_future()
        return 1

    @workflow
    async def parent() -> int:
        return await pgflow.run_child(dead_end.options(key="child"))

    run = await settle(aflow, parent.options(key="parent"), beside=[dead_end])
    assert statuses(conn) == {"parent": "waiting", "child": "stuck"}
    helped.append(True)
    await aflow.app.retry("child")
    assert await run.result(SOON) == 1


async def test_a_result_that_does_not_fit_the_parents_view_of_a_child_is_a_typed_error(aflow):
    @workflow(name="price")
    async def price_as_deployed() -> str:
        return "ten"

    @workflow(name="price")
    async def price_as_declared() -> int:
        return 10

    @workflow
    async def parent() -> str:
        try:
            await pgflow.run_child(price_as_declared)
        except NotStorable as error:
            return str(error)
        return ""

    found = await result_of(aflow, parent, beside=[price_as_deployed])
    assert "the result of child price does not fit its annotation int" in found


@pytest.mark.full
async def test_a_child_may_have_a_key_labels_a_queue_and_a_time_of_its_own(aflow, conn):
    @workflow(queue="slow")
    async def slowly() -> str:
        return "done"

    @workflow
    async def parent(at: datetime) -> str:
        return await pgflow.run_child(
            slowly.options(key="child", labels={"a": "b"}, run_at=at, priority=-3)
        )

    aflow.include(parent, slowly)
    at = datetime.now(UTC) + HOUR
    run = await settle(aflow, parent, at)
    assert run_row(conn, "child", "status, queue, labels, run_at, priority") == (
        "waiting", "slow", {"a": "b"}, at, -3,
    )  # fmt: skip
    await aflow.skip(HOUR)
    assert await run.result(SOON) == "done"


async def test_a_child_under_a_key_that_another_run_has_is_a_conflict_and_harms_nobody(aflow, conn):
    @workflow
    async def parent() -> list[str]:
        said = []
        for key, child in (
            ("taken", double),
            ("taken", wait_for_go),
            ("mine", double),
            ("mine", double),
        ):
            try:
                said.append(str(await pgflow.run_child(child.options(key=key), 1)))
            except KeyConflict as error:
                said.append(str(error))
        return said

    first = await launch(aflow, wait_for_go.options(key="taken"), 1, beside=[parent, double])
    run = await aflow.start(parent)
    said = await run.result(SOON)
    assert "'taken'" in said[0]
    assert "'taken'" in said[1]
    assert said[2] == "2"
    assert "'mine'" in said[3]
    await first.send(go, 1)
    assert await first.result(SOON) == 2


def test_an_input_that_does_not_fit_the_child_is_refused_at_the_call(flow, conn):
    @workflow
    async def parent() -> list[str]:
        said = []
        for call in (lambda: pgflow.run_child(double, "x"), lambda: pgflow.run_child(double)):  # type: ignore[arg-type,call-arg]
            try:
                await call()
            except (NotStorable, TypeError) as error:
                said.append(str(error))
        return said

    not_storable, missing = result_of(flow, parent, beside=[double])
    assert "the input of workflow double" in not_storable
    assert "'n'" in missing
    assert count(conn, "pgflow.run") == 1


@workflow
async def family(depth: int, policy: str, ends: str) -> None:
    """A chain of parents; the root ends as it is told, the others wait for their child."""
    if depth == 0:
        await go.wait()
        return
    child = family.options(
        key=f"level {depth - 1}", when_parent_ends="abandon" if policy == "abandon" else "cancel"
    )
    task = asyncio.create_task(pgflow.run_child(child, depth - 1, policy, "waits"))
    if ends == "waits":
        await task
    await go.wait()
    if ends == "raises":
        raise ValueError


def plain(n: int) -> int:
    """Of no workflow."""
    return n


ASKS: dict[str, Callable[[], Any]] = {
    "run_child": lambda: pgflow.sync.run_child(plain, 1),  # type: ignore[arg-type]
    "start_child": lambda: pgflow.sync.start_child(plain, 1),  # type: ignore[arg-type]
    "map": lambda: pgflow.sync.map(plain, [1]),  # type: ignore[arg-type]
}
ASYNC_ASKS: dict[str, Callable[[], Any]] = {
    "run_child": lambda: pgflow.run_child(plain, 1),  # type: ignore[arg-type]
    "start_child": lambda: pgflow.start_child(plain, 1),  # type: ignore[arg-type]
    "map": lambda: pgflow.map(plain, [1]),  # type: ignore[arg-type]
}


@workflow
def asking(how: str) -> str:
    with pytest.raises(DefinitionError) as refused:
        ASKS[how]()
    return str(refused.value)


@workflow
async def asking_async(how: str) -> str:
    with pytest.raises(DefinitionError) as refused:
        await ASYNC_ASKS[how]()
    return str(refused.value)


@pytest.mark.parametrize("how", ASKS)
@pytest.mark.parametrize("parent", [asking, asking_async])
def test_a_plain_function_is_no_child(flow, parent, how):
    said = result_of(flow, parent, how)
    assert said.startswith(f"{how}() takes a ")
    assert "<function plain at " in said
    assert "is it decorated with @pgflow." in said


@pytest.mark.full
@pytest.mark.parametrize("ends", ["returns", "raises", "is cancelled"])
async def test_when_a_parent_ends_its_children_are_cancelled_level_by_level(aflow, conn, ends):
    run = await settle(aflow, family.options(key="level 3"), 3, "cancel", ends)
    assert set(statuses(conn).values()) == {"waiting"}
    await (run.cancel() if ends == "is cancelled" else run.send(go, 1))
    await aflow.until_idle()
    root = {"returns": "completed", "raises": "failed", "is cancelled": "cancelled"}[ends]
    assert statuses(conn) == {
        "level 3": root, "level 2": "cancelled", "level 1": "cancelled", "level 0": "cancelled",
    }  # fmt: skip
    found = run_row(conn, "level 0", "reason, reason_code")
    assert found == ("the parent run ended", "parent_ended")


@pytest.mark.full
async def test_an_abandoned_child_lives_on(aflow, conn):
    run = await settle(aflow, family.options(key="level 1"), 1, "abandon", "returns")
    await run.send(go, 1)
    await aflow.until_idle()
    assert statuses(conn) == {"level 1": "completed", "level 0": "waiting"}
    await aflow.app.send("level 0", go, 1)
    await aflow.until_idle()
    assert statuses(conn)["level 0"] == "completed"
    assert count(conn, "pgflow.signal") == 0


@pytest.mark.full
async def test_a_child_may_clean_up_with_steps_when_its_parent_is_cancelled(aflow):
    cleaned = []

    @step
    async def clean() -> None:
        cleaned.append(1)

    @workflow
    async def child() -> None:
        try:
            await pgflow.sleep(HOUR)
        finally:
            await clean()

    run = await settle(aflow, calling(pgflow.run_child, child), beside=[child])
    await run.cancel()
    await aflow.until_idle()
    assert await run.status() == "cancelled"
    assert cleaned == [1]


@pytest.mark.full
async def test_a_child_that_takes_too_long_is_a_timeout_error_and_the_parent_goes_on(aflow, conn):
    @workflow
    async def parent() -> str:
        try:
            async with asyncio.timeout(3600):
                await pgflow.run_child(wait_for_go.options(key="child"))
        except TimeoutError:
            return f"too long {await go.wait()}"
        return ""

    run = await settle(aflow, parent, beside=[wait_for_go])
    await aflow.skip(HOUR)
    assert await run.status() == "waiting"
    await run.send(go, 2)
    assert await run.result(SOON) == "too long 2"
    assert ("call_cancelled", "wait_for_go") in events(conn, run.key)


@pytest.mark.full
async def test_an_abandoned_child_that_was_given_up_lives_on_and_its_late_result_is_nobodys(aflow):
    @workflow
    async def parent() -> int:
        try:
            async with asyncio.timeout(3600):
                await pgflow.run_child(wait_for_go.options(key="child", when_parent_ends="abandon"))
        except TimeoutError:
            return await go.wait()
        return 0

    run = await settle(aflow, parent, beside=[wait_for_go])
    await aflow.skip(HOUR)
    await aflow.app.send("child", go, 1)
    assert await aflow.app.get("child", wait_for_go).result(SOON) == 1
    await run.send(go, 2)
    assert await run.result(SOON) == 2


@pytest.mark.full
async def test_a_child_that_was_given_up_is_cancelled_at_once(aflow, conn):
    @workflow
    async def parent() -> None:
        try:
            async with asyncio.timeout(3600):
                await pgflow.run_child(wait_for_go.options(key="child"))
        except TimeoutError:
            await go.wait()

    await settle(aflow, parent, beside=[wait_for_go])
    await aflow.skip(HOUR)
    assert run_row(conn, "child", "status") == ("cancelled",)


@pytest.mark.full
async def test_the_late_result_of_a_child_that_was_given_up_does_not_keep_its_parent_awake(aflow):
    @workflow
    async def parent() -> int:
        try:
            async with asyncio.timeout(0.05):
                await pgflow.run_child(wait_for_go.options(key="first"))
        except TimeoutError:
            return await pgflow.run_child(wait_for_go.options(key="second"))
        return 0

    run = await launch(aflow, parent, beside=[wait_for_go])
    second = aflow.app.get("second", wait_for_go)
    await eventually(lambda: is_waiting(second), "the second child waits")
    try:
        await aflow.until_idle()
    finally:
        await second.send(go, 5)
        assert await run.result(SOON) == 5


async def is_waiting(run: pgflow.AsyncRun[Any]) -> bool:
    try:
        return await run.status() == "waiting"
    except pgflow.RunNotFound:
        return False


@pytest.mark.full
async def test_the_faster_of_two_children_wins(aflow):
    @workflow
    async def parent() -> Any:
        racers = [
            asyncio.create_task(pgflow.run_child(wait_for_go.options(key=key)))
            for key in ("slow", "fast")
        ]
        done, pending = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return [racers.index(task) for task in done]

    run = await settle(aflow, parent, beside=[wait_for_go])
    await aflow.app.send("fast", go, 1)
    assert await run.result(SOON) == [1]


async def test_a_child_that_was_started_has_a_key_and_is_waited_for_later(aflow, conn):
    @workflow
    async def parent(n: int) -> list[Any]:
        child = await pgflow.start_child(double, n)
        named = await pgflow.start_child(double.options(key="named"), n + 1)
        extra = await add(n, 0)
        return [
            child.key != "",
            named.key,
            named.workflow,
            extra,
            await named.result(),
            await child.result(),
            await child.result(),
        ]

    found = await result_of(aflow, parent, 4, beside=[double])
    assert found == [True, "named", "double", 4, 10, 8, 8]
    assert run_row(conn, "named", "status, output") == ("completed", 10)


def test_a_sync_workflow_starts_children_and_waits_for_them_later(flow):
    @workflow
    def parent(n: int) -> list[Any]:
        first = pgflow.sync.start_child(double, n)
        second = pgflow.sync.start_child(double.options(key="second"), n + 1)
        return [second.key, second.workflow, second.result(), first.result(), first.result()]

    assert result_of(flow, parent, 4, beside=[double]) == ["second", "double", 10, 8, 8]


@pytest.mark.full
async def test_a_start_that_was_waited_for_is_replayed_in_its_place(aflow, conn):
    """Notes of the code between a start and the outcome come after the start in the journal, on
    first runs and replays alike.
    """
    seen: list[list[str]] = []

    @workflow
    async def parent() -> list[str]:
        said: list[str] = []
        seen.append(said)

        async def one(key: str) -> None:
            child = await pgflow.start_child(wait_for_go.options(key=key), 0)
            said.append(f"{child.key} started")
            pgflow.set_state(**{key: "started"})
            said.append(f"{child.key} {await child.result()}")

        async def other() -> None:
            for n in range(3):
                await add(n, n)
                said.append(f"step {n}")

        async with asyncio.TaskGroup() as group:
            group.create_task(one("a"))
            group.create_task(other())
            group.create_task(one("b"))
        return said

    run = await launch(aflow, parent, beside=[wait_for_go])
    for key, n in [("b", 1), ("a", 2)]:
        await aflow.until_idle()
        await recover(aflow)
        await aflow.app.send(key, go, n)
    await aflow.until_idle()
    said = await run.result(SOON)
    assert len(said) == 7
    assert said[-2:] == ["b 1", "a 2"]
    assert len(seen) == 3
    assert all(said[: len(part)] == part for part in seen)


async def test_a_child_that_outlives_its_parent_has_started_when_that_ends(aflow, conn):
    @workflow
    async def parent() -> str:
        return (
            await pgflow.start_child(wait_for_go.options(key="orphan", when_parent_ends="abandon"))
        ).key

    assert await result_of(aflow, parent, beside=[wait_for_go]) == "orphan"
    await aflow.until_idle()
    assert run_row(conn, "orphan", "status") == ("waiting",)


@pytest.mark.full
async def test_a_child_that_nobody_waits_for_ends_with_its_parent(aflow, conn):
    @workflow
    async def parent() -> None:
        await pgflow.start_child(wait_for_go.options(key="child"))

    await result_of(aflow, parent, beside=[wait_for_go])
    await aflow.until_idle()
    assert run_row(conn, "child", "status") == ("cancelled",)


async def test_a_start_under_a_taken_key_raises_and_brings_no_child(aflow):
    @workflow
    async def parent() -> str:
        try:
            await pgflow.start_child(double.options(key="taken"), 1)
        except KeyConflict as error:
            return str(error)
        return "started"

    @workflow
    def parent_sync() -> str:
        try:
            pgflow.sync.start_child(double.options(key="taken"), 1)
        except KeyConflict as error:
            return str(error)
        return "started"

    await result_of(aflow, double.options(key="taken"), 7, beside=[parent, parent_sync])
    for flow in (parent, parent_sync):
        assert "taken" in await (await aflow.start(flow)).result(SOON)


@pytest.mark.full
async def test_a_child_is_cancelled_by_its_handle_and_its_result_says_so(aflow, conn):
    @workflow
    async def parent() -> str:
        child = await pgflow.start_child(wait_for_go.options(key="child"))
        child.cancel()
        child.cancel()
        try:
            await child.result()
        except RunCancelled:
            await go.wait()
            return "cancelled"
        return "completed"

    run = await settle(aflow, parent, beside=[wait_for_go])
    assert run_row(conn, "child", "status") == ("cancelled",)
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == "cancelled"


def test_a_child_is_cancelled_by_its_handle_in_a_sync_workflow(flow):
    @workflow
    def parent() -> str:
        child = pgflow.sync.start_child(wait_for_go)
        child.cancel()
        try:
            child.result()
        except RunCancelled:
            return "cancelled"
        return "completed"

    assert result_of(flow, parent, beside=[wait_for_go]) == "cancelled"


async def test_a_child_that_outlives_its_parent_is_not_its_parents_to_cancel(aflow):
    @workflow
    async def parent() -> str:
        child = await pgflow.start_child(double.options(when_parent_ends="abandon"), 1)
        try:
            child.cancel()
        except pgflow.InvalidArgument as error:
            return str(error).partition(" ")[2]
        return ""

    assert "app.cancel(" in await result_of(aflow, parent, beside=[double])


@pytest.mark.full
async def test_giving_up_the_wait_for_a_result_does_not_cancel_the_child(aflow):
    @workflow
    async def parent() -> int:
        child = await pgflow.start_child(wait_for_go.options(key="child"))
        try:
            async with asyncio.timeout(60):
                await child.result()
        except TimeoutError:
            return await child.result()
        return 0

    run = await settle(aflow, parent, beside=[wait_for_go])
    await aflow.skip(timedelta(minutes=2))
    await aflow.app.send("child", go, 5)
    await aflow.until_idle()
    assert await run.result(SOON) == 5


@pytest.mark.full
async def test_the_failure_of_a_child_that_nobody_asks_for_is_no_noise(aflow, caplog):
    @workflow
    async def parent() -> str:
        await pgflow.start_child(sell, "sku-7")
        await go.wait()
        return "coped"

    run = await settle(aflow, parent, beside=[sell])
    await run.send(go, 1)
    assert await run.result(SOON) == "coped"
    assert "never retrieved" not in caplog.text


async def test_a_start_that_is_given_up_before_it_has_happened_starts_nothing(aflow, conn):
    @workflow
    async def parent() -> str:
        task = asyncio.create_task(pgflow.start_child(double, 1))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "given up"
        return "started"

    assert await result_of(aflow, parent, beside=[double]) == "given up"
    assert count(conn, "pgflow.run") == 1
