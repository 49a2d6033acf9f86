"""Busy polling: the same answers, taken without rest, while the rest of the loop goes on; and no
more of it than is of use.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from wirekit import asleep, on_wire, query

from pgflow import AsyncApp, step, transaction, workflow
from pgflow._db import busy_poll as busypoll
from pgflow._db.busy_poll import BusyPoll
from pgflow._db.connect import ConnectOptions
from pgflow._db.failures import is_infrastructure
from pgflow._db.wire import OwnWire, Wire, open_wire
from pgflow._worker.options import WorkerOptions

AGES = 60.0
"""No answer of these tests takes so long."""


class Counted(BusyPoll):
    """Counts what it does."""

    def __init__(self, seconds: float = AGES, is_wanted: Callable[[], bool] = lambda: True) -> None:
        super().__init__(seconds, is_wanted)
        self.tried = self.came = 0

    async def _look(self, connection: Any) -> bool:
        self.tried += 1
        came = await super()._look(connection)
        self.came += came
        return came


class Late(Counted):
    """Looks in vain: the answer is not there yet."""

    async def _look(self, connection: Any) -> bool:
        self.tried += 1
        return False


class SecondLook:
    """Sees what came at its second look only, as where the first is too early."""

    def __init__(self) -> None:
        self._poller, self._looks = select.poll(), 0

    def register(self, *socket: int) -> None:
        self._poller.register(*socket)
        self._looks = 0

    def unregister(self, socket: int) -> None:
        self._poller.unregister(socket)

    def poll(self, timeout: int) -> Any:
        self._looks += 1
        return self._poller.poll(timeout) if self._looks > 1 else []


@pytest.fixture(autouse=True)
def _nobody_else_wants_the_processor(monkeypatch):
    """Keep the load of the machine from deciding what these tests see."""
    monkeypatch.setattr(busypoll, "PREEMPTED_SECONDS", AGES)


def test_an_answer_is_taken_without_rest(dsn, monkeypatch):
    async def rests(*_: Any, writing: bool) -> None:
        raise AssertionError("it has rested")

    busy_poll = Counted()

    async def use(wire: OwnWire) -> Any:
        monkeypatch.setattr(OwnWire, "_ready", rests)
        return [await wire.ask(query("select %s::int, pg_sleep(0.01)::text", n)) for n in range(5)]

    assert on_wire(dsn, use, busy_poll=busy_poll) == [[(n, "")] for n in range(5)]
    assert busy_poll.came >= 5


def test_a_connection_that_psycopg_uses_too_is_waited_for_in_the_same_way(dsn):
    busy_poll = Counted()

    async def main() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            wire = Wire(connection, prepares=True, busy_poll=busy_poll)
            answers = await wire.rows(("select %s::int", (1,)), ("select 2, pg_sleep(0.01)", ()))
            return answers, await (await connection.execute("select 3")).fetchall()

    assert asyncio.run(main()) == ([[(1,)], [(2, "")]], [(3,)])
    assert busy_poll.came >= 1


def test_the_rest_of_the_loop_goes_on_meanwhile(dsn, conn):
    busy_poll = Counted()
    conn.execute("select pg_advisory_lock(7)")

    async def use(wire: OwnWire) -> None:
        call = asyncio.create_task(wire.ask(query("select from pg_advisory_lock(7)")))
        while not busy_poll.tried:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not call.done()
        conn.execute("select pg_advisory_unlock(7)")
        await call

    on_wire(dsn, use, busy_poll=busy_poll)
    assert busy_poll.came >= 1


def test_two_answers_are_waited_for_at_once(dsn):
    busy_poll = Counted()

    async def main() -> Any:
        wires = [await open_wire(ConnectOptions(dsn), "test", 30.0, busy_poll) for _ in range(2)]
        try:
            slow = asyncio.create_task(
                wires[0].ask(query("select 'slow' from pg_advisory_lock(7)"))
            )
            lock = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            quick = [await wires[1].ask(query("select %s::int", n)) for n in range(20)]
            await lock.close()
            return quick, await slow
        finally:
            for wire in wires:
                await wire.close()

    async def held() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as holder:
            await holder.execute("select pg_advisory_lock(7)")
            task = asyncio.create_task(main())
            while busy_poll.came < 20 and not task.done():
                await asyncio.sleep(0)
            await holder.execute("select pg_advisory_unlock(7)")
            return await task

    quick, slow = asyncio.run(held())
    assert quick == [[(n,)] for n in range(20)]
    assert slow == [("slow",)]


@pytest.mark.parametrize(
    "busy_poll", [Counted(0.0), Counted(is_wanted=lambda: False)], ids=["never", "not now"]
)
def test_it_may_be_switched_off(dsn, busy_poll):
    assert on_wire(dsn, lambda wire: wire.ask(query("select 1")), busy_poll=busy_poll) == [(1,)]
    assert busy_poll.tried == 0


def test_where_answers_take_longer_it_is_tried_now_and_then_only(dsn):
    busy_poll = Late()

    async def use(wire: OwnWire) -> None:
        for n in range(100):
            assert await wire.ask(query("select %s::int", n)) == [(n,)]

    on_wire(dsn, use, busy_poll=busy_poll)
    assert 0 < busy_poll.tried <= 30


def test_an_answer_that_takes_longer_is_not_waited_for_awake(dsn, conn):
    looks: list[bool] = []

    class Looking(Counted):
        async def _look(self, connection: Any) -> bool:
            looks.append(await super()._look(connection))
            return looks[-1]

    conn.execute("select pg_advisory_lock(7)")

    async def use(wire: OwnWire) -> None:
        looks.clear()
        call = asyncio.create_task(wire.ask(query("select from pg_advisory_lock(7)")))
        while False not in looks:  # then it has given up, and waits at rest
            await asyncio.sleep(0)
        conn.execute("select pg_advisory_unlock(7)")
        await call

    on_wire(dsn, use, busy_poll=Looking(1e-9))
    assert looks[-1] is False


def test_where_others_want_the_processor_it_is_tried_now_and_then_only(dsn, monkeypatch):
    monkeypatch.setattr(busypoll, "PREEMPTED_SECONDS", 0.0)
    busy_poll = Counted()
    busy_poll._poller = SecondLook()

    async def use(wire: OwnWire) -> None:
        for n in range(100):
            assert await wire.ask(query("select %s::int", n)) == [(n,)]

    on_wire(dsn, use, busy_poll=busy_poll)
    assert 0 < busy_poll.tried <= 20


def test_it_is_done_again_once_answers_come_in_time(dsn):
    busy_poll = Counted()

    async def use(wire: OwnWire) -> int:
        busy_poll._worth = 0.0
        for n in range(100):
            await wire.ask(query("select %s::int", n))
        before = busy_poll.tried
        for n in range(10):
            await wire.ask(query("select %s::int", n))
        return busy_poll.tried - before

    assert on_wire(dsn, use, busy_poll=busy_poll) == 10


def test_a_connection_that_breaks_meanwhile_is_infrastructure(dsn, conn):
    busy_poll = Counted()

    async def use(wire: OwnWire) -> Any:
        call = await asleep(wire, conn, wire.ask(query("select pg_sleep(60)")))
        conn.execute("select pg_terminate_backend(%s)", (wire.connection.info.backend_pid,))
        with pytest.raises(psycopg.Error) as error:
            await call
        return is_infrastructure(error.value), wire.connection.closed

    assert on_wire(dsn, use, busy_poll=busy_poll) == (True, True)
    assert busy_poll.tried >= 1


def test_a_call_that_is_cancelled_meanwhile_leaves_no_statement_running(dsn, conn):
    async def use(wire: OwnWire) -> Any:
        call = await asleep(wire, conn, wire.ask(query("select pg_sleep(60)")))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return await wire.ask(query("select 1"))

    assert on_wire(dsn, use, busy_poll=Counted()) == [(1,)]


def test_an_answer_that_does_not_come_in_time_is_given_up_though_it_was_waited_for_awake_beyond_that(
    dsn,
):
    async def use(wire: OwnWire) -> bool:
        with pytest.raises(TimeoutError):
            await wire.ask(query("select pg_sleep(60)"))
        return wire.connection.closed

    assert on_wire(dsn, use, timeout_seconds=0.05, busy_poll=Counted(0.3))


# ---------------------------------------------------------------- in a worker


@step
async def small(i: int) -> int:
    return i


@transaction
async def written(conn: psycopg.AsyncConnection[Any], i: int) -> int:
    await conn.execute("select 1")
    return i


@workflow
async def alone(n: int) -> int:
    return sum([await small(i) for i in range(n)]) + sum([await written(i) for i in range(n)])


@step
async def together(_: int) -> None:
    meeting.add(len(meeting))
    while len(meeting) < 2:
        await asyncio.sleep(0)


@workflow
async def beside(n: int) -> None:
    await together(n)


meeting: set[int] = set()


@pytest.mark.parametrize("seconds", [0.0, AGES])
def test_a_run_that_is_alone_waits_awake_if_it_may(dsn, monkeypatch, seconds):
    waits: list[BusyPoll] = []
    look = BusyPoll._look

    async def noted(self: BusyPoll, connection: Any) -> bool:
        waits.append(self)
        return await look(self, connection)

    monkeypatch.setattr(BusyPoll, "_look", noted)

    async def main() -> int:
        async with AsyncApp(dsn, include=[alone]) as app, app.worker(busy_poll_seconds=seconds):
            return await (await app.start(alone, 5)).result()

    assert asyncio.run(main()) == 20
    assert (len(waits) >= 5 + 2 * 5) if seconds else not waits


def test_runs_beside_each_other_let_the_processor_rest(dsn):
    async def main() -> tuple[bool, bool]:
        async with AsyncApp(dsn, include=[beside]) as app:
            handles = [await app.start(beside, n) for n in range(2)]
            async with app._work(WorkerOptions(concurrency=2)) as worker:
                while len(meeting) < 2:
                    await asyncio.sleep(0)
                among = worker._is_quiet()
                for handle in handles:
                    await handle.result()
                while worker.executions:
                    await asyncio.sleep(0)
                return among, worker._is_quiet()

    meeting.clear()
    assert asyncio.run(main()) == (False, True)
