"""Transactional steps and joined transactions, with psycopg: together or not at all."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from poolers import bouncer
from psycopg.rows import dict_row
from records import (
    HOUR,
    SOON,
    calling,
    calling_sync,
    count,
    events,
    launch,
    recover,
    result_of,
    run_row,
    settle,
    steps,
    wait_until,
)
from servers import HANG_SECONDS

import pgflow
from pgflow import (
    App,
    AsyncApp,
    InvalidArgument,
    KeyConflict,
    RunFailed,
    RunNotFound,
    RunStuck,
    Signal,
    transaction,
    workflow,
)
from pgflow._db._async_pool import make_pool_async
from pgflow._db._sync_pool import make_pool
from pgflow._db.connect import ConnectOptions
from pgflow._transactions.psycopg import AsyncPsycopgProvider, PsycopgProvider
from pgflow.errors import DefinitionError
from pgflow.inspect import ask, list_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


AsyncConnection = psycopg.AsyncConnection[Any]
Connection = psycopg.Connection[Any]

paid = Signal("paid", int)


@pytest.fixture(autouse=True)
def _stock(conn: psycopg.Connection) -> None:
    conn.execute(
        "create table stock (sku text primary key, n int not null check (n >= 0)); insert into "
        "stock values ('a', 10), ('b', 10)"
    )


def left(conn: psycopg.Connection, sku: str = "a") -> int:
    return conn.execute("select n from stock where sku = %s", (sku,)).fetchone()[0]


TAKE = "update stock set n = n - %s where sku = %s returning n"


@transaction
async def take(conn: AsyncConnection, sku: str, n: int) -> int:
    return (await (await conn.execute(TAKE, (n, sku))).fetchone())[0]


@transaction
def take_sync(conn: Connection, sku: str, n: int) -> int:
    return conn.execute(TAKE, (n, sku)).fetchone()[0]


@workflow
async def wait_for_payment(first: int = 0) -> int:
    return first + await paid.wait()


@pytest.mark.full
def test_the_writes_of_the_body_and_its_result_commit_together_in_both_colours(flow, conn):
    @workflow
    async def order() -> list[int]:
        return [await take("a", 1), await take_sync.aio("a", 2)]

    @workflow
    def order_sync() -> list[int]:
        return [take.sync("b", 1), take_sync("b", 2)]

    flow.include(order, order_sync)
    one, other = flow.start(order), flow.start(order_sync)
    assert one.result(SOON) == other.result(SOON) == [9, 7]
    assert (left(conn, "a"), left(conn, "b")) == (7, 7)
    written = "select s.xmin::text = u.xmin::text from stock s, pgflow.unit u where sku = 'a' and u.run_id = 1 order by seq desc limit 1"
    assert conn.execute(written).fetchone() == (True,)


@pytest.mark.full
async def test_a_recorded_transaction_is_not_repeated_after_a_crash(aflow, conn):
    @workflow
    async def order() -> int:
        return await take("a", 1) + await paid.wait()

    run = await settle(aflow, order)
    await recover(aflow)
    await run.send(paid, 1)
    assert await run.result(SOON) == 10
    assert left(conn) == 9


@pytest.mark.full
async def test_a_crash_in_the_middle_of_a_body_leaves_nothing_and_the_body_runs_again(aflow, conn):
    started = asyncio.Event()
    bodies = []

    @transaction
    async def take_slowly(conn: AsyncConnection) -> int:
        await conn.execute(TAKE, (1, "a"))
        bodies.append(1)
        if len(bodies) == 1:
            started.set()
            await asyncio.Event().wait()
        return len(bodies)

    run = await launch(aflow, calling(take_slowly))
    await started.wait()
    await recover(aflow)
    assert await run.result(SOON) == 2
    assert left(conn) == 9


@pytest.mark.full
def test_a_body_that_raises_rolls_back_and_its_error_is_recorded_once(flow, conn):
    bodies = []

    @transaction
    async def overdraw(conn: AsyncConnection) -> None:
        bodies.append(1)
        await conn.execute(TAKE, (1, "a"))
        await conn.execute(TAKE, (99, "b"))

    @workflow
    async def order() -> str:
        try:
            await overdraw()
        except pgflow.StepFailed as error:
            await paid.wait()
            return error.error_type
        return ""

    run = settle(flow, order)
    recover(flow)
    run.send(paid, 1)
    assert run.result(SOON) == "psycopg.errors.CheckViolation"
    assert bodies == [1]
    assert left(conn) == 10
    assert [event for event, _ in events(conn, run.key)].count("step_failed") == 1


class SoldOutError(Exception):
    pass


@pytest.mark.full
def test_an_error_named_in_raises_comes_back_as_itself(flow, conn):
    @transaction(raises=[SoldOutError])
    def sell(conn: Connection) -> None:
        conn.execute(TAKE, (10, "a"))
        raise SoldOutError("a")

    @workflow
    def order() -> str:
        try:
            sell()
        except SoldOutError as error:
            return str(error)
        return ""

    assert result_of(flow, order) == "a"
    assert left(conn) == 10


@pytest.mark.parametrize("result", [object(), "seven"], ids=["not storable", "not of its type"])
def test_a_result_that_is_refused_rolls_back(flow, conn, result):
    @transaction
    def take(conn: Connection) -> int:
        conn.execute(TAKE, (1, "a"))
        return result  # type: ignore[no-any-return]

    with pytest.raises(RunFailed) as failed:
        result_of(flow, calling_sync(take))
    assert isinstance(failed.value.__cause__, pgflow.errors.NotStorable)
    assert left(conn) == 10


async def test_parallel_transactions_of_one_run_all_commit_once(aflow, conn):
    @workflow
    async def order() -> list[int]:
        return await asyncio.gather(*(take("a" if n % 2 else "b", 1) for n in range(10)))

    run = await launch(aflow, order)
    assert sorted(await run.result(SOON)) == [5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    assert (left(conn, "a"), left(conn, "b")) == (5, 5)
    assert steps(conn, run.key) == [("take", "completed", 1)] * 10


bodies_in_savepoints: list[int] = []


@transaction
async def take_in_a_savepoint(conn: AsyncConnection, sku: str, n: int) -> int:
    bodies_in_savepoints.append(n)
    for _ in range(6):
        await conn.execute(
            "select %s::int", (n,)
        )  # often enough to be prepared, and so to be deallocated
    try:
        async with conn.transaction():
            await conn.execute(TAKE, (n, sku))
    except psycopg.errors.CheckViolation:
        return 0
    return n


@workflow
async def order_what_there_is(sku: str) -> list[int]:
    return [await take_in_a_savepoint(sku, n) for n in (4, 99, 3, 98)]


@pytest.mark.full
def test_a_body_may_roll_back_to_a_savepoint_and_commit_the_rest(flow, conn):
    bodies_in_savepoints.clear()
    run = launch(flow, order_what_there_is, "a")
    assert run.result(SOON) == [4, 0, 3, 0]
    assert left(conn) == 3
    assert bodies_in_savepoints == [
        4,
        99,
        99,
        3,
        98,
    ]  # once more, where it took away what the engine had prepared; never again
    assert steps(conn, run.key) == [("take_in_a_savepoint", "completed", 1)] * 4


def test_a_body_in_a_thread_may_roll_back_to_a_savepoint_and_commit_the_rest(flow, conn):
    bodies = []

    @transaction
    def take_what_there_is(mine: Connection, n: int) -> int:
        bodies.append(n)
        for _ in range(6):
            mine.execute("select %s::int", (n,))
        try:
            with mine.transaction():
                mine.execute(TAKE, (n, "a"))
        except psycopg.errors.CheckViolation:
            return 0
        return n

    @workflow
    def order_in_turn() -> list[int]:
        return [take_what_there_is(n) for n in (4, 99, 3, 98)]

    run = launch(flow, order_in_turn)
    assert run.result(SOON) == [4, 0, 3, 0]
    assert left(conn) == 3
    assert bodies == [4, 99, 99, 3, 98]
    assert steps(conn, run.key) == [("take_what_there_is", "completed", 1)] * 4


def test_a_connection_of_the_pool_that_died_is_replaced_before_the_body_begins(dsn, conn):
    with make_pool(ConnectOptions(dsn), "three connections", 3) as pool:
        pool.wait()
        provider = PsycopgProvider(pool)
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = "
            "current_database() and application_name = 'three connections'"
        )
        with provider.begin(None) as transaction:
            assert transaction.execute("select %s::int", (1,)) == [(1,)]
            transaction.connection.execute(TAKE, (1, "a"))
            assert transaction.execute_and_commit("select %s::text", ("x",)) == [("x",)]
    assert left(conn) == 9


def test_a_last_statement_that_fails_commits_nothing(dsn, conn):
    with make_pool(ConnectOptions(dsn), "one connection", 1) as pool:
        provider = PsycopgProvider(pool)
        with provider.begin("serializable") as transaction:
            found = transaction.execute("select current_setting('transaction_isolation')", ())
            assert found == [("serializable",)]
            transaction.connection.execute(TAKE, (1, "a"))
            with pytest.raises(psycopg.errors.DivisionByZero):
                transaction.execute_and_commit("select 1 / %s::int", (0,))
        with provider.begin(None) as transaction:
            found = transaction.execute("select n from stock where sku = %s::text", ("a",))
            assert found == [(10,)]


@pytest.mark.parametrize("reset", [None, "deallocate all", "discard all"])
def test_what_the_engine_prepares_in_a_thread_is_prepared_once_unless_it_is_taken_away(dsn, reset):
    with make_pool(ConnectOptions(dsn), "one connection", 1) as pool:
        provider = PsycopgProvider(pool)
        seen = []
        for n in range(40):
            with provider.begin(None) as transaction:
                assert transaction.execute("select %s::int", (n,)) == [(n,)]
                assert transaction.execute_and_commit("select %s::text", (str(n),)) == [(str(n),)]
            with pool.connection() as connection:
                cursor = connection.execute(
                    "select name from pg_prepared_statements where name like '\\_pgflow%'",
                    prepare=False,
                )
                seen.append(sorted(name for (name,) in cursor.fetchall()))
                if reset is not None:
                    connection.execute(reset, prepare=False)
    if reset is None:
        assert seen == [seen[0]] * 40
        assert len(seen[0]) == 4
    else:
        assert seen[0] != seen[1] != []
        assert seen[-1] == []


@pytest.mark.parametrize("reset", [None, "deallocate all", "discard all"])
def test_what_the_engine_prepares_is_prepared_once_unless_it_is_taken_away(dsn, reset):
    async def main() -> list[list[Any]]:
        async with make_pool_async(ConnectOptions(dsn), "one connection", 1) as pool:
            provider = AsyncPsycopgProvider(pool)
            seen = []
            for n in range(40):
                async with provider.begin_async(None) as transaction:
                    assert await transaction.execute("select %s::int", (n,)) == [(n,)]
                    found = await transaction.execute_and_commit("select %s::text", (str(n),))
                    assert found == [(str(n),)]
                async with pool.connection() as connection:
                    cursor = await connection.execute(
                        "select name from pg_prepared_statements where name like '\\_pgflow%'",
                        prepare=False,
                    )
                    seen.append(sorted(name for (name,) in await cursor.fetchall()))
                    if reset is not None:
                        await connection.execute(reset, prepare=False)
            return seen

    seen = asyncio.run(main())
    if reset is None:
        assert seen == [seen[0]] * 40
        assert len(seen[0]) == 4
    else:
        assert seen[0] != seen[1] != []
        assert seen[-1] == []


@pytest.mark.parametrize("how", ["fails", "is left"])
def test_a_transaction_that_is_rolled_back_costs_nothing_that_is_prepared(dsn, how):
    prepared = "select name from pg_prepared_statements where name like '\\_pgflow%' order by 1"
    statement = "select 1 / 0" if how == "fails" else "select 1"

    async def main() -> list[list[Any]]:
        async with make_pool_async(ConnectOptions(dsn), "one connection", 1) as pool:
            provider, seen = AsyncPsycopgProvider(pool), []
            for n in range(5):
                async with provider.begin_async(None) as transaction:
                    assert await transaction.execute("select %s::int", (n,)) == [(n,)]
                    await transaction.connection.execute("select 2", prepare=True)
                    with suppress(psycopg.Error):
                        await transaction.connection.execute(statement)
                async with pool.connection() as connection:
                    seen.append(await (await connection.execute(prepared)).fetchall())
            return seen

    seen = asyncio.run(main())
    assert seen == [seen[0]] * 5 != [[]] * 5
    with make_pool(ConnectOptions(dsn), "one connection", 1) as pool:
        provider, seen = PsycopgProvider(pool), []
        for n in range(5):
            with provider.begin(None) as transaction:
                assert transaction.execute("select %s::int", (n,)) == [(n,)]
                transaction.connection.execute("select 2", prepare=True)
                with suppress(psycopg.Error):
                    transaction.connection.execute(statement)
            with pool.connection() as connection:
                seen.append(connection.execute(prepared).fetchall())
        assert seen == [seen[0]] * 5 != [[]] * 5


@pytest.mark.full
async def test_what_steps_before_it_did_is_durable_with_the_transaction(aflow, conn):
    @pgflow.read
    async def look(n: int) -> int:
        return n

    @workflow
    async def order() -> int:
        await look(1)
        pgflow.set_state(phase="taking")
        await take("a", 1)
        return await paid.wait()

    # What is there when the transaction commits: what was before may be part of it, or have a commit
    # of its own, which is over by then.
    conn.execute(
        "create table there (seq bigint); "
        "create function note() returns trigger language plpgsql as "
        "'begin insert into there select seq from pgflow.unit; return null; end'; "
        "create constraint trigger note after update on stock deferrable initially deferred "
        "for each row execute function note()"
    )
    run = await settle(aflow, order)
    before = conn.execute(
        "select u.seq, exists (select from there where seq = u.seq) from pgflow.unit u "
        "where u.seq < (select seq from pgflow.unit where name like '%take')"
    ).fetchall()
    assert len(before) > 1
    assert all(is_there for _, is_there in before)
    assert await run.state() == {"phase": "taking"}


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_serialization_failure_is_tried_again_and_not_recorded(flow, conn, isolation):
    bodies = []

    @transaction(isolation=isolation)
    async def contended(mine: AsyncConnection) -> int:
        bodies.append(1)
        await mine.execute("select n from stock")
        if len(bodies) <= 2:
            conn.execute(TAKE, (1, "a"))
        return (await (await mine.execute(TAKE, (1, "a"))).fetchone())[0]

    run = launch(flow, calling(contended))
    assert run.result(SOON) == 7
    assert (len(bodies), left(conn)) == (3, 7)
    assert steps(conn, run.key) == [("contended", "completed", 1)]
    assert events(conn, run.key) == [("step_completed", "contended")]


def test_a_failure_to_serialize_at_commit_is_tried_again_too(flow, conn, dsn):
    bodies = []
    sum_up = "select sum(n) from stock"

    @transaction(isolation="serializable")
    def skewed(mine: Connection) -> int:
        bodies.append(1)
        total = mine.execute(sum_up).fetchone()[0]
        mine.execute("insert into stock values (%s, %s)", (f"mine {len(bodies)}", total))
        if len(bodies) == 1:
            with psycopg.connect(dsn) as other:
                other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                other.execute("insert into stock select 'other', sum(n) from stock")
        return total

    run = launch(flow, calling_sync(skewed))
    assert run.result(SOON) == 40
    assert len(bodies) == 2
    assert count(conn, "stock", "sku like 'mine%'") == 1
    assert events(conn, run.key) == [("step_completed", "skewed")]


@contextmanager
def somebody_who_locks(
    dsn: str, conn: psycopg.Connection, first: str, second: str
) -> Iterator[None]:
    """Another session that has locked one stock, and waits for the second that we hold."""
    with psycopg.connect(dsn) as other:
        other.execute(TAKE, (1, first))
        thread = threading.Thread(target=lambda: other.execute(TAKE, (1, second)))
        thread.start()
        waits = f"pid = {other.info.backend_pid} and wait_event_type = 'Lock'"
        wait_until(lambda: count(conn, "pg_stat_activity", waits), "the other waits for us")
        yield
        thread.join()


@pytest.mark.full
def test_a_deadlock_is_tried_again_and_not_recorded(flow, conn, dsn):
    bodies = []

    @transaction
    def unlucky(mine: Connection) -> int:
        bodies.append(1)
        mine.execute("set local deadlock_timeout = '20ms'")
        mine.execute(TAKE, (1, "a"))
        if len(bodies) > 1:
            return mine.execute(TAKE, (1, "b")).fetchone()[0]
        deadlock = None
        with somebody_who_locks(dsn, conn, "b", "a"):
            try:
                mine.execute(TAKE, (1, "b"))
            except psycopg.errors.DeadlockDetected as error:
                deadlock = error
                mine.rollback()
        assert deadlock is not None
        raise deadlock

    run = launch(flow, calling_sync(unlucky))
    assert run.result(SOON) == 8
    assert (len(bodies), left(conn, "a"), left(conn, "b")) == (2, 8, 8)
    assert events(conn, run.key) == [("step_completed", "unlucky")]


@pytest.mark.full
def test_a_lost_connection_in_the_body_is_tried_again_and_not_recorded(flow, conn):
    bodies = []

    @transaction
    async def unlucky(mine: AsyncConnection) -> int:
        bodies.append(1)
        await mine.execute(TAKE, (1, "a"))
        if len(bodies) == 1:
            conn.execute("select pg_terminate_backend(%s)", (mine.info.backend_pid,))
        await mine.execute("select 1")
        return len(bodies)

    run = launch(flow, calling(unlucky))
    assert run.result(SOON) == 2
    assert left(conn) == 9
    assert events(conn, run.key) == [("step_completed", "unlucky")]


@pytest.mark.full
@pytest.mark.parametrize("when", ["in the body", "before the fence"])
def test_connections_that_are_lost_are_not_missed_by_later_steps(flow, conn, when):
    losses = iter(range(25))  # more than the pool has
    pids: list[int] = []

    @transaction
    async def unlucky(mine: AsyncConnection, n: int) -> int:
        await mine.execute(TAKE, (0, "a"))
        if next(losses, None) is not None:
            pids.append(mine.info.backend_pid)
            conn.execute("select pg_terminate_backend(%s, 5000)", (mine.info.backend_pid,))
            if when == "in the body":
                await mine.execute("select 1")
        return n

    @workflow
    async def many_orders() -> list[int]:
        return list(await asyncio.gather(*[unlucky(n) for n in range(50)]))

    assert result_of(flow, many_orders) == list(range(50))
    assert len(set(pids)) == 25


def test_a_step_that_is_cancelled_again_while_it_is_cancelled_gives_its_connection_back(dsn, conn):
    async def main() -> None:
        async with make_pool_async(ConnectOptions(dsn), "one connection", 1) as pool:
            provider = AsyncPsycopgProvider(pool)

            async def ask(query: str) -> None:
                async with provider.begin_async(None) as transaction:
                    await transaction.execute(query, ())

            for _ in range(2):
                task = asyncio.create_task(ask("select pg_sleep(60)"))
                while not conn.execute(
                    "select from pg_stat_activity where wait_event = 'PgSleep' and datname = "
                    "current_database()"
                ).fetchall():
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await ask("select 1")

    asyncio.run(main())


@pytest.mark.full
def test_a_pooler_that_the_engine_was_not_told_of_costs_what_is_prepared_and_nothing_else(
    dsn, conn
):
    async def main(address: str) -> list[int]:
        async with (
            make_pool_async(ConnectOptions(address), "one", 1) as one,
            make_pool_async(ConnectOptions(address), "other", 1) as other,
        ):
            providers = [AsyncPsycopgProvider(one), AsyncPsycopgProvider(other)]
            taken = []
            for n in range(24):
                async with providers[n % 3 % 2].begin_async(None) as transaction:
                    await transaction.execute("select %s::int", (n,))
                    with suppress(
                        psycopg.errors.SerializationFailure
                    ):  # as infrastructure has it tried again
                        rows = await transaction.execute_and_commit(
                            "update stock set n = n - 0 where sku = %s returning n", ("a",)
                        )
                        taken.append(rows[0][0])
            return taken

    with bouncer(dsn, "transaction") as address:
        taken = asyncio.run(main(address))
    assert set(taken) == {10}
    assert len(taken) >= 22, "at most one transaction of each pool is tried again"


@pytest.mark.full
@pytest.mark.parametrize("ends", ["commit", "rollback", "commit and begin"])
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_body_that_ends_its_transaction_itself_holds_the_run(flow, conn, ends, colour):
    @transaction
    async def rash(mine: AsyncConnection) -> None:
        await mine.execute(TAKE, (1, "a"))
        await (mine.rollback() if ends == "rollback" else mine.commit())
        if ends == "commit and begin":
            await mine.execute("begin")

    @transaction
    def rash_sync(mine: Connection) -> None:
        mine.execute(TAKE, (1, "a"))
        if ends == "rollback":
            mine.rollback()
        else:
            mine.commit()
        if ends == "commit and begin":
            mine.execute("begin")

    @workflow
    async def order() -> None:
        await (rash() if colour == "async" else rash_sync.aio())

    run = launch(flow, order)
    with pytest.raises(RunStuck, match=r"committed_outside.*ended its transaction itself"):
        run.result(SOON)
    assert run_row(conn, run.key, "status, reason") == ("stuck", "committed_outside")
    assert left(conn) == (10 if ends == "rollback" else 9)
    assert events(conn, run.key) == []


async def test_cancelling_never_waits_for_an_open_transaction_which_is_rolled_back(aflow, conn):
    started = asyncio.Event()

    @transaction
    async def slow(mine: AsyncConnection) -> None:
        await mine.execute(TAKE, (1, "a"))
        started.set()
        await asyncio.Event().wait()

    run = await launch(aflow, calling(slow))
    await started.wait()
    await run.cancel()
    with pytest.raises(pgflow.RunCancelled):
        await run.result(SOON)
    assert left(conn) == 10
    assert events(conn, run.key) == [("call_cancelled", "cancel"), ("call_cancelled", "slow")]


@pytest.mark.full
def test_a_transaction_in_a_thread_that_nobody_waits_for_any_more_is_rolled_back(flow, conn):
    started, proceed, ended = threading.Event(), threading.Event(), threading.Event()

    @transaction
    def slow(mine: Connection) -> None:
        try:
            mine.execute(TAKE, (1, "a"))
            started.set()
            proceed.wait(HANG_SECONDS)
        finally:
            ended.set()

    run = launch(flow, calling_sync(slow))
    assert started.wait(HANG_SECONDS)
    try:
        run.cancel()
        wait_until(lambda: run.status() == "cancelled", "the run is cancelled while its body runs")
    finally:
        proceed.set()
    assert ended.wait(HANG_SECONDS)
    wait_until(
        lambda: (
            count(
                conn,
                "pg_stat_activity",
                "datname = current_database() and state = 'idle in transaction'",
            )
            == 0
        ),
        "the transaction is over",
    )
    assert left(conn) == 10


@pytest.mark.full
def test_a_body_whose_run_was_taken_over_commits_nothing(flow, conn):
    bodies = []

    @transaction
    async def fenced(mine: AsyncConnection) -> int:
        bodies.append(1)
        await mine.execute(TAKE, (1, "a"))
        if len(bodies) == 1:
            conn.execute(
                "select pgflow.release_runs(array[run_id], array[token]) from pgflow.lease"
            )
        return len(bodies)

    assert result_of(flow, calling(fenced)) == 2
    assert left(conn) == 9


@pytest.mark.full
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_timeout_set_by_options_ends_an_attempt_of_a_transaction(flow, conn, colour):
    proceed = threading.Event()

    @transaction
    async def slow(mine: AsyncConnection) -> str:
        await mine.execute(TAKE, (1, "a"))
        await asyncio.Event().wait()
        return "never"

    @transaction
    def slow_sync(mine: Connection) -> str:
        mine.execute(TAKE, (1, "a"))
        proceed.wait(HANG_SECONDS)
        return "in the end"

    @workflow
    async def order() -> str:
        soon = timedelta(milliseconds=50)
        try:
            return await (
                slow.options(timeout=soon)()
                if colour == "async"
                else slow_sync.options(timeout=soon).aio()
            )
        except TimeoutError:
            return "too long"

    run = launch(flow, order)
    try:
        assert run.result(SOON) == "too long"
        assert left(conn) == 10
    finally:
        proceed.set()


@pytest.mark.full
def test_the_isolation_level_is_the_one_asked_for(flow):
    show = "show transaction_isolation"

    @transaction
    async def default(mine: AsyncConnection) -> str:
        return (await (await mine.execute(show)).fetchone())[0]

    def showing(isolation: Any) -> Any:
        @transaction(isolation=isolation)
        def show_isolation(mine: Connection) -> str:
            return mine.execute(show).fetchone()[0]

        return show_isolation

    levels = ["read committed", "repeatable read", "serializable"]
    declared = [showing(level) for level in levels]

    @workflow
    async def order() -> list[str]:
        return [await default(), *[await one.aio() for one in declared]]

    assert result_of(flow, order) == ["read committed", *levels]


class Ledger:
    """A connection of somebody else's library."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class LedgerTransaction:
    def __init__(self, connection: Connection) -> None:
        self.connection = Ledger(connection)

    def execute(self, sql: str, params: Sequence[Any]) -> list[Any]:
        return self.connection.connection.execute(sql, params).fetchall()

    def flush(self) -> None: ...

    def commit(self) -> None:
        self.connection.connection.commit()


