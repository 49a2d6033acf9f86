"""Circles of runs that wait for each other: found, whatever they are made of, and nothing else is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from clikit import pgflow as cli
from records import SOON, eventually, launch, run_row

import pgflow
from pgflow import Signal, workflow
from pgflow.inspect import ask_async, list_deadlocks

if TYPE_CHECKING:
    import psycopg

    from pgflow.testing import AsyncHarness

go = Signal("go", int)


@workflow(queue="left")
async def in_left() -> int:
    return 1


@workflow(queue="right")
async def in_right() -> int:
    return 2


@workflow(queue="left")
async def left_calls_right() -> int:
    await go.wait()
    return await pgflow.run_child(in_right.options(key="child-right"))


@workflow(queue="right")
async def right_calls_left() -> int:
    await go.wait()
    return await pgflow.run_child(in_left.options(key="child-left"))


@workflow(queue="free")
async def locks() -> int:
    async with pgflow.lock("vault"):
        return 3


@workflow(queue="free")
async def locks_and_calls() -> int:
    async with pgflow.lock("vault"):
        return await pgflow.run_child(locks.options(key="child-locks"))


@workflow(queue="free")
async def locks_and_calls_left() -> int:
    async with pgflow.lock("vault"):
        await go.wait()
        return await pgflow.run_child(in_left.options(key="child-left"))


@workflow(queue="left")
async def locks_in_left() -> int:
    async with pgflow.lock("vault"):
        return 4


ALL = [in_left, in_right, left_calls_right, right_calls_left, locks, locks_and_calls]
ALL += [locks_and_calls_left, locks_in_left]


async def circle(aflow: AsyncHarness) -> list[tuple[str, str, str]]:
    found = await ask_async(aflow.app, list_deadlocks())
    return sorted((one.key, one.what, one.waits_for) for one in found)


async def in_order(aflow: AsyncHarness, *more: Any) -> None:
    aflow.include(*ALL, *more)
    for queue in ("left", "right"):
        await aflow.app.set_queue(queue, fifo=True)


async def is_waiting(conn: psycopg.Connection[Any], *keys: str) -> None:
    for key in keys:
        await eventually(
            lambda key=key: run_row(conn, key, "reason_code") == ("signal",), f"{key} waits"
        )


async def is_there(conn: psycopg.Connection[Any], *keys: str) -> None:
    query = (
        "select count(*) from pgflow.runs where key = any(%s) and status in ('queued', 'waiting')"
    )
    await eventually(
        lambda: conn.execute(query, (list(keys),)).fetchone() == (len(keys),), f"{keys} are there"
    )


async def test_two_lines_in_order_whose_holders_call_into_the_other(aflow, conn, dsn):
    await in_order(aflow)
    one = await aflow.start(left_calls_right.options(key="one"))
    two = await aflow.start(right_calls_left.options(key="two"))
    await is_waiting(conn, "one", "two")
    assert await circle(aflow) == []
    await one.send(go, 1)
    await is_there(conn, "child-right")
    assert await circle(aflow) == []  # the second may yet end
    await two.send(go, 1)
    await is_there(conn, "child-left", "child-right")
    await eventually(
        lambda: conn.execute("select count(*) from pgflow.lease").fetchone() == (0,), "all wait"
    )
    assert await circle(aflow) == [
        ("child-left", "line", "one"),
        ("child-right", "line", "two"),
        ("one", "child", "child-right"),
        ("two", "child", "child-left"),
    ]
    answer = cli(dsn, "doctor")
    assert "4 runs wait for each other for ever" in answer.out
    await one.cancel()
    assert await two.result(SOON) == 1
    assert await circle(aflow) == []


async def test_a_lock_and_a_child_that_asks_for_it(aflow, conn):
    await in_order(aflow)
    run = await aflow.start(locks_and_calls.options(key="one"))
    await is_there(conn, "one", "child-locks")
    await eventually(
        lambda: run_row(conn, "child-locks", "reason_code") == ("lock",), "the child waits"
    )
    assert await circle(aflow) == [("child-locks", "lock", "one"), ("one", "child", "child-locks")]
    await run.cancel()
    with pytest.raises(pgflow.RunCancelled):
        await run.result(SOON)
    assert await circle(aflow) == []


async def test_a_lock_a_child_and_a_line(aflow, conn):
    await in_order(aflow)
    one = await aflow.start(locks_and_calls_left.options(key="one"))
    await is_waiting(conn, "one")
    await aflow.start(locks_in_left.options(key="two"))
    await eventually(lambda: run_row(conn, "two", "reason_code") == ("lock",), "it waits")
    assert await circle(aflow) == []
    await one.send(go, 1)
    await is_there(conn, "child-left")
    await eventually(
        lambda: conn.execute("select count(*) from pgflow.lease").fetchone() == (0,), "all wait"
    )
    assert await circle(aflow) == [
        ("child-left", "line", "two"),
        ("one", "child", "child-left"),
        ("two", "lock", "one"),
    ]


async def test_whoever_has_a_timeout_waits_for_nobody_for_ever(aflow, conn):
    await in_order(aflow)

    @workflow(queue="left")
    async def patient() -> int:
        await go.wait()
        try:
            async with asyncio.timeout(3600):
                return await pgflow.run_child(in_right.options(key="child-right"))
        except TimeoutError:
            return 0

    one = await launch(aflow, patient.options(key="one"))
    two = await aflow.start(right_calls_left.options(key="two"))
    await is_waiting(conn, "one", "two")
    await one.send(go, 1)
    await two.send(go, 1)
    await is_there(conn, "child-left", "child-right")
    await eventually(
        lambda: conn.execute("select count(*) from pgflow.lease").fetchone() == (0,), "all wait"
    )
    assert await circle(aflow) == []
