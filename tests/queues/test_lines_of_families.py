"""Lines in order, and families: a run that waits for another of its own line is passed by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from records import SOON, count, eventually, run_row
from sqlkit import claim

import pgflow
from pgflow import Signal, workflow

if TYPE_CHECKING:
    import psycopg


go = Signal("go", int)


@workflow(queue="line")
async def kid(c: str) -> str:
    return c


@workflow(queue="line")
async def calls(c: str) -> str:
    return await pgflow.run_child(kid, c)


@workflow(queue="line")
async def fans_out(c: str) -> list[str]:
    return list((await pgflow.map(kid, [c] * 3)).values)


@workflow(queue="line")
async def calls_deeply(c: str) -> str:
    return await pgflow.run_child(calls, c)


@workflow(queue="elsewhere")
async def beyond(c: str) -> str:
    return await pgflow.run_child(kid, c)


@workflow(queue="line")
async def calls_beyond(c: str) -> str:
    return await pgflow.run_child(beyond, c)


@workflow(queue="line")
async def waits(c: str) -> str:
    await go.wait()
    return c


@workflow(queue="line")
async def leaves_one_behind(c: str) -> str:
    await pgflow.start_child(kid.options(key="left behind"), c)
    await go.wait()
    return c


@workflow(queue="line")
async def calls_one_that_waits(c: str) -> str:
    return await pgflow.run_child(waits.options(key="waiting"), c)


FAMILY = [kid, calls, fans_out, calls_deeply, beyond, calls_beyond, waits, leaves_one_behind]


def ended(conn: psycopg.Connection[Any]) -> list[str]:
    """Keys of the runs that have ended, in that order."""
    query = "select r.key from pgflow.outcome o join pgflow.run r using (run_id) order by o.finished_at, r.run_id"
    return [key for (key,) in conn.execute(query)]


@pytest.mark.parametrize("rules", [{}, {"key": "input.c"}], ids=str)
async def test_a_run_for_which_its_line_waits_passes(aflow, rules):
    aflow.include(*FAMILY)
    await aflow.app.set_queue("line", fifo=True, **rules)
    wanted: list[tuple[Any, Any]] = [
        (calls, "a"), (fans_out, ["a"] * 3), (calls_deeply, "a"), (calls_beyond, "a"),
    ]  # fmt: skip
    runs = [await aflow.start(declared, "a") for declared, _ in wanted]
    assert [await run.result(SOON) for run in runs] == [result for _, result in wanted]


async def test_none_but_children_of_whoever_has_the_turn_pass(aflow, conn):
    aflow.include(*FAMILY)
    await aflow.app.set_queue("line", fifo=True)
    first = await aflow.start(leaves_one_behind.options(key="first"), "a")
    second = await aflow.start(calls.options(key="second"), "b")
    await eventually(
        lambda: (  # in this order: the end of a child wakes its parent, by a nudge
            "left behind" in ended(conn)
            and count(conn, "pgflow.nudge") == 0
            and run_row(conn, "first", "reason_code") == ("signal",)
        ),
        "the child has passed, and the first waits",
    )
    assert claim(conn, 9) == []
    assert run_row(conn, "second", "status") == ("queued",)
    await first.send(go, 1)
    assert await second.result(SOON) == "b"
    keys = [key for key in ended(conn) if key in ("first", "second", "left behind")]
    assert keys == ["left behind", "first", "second"]


async def test_one_that_passes_is_counted_by_a_rate(aflow, conn):
    aflow.include(*FAMILY)
    await aflow.app.set_queue("line", fifo=True, rate="2/1h")
    await aflow.start(fans_out, "a")
    await eventually(lambda: len(ended(conn)) == 1, "one of its children has passed")
    assert conn.execute("select sum(starts) from pgflow.line_rate").fetchone() == (2,)


async def test_what_passes_holds_its_line_as_long_as_it_is_open(aflow, conn):
    aflow.include(*FAMILY, calls_one_that_waits)
    await aflow.app.set_queue("line", fifo=True)
    first = await aflow.start(calls_one_that_waits, "a")
    second = await aflow.start(kid.options(key="second"), "b")
    await eventually(
        lambda: (
            conn.execute("select count(*) from pgflow.runs where reason_code = 'signal'").fetchone()
            == (1,)
        ),
        "the child has passed",
    )
    assert claim(conn, 9) == []
    assert run_row(conn, "second", "status") == ("queued",)
    await aflow.app.send("waiting", go, 1)
    assert await first.result(SOON) == "a"
    assert await second.result(SOON) == "b"