class LedgerProvider:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def provides(self, annotation: Any) -> bool:
        return annotation is Ledger

    @contextmanager
    def begin(self, isolation: str | None) -> Iterator[LedgerTransaction]:
        with psycopg.connect(self.dsn) as connection:
            try:
                yield LedgerTransaction(connection)
            finally:
                connection.rollback()


@transaction
def take_from_ledger(ledger: Ledger, sku: str) -> int:
    return ledger.connection.execute(TAKE, (1, sku)).fetchone()[0]


@workflow
async def mixed() -> list[int]:
    return [await take("a", 1), await take_from_ledger.aio("a")]


def test_the_annotation_of_the_first_parameter_picks_the_provider(dsn, conn):
    with App(dsn, include=[mixed], providers=[LedgerProvider(dsn)]) as app:
        assert app.run(mixed) == [9, 8]
    assert left(conn) == 8


def test_a_transaction_nobody_provides_for_fails_with_the_parameter_and_what_to_do(flow):
    with pytest.raises(RunFailed) as failed:
        result_of(flow, mixed)
    assert isinstance(failed.value.__cause__, DefinitionError)
    assert "take_from_ledger" in str(failed.value.__cause__)
    assert "'ledger'" in str(failed.value.__cause__)
    assert "providers=[...]" in str(failed.value.__cause__)


