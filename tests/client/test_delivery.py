"""A sender is told what became of its signal: it is in the mailbox of an open run, or the run had
ended and nobody takes it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from records import SOON, settle
from sqlkit import Claim, begin, commit, finish, flush, one, undelivered, wait_for, wake

from pgflow import Delivery, Signal, workflow

Conn = psycopg.Connection[Any]


word = Signal("word", str)


@workflow
async def listens() -> str:
    return await word.wait()


@workflow
def listens_too() -> str:
    return word.sync.wait()


def sent(conn: Conn, verb: str, key: str = "k") -> tuple[int, int, str | None]:
    return one(
        conn, f"select chain_id, message_id, ended_as from pgflow.{verb}(%s, 'paid', '1')", key
    )


def parked(conn: Conn) -> Claim:
    run = begin(conn, key="k")
    wake(conn, *commit(conn, wait_for(run, "paid")).wake)
    return run


def continued(conn: Conn) -> Claim:
    run = begin(conn, key="k")
    commit(conn, flush(run, **{"continue": "{}"}))
    return run


@pytest.mark.parametrize("verb", ["post_signal", "deliver_signal"])
@pytest.mark.parametrize(
    "make",
    [parked, continued, lambda conn: begin(conn, key="k")],
    ids=["parked", "continued", "leased"],
)
def test_sql_says_that_an_open_run_has_the_message_and_which_one_it_is(db, verb, make):
    run = make(db)
    chain, message, ended_as = sent(db, verb)
    assert (chain, ended_as) == (run.chain_id, None)
    assert one(db, "select signal_id from pgflow.signal where name = 'paid'") == message


@pytest.mark.parametrize("verb", ["post_signal", "deliver_signal"])
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_sql_says_how_the_run_has_ended_and_keeps_the_message(db, verb, status):
    run = begin(db, key="k")
    finish(db, run, status, error="{}" if status == "failed" else None)
    chain, message, ended_as = sent(db, verb)
    assert (chain, ended_as) == (run.chain_id, status)
    wake(db, chain)
    assert undelivered(db, chain) == [("s", "paid")]
    assert one(db, "select signal_id from pgflow.undelivered") == message


async def test_a_client_is_told_too(aflow, conn, pgflow_dsn):
    run = await settle(aflow, listens)
    delivery = await run.send(word, "hello")
    assert (delivery.is_delivered, delivery.ended_as) == (True, None)
    await aflow.until_idle()
    assert await run.result(SOON) == "hello"
    late = await aflow.app.send(run.key, word, "late")
    assert late == Delivery(one(conn, "select signal_id from pgflow.undelivered"), "completed")
    assert not late.is_delivered
    async with (
        await psycopg.AsyncConnection.connect(pgflow_dsn, autocommit=True) as theirs,
        theirs.transaction(),
    ):
        assert (await aflow.app.using(theirs).send(run.key, word, "later")).ended_as == "completed"


def test_a_sync_client_is_told_too(flow, conn):
    run = settle(flow, listens_too)
    assert run.send(word, "hello").is_delivered
    flow.until_idle()
    assert run.result(SOON) == "hello"
    assert run.send(word, "late").ended_as == "completed"
    with conn.transaction():
        assert flow.app.using(conn).send(run.key, word, "later").ended_as == "completed"
