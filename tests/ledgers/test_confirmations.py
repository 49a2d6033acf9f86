"""Confirmations of accepted effects, over channels that deliver late, early, twice and out of order:
SQL, the handler of a webhook, the consumer of a queue.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import SOON, count, launch, settle

import pgflow
from pgflow import RunNotFound, Signal, workflow
from pgflow.effects import Absent, Accepted, Confirmed, StillUnknown, effect
from pgflow.errors import WrongState

Conn = psycopg.Connection[Any]

go = Signal("go", str)
said: list[Confirmed[str | Accepted] | Absent | StillUnknown] = []


@effect(risk="irreversible")
async def pay(ref: str) -> str | Accepted:
    return Accepted(ref)


@effect(risk="irreversible")
async def render(ref: str) -> str | Accepted:
    return Accepted(ref, heartbeat_timeout=timedelta(minutes=1))


@render.settle
async def _(ref: str) -> Confirmed[str | Accepted] | Absent | StillUnknown:
    del ref
    return said.pop(0)


@workflow
async def payout(refs: list[str]) -> int:
    for ref in refs:
        await pay(ref)
    return len(refs)


@workflow
async def payout_once_told(ref: str) -> str:
    word = await go.wait()
    await pay(ref)
    return word


@workflow
async def film(ref: str) -> None:
    await render(ref)


def words(conn: Conn) -> list[tuple[str, str | None, Any]]:
    """Verdicts on accepted effects in all journals."""
    return conn.execute("""
        select payload->>'verdict', payload->>'by', payload->'value' from pgflow.unit where kind = 'E'
        order by run_id, seq
    """).fetchall()


@pytest.mark.full
async def test_a_confirmation_that_is_delivered_again_and_again_is_taken_once(aflow, conn):
    run = await settle(aflow, payout, ["T-1", "T-2"])
    with psycopg.connect(aflow.app.dsn) as held:  # nobody can take the first before the second
        held.execute("select from pgflow.parked for update")
        await aflow.app.confirm_effect("T-1", value={"at": "noon"}, by="bank")
        await aflow.app.confirm_effect("T-1", value={"at": "one"}, by="bank")
        with pytest.raises(WrongState, match="'T-1' is confirmed already, as of .* it cannot be f"):
            await aflow.app.confirm_effect("T-1", "failed")
    await aflow.until_idle()
    assert words(conn) == [("confirmed", "bank (postgres)", {"at": "noon"})]
    await aflow.app.confirm_effect("T-1", by="bank")
    await aflow.app.confirm_effect("T-2", "failed", by="bank")
    assert await run.result(SOON) == 2
    await aflow.app.confirm_effect("T-1", by="bank")
    await aflow.app.confirm_effect("T-2", "failed", by="bank")
    with pytest.raises(
        WrongState, match="'T-2' is failed already, as of .* it cannot be confirmed"
    ):
        await aflow.app.confirm_effect("T-2")
    found = [word[:2] for word in words(conn)]
    assert found == [("confirmed", "bank (postgres)"), ("failed", "bank (postgres)")]
    assert count(conn, "pgflow.signal") + count(conn, "pgflow.undelivered") == 0


async def test_a_confirmation_that_comes_before_the_acceptance_is_to_be_sent_again(aflow, conn):
    run = await settle(aflow, payout_once_told, "T-1")
    with pytest.raises(RunNotFound, match="no effect was accepted under the reference 'T-1'"):
        await aflow.app.confirm_effect("T-1")
    await run.send(go, "now")
    await aflow.until_idle()
    await aflow.app.confirm_effect("T-1")
    assert await run.result(SOON) == "now"


async def test_a_confirmation_after_a_persons_word_is_no_error_if_it_says_the_same(aflow, conn):
    run = await settle(aflow, payout, ["T-1"])
    ((key,),) = conn.execute("select effect from pgflow.obligations").fetchall()
    await aflow.app.settle_effect(key, "confirmed", by="ada")
    assert await run.result(SOON) == 1
    await aflow.app.confirm_effect("T-1")
    with pytest.raises(WrongState):
        await aflow.app.confirm_effect("T-1", "failed")
    assert [word[:2] for word in words(conn)] == [("confirmed", "ada (postgres)")]


@pytest.mark.full
@pytest.mark.parametrize("answer", [Confirmed("film"), Absent()], ids=["confirmed", "absent"])
async def test_a_confirmation_after_its_own_answer_is_no_error_if_it_says_the_same(
    aflow, conn, answer
):
    said[:] = [answer]
    run = await settle(aflow, film, "job")
    await aflow.skip(timedelta(seconds=61))
    await run.result(SOON)
    same, other = ("confirmed", "failed")[:: 1 if isinstance(answer, Confirmed) else -1]
    await aflow.app.confirm_effect("job", same)  # type: ignore[arg-type]
    with pytest.raises(WrongState):
        await aflow.app.confirm_effect("job", other)  # type: ignore[arg-type]


@pytest.mark.full
async def test_a_reference_may_be_used_again_and_is_then_confirmed_again(aflow, conn):
    run = await settle(aflow, payout, ["T-1"])
    await aflow.app.confirm_effect("T-1", value=1)
    assert await run.result(SOON) == 1
    second = await settle(aflow, payout, ["T-1"])
    assert await second.status() == "waiting"
    await aflow.app.confirm_effect("T-1", "failed", value=2)
    assert await second.result(SOON) == 1
    found = [(verdict, value) for verdict, _, value in words(conn)]
    assert found == [("confirmed", 1), ("failed", 2)]
    await aflow.app.confirm_effect("T-1", "failed")


@pytest.mark.full
async def test_a_confirmation_in_a_transaction_of_the_caller_counts_once_that_is_committed(
    aflow, conn
):
    run = await settle(aflow, payout, ["T-1"])
    with psycopg.connect(aflow.app.dsn) as other:
        other.execute("set transaction isolation level serializable")
        other.execute("select pgflow.confirm_effect('T-1')")
        other.rollback()
        assert conn.execute("select count(*) from pgflow.confirmation").fetchone() == (0,)
        other.execute("set transaction isolation level serializable")
        other.execute("select pgflow.confirm_effect('T-1')")
    await aflow.until_idle()
    assert await run.result(SOON) == 1


@pytest.mark.full
def test_of_many_deliveries_at_the_same_moment_each_is_told_that_it_was_taken(flow, conn):
    run = settle(flow, payout, ["T-1"])
    together = threading.Barrier(8)

    def deliver(n: int) -> None:
        with psycopg.connect(flow.app.dsn, autocommit=True) as channel:
            together.wait()
            channel.execute("select pgflow.confirm_effect('T-1', value => %s::json)", (str(n),))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(deliver, range(8)))
    assert run.result(SOON) == 1
    assert len(words(conn)) == 1


def test_a_reference_is_forgotten_with_the_history_of_its_run(flow, conn):
    run = settle(flow, payout, ["T-1"])
    flow.app.confirm_effect("T-1")
    assert run.result(SOON) == 1
    flow.skip(timedelta(days=1))
    conn.execute("update pgflow.run_key set retention_seconds = 0")
    assert conn.execute("select runs from pgflow.drop_history(pgflow.now_())").fetchone() == (1,)
    assert count(conn, "pgflow.confirmation") == 0
    with pytest.raises(RunNotFound):
        flow.app.confirm_effect("T-1")


TAKE_ONE = "delete from message where id = (select id from message order by tries, id for update skip locked limit 1) returning id, ref"


def consume(dsn: str, *, dies: bool = False) -> bool:
    """Takes one message of a queue that delivers at least once; one that is too early stays."""
    with psycopg.connect(dsn) as channel:
        found = channel.execute(TAKE_ONE).fetchone()
        if found is None:
            return False
        try:
            with channel.transaction():
                channel.execute("select pgflow.confirm_effect(%s, sent_by => 'queue')", (found[1],))
        except psycopg.Error as error:
            if error.sqlstate != "PF001":
                raise
            channel.rollback()
            channel.execute("update message set tries = tries + 1 where id = %s", (found[0],))
        if dies:
            channel.rollback()
    return True


@pytest.mark.full
async def test_a_queue_in_the_database_confirms_in_the_transaction_that_takes_the_message(
    aflow, conn
):
    conn.execute("create table message (id int primary key, ref text, tries int default 0)")
    conn.execute("insert into message values (1, 'T-1'), (2, 'T-2'), (3, 'T-1')")
    first = await settle(aflow, payout, ["T-1"])
    assert consume(aflow.app.dsn, dies=True)
    assert count(conn, "message") == 3
    assert count(conn, "pgflow.signal") == 0
    for _ in range(3):
        assert consume(aflow.app.dsn)
    assert conn.execute("select ref, tries from message").fetchall() == [("T-2", 1)]
    await aflow.until_idle()
    assert await first.result(SOON) == 1
    second = await settle(aflow, payout, ["T-2"])
    assert consume(aflow.app.dsn)
    assert not consume(aflow.app.dsn)
    await aflow.until_idle()
    assert await second.result(SOON) == 1
    assert [by for _, by, _ in words(conn)] == ["queue (postgres)", "queue (postgres)"]


@pytest.mark.full
async def test_a_run_may_confirm_the_effect_of_another_and_is_repeated_until_that_is_accepted(
    aflow, conn
):
    @pgflow.step
    async def confirm(ref: str) -> None:
        await aflow.app.confirm_effect(ref, by="queue")

    @workflow
    async def on_message(ref: str) -> None:
        await confirm(ref)

    message = await launch(aflow, on_message, "T-1")
    run = await settle(aflow, payout, ["T-1"])
    await aflow.skip(timedelta(minutes=1))
    await message.result(SOON)
    assert await run.result(SOON) == 1