def test_a_transaction_without_a_parameter_for_the_connection_is_refused():
    with pytest.raises(DefinitionError, match="first parameter must be the connection"):

        @transaction  # type: ignore[arg-type]
        def forgot() -> None: ...


@pytest.mark.full
async def test_what_a_transaction_starts_and_sends_exists_once_it_commits(aflow, conn):
    @transaction
    async def hand_over(mine: AsyncConnection, other: str) -> str:
        inside = aflow.app.using(mine)
        started = await inside.start(wait_for_payment.options(key="started"), 100)
        await inside.send(other, paid, 1)
        await inside.send(started.key, paid, 2)
        assert count(conn, "pgflow.signal") == count(conn, "pgflow.runs", "key = 'started'") == 0
        return started.key

    @workflow
    async def order(other: str) -> str:
        return await hand_over(other)

    other = await settle(aflow, wait_for_payment.options(key="other"), beside=[order])
    run = await aflow.start(order, "other")
    assert await run.result(SOON) == "started"
    assert await other.result(SOON) == 1
    assert await aflow.app.get("started", wait_for_payment).result(SOON) == 102


def test_what_a_transaction_starts_and_sends_is_gone_when_its_body_raises(flow, conn):
    @transaction
    def hand_over(mine: Connection) -> None:
        inside = flow.app.using(mine)
        inside.start(wait_for_payment.options(key="started"), 100)
        inside.send("other", paid, 1)
        raise ValueError

    @workflow
    def order() -> None:
        hand_over()

    launch(flow, wait_for_payment.options(key="other"), beside=[order])
    with pytest.raises(RunFailed):
        flow.start(order).result(SOON)
    with pytest.raises(RunNotFound):
        flow.app.get("started", wait_for_payment).status()
    flow.until_idle()
    assert flow.app.get("other", wait_for_payment).status() == "waiting"
    assert count(conn, "pgflow.signal") == 0


