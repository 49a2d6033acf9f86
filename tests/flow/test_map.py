"""`map`: a step or a workflow for every item, some at a time, some of which may fail."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from records import HOUR, SOON, eventually, launch, recover, result_of, settle, steps
from servers import HANG_SECONDS

import pgflow
from pgflow import InvalidArgument, RunFailed, Signal, step, workflow
from pgflow.errors import TooManyFailures

if TYPE_CHECKING:
    from pgflow.testing import Harness

go = Signal("go", int)

COLOURS = ["async", "sync"]


class OddError(ValueError):
    pass


@step(retries=1, raises=[OddError])
async def half(n: int) -> int:
    if n % 2:
        raise OddError(n)
    return n // 2


@workflow(raises=[OddError])
async def half_as_child(n: int) -> int:
    return await half(n)


@dataclass
class Outcome:
    values: list[int]
    failed: list[tuple[int, str]]


def outcome(done: pgflow.MapResult[int, int]) -> Outcome:
    return Outcome(done.values, [(item, repr(error)) for item, error in done.failed])


@workflow
async def halves(items: list[int], options: dict[str, int]) -> Outcome | str:
    try:
        return outcome(await pgflow.map(half, items, **options))
    except (OddError, TooManyFailures) as error:
        return f"{type(error).__name__}: {error}"


@workflow
def halves_sync(items: list[int], options: dict[str, int]) -> Outcome | str:
    try:
        return outcome(pgflow.sync.map(half, items, **options))
    except (OddError, TooManyFailures) as error:
        return f"{type(error).__name__}: {error}"


def mapped(flow: Harness, colour: str, items: list[int], **options: int) -> Any:
    flow.include(halves, halves_sync)
    return flow.start(halves if colour == "async" else halves_sync, items, options).result(SOON)


@pytest.mark.parametrize("colour", COLOURS)
def test_results_come_in_the_order_of_the_items(flow, colour):
    assert mapped(flow, colour, list(range(0, 100, 2))) == Outcome(list(range(50)), [])


@pytest.mark.parametrize("colour", COLOURS)
def test_no_items_are_no_results(flow, colour):
    assert mapped(flow, colour, []) == Outcome([], [])


@pytest.mark.parametrize("colour", COLOURS)
def test_failures_that_are_tolerated_come_back_with_their_items(flow, colour):
    done = mapped(flow, colour, [4, 1, 6, 3], tolerated_failures=2)
    assert done == Outcome([2, 3], [(1, "OddError(1)"), (3, "OddError(3)")])


@pytest.mark.parametrize("colour", COLOURS)
def test_without_tolerance_the_error_of_the_item_itself_is_raised(flow, colour):
    assert mapped(flow, colour, [4, 7, 6]) == "OddError: 7"


@pytest.mark.parametrize("colour", COLOURS)
def test_more_failures_than_tolerated_are_too_many(flow, colour):
    said = mapped(flow, colour, [1, 3, 5, 6], tolerated_failures=2)
    assert said == "TooManyFailures: 3 of 4 items failed; 2 are tolerated"


@pytest.mark.parametrize("colour", COLOURS)
def test_fewer_successes_than_needed_are_too_many_failures(flow, colour):
    said = mapped(flow, colour, [1, 3, 6], tolerated_failures=3, min_successful=2)
    assert said == "TooManyFailures: 1 of 3 items succeeded, but min_successful=2"


async def test_enough_successes_end_the_rest(aflow, conn):
    started, stopped = [], []
    all_started = asyncio.Event()

    @step
    async def race(n: int) -> int:
        started.append(n)
        if len(started) == 5:
            all_started.set()
        await all_started.wait()
        if n in (1, 3):
            return n
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(n)
        return n

    @workflow
    async def first_two() -> list[int]:
        return (await pgflow.map(race, range(5), min_successful=2)).values

    run = await launch(aflow, first_two)
    assert await run.result(SOON) == [1, 3]
    await eventually(lambda: sorted(stopped) == [0, 2, 4], "the others are cancelled")
    found = [status for _, status, _ in steps(conn, run.key)]
    assert found == ["abandoned", "completed"] * 2 + ["abandoned"]


@pytest.mark.full
async def test_many_items_take_no_more_tasks_than_may_go_on_at_once(aflow):
    @workflow
    async def tasks_of_a_map() -> int:
        before = len(asyncio.all_tasks())
        mapping = asyncio.ensure_future(pgflow.map(half, range(0, 2000, 2), max_parallel=3))
        await asyncio.sleep(0)
        most = len(asyncio.all_tasks()) - before - 1
        assert (await mapping).values == list(range(1000))
        return most

    assert await result_of(aflow, tasks_of_a_map) == 3


@pytest.mark.parametrize("colour", COLOURS)
def test_as_many_as_max_parallel_go_on_at_once_and_no_more(flow, colour):
    together = threading.Barrier(3)
    at_work, most = [], []

    @step(retries=1)
    def work(n: int) -> int:
        at_work.append(n)
        together.wait(HANG_SECONDS)
        most.append(len(at_work))
        together.wait(HANG_SECONDS)
        at_work.remove(n)
        return n

    @workflow
    async def in_threes() -> list[int]:
        return (await pgflow.map(work, range(9), max_parallel=3)).values

    @workflow
    def in_threes_sync() -> list[int]:
        return pgflow.sync.map(work, range(9), max_parallel=3).values

    flow.include(in_threes, in_threes_sync)
    found = flow.start(in_threes if colour == "async" else in_threes_sync).result(SOON)
    assert found == list(range(9))
    assert most == [3] * 9


@pytest.mark.full
@pytest.mark.parametrize("colour", COLOURS)
def test_a_workflow_is_run_as_a_child_for_every_item(flow, conn, colour):
    @workflow
    async def children() -> Outcome:
        return outcome(
            await pgflow.map(half_as_child, [2, 3, 4], max_parallel=2, tolerated_failures=1)
        )

    @workflow
    def children_sync() -> Outcome:
        return outcome(
            pgflow.sync.map(half_as_child, [2, 3, 4], max_parallel=2, tolerated_failures=1)
        )

    flow.include(children, children_sync, half_as_child)
    done = flow.start(children if colour == "async" else children_sync).result(SOON)
    assert done == Outcome([1, 2], [(3, "RunFailed('child half_as_child failed: 3')")])
    assert conn.execute(
        "select status, count(*) from pgflow.runs where parent_run_id is not null "
        "group by 1 order by 1"
    ).fetchall() == [("completed", 2), ("failed", 1)]


@pytest.mark.parametrize("colour", COLOURS)
async def test_items_that_are_done_are_not_done_again_after_a_crash(aflow, colour):
    bodies = []
    hanging = asyncio.Event()

    @step
    async def work(n: int) -> int:
        bodies.append(n)
        if n == 3 and bodies.count(3) == 1:
            hanging.set()
            await asyncio.Event().wait()
        return n

    @workflow
    async def all_items() -> list[int]:
        return (await pgflow.map(work, range(5), max_parallel=1)).values

    @workflow
    def all_items_sync() -> list[int]:
        return pgflow.sync.map(work, range(5), max_parallel=1).values

    aflow.include(all_items, all_items_sync)
    run = await aflow.start(all_items if colour == "async" else all_items_sync)
    await hanging.wait()
    await recover(aflow)
    assert await run.result(SOON) == [0, 1, 2, 3, 4]
    assert bodies == [0, 1, 2, 3, 3, 4]


async def test_cancelling_the_run_cancels_every_item(aflow):
    started, stopped = [], []

    @step
    async def endless(n: int) -> None:
        started.append(n)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(n)

    @workflow
    async def all_items() -> None:
        await pgflow.map(endless, range(4))

    run = await launch(aflow, all_items)
    await eventually(lambda: len(started) == 4, "all bodies run")
    await run.cancel()
    with pytest.raises(pgflow.RunCancelled):
        await run.result(SOON)
    await eventually(lambda: sorted(stopped) == [0, 1, 2, 3], "all bodies are stopped")


@pytest.mark.full
async def test_as_completed_yields_what_is_done_first_in_the_same_order_on_replay(aflow):
    orders = []

    @workflow
    async def by_time() -> list[int]:
        order: list[int] = []
        orders.append(order)

        async def later(hours: int) -> int:
            await pgflow.sleep(hours * HOUR)
            return hours

        async for done in pgflow.as_completed([later(3), later(1), later(2)]):
            order.append(await done)
        await go.wait()
        return order

    run = await settle(aflow, by_time)
    await aflow.skip(5 * HOUR)
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == [1, 2, 3]
    assert orders[-1] == [1, 2, 3]


def test_asyncio_as_completed_over_coroutines_is_refused_by_name(flow):
    @workflow
    async def unordered() -> str:
        coroutines = [half(2), half(4)]
        try:
            for done in asyncio.as_completed(coroutines):
                await done
        except pgflow.errors.NotInWorkflowError as error:
            return str(error)
        finally:
            for coroutine in coroutines:
                coroutine.close()
        return ""

    assert "pgflow.as_completed()" in result_of(flow, unordered)


@pytest.mark.parametrize(
    "limits", [{"max_parallel": 0}, {"min_successful": -1}, {"tolerated_failures": -1}]
)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_map_that_may_do_nothing_at_once_is_refused(flow, colour, limits):
    flow.include(halves, halves_sync)
    with pytest.raises(RunFailed) as failed:
        flow.start(halves if colour == "async" else halves_sync, [2], limits).result(SOON)
    assert isinstance(failed.value.__cause__, InvalidArgument)


@step(retries=1)
async def answers(value: str) -> str:
    if value == "bad":
        raise LookupError(value)
    return value


@workflow
async def by_percent(bad: int, percent: float, failures: int) -> list[int]:
    items = ["bad"] * bad + ["good"] * (10 - bad)
    done = await pgflow.map(answers, items, tolerated_percent=percent, tolerated_failures=failures)
    return [len(done.values), len(done.failed)]


@workflow
def by_percent_sync(bad: int, percent: float, failures: int) -> list[int]:
    items = ["bad"] * bad + ["good"] * (10 - bad)
    done = pgflow.sync.map(answers, items, tolerated_percent=percent, tolerated_failures=failures)
    return [len(done.values), len(done.failed)]


@pytest.mark.parametrize("made", [by_percent, by_percent_sync])
async def test_a_map_bears_failures_by_percentage(aflow, made):
    assert await result_of(aflow, made, 3, 30, 0) == [7, 3]
    assert await (await aflow.start(made, 2, 29.9, 0)).result(SOON) == [8, 2]
    for too_many in ((3, 29.9, 0), (3, 30, 2), (1, 0, 0)):
        with pytest.raises(RunFailed):
            await (await aflow.start(made, *too_many)).result(SOON)
    with pytest.raises(RunFailed) as failure:
        await (await aflow.start(made, 0, 101, 0)).result(SOON)
    assert "between 0 and 100" in str(failure.value.__cause__)


@workflow
async def branches(values: dict[str, str], enough: int | None, failures: int) -> dict[str, str]:
    return await pgflow.parallel(
        {name: answers(value) for name, value in values.items()},
        min_successful=enough,
        tolerated_failures=failures,
    )


@workflow
async def race_them(values: list[str]) -> str:
    return await pgflow.first_success([answers(value) for value in values])


async def test_different_branches_are_awaited_under_one_rule(aflow):
    aflow.include(branches)
    some = {"a": "1", "b": "bad", "c": "3"}
    assert await (await aflow.start(branches, some, None, 1)).result(SOON) == {"a": "1", "c": "3"}
    assert await (await aflow.start(branches, {}, None, 0)).result(SOON) == {}
    assert len(await (await aflow.start(branches, some, 1, 2)).result(SOON)) == 1
    with pytest.raises(RunFailed) as failure:
        await (await aflow.start(branches, some, None, 0)).result(SOON)
    assert isinstance(failure.value.__cause__, LookupError)
    with pytest.raises(RunFailed) as failure:
        await (await aflow.start(branches, some, 3, 2)).result(SOON)
    assert "2 of 3 items succeeded" in str(failure.value.__cause__)


async def test_the_first_success_is_the_result(aflow):
    assert await result_of(aflow, race_them, ["bad", "2"]) == "2"
    with pytest.raises(RunFailed) as failure:
        await (await aflow.start(race_them, ["bad", "bad"])).result(SOON)
    assert "0 of 2 items succeeded" in str(failure.value.__cause__)


@workflow
async def named(items: list[int], as_child: bool) -> list[int]:
    what = half_as_child if as_child else half
    return (await pgflow.map(what, items, item_name=lambda n: f"row {n}")).values


@workflow
def named_sync(items: list[int], as_child: bool) -> list[int]:
    what = half_as_child if as_child else half
    return pgflow.sync.map(what, items, item_name=lambda n: f"row {n}").values


@pytest.mark.parametrize("colour", COLOURS)
def test_items_have_names(flow, conn, colour):
    which = named if colour == "async" else named_sync
    run = launch(flow, which, [2, 4], False, beside=[half_as_child])
    assert run.result(SOON) == [1, 2]
    assert sorted(name for name, *_ in steps(conn, run.key)) == ["half: row 2", "half: row 4"]
    assert flow.start(which, [2, 4], True).result(SOON) == [1, 2]
    query = "select labels->>'item' from pgflow.runs where workflow = 'half_as_child' order by 1"
    assert [label for (label,) in conn.execute(query)] == ["row 2", "row 4"]


async def test_a_run_that_has_mapped_without_names_goes_on_with_them(aflow):
    has_names = []

    @workflow
    async def changing(items: list[int]) -> int:
        name = (lambda n: f"row {n}") if has_names else None
        values = (await pgflow.map(half, items, item_name=name)).values
        return sum(values) + await go.wait()

    run = await settle(aflow, changing, [2, 4])
    await aflow.crash()
    has_names.append(True)
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == 4


@pgflow.effects.effect(risk="reversible")
async def acts(n: int) -> int:
    return n


@acts.settle
async def _(n: int) -> pgflow.effects.Absent:
    return pgflow.effects.Absent()


@workflow(raises=[pgflow.errors.DefinitionError])
async def effects_of_items() -> None:
    await pgflow.map(acts, [1], item_name=str)


async def test_an_effect_keeps_its_name_whatever_the_item(aflow):
    with pytest.raises(RunFailed, match="acts"):
        await result_of(aflow, effects_of_items)
