"""The 43 control-flow patterns of the workflow patterns initiative, a program each.

The engine replays each run after its test, so a pattern holds in a first run and in a replay.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from sqlkit import rows

import pgflow
from pgflow import RunCancelled, RunFailed, Signal, workflow
from tests.others.doing import OddError, do, done, ended, failing, go, stop, waiting

if TYPE_CHECKING:
    import psycopg

    from pgflow.testing import AsyncHarness

item = Signal("item", str)


@workflow
async def two_in_turn() -> list[str]:
    return [await do("a"), await do("b")]


async def test_one_task_follows_another(aflow: AsyncHarness) -> None:
    assert await ended(aflow, two_in_turn) == ["a", "b"]
    assert done == ["a", "b"]


@workflow
async def split_and_joined() -> list[str]:
    found = await asyncio.gather(do("a"), do("b"), do("c"))
    return [*found, await do("after")]


async def test_branches_go_on_at_once_and_their_join_waits_for_all(aflow: AsyncHarness) -> None:
    assert await ended(aflow, split_and_joined) == ["a", "b", "c", "after"]
    assert (sorted(done[:3]), done[3:]) == (["a", "b", "c"], ["after"])


@workflow
async def chosen(amount: int) -> str:
    name = await do("large" if amount > 10 else "small")
    return name + await do("merged")


async def test_one_branch_is_chosen_by_data_and_merges_without_waiting(aflow: AsyncHarness) -> None:
    assert await ended(aflow, chosen, 11) == "largemerged"
    assert await ended(aflow, chosen, 10) == "smallmerged"


@workflow
async def several_chosen(numbers: list[int]) -> list[str]:
    names = [
        name for name, wanted in {"even": 0, "odd": 1}.items() if wanted in {n % 2 for n in numbers}
    ]
    found = await asyncio.gather(*(do(name) for name in names))
    return [*found, await do("after")]


@pytest.mark.parametrize(
    ("numbers", "names"), [([2], ["even"]), ([1, 2], ["even", "odd"]), ([], [])]
)
async def test_any_number_of_branches_is_chosen_and_their_merge_waits_for_these(
    aflow: AsyncHarness, numbers: list[int], names: list[str]
) -> None:
    assert await ended(aflow, several_chosen, numbers) == [*names, "after"]


@workflow
async def merged_each_time() -> list[str]:
    async def branch(name: str) -> str:
        await do(name)
        return await do(f"after {name}")

    return list(await asyncio.gather(branch("a"), branch("b")))


async def test_what_follows_a_merge_runs_once_for_each_branch(aflow: AsyncHarness) -> None:
    assert await ended(aflow, merged_each_time) == ["after a", "after b"]
    assert Counter(done) == Counter(["a", "b", "after a", "after b"])


@workflow
async def first_of_two_goes_on() -> str:
    branches = [asyncio.create_task(go.wait()), asyncio.create_task(stop.wait())]
    await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    await do("next")
    await asyncio.gather(*branches)
    return "reset"


async def test_the_first_branch_goes_on_and_later_ones_are_taken_and_do_nothing(
    aflow: AsyncHarness,
) -> None:
    run = await waiting(aflow, first_of_two_goes_on)
    await run.send(go, 1)
    await aflow.until_idle()
    assert done == ["next"]
    await run.send(stop, "late")
    assert await run.result(timeout=60) == "reset"
    assert done == ["next"]


@workflow
async def around_and_around() -> list[str]:
    """Two loops that share a part: entered at `b`, left at `a`."""
    path, at = [], "b"
    while len(path) < 5:
        path.append(await do(at))
        at = {"b": "c", "c": "a" if len(path) > 3 else "b", "a": "b"}[at]
    return path


async def test_cycles_have_several_entries_and_exits(aflow: AsyncHarness) -> None:
    assert await ended(aflow, around_and_around) == ["b", "c", "b", "c", "a"]


@workflow
async def nothing_left() -> None:
    await do("last")


async def test_a_run_ends_when_nothing_is_left_to_do(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, nothing_left)
    assert await run.status() == "completed"


@workflow
async def piece(name: str) -> str:
    return await do(name)


@workflow
async def starts_and_leaves() -> str:
    for n in range(3):
        await pgflow.start_child(
            piece.options(key=f"piece-{n}", when_parent_ends="abandon"), f"p{n}"
        )
    return "left"


async def test_instances_go_on_without_the_run_that_started_them(aflow: AsyncHarness) -> None:
    aflow.include(piece)
    assert await ended(aflow, starts_and_leaves) == "left"
    await aflow.until_idle()
    assert Counter(done) == Counter(["p0", "p1", "p2"])


@workflow
async def instances(names: list[str]) -> list[str]:
    return (await pgflow.map(piece, names)).values


@pytest.mark.parametrize("names", [["a", "b", "c"], ["x"], []])
async def test_as_many_instances_as_the_design_or_the_data_says_are_joined(
    aflow: AsyncHarness, names: list[str]
) -> None:
    aflow.include(piece)
    assert await ended(aflow, instances, names) == names


@workflow
async def instances_as_they_come() -> list[str]:
    children = []
    while (name := await item.wait()) != "no more":
        children.append(await pgflow.start_child(piece, name))
    return [await child.result() for child in children]


async def test_instances_are_added_while_others_run_and_all_are_joined(aflow: AsyncHarness) -> None:
    aflow.include(piece)
    run = await waiting(aflow, instances_as_they_come)
    for name in ("a", "b", "no more"):
        await run.send(item, name)
        await aflow.until_idle()
    assert await run.result(timeout=60) == ["a", "b"]


@workflow
async def whichever_comes() -> str:
    choices = {asyncio.create_task(go.wait()): "go", asyncio.create_task(stop.wait()): "stop"}
    won, lost = await asyncio.wait(choices, return_when=asyncio.FIRST_COMPLETED)
    for task in lost:
        task.cancel()
    return await do(choices[won.pop()])


async def test_the_surroundings_choose_the_branch_by_what_comes_first(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, whichever_comes)
    await run.send(stop, "now")
    await run.send(go, 1)
    assert await run.result(timeout=60) == "stop"
    assert done == ["stop"]


@workflow
async def in_any_order_one_at_a_time(names: list[str]) -> int:
    most = now = 0
    lock = asyncio.Lock()

    async def task(name: str) -> None:
        nonlocal most, now
        async with lock:
            now += 1
            most = max(most, now)
            await do(name)
            await pgflow.sleep(1)
            now -= 1

    await asyncio.gather(*map(task, names))
    return most


async def test_tasks_are_routed_in_any_order_and_never_two_at_once(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, in_any_order_one_at_a_time, ["a", "b", "c"])
    for _ in range(3):
        await aflow.skip(1)
    assert await run.result(timeout=60) == 1
    assert sorted(done) == ["a", "b", "c"]


@workflow
async def milestone() -> list[str]:
    offers: list[str] = []

    async def open_for_offers() -> None:
        while True:
            offers.append(await item.wait())

    offering = asyncio.create_task(open_for_offers())
    await stop.wait()
    offering.cancel()
    await do("closed")
    await go.wait()
    return offers


async def test_a_task_is_possible_only_while_its_milestone_lasts(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, milestone)
    await run.send(item, "in time")
    await aflow.until_idle()
    await run.send(stop, "enough")
    await aflow.until_idle()
    await run.send(item, "too late")
    await run.send(go, 1)
    assert await run.result(timeout=60) == ["in time"]


@workflow
async def one_task_is_cancelled() -> str:
    task, other = asyncio.create_task(go.wait()), asyncio.create_task(do("other"))
    await stop.wait()
    task.cancel()
    assert await asyncio.gather(task, return_exceptions=True)
    return await other


async def test_a_task_is_withdrawn_and_the_rest_goes_on(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, one_task_is_cancelled)
    await run.send(stop, "that one")
    assert await run.result(timeout=60) == "other"


@workflow
async def waits() -> None:
    aside = await pgflow.start_child(waits_below.options(key="below"))
    await asyncio.gather(go.wait(), aside.result())


@workflow
async def waits_below() -> None:
    await go.wait()


async def test_a_case_is_cancelled_with_all_that_belongs_to_it(aflow: AsyncHarness) -> None:
    aflow.include(waits_below)
    run = await waiting(aflow, waits)
    await run.cancel()
    await aflow.until_idle()
    with pytest.raises(RunCancelled):
        await run.result(timeout=60)
    assert await aflow.app.get("below", waits_below).status() == "cancelled"


@workflow
async def loops(times: int) -> int:
    count = 0
    while count < times:
        await do(str(count))
        count += 1
    return count


@pytest.mark.parametrize("times", [0, 3])
async def test_a_loop_asks_before_each_turn(aflow: AsyncHarness, times: int) -> None:
    assert await ended(aflow, loops, times) == times
    assert len(done) == times


@workflow
async def factorial(n: int) -> int:
    return 1 if n < 2 else n * await pgflow.run_child(factorial, n - 1)


async def test_a_workflow_runs_itself(aflow: AsyncHarness) -> None:
    assert await ended(aflow, factorial, 5) == 120


@workflow
async def takes_none() -> str:
    try:
        return f"got {await go.wait(timeout=0)}"
    except TimeoutError:
        return "nothing there"


@workflow
async def takes_later() -> int:
    await do("work")
    return await go.wait()


async def test_a_trigger_that_is_not_waited_for_now_is_passed_over(aflow: AsyncHarness) -> None:
    assert await ended(aflow, takes_none) == "nothing there"


async def test_a_trigger_is_kept_until_its_task_waits_for_it(aflow: AsyncHarness) -> None:
    aflow.include(takes_later)
    run = await aflow.app.start(takes_later)
    await run.send(go, 7)
    await aflow.until_idle()
    assert await run.result(timeout=60) == 7


@workflow
async def a_region_is_left() -> list[str]:
    async def region() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(go.wait())
            group.create_task(item.wait())

    inside, outside = asyncio.create_task(region()), asyncio.create_task(do("outside"))
    await stop.wait()
    inside.cancel()
    await asyncio.gather(inside, return_exceptions=True)
    return [await outside, await do("after")]


async def test_all_of_a_region_is_cancelled_and_nothing_else(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, a_region_is_left)
    await run.send(stop, "the region")
    assert await run.result(timeout=60) == ["outside", "after"]


@workflow
async def waits_for(n: int) -> int:
    return await go.wait() + n


@workflow
async def many_until(how: str) -> str:
    instances = [
        asyncio.create_task(pgflow.run_child(waits_for.options(key=f"i{n}"), n)) for n in range(3)
    ]
    await stop.wait()
    for task in instances:
        task.cancel()
    found = await asyncio.gather(*instances, return_exceptions=True)
    results = [n for n in found if isinstance(n, int)]
    if how == "cancel":
        return "cancelled"
    return await do(f"{len(results)} done")


@pytest.mark.parametrize(("how", "said"), [("cancel", "cancelled"), ("complete", "1 done")])
async def test_instances_are_cancelled_or_completed_before_their_end(
    aflow: AsyncHarness, how: str, said: str
) -> None:
    aflow.include(waits_for)
    run = await waiting(aflow, many_until, how)
    await aflow.app.send("i1", go, 1)
    await aflow.until_idle()
    await run.send(stop, "now")
    assert await run.result(timeout=60) == said
    await aflow.until_idle()
    ends = [await aflow.app.get(f"i{n}", waits_for).status() for n in range(3)]
    assert ends == ["cancelled", "completed", "cancelled"]


@workflow
async def one_round_after_the_other(names: list[str]) -> list[str]:
    """A join that takes no branch of the next round before this one is complete."""
    found = []
    for number in range(2):
        first = await pgflow.first_success([do(f"{name}{number}") for name in names])
        found.append(first)
    return found


async def test_a_join_blocks_the_next_round_until_this_one_is_over(aflow: AsyncHarness) -> None:
    found = await ended(aflow, one_round_after_the_other, ["a", "b"])
    assert [name[-1] for name in found] == ["0", "1"]
    rounds = [name[-1] for name in done]
    assert rounds == sorted(rounds)


@workflow
async def first_cancels() -> list[str]:
    found = await pgflow.parallel({"a": go.wait(), "b": do("b")}, min_successful=1)
    return [*found, await do("after")]


async def test_the_first_branch_cancels_the_others(aflow: AsyncHarness) -> None:
    assert await ended(aflow, first_cancels) == ["b", "after"]


@workflow
async def two_of_three(cancel: bool) -> list[int]:
    tasks = [asyncio.create_task(Signal(f"s{n}", int).wait()) for n in range(3)]
    found = []
    async for next_one in pgflow.as_completed(tasks):
        found.append(await next_one)
        if len(found) == 2:
            break
    await do("joined")
    for task in tasks:
        if cancel:
            task.cancel()
    rest = await asyncio.gather(*tasks, return_exceptions=True)
    return [n for n in rest if isinstance(n, int)] if not cancel else found


@pytest.mark.parametrize(("cancel", "result"), [(True, [20, 0]), (False, [0, 10, 20])])
async def test_a_join_of_some_branches_goes_on_and_waits_for_or_cancels_the_rest(
    aflow: AsyncHarness, cancel: bool, result: list[int]
) -> None:
    run = await waiting(aflow, two_of_three, cancel)
    for n in (2, 0):
        await run.send(Signal(f"s{n}", int), n * 10)
        await aflow.until_idle()
    assert done == ["joined"]
    if not cancel:
        assert await run.status() == "waiting"
        await run.send(Signal("s1", int), 10)
    assert await run.result(timeout=60) == result


@workflow
async def a_join_of_two_loops() -> int:
    """An AND-join that may be reached any number of times from either side."""
    left, right, joined = 0, 0, 0
    while joined < 2:
        won, lost = await asyncio.wait(
            [
                asyncio.create_task(item.wait(), name="left"),
                asyncio.create_task(stop.wait(), name="right"),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in lost:
            task.cancel()
        left += any(task.get_name() == "left" for task in won)
        right += any(task.get_name() == "right" for task in won)
        if left and right:
            left, right, joined = left - 1, right - 1, joined + 1
            await do(f"join {joined}")
    return joined


async def test_a_join_keeps_what_comes_too_often_from_one_side(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, a_join_of_two_loops)
    for signal in (item, item, stop, stop):
        await run.send(signal, "x")
        await aflow.until_idle()
    assert await run.result(timeout=60) == 2
    assert done == ["join 1", "join 2"]


@workflow
async def enough_instances(needed: int) -> int:
    found = await pgflow.map(waits_for, [1, 2, 3], min_successful=needed)
    return len(found.values)


@workflow
async def instances_until_enough(names: list[str]) -> list[str]:
    """The number of instances grows with what the first ones say; joined when two have succeeded."""
    tasks = [asyncio.create_task(do(name)) for name in names]
    found: list[str] = []
    while tasks and len(found) < 2:
        try:
            found.append(await tasks.pop(0))
        except OddError:
            tasks.append(asyncio.create_task(do(f"instead of {names[0]}")))
    return found


async def test_enough_instances_are_joined_and_the_rest_is_cancelled(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    aflow.include(waits_for)
    run = await waiting(aflow, enough_instances, 2)
    keys = rows(conn, "select key from pgflow.runs where workflow = 'waits_for' order by run_id")
    for key in keys[:2]:
        await aflow.app.send(key, go, 1)
    assert await run.result(timeout=60) == 2
    await aflow.until_idle()
    ends = Counter([await aflow.app.get(key, waits_for).status() for key in keys])
    assert ends == {"completed": 2, "cancelled": 1}


async def test_the_number_to_join_is_found_while_instances_run(aflow: AsyncHarness) -> None:
    failing["a"] = 1
    assert await ended(aflow, instances_until_enough, ["a", "b"]) == ["b", "instead of a"]


@workflow
async def merged_as_far_as_begun(go_left: bool) -> list[str]:
    """A merge that knows from local facts, or from all open tasks, which branches can still come."""
    async with asyncio.TaskGroup() as group:
        right = group.create_task(do("right"))
        left = None
        if go_left and await right == "right":
            left = group.create_task(do("left"))
    return [await right, *([await left] if left else []), await do("merged")]


@pytest.mark.parametrize("go_left", [True, False])
async def test_a_merge_waits_for_the_branches_that_can_still_come(
    aflow: AsyncHarness, go_left: bool
) -> None:
    expected = ["right", *(["left"] if go_left else []), "merged"]
    assert await ended(aflow, merged_as_far_as_begun, go_left) == expected


@workflow
async def guarded(name: str) -> None:
    async with pgflow.lock("till"):
        await do(f"{name} in")
        await pgflow.sleep(1)
        await do(f"{name} out")


async def test_one_at_a_time_is_in_a_section_of_all_runs(aflow: AsyncHarness) -> None:
    runs = [await waiting(aflow, guarded, name) for name in "ab"]
    for _ in range(2):
        await aflow.skip(1)
    for run in runs:
        await run.result(timeout=60)
    assert done == ["a in", "a out", "b in", "b out"]


@workflow
async def threads(count: int) -> list[str]:
    """Split one thread into several of the same task, and merge several into one."""
    await asyncio.gather(*(do(str(n)) for n in range(count)))
    return [await do("one")]


async def test_a_thread_splits_into_several_and_several_merge_into_one(aflow: AsyncHarness) -> None:
    assert await ended(aflow, threads, 3) == ["one"]
    assert (sorted(done[:3]), done[3:]) == (["0", "1", "2"], ["one"])


@workflow
async def ends_here(how: str) -> str:
    waiting_for = asyncio.create_task(go.wait())
    await asyncio.sleep(0)
    if how == "fail":
        raise OddError("the end")
    return f"ended beside {waiting_for.get_name() and 'an open task'}"


async def test_an_end_that_is_reached_ends_the_case_and_all_else_in_it(aflow: AsyncHarness) -> None:
    assert await ended(aflow, ends_here, "return") == "ended beside an open task"
    with pytest.raises(RunFailed):
        await ended(aflow, ends_here, "fail")