def test_a_message_sent_by_a_transaction_is_not_sent_twice_however_often_its_body_runs(flow, conn):
    bodies = []

    @transaction
    def send(mine: Connection) -> None:
        bodies.append(1)
        flow.app.using(mine).send("other", paid, len(bodies))
        if len(bodies) < 3:
            mine.execute("do $$ begin raise serialization_failure; end $$")

    @workflow
    def order() -> None:
        send()

    flow.include(order, wait_for_payment)
    other = flow.app.start(wait_for_payment.options(key="other"))
    flow.start(order).result(SOON)
    assert other.result(SOON) == 3
    assert count(conn, "pgflow.undelivered") == 0


@pytest.mark.full
def test_what_is_started_in_the_callers_transaction_is_invisible_before_it_commits_and_there_once_after_it(
    flow, dsn, conn
):
    flow.include(wait_for_payment)
    flow.until_idle()
    with psycopg.connect(dsn, row_factory=dict_row) as caller:
        caller.execute(TAKE, (1, "a"))
        inside = flow.app.using(caller)
        run = inside.start(wait_for_payment.options(key="k"), 1)
        again = inside.start(wait_for_payment.options(key="k"), 1)
        with pytest.raises(RunNotFound):
            run.status()
        caller.commit()
        flow.app.nudge()
        assert caller.autocommit is False
    run.send(paid, 2)
    assert run.result(SOON) == again.result(SOON) == 3
    assert count(conn, "pgflow.runs") == 1


