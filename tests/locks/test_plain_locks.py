"""Locks of plain code and of SQL: they last for a limited time, and share the queue with runs."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlkit
from records import SOON, count, result_of, settle
from servers import wait_until

import pgflow
from pgflow import App, AsyncApp, Signal, transaction, workflow
from pgflow.errors import LockLost

go = Signal("go", str)


@workflow
async def hold(key: str) -> int:
    async with pgflow.lock(key) as fence:
        await go.wait()
    return fence


def take(conn: psycopg.Connection[Any], key: str, holder: str, **options: Any) -> int | None:
    named = {"key": key, "holder": holder, "ttl": "10 minutes", **options}
    arguments = ", ".join(f"{name} => %s" for name in named)
    return sqlkit.one(conn, f"select pgflow.take_lock({arguments})", *named.values())


def test_a_lock_is_taken_given_back_and_taken_with_a_greater_fence(conn):
    assert take(conn, "a", "one") == 1
    assert take(conn, "a", "one") == 2  # the same holder, whose answer was lost
    assert take(conn, "a", "two") is None
    assert sqlkit.one(conn, "select pgflow.release_lock('a', 1)") is False
    assert sqlkit.one(conn, "select pgflow.release_lock('a', 2)") is True
    assert sqlkit.one(conn, "select pgflow.release_lock('a', 2)") is False
    assert take(conn, "a", "two") == 3


@pytest.mark.parametrize("secret", ["night-2f81", None], ids=["secret", "session"])
def test_names_that_a_view_shows_neither_take_nor_free_the_lock_of_another(dsn, conn, secret):
    fence = take(conn, "a", "night job", secret=secret)
    take(conn, "a", "day job", secret=secret, patience="1 minute")
    with sqlkit.connect(dsn) as thief:
        ((key, seen, holder),) = thief.execute(
            "select key, fence, holder from pgflow.locks"
        ).fetchall()
        assert (seen, holder) == (fence, "night job")
        for guess in (None, holder, "", str(seen), "secret night-2f81", "session 1 1"):
            for name in (holder, "day job"):
                assert take(thief, key, name, secret=guess) is None
                thief.execute("select pgflow.leave_lock(%s, %s, %s)", (key, name, guess))
            given = (
                "select pgflow.release_lock(%s, %s, %s), pgflow.renew_lock(%s, %s, '1 hour', %s)"
            )
            assert thief.execute(given, (key, seen, guess) * 2).fetchall() == [(False, False)]
    found = sqlkit.rows(conn, "select fence, holder, waiters from pgflow.locks")
    assert found == [(fence, "night job", 1)]
    shown = "select row_to_json(l)::text from pgflow.locks l"
    assert "night-2f81" not in str(sqlkit.rows(conn, shown))
    assert take(conn, "a", "night job", secret=secret) == 2  # and no fence is given twice
    assert sqlkit.one(conn, "select pgflow.release_lock('a', 2, %s)", secret) is True
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["day job"]


def test_a_lock_whose_time_is_over_is_anybodys(conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    assert take(conn, "a", "one") == 1
    assert sqlkit.one(conn, "select pgflow.renew_lock('a', 1, '20 minutes')") is True
    sqlkit.set_clock(conn, sqlkit.T0 + timedelta(minutes=15))
    assert take(conn, "a", "two") is None
    sqlkit.set_clock(conn, sqlkit.T0 + timedelta(minutes=20))
    assert sqlkit.one(conn, "select pgflow.renew_lock('a', 1, '20 minutes')") is False
    assert take(conn, "a", "two") == 2
    assert sqlkit.one(conn, "select pgflow.release_lock('a', 1)") is False


def test_who_waits_with_patience_stands_in_the_queue_and_is_passed_over_when_it_asks_no_more(conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    take(conn, "a", "one")
    for holder in ("two", "three"):
        assert take(conn, "a", holder, patience="10 seconds") is None
    sqlkit.one(conn, "select pgflow.release_lock('a', 1)")
    assert take(conn, "a", "four") is None
    sqlkit.set_clock(conn, sqlkit.T0 + timedelta(seconds=8))
    assert take(conn, "a", "three", patience="10 seconds") is None
    sqlkit.set_clock(conn, sqlkit.T0 + timedelta(seconds=17))
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["three"]
    assert take(conn, "a", "three", patience="10 seconds") == 3  # 2 was answered to nobody


def test_who_finds_a_lock_expired_and_may_not_have_it_leaves_it_to_the_next_in_the_queue(conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    take(conn, "a", "one", ttl="1 minute")
    assert take(conn, "a", "two", patience="1 hour") is None
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    sqlkit.set_clock(conn, sqlkit.T0 + timedelta(minutes=2))
    assert take(conn, "a", "three") is None
    sqlkit.poll(conn)
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["two"]


def test_those_behind_one_that_asks_no_more_are_let_in(conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    assert take(conn, "a", "one", shared=True) == 1
    assert take(conn, "a", "two", patience="10 seconds") is None
    assert take(conn, "a", "three", shared=True, patience="1 minute") is None
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    sqlkit.set_clock(conn, sqlkit.T0 + timedelta(seconds=20))
    sqlkit.poll(conn)
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["one", "three"]


def test_one_that_gives_up_its_place_lets_those_behind_in(conn):
    assert take(conn, "a", "one", shared=True) == 1
    assert take(conn, "a", "two", patience="1 minute") is None
    assert take(conn, "a", "three", shared=True, patience="1 minute") is None
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    assert take(conn, "a", "two") is None
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["one", "three"]


def test_a_holder_that_shares_a_lock_does_not_have_it_alone(conn):
    take(conn, "a", "one", shared=True)
    with pytest.raises(psycopg.Error, match="shares it with others") as refused:
        take(conn, "a", "one")
    assert refused.value.sqlstate == "PF006"


def test_who_asked_twice_since_the_answer_was_lost_does_not_wait_behind_itself(dsn, conn):
    with sqlkit.connect(dsn) as cut, cut.transaction():
        assert take(cut, "a", "one", secret="mine") == 1
        assert take(conn, "a", "one", secret="mine", patience="1 minute") is None
    assert take(conn, "a", "one", secret="mine", patience="1 minute") == 2
    sqlkit.one(conn, "select pgflow.release_lock('a', 2, 'mine')")
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    assert take(conn, "a", "two") == 3


def test_a_lock_that_nobody_waits_for_leaves_nothing_behind(conn):
    take(conn, "a", "one")
    sqlkit.one(conn, "select pgflow.release_lock('a', 1)")
    assert count(conn, "pgflow.lock_nudge") == 0
    take(conn, "a", "two")
    conn.execute("select pgflow.leave_lock('a', 'two')")
    assert count(conn, "pgflow.lock_nudge") == 0


def test_a_fence_is_durable_before_anybody_reads_it(conn):
    take(conn, "a", "one")
    take(conn, "a", "two", patience="1 minute")
    sqlkit.one(conn, "select pgflow.release_lock('a', 1)")
    with conn.transaction():
        conn.execute("set local synchronous_commit = off")
        sqlkit.poll(conn)
        assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["two"]
        assert sqlkit.one(conn, "show synchronous_commit") == "on"
    with conn.transaction():
        conn.execute("set local synchronous_commit = off")
        take(conn, "b", "one")
        assert sqlkit.one(conn, "show synchronous_commit") == "on"


def test_the_end_of_a_run_waits_for_nobody_who_takes_its_expired_lock(dsn, conn):
    sqlkit.set_clock(conn, sqlkit.T0)
    run = sqlkit.begin(conn)
    conn.execute(
        "insert into pgflow.lock (fence, run_id, since, expires_at, call, is_shared, key, holder)"
        " values (nextval('pgflow.lock_fence_seq'), %s, %s, %s, 1, false, 'a', 'demo')",
        (run.run_id, sqlkit.T0, sqlkit.T0 + timedelta(minutes=1)),
    )
    sqlkit.set_clock(conn, sqlkit.T0 + timedelta(minutes=2))
    with sqlkit.connect(dsn) as other, conn.transaction():
        assert take(conn, "a", "one") == 2
        assert (
            sqlkit.one(
                other, "select pgflow.end_locks_(array[%s::bigint], pgflow.now_())", run.run_id
            )
            == [run.chain_id]
            or count(other, "pgflow.lock_nudge") == 1
        )
    sqlkit.finish(conn, run)
    sqlkit.poll(conn)
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["one"]


def test_shared_locks_are_held_together(conn):
    assert take(conn, "a", "one", shared=True) == 1
    assert take(conn, "a", "two", shared=True) == 2
    assert take(conn, "a", "three") is None
    assert take(conn, "a", "three", patience="1 minute") is None
    assert take(conn, "a", "four", shared=True) is None  # three was there before


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_in_one_snapshot_for_all_a_lock_is_asked_for_and_won_later(dsn, conn, level):
    with sqlkit.connect(dsn) as other:
        other.execute(f"begin isolation level {level}")
        sqlkit.one(other, "select 1 from pgflow.queue limit 1")
        assert take(conn, "a", "one") == 1
        assert take(other, "a", "two", patience="1 minute") is None
        other.execute("commit")
        sqlkit.one(conn, "select pgflow.release_lock('a', 1)")
        sqlkit.rows(conn, "select pgflow.sweep_locks()")
        assert take(other, "a", "two", patience="1 minute") == 3


def test_two_who_take_a_lock_at_once_do_not_both_have_it(dsn, conn):
    with sqlkit.connect(dsn) as other, conn.transaction():
        assert take(conn, "a", "one") == 1
        assert take(other, "a", "two", patience="1 minute") is None  # and waits for nobody
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    assert take(conn, "a", "two") is None


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_who_renews_its_place_while_the_lock_is_given_back_is_let_in_afterwards(dsn, conn, end):
    patience = {"patience": "1 minute", "secret": "mine"}
    assert take(conn, "a", "one") == 1
    assert take(conn, "a", "two", **patience) is None
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    with sqlkit.connect(dsn) as asking, sqlkit.connect(dsn) as waiting:
        asking.execute("begin")
        assert take(asking, "a", "three") is None  # decides of the key until it commits
        waiting.execute("begin")
        assert take(waiting, "a", "two", patience="10 minutes", secret="mine") is None
        asking.execute("commit")
        assert sqlkit.one(conn, "select pgflow.release_lock('a', 1)") is True
        sqlkit.rows(conn, "select pgflow.sweep_locks()")
        assert sqlkit.rows(conn, "select holder from pgflow.locks") == []
        waiting.execute(end)
    sqlkit.rows(conn, "select pgflow.sweep_locks()")
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == ["two"]


@pytest.mark.parametrize(
    "options", [{"ttl": "0 seconds"}, {"ttl": None}, {"key": ""}, {"holder": ""}]
)
def test_bad_arguments_are_refused(db, options):
    with pytest.raises(psycopg.Error) as refused:
        take(db, **{"key": "a", "holder": "one", **options})
    assert refused.value.sqlstate == "PF003"


async def test_a_run_waits_for_plain_code_and_plain_code_for_a_run(aflow, conn):
    aflow.include(hold)
    async with aflow.app.lock("a", ttl=30) as fence:
        assert fence == 1
        run = await settle(aflow, hold, "a")
        assert await run.status() == "waiting"
    await aflow.until_idle()
    with pytest.raises(TimeoutError):
        async with aflow.app.lock("a", ttl=30, timeout=0):
            pass
    assert sqlkit.rows(conn, "select holder from pgflow.locks") == [run.key]
    await run.send(go, "on")
    assert await run.result(SOON) == 2
    async with aflow.app.lock("a", ttl=30) as fence:
        assert fence == 3


@pytest.mark.full
def test_a_lock_of_plain_code_is_renewed_while_its_block_lasts(dsn, conn):
    expires = "select expires_at from pgflow.locks"
    with App(dsn) as app, app.lock("a", ttl=3):
        first = sqlkit.one(conn, expires)
        wait_until(lambda: sqlkit.one(conn, expires) > first, "a renewal")
    assert sqlkit.rows(conn, expires) == []


def test_the_end_of_a_block_says_that_its_lock_was_lost(dsn, conn):
    with App(dsn) as app:
        with pytest.raises(LockLost, match="lock 'a' is lost"), app.lock("a", ttl=60):
            conn.execute("select pgflow.break_lock('a', 'it hangs')")
        with pytest.raises(ValueError, match="mine"), app.lock("a", ttl=60):
            conn.execute("select pgflow.break_lock('a', 'it hangs')")
            raise ValueError("mine")


def test_async_code_whose_lock_is_lost_is_cancelled(dsn, conn):
    async def main() -> None:
        async with AsyncApp(dsn) as app, app.lock("a", ttl=0.3):
            conn.execute("select pgflow.break_lock('a', 'it hangs')")
            await asyncio.Event().wait()

    with pytest.raises(LockLost):
        asyncio.run(main())


@pytest.mark.full
def test_async_code_that_hears_nothing_of_its_lock_for_as_long_as_it_lasts_is_cancelled(dsn, conn):
    async def main() -> None:
        async with AsyncApp(dsn) as app, app.lock("a", ttl=0.6):
            conn.execute("select from pgflow.lock for update")  # so no renewal is answered
            await asyncio.Event().wait()

    with pytest.raises(LockLost), conn.transaction():
        asyncio.run(main())


def test_plain_code_that_waits_has_its_turn(dsn, conn):
    order: list[int] = []
    with App(dsn) as app:

        def wait() -> None:
            with app.lock("a", ttl=60) as fence:
                order.append(fence)

        with app.lock("a", ttl=60):
            thread = threading.Thread(target=wait)
            thread.start()
            wait_until(lambda: count(conn, "pgflow.lock_wait") == 1, "the wait")
        thread.join()
    assert order[0] > 1


async def test_a_transaction_in_the_block_commits_only_while_the_lock_is_held(aflow, conn):
    conn.execute("create table book (line text)")
    is_broken = False

    @transaction
    async def write(connection: psycopg.AsyncConnection, line: str) -> None:
        await connection.execute("insert into book values (%s)", (line,))
        if is_broken:
            conn.execute("select pgflow.break_lock('a', 'it hangs')")

    @workflow
    async def write_twice() -> str:
        nonlocal is_broken
        try:
            async with pgflow.lock("a"):
                await write("one")
                is_broken = True
                await write("two")
        except LockLost as error:
            return str(error)
        return "kept"

    assert "does not hold the lock any more" in await result_of(aflow, write_twice)
    assert sqlkit.rows(conn, "select line from book") == ["one"]
