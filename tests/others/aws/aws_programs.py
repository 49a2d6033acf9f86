"""Requirements of AWS for SDKs of durable functions, as programs of pgflow.

A callback is a signal with a name of its own, whose payload says how it went; a heartbeat is a message that
says so. A child context is a child run. Each table below has the requirement, what the code does, what
happens outside, and the outcome.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import PlainSerializer, PlainValidator
from records import steps
from sqlkit import one, rows

import pgflow
from pgflow import Retries, RunFailed, Signal, step, workflow
from pgflow.errors import TooManyFailures
from tests.others.doing import (
    OddError,
    OtherError,
    crashed,
    do,
    done,
    ended,
    failing,
    redo,
    waiting,
)

if TYPE_CHECKING:
    import psycopg

    from pgflow.testing import AsyncHarness

Wrapped = Annotated[
    str,
    PlainSerializer(lambda text: f"wrapped:{text}"),
    PlainValidator(lambda text: text.removeprefix("wrapped:")),
]
"""A text that is stored in another form."""


@dataclass
class Answer:
    """What the outside says: a value, an error, or only that it is still at work."""

    value: Any = None
    error: str = ""
    is_beat: bool = False


async def answer_of(name: str, timeout: float, beat: float | None) -> Any:
    async with asyncio.timeout(timeout):
        while True:
            answer = await Signal(name, Answer).wait(timeout=beat)
            if answer.error:
                raise OddError(answer.error)
            if not answer.is_beat:
                return answer.value


@workflow(raises=[OddError])
async def callbacks(plan: list[str], catch: bool = False) -> list[Any]:
    """Lines: `create NAME TIMEOUT [BEAT]`, `await NAME`, `sleep SECONDS`, `step NAME`."""
    opened: dict[str, asyncio.Task[Any]] = {}
    results: list[Any] = []
    for line in plan:
        verb, name, *times = line.split()
        if verb == "create":
            await do(f"submit {name}")
            limits = [float(time) for time in times] + [None]
            opened[name] = asyncio.create_task(answer_of(name, limits[0] or 60, limits[1]))
        elif verb == "sleep":
            await pgflow.sleep(float(name))
        elif verb == "step":
            results.append(await do(name))
        else:
            try:
                results.append(await opened[name])
            except (OddError, TimeoutError) as error:
                if not catch:
                    raise
                results.append(f"caught {type(error).__name__}")
    return results


CALLBACKS = {
    "4-1": (["create a 60", "await a"], ["a 7"], [7]),
    "4-3": (["create a 2", "await a"], ["skip 3"], "TimeoutError"),
    "4-4": (["create a 60 2", "await a"], ["skip 3"], "TimeoutError"),
    "4-5": (["create a 60 5", "await a"], ["skip 3", "a beat", "skip 3", "a 7"], [7]),
    "4-6": (["create a 60", "await a"], ["a failed"], "OddError"),
    "4-7": (["create a 60", "step s", "await a"], ["a failed"], "OddError"),
    "4-8": (["create a 5", "step s", "await a"], ["skip 6"], "TimeoutError"),
    "4-9": (["create a 60", "sleep 5", "await a"], ["a 7", "skip 6"], [7]),
    "4-10": (["create a 60", "sleep 5", "await a"], ["a failed", "skip 6"], "OddError"),
    "4-11": (["create a 3", "sleep 6", "await a"], ["skip 4", "skip 3"], "TimeoutError"),
    "4-12": (["create a 60", "await a", "sleep 5"], ["a 7", "crash", "skip 6", "crash"], [7]),
    "4-13": (["create a 60", "await a", "sleep 5"], ["a failed", "crash", "skip 6"],
        ["caught OddError"]),
    "4-14": (["create a 2", "await a", "sleep 5"], ["skip 3", "crash", "skip 6"],
        ["caught TimeoutError"]),
    "4-17": (["create a 60", "await a", "create b 60", "await b"], ["a 1", "b 2"], [1, 2]),
    "4-18": (["create a 60", "create b 60", "await a", "await b"], ["b 2", "a 1"], [1, 2]),
    "4-19": (["create a 60", "create b 60", "await b", "await a"], ["a 1", "b 2"], [2, 1]),
    "7-10": (["sleep 2", "step s", "create a 60", "await a"], ["skip 3", "a 7"], ["s", 7]),
    "7-15": (["create a 60", "await a"], ["a None"], [None]),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLBACKS)
async def test_callbacks(aflow: AsyncHarness, case: str) -> None:
    plan, outside, expected = CALLBACKS[case]
    run = await waiting(aflow, callbacks, plan, isinstance(expected, list))
    for event in outside:
        name, _, what = event.partition(" ")
        if name == "crash":
            await crashed(aflow)
        elif name == "skip":
            await aflow.skip(float(what))
        else:
            value = None if what == "None" else what if not what.isdigit() else int(what)
            answer = Answer(value, "failed" if what == "failed" else "", what == "beat")
            await run.send(Signal(name, Answer), answer)
            await aflow.until_idle()
    if isinstance(expected, list):
        assert await run.result(timeout=60) == expected
    else:
        with pytest.raises(RunFailed) as failure:
            await run.result(timeout=60)
        assert expected in repr(failure.value.__cause__) + str(failure.value)
    assert len(done) == len(set(done)), "a step was repeated"


@workflow(raises=[OddError])
async def submits(attempts: int) -> int:
    await do.options(retries=attempts)("submit")
    return (await Signal("answer", Answer).wait(timeout=60)).value


async def test_a_submitter_that_always_fails_ends_the_wait_before_it_begins(
    aflow: AsyncHarness,
) -> None:
    failing["submit"] = 9
    with pytest.raises(RunFailed):
        await ended(aflow, submits, 1)
    assert done == ["submit"]


@workflow
async def shared_wait() -> int:
    return await pgflow.run_child(submits, 1)


async def test_a_callback_inside_a_child(aflow: AsyncHarness, conn: psycopg.Connection) -> None:
    aflow.include(submits)
    run = await waiting(aflow, shared_wait)
    child = one(conn, "select key from pgflow.runs where workflow = 'submits'")
    await aflow.app.send(child, Signal("answer", Answer), Answer(7))
    assert await run.result(timeout=60) == 7


@step
async def kept(text: str) -> Wrapped:
    done.append(text)
    return text.upper()


@workflow
async def kept_child(text: Wrapped) -> Wrapped:
    return await kept(text)


@workflow
async def kept_everywhere(text: Wrapped) -> list[Wrapped]:
    """A type with a form of its own, as a result of steps, maps and children, and in a message."""
    first = await kept(text)
    mapped = await pgflow.map(kept, [text])
    child = await pgflow.run_child(kept_child, text)
    branches = await pgflow.parallel({"a": kept(text)})
    told = await Signal("told", Wrapped).wait()
    await pgflow.sleep(5)
    return [first, *mapped.values, child, branches["a"], told]


async def test_a_type_says_how_its_values_are_stored_wherever_they_are(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    aflow.include(kept_child)
    run = await waiting(aflow, kept_everywhere, "x", key="kept")
    await run.send(Signal("told", Wrapped), "y")
    await aflow.until_idle()
    await crashed(aflow)
    await aflow.skip(6)
    assert await run.result(timeout=60) == ["X", "X", "X", "X", "y"]
    assert done == ["x"] * 4
    stored = rows(conn, "select output from pgflow.steps where step = 'kept'")
    assert stored == ["wrapped:X"] * 4
    assert one(conn, "select input->>'text' from pgflow.runs where key = 'kept'") == "wrapped:x"
    assert one(conn, "select output from pgflow.runs where workflow = 'kept_child'") == "wrapped:X"


@workflow
async def in_turn(name: str) -> list[str]:
    first = await do(name)
    return [first, await do(f"after {first}")]


async def test_steps_are_done_in_turn_and_known_by_name(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    run = await waiting(aflow, in_turn, "a")
    assert await run.result(timeout=60) == ["a", "after a"]
    assert steps(conn, run.key) == [("do", "completed", 1), ("do", "completed", 1)]


WORDS = ["step a", "sleep 3600", "step b", "sleep 0.5", "step c"]


@workflow(raises=[OddError])
async def by_words(words: list[str], catch: bool = False, large: int = 0) -> list[Any]:
    """Do what each word says: `step`, `sleep`, `child`, `fail`, `step-or-error`, `null`."""
    results: list[Any] = []
    for word in words:
        verb, _, rest = word.partition(" ")
        try:
            if verb == "step":
                results.append(await do(rest))
            elif verb == "retried":
                results.append(await redo(rest))
            elif verb == "sleep":
                await pgflow.sleep(float(rest))
            elif verb == "fail":
                raise OddError(rest)
            elif verb == "large":
                results.append("x" * large)
            elif verb == "null":
                results.append(None)
            else:
                results.append(await pgflow.run_child(by_words, rest.split(","), large=large))
        except Exception as error:
            if not catch:
                raise
            results.append(f"caught {type(error).__name__}")
    return results


async def test_what_was_done_before_a_wait_is_not_done_again_after_it(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, by_words, WORDS)
    await crashed(aflow)
    await aflow.skip(3600)
    await aflow.skip(1)
    assert await run.result(timeout=60) == ["a", "b", "c"]
    assert done == ["a", "b", "c"]


CHILDREN = {
    "3-1": (["child step a"], {}, [["a"]]),
    "3-3": (["child step a,step b,step c"], {}, [["a", "b", "c"]]),
    "3-4": (["child step a"], {"a": 1}, "RunFailed"),
    "3-5": (["child step a"], {"a": 1}, ["caught RunFailed"]),
    "3-7": (["child retried r"], {"r": 1}, [["r"]]),
    "3-8": (["child retried r"], {"r": 2}, "RunFailed"),
    "3-10": (["child step a,sleep 2"], {}, [["a"]]),
    "3-11": (["child large"], {}, [["x" * 900_000]]),
    "3-13": (["child sleep 2,step a"], {}, [["a"]]),
    "3-15": (["child fail now"], {}, "RunFailed"),
    "3-16": (["child null"], {}, [[None]]),
    "3-18": (
        ["child step a,sleep 2,step b", "step c", "sleep 2", "step d"],
        {},
        [["a", "b"], "c", "d"],
    ),
    "5-5": (["child fail now"], {}, "RunFailed"),
    "5-6": (["child fail now"], {}, ["caught RunFailed"]),
    "5-7": (["child large"], {}, [["x" * 900_000]]),
    "5-9": (["child step a", "sleep 2"], {}, [["a"]]),
    "5-10": (["child fail now", "sleep 2"], {}, ["caught RunFailed"]),
    "5-11": (["step a", "child step b"], {}, ["a", ["b"]]),
    "5-12": (["child step a", "step b"], {}, [["a"], "b"]),
    "5-14": (["child step a", "child step b"], {}, [["a"], ["b"]]),
    "7-8": (["child child step a"], {}, [[["a"]]]),
}


@pytest.mark.parametrize("case", CHILDREN)
async def test_children(aflow: AsyncHarness, case: str) -> None:
    words, fails, expected = CHILDREN[case]
    failing.update(fails)
    run = await waiting(aflow, by_words, words, isinstance(expected, list), 900_000)
    await crashed(aflow)
    for _ in range(2):
        await aflow.skip(3)
    if isinstance(expected, list):
        assert await run.result(timeout=60) == expected
    else:
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
    tries = [name for name in done if name != "r"]
    assert len(tries) == len(set(tries)), "a step was repeated"


@step(retries=Retries(3, first_delay=0), raises=[OtherError])
async def picky(error: str) -> str:
    done.append(error)
    raise OtherError(error) if error == "other" else OddError(error)


@workflow(raises=[OddError, OtherError])
async def tries_it(error: str) -> str:
    return await picky(error)


@pytest.mark.parametrize(("error", "tries"), [("odd", 3), ("other", 1)])
async def test_errors_that_are_named_are_not_tried_again(
    aflow: AsyncHarness, error: str, tries: int
) -> None:
    with pytest.raises(RunFailed):
        await ended(aflow, tries_it, error)
    assert len(done) == tries


@workflow
async def polls(start: int, target: int, most: int, delay: float) -> int | None:
    """Check again after a while until the condition holds."""
    state: int | None = start
    for _ in range(most):
        state = await check(state)
        if state is None or state >= target:
            return state
        await pgflow.sleep(delay)
    raise OddError("too many checks")


@step(retries=1, raises=[OddError])
async def check(state: int) -> int | None:
    done.append(str(state))
    if failing[str(state)]:
        raise OddError(state)
    return None if state < 0 else state + 1


POLLS = {
    "6-1": ((0, 3, 9, 1), 3, ["0", "1", "2"]),
    "6-2": ((2, 3, 9, 1), 3, ["2"]),
    "6-4": ((5, 7, 9, 1), 7, ["5", "6"]),
    "6-5": ((0, 2, 9, 5), 2, ["0", "1"]),
    "6-6": ((0, 9, 2, 1), OddError, ["0", "1"]),
    "6-7": ((13, 20, 9, 1), OddError, ["13"]),
    "6-10": ((-1, 9, 9, 1), None, ["-1"]),
}


@pytest.mark.parametrize("case", POLLS)
async def test_polls(aflow: AsyncHarness, case: str) -> None:
    arguments, expected, checks = POLLS[case]
    failing["13"] = 1
    run = await waiting(aflow, polls, *arguments)
    for _ in range(3):
        await crashed(aflow)
        await aflow.skip(arguments[3] + 1)
    if expected is OddError:
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
    else:
        assert await run.result(timeout=60) == expected
    assert done == checks


@dataclass
class State:
    count: int
    seen: list[str]


@step
async def look(state: State) -> State:
    return State(state.count + 1, [*state.seen, f"look {state.count}"])


@workflow
async def polls_twice() -> list[State | str]:
    found: list[State | str] = []
    state = State(0, [])
    for target in (2, 3):
        while state.count < target:
            state = await look(state)
            await pgflow.sleep(1)
        found.append(state)
    return [*found, await do(f"at {state.count}")]


async def test_a_state_of_any_type_goes_from_check_to_check_and_on(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, polls_twice)
    for _ in range(4):
        await crashed(aflow)
        await aflow.skip(2)
    two, three = (State(n, [f"look {i}" for i in range(n)]) for n in (2, 3))
    assert await run.result(timeout=60) == [two, three, "at 3"]


@workflow(raises=[OddError])
async def branch(name: str) -> str:
    """A branch that waits if its name says so."""
    if "wait" in name:
        await pgflow.sleep(5)
    return await do(name)


@workflow
async def branches(names: list[str], options: dict[str, Any]) -> Any:
    """Different branches under one rule."""
    try:
        found = await pgflow.parallel(
            {name: pgflow.run_child(branch, name) for name in names}, **options
        )
        await pgflow.sleep(1)
        return found
    except (RunFailed, TooManyFailures) as error:
        return type(error).__name__


@workflow
async def items(names: list[str], options: dict[str, Any]) -> Any:
    """One workflow for every item under the same rules."""
    try:
        found = await pgflow.map(branch, names, **options)
        await pgflow.sleep(1)
        return {"values": found.values, "failed": [name for name, _ in found.failed]}
    except (RunFailed, TooManyFailures) as error:
        return type(error).__name__


MANY: dict[str, tuple[list[str], dict[str, Any], Any]] = {
    "1": (["a", "b"], {}, ["a", "b"]),
    "4": ([], {}, []),
    "5": (["bad a", "wait b", "wait c"], {}, "RunFailed"),
    "7": (["a", "wait b", "wait c"], {"min_successful": 1}, ["a"]),
    "8": (["a", "bad b", "c"], {"tolerated_failures": 1}, ["a", "c"]),
    "9": (["bad a", "bad b", "wait c"], {"tolerated_failures": 1}, "TooManyFailures"),
    "10": (["bad a", "bad b", "wait c", "wait d"], {"tolerated_percent": 25}, "TooManyFailures"),
    "11": (["wait a", "b"], {}, ["wait a", "b"]),
    "15": (["a", "wait b"], {}, ["a", "wait b"]),
    "16": (["bad a", "bad b"], {"tolerated_failures": 2}, []),
    "17": (["a", "bad b"], {"min_successful": 2, "tolerated_failures": 2}, "TooManyFailures"),
    "18": (
        ["bad a", "bad b", "wait c"],
        {"min_successful": 2, "tolerated_failures": 1},
        "TooManyFailures",
    ),
    "22": (["a", "bad b", "c", "d"], {"tolerated_percent": 25}, ["a", "c", "d"]),
}


@pytest.mark.parametrize("workflow_of_many", [branches, items], ids=["branches", "items"])
@pytest.mark.parametrize("case", MANY)
async def test_many(aflow: AsyncHarness, workflow_of_many: Any, case: str) -> None:
    names, options, expected = MANY[case]
    failing.update({name: 9 for name in names if "bad" in name})
    aflow.include(branch)
    run = await waiting(aflow, workflow_of_many, names, options)
    await crashed(aflow)
    for _ in range(2):
        await aflow.skip(6)
    found = await run.result(timeout=60)
    if isinstance(expected, str):
        assert found == expected
    elif workflow_of_many is branches:
        assert found == {name: name for name in expected}
    else:
        failed = [name for name in names if "bad" in name]
        assert found == {"values": expected, "failed": failed}
    assert len(done) == len(set(done)), "a branch was repeated"
    if isinstance(expected, str) or "min_successful" in options:
        assert not any("wait" in name for name in done), "a branch went on that was given up"


@workflow
async def nested() -> dict[str, Any]:
    inner = pgflow.parallel({"a": do("a"), "b": do("b")})
    outer: dict[str, Any] = {"inner": inner, "number": numbers(3), "null": do("c")}
    found = await pgflow.parallel(outer)
    await pgflow.sleep(5)
    return found


@step
async def numbers(n: int) -> dict[str, int]:
    return {"n": n}


async def test_branches_are_nested_and_return_what_they_like(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, nested)
    await crashed(aflow)
    await aflow.skip(6)
    expected = {"inner": {"a": "a", "b": "b"}, "number": {"n": 3}, "null": "c"}
    assert await run.result(timeout=60) == expected
    assert len(done) == 3


@workflow
async def with_place(names: list[str]) -> list[str]:
    return (await pgflow.map(placed, list(enumerate(names)))).values


@step
async def placed(item: tuple[int, str]) -> str:
    number, name = item
    return f"{number}{name}"


async def test_an_item_knows_its_place(aflow: AsyncHarness) -> None:
    assert await ended(aflow, with_place, ["a", "b"]) == ["0a", "1b"]


@workflow
async def large_items(count: int) -> int:
    found = await pgflow.map(large_item, range(count))
    await pgflow.sleep(5)
    return sum(map(len, found.values))


@step
async def large_item(n: int) -> str:
    done.append(str(n))
    return "x" * 200_000


async def test_the_results_of_many_items_are_as_large_as_they_like(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, large_items, 10)
    await crashed(aflow)
    await aflow.skip(6)
    assert await run.result(timeout=60) == 2_000_000
    assert len(done) == 10