def test_a_caller_may_like_other_placeholders_better(flow, dsn):
    flow.include(wait_for_payment)
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as caller:
        run = flow.app.using(caller).start(wait_for_payment.options(key="k"), 1)
        assert [row.key for row in ask(caller, list_runs())] == [run.key]
    assert run.status() == "queued"


async def test_an_async_caller_may_like_other_placeholders_better(aflow, dsn):
    aflow.include(wait_for_payment)
    async with await AsyncConnection.connect(dsn, cursor_factory=psycopg.AsyncRawCursor) as caller:
        run = await aflow.app.using(caller).start(wait_for_payment.options(key="k"), 1)
    assert await run.status() == "queued"


async def test_what_is_sent_in_the_callers_transaction_arrives_after_it_commits(aflow, dsn):
    run = await settle(aflow, wait_for_payment)
    async with await AsyncConnection.connect(dsn) as caller:
        inside = aflow.app.using(caller)
        await inside.send(run.key, paid, 7)
        await aflow.until_idle()
        assert await run.status() == "waiting"
        await caller.rollback()
        await inside.send(run.key, paid, 8)
        await caller.commit()
        await aflow.app.nudge()
    assert await run.result(SOON) == 8


def test_a_savepoint_that_is_rolled_back_takes_the_start_with_it(flow, dsn, conn):
    flow.include(wait_for_payment)
    with psycopg.connect(dsn) as caller:
        inside = flow.app.using(caller)
        inside.start(wait_for_payment.options(key="kept"))
        with caller.transaction(force_rollback=True):
            inside.start(wait_for_payment.options(key="dropped"))
    assert conn.execute("select key from pgflow.runs").fetchall() == [("kept",)]


