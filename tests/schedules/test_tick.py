"""`pgflow tick` fires what is due: once, however late, early or doubled a tick is."""

from __future__ import annotations

import asyncio
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from clikit import Answer, finish, process
from servers import wait_until
from sqlkit import one, rows

import pgflow
from pgflow._worker.options import WorkerOptions
from pgflow.app.draining import Drain, Limits

FLOWS = """
import pgflow

@pgflow.schedule(every=3600, offset={offset}, catch_up="{catch_up}", overlap="buffer_all")
@pgflow.workflow
async def report(slot: pgflow.Slot) -> str:
    return slot.at.isoformat()
"""


def write(folder: Path, catch_up: str = "latest") -> str:
    path = folder / "reports.py"
    soon = int(time.time() + 1800) % 3600  # no slot comes while a test runs
    path.write_text(FLOWS.format(catch_up=catch_up, offset=soon))
    return str(path)


def start_tick(dsn: str, flows: str) -> subprocess.Popen[str]:
    return process(dsn, "tick", flows, "--dead-after", "1s", "--grace", "2s")


def tick(dsn: str, flows: str) -> Answer:
    answer = finish(start_tick(dsn, flows))
    assert answer.code == 0, answer.err
    return answer


def let_pass(conn: psycopg.Connection[Any], hours: float) -> list[str]:
    """Nobody has looked for so many hours; answers the slots since."""
    offset = one(conn, "select extract(epoch from due_at)::bigint % 3600 from pgflow.schedule")
    conn.execute(
        "update pgflow.schedule set upcoming = '{}', due_at = null, last_slot_at = null, "
        "look_at = pgflow.now_(), after_at = pgflow.now_() - %s * interval '1 hour'",
        [hours],
    )
    return rows(
        conn,
        "select 'report/' || pgflow.slot_text_(to_timestamp(n * 3600.0 + o)) "
        "from pgflow.schedule s, cast(%s as bigint) o, "
        "generate_series(ceil((extract(epoch from s.after_at) - o) / 3600)::bigint, "
        "floor((extract(epoch from pgflow.now_()) - o) / 3600)::bigint) n order by n",
        offset,
    )


def keys(conn: psycopg.Connection[Any]) -> list[str]:
    return rows(conn, "select key from pgflow.run order by run_id")


@pytest.mark.full
@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_a_tick_catches_up_with_slots_that_were_dropped(dsn, conn, tmp_path, catch_up):
    flows = write(tmp_path, catch_up)
    first = tick(dsn, flows).data
    assert first["outcome"] == "idle"
    next_wake_at = datetime.fromisoformat(first["next_wake_at"])
    assert next_wake_at == one(conn, "select due_at from pgflow.schedule")
    taken = len(keys(conn))
    missed = let_pass(conn, 3.5)
    wanted = missed if catch_up == "all" else missed[-1:]
    answer = tick(dsn, flows).data
    assert keys(conn)[taken:] == [key for key in wanted if key not in keys(conn)[:taken]]
    assert answer["completed"] == len(keys(conn)) - taken
    before = keys(conn)
    assert tick(dsn, flows).data["taken"] == 0  # a tick that comes twice
    assert keys(conn) == before


def test_ticks_at_once_fire_each_slot_once(dsn, conn, tmp_path):
    flows = write(tmp_path, "all")
    tick(dsn, flows)
    taken = len(keys(conn))
    missed = let_pass(conn, 5.5)
    ticks = [start_tick(dsn, flows) for _ in range(3)]
    assert [finish(one).code for one in ticks] == [0, 0, 0]
    assert keys(conn)[taken:] == [key for key in missed if key not in keys(conn)[:taken]]


@pytest.mark.full
def test_a_tick_that_is_killed_leaves_the_rest_to_the_next(dsn, conn, tmp_path):
    flows = write(tmp_path, "all")
    tick(dsn, flows)
    missed = let_pass(conn, 40.5)
    killed = start_tick(dsn, flows)
    wait_until(lambda: len(keys(conn)) > 2, "some have started")
    killed.kill()
    finish(killed)
    tick(dsn, flows)
    assert sorted(keys(conn)) == sorted(set(missed) | set(keys(conn)[:1]))
    status = "select distinct status from pgflow.outcome"
    assert rows(conn, status) == ["completed"]


def test_a_run_that_ends_behind_the_look_at_schedules_ends_no_tick(dsn, conn):
    """The slot behind it becomes due by that end, and whoever looked before has not seen it."""

    @pgflow.read
    async def hold() -> None:
        await may_end.wait()

    @pgflow.schedule(every=3600, catch_up="all", overlap="buffer_all")
    @pgflow.workflow
    async def report(slot: pgflow.Slot) -> str:
        await hold()
        return slot.at.isoformat()

    may_end = asyncio.Event()
    app = pgflow.AsyncApp(dsn, include=[report])
    options = WorkerOptions(queues=["default"], listen=False, poll_seconds=60)
    limits = Limits(60, 2, 0, {}, datetime.now(UTC))

    async def play() -> None:
        async with app, app._work(options) as worker:
            await worker.sweep()
            let_pass(conn, 3.5)
            look = worker._poller.poll

            async def poll() -> Any:
                may_end.set()
                while worker.is_busy:
                    await asyncio.sleep(0.01)
                return await look()

            worker._poller.poll = poll  # type: ignore[method-assign]
            while not worker.is_busy:
                await worker.fire_schedules()
                await asyncio.sleep(0.01)
            assert not (await worker.sweep()).was_dry
            assert await Drain(app, worker, limits).until_idle() == "idle"

    asyncio.run(play())
    missed = "select count(*) from pgflow.schedule where cardinality(buffered) = 0 and fired >= 3"
    assert one(conn, missed) == 1