def test_a_run_can_be_cancelled_in_the_callers_transaction(flow, dsn):
    run = settle(flow, wait_for_payment)
    with psycopg.connect(dsn) as caller:
        flow.app.using(caller).cancel(run.key, why="changed my mind")
        assert run.status() == "waiting"
    flow.app.nudge()
    with pytest.raises(pgflow.RunCancelled, match="changed my mind"):
        run.result(SOON)


def test_a_connection_without_an_open_transaction_is_refused(flow, dsn):
    with psycopg.connect(dsn, autocommit=True) as caller:
        with pytest.raises(InvalidArgument, match="no open transaction"):
            flow.app.using(caller)
        with caller.transaction():
            flow.app.using(caller).start(wait_for_payment.options(key="k"))
    assert flow.app.get("k", wait_for_payment).status() == "queued"


def test_what_is_no_connection_is_refused_by_name(flow):
    with pytest.raises(
        InvalidArgument, match=r"psycopg, SQLAlchemy and Django, not builtins\.object"
    ):
        flow.app.using(object())


@pytest.mark.full
@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_starting_and_sending_work_at_every_isolation_level(flow, dsn, level):
    flow.include(wait_for_payment)
    with psycopg.connect(dsn) as caller:
        caller.isolation_level = level
        inside = flow.app.using(caller)
        run = inside.start(wait_for_payment, 1)
        inside.send(run.key, paid, 1)
    flow.until_idle()
    assert run.result(SOON) == 2


def test_a_conflict_in_the_callers_transaction_is_a_key_conflict(flow, dsn):
    flow.include(wait_for_payment)
    flow.app.start(wait_for_payment.options(key="k"), 1)
    with psycopg.connect(dsn) as caller, pytest.raises(KeyConflict):
        flow.app.using(caller).start(wait_for_payment.options(key="k"), 2)


def test_the_callers_session_is_left_as_it_was(flow, dsn):
    settings = "select name, setting from pg_settings order by name"
    with psycopg.connect(dsn) as caller:
        caller.execute("do 'begin end'")  # loads plpgsql, whose own settings appear with it
        before = caller.execute(settings).fetchall()
        flow.app.using(caller).start(wait_for_payment.options(key="k"))
        flow.app.using(caller).send("k", paid, 1)
        assert caller.execute(settings).fetchall() == before
        caller.rollback()


@pytest.mark.full
def test_a_start_in_sql_of_a_trigger_commits_with_the_row_that_fired_it(flow, conn):
    conn.execute("""
        create function order_stock() returns trigger language plpgsql as $$
        begin
          perform pgflow.start_run('wait_for_payment', json_build_object('first', new.n), 'order-' || new.sku);
          return new;
        end $$;
        create trigger low after update on stock for each row when (new.n < 3) execute function order_stock();
    """)
    flow.include(wait_for_payment)
    flow.until_idle()
    conn.execute("update stock set n = 2 where sku = 'a'")
    flow.until_idle()
    run = flow.app.get("order-a", wait_for_payment)
    run.send(paid, 5)
    assert run.result(SOON) == 7


def test_many_starts_in_many_transactions_are_one_run_each(dsn, conn):
    async def start_all() -> None:
        async with AsyncApp(dsn) as app:

            async def start_one(n: int) -> None:
                async with await AsyncConnection.connect(dsn) as caller:
                    await app.using(caller).start(wait_for_payment.options(key=f"k{n % 5}"), n % 5)
                    if n >= 15:
                        await caller.rollback()

            await asyncio.gather(*(start_one(n) for n in range(20)))

    asyncio.run(start_all())
    assert count(conn, "pgflow.runs") == 5


def test_a_start_with_a_delay_in_the_callers_transaction_waits_for_its_time(flow, dsn, conn):
    flow.include(wait_for_payment)
    (now,) = conn.execute("select now()").fetchone()
    with psycopg.connect(dsn) as caller:
        run = flow.app.using(caller).start(wait_for_payment.options(run_at=now + HOUR), 1)
    assert run.status() == "waiting"
    run.send(paid, 1)
    flow.until_idle()
    assert run.status() == "waiting"
    flow.skip(HOUR)
    assert run.result(SOON) == 2


async def test_a_transaction_is_found_by_the_key_that_its_body_had(aflow, conn):
    keys = []

    @transaction
    async def keyed(conn: AsyncConnection, n: int) -> int:
        keys.append(pgflow.idempotency_key())
        if n < 0:
            raise ValueError(n)
        return n

    @transaction
    def keyed_too(conn: Connection, n: int) -> int:
        keys.append(pgflow.idempotency_key())
        return n

    @workflow
    async def twice() -> int:
        total = await keyed(1) + await keyed_too.aio(2) + await keyed(3)
        with suppress(ValueError):
            await keyed(-1)
        return total

    run = await launch(aflow, twice)
    assert await run.result(SOON) == 6
    shown = conn.execute(
        "select status, attempts, idempotency_key from pgflow.steps where key = %s order by call",
        (run.key,),
    ).fetchall()
    assert len(set(keys)) == 4
    assert shown == [
        (status, 1, key)
        for status, key in zip(("completed", "completed", "completed", "failed"), keys, strict=True)
    ]


@pytest.mark.full
@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
def test_a_body_that_is_idle_for_too_long_loses_its_transaction_and_runs_again(dsn, conn, is_sync):
    bodies: list[int] = []

    def is_over(pid: int) -> bool:
        return count(conn, "pg_stat_activity", f"pid = {pid}") == 0

    @transaction
    async def dawdle(mine: AsyncConnection) -> int:
        await take.fn(mine, "a", 1)
        bodies.append(mine.info.backend_pid)
        if len(bodies) == 1:
            await asyncio.to_thread(
                wait_until, lambda: is_over(bodies[0]), "the server has ended the transaction"
            )
        return len(bodies)

    @transaction
    def dawdle_sync(mine: Connection) -> int:
        take_sync.fn(mine, "a", 1)
        bodies.append(mine.info.backend_pid)
        if len(bodies) == 1:
            wait_until(lambda: is_over(bodies[0]), "the server has ended the transaction")
        return len(bodies)

    @workflow
    async def order() -> int:
        return await (dawdle_sync.aio() if is_sync else dawdle())

    with App(dsn, include=[order]) as app, app.worker(transaction_idle_seconds=0.1):
        assert app.start(order).result(SOON) >= 2
    assert left(conn) == 9


@pytest.mark.parametrize("idle", [0, -1, float("nan"), "5m"])
def test_an_idle_time_that_is_none_is_refused_before_a_worker_starts(dsn, idle):
    with (
        App(dsn) as app,
        pytest.raises(InvalidArgument, match="transaction_idle_seconds of a worker"),
        app.worker(transaction_idle_seconds=idle),
    ):
        pytest.fail("it has started")
