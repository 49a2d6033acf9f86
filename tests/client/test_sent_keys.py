"""A message with an idempotency key is one message, however often and however late it is sent."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from records import SOON, count, launch
from servers import HANG_SECONDS
from sqlkit import Actor, begin, connect, finish, one, rows, start

import pgflow
from pgflow import InvalidArgument, KeyConflict, Signal, step, workflow

Conn = psycopg.Connection[Any]

paid = Signal("paid", int)


@workflow
async def sums_up(n: int) -> int:
    return sum([await paid.wait() for _ in range(n)])


def post(
    conn: Conn,
    key: str = "k",
    name: str = "paid",
    payload: str = "1",
    idempotency_key: str | None = "m",
) -> tuple[Any, ...]:
    query = "select chain_id, message_id, ended_as, is_new from pgflow.post_signal(%s, %s, %s, idempotency_key => %s)"
    found: tuple[Any, ...] = (
        conn.execute(query, (key, name, payload, idempotency_key)).fetchone() or ()
    )
    return found


async def test_a_message_sent_again_after_it_was_taken_is_still_one(aflow, conn):
    run = await launch(aflow, sums_up.options(key="k"), 3)
    first = await run.send(paid, 1, idempotency_key="m-1")
    await aflow.until_idle()
    assert count(conn, "pgflow.signal") == 0
    again = await aflow.app.send("k", paid, 1, idempotency_key="m-1")
    assert (first.is_new, again.is_new, again.message) == (True, False, first.message)
    with pytest.raises(
        KeyConflict, match="idempotency key 'm-1' was used for another message to this run"
    ):
        await run.send(paid, 2, idempotency_key="m-1")
    await run.send(paid, 10, idempotency_key="m-2")
    await run.send(paid, 100)
    assert await run.result(SOON) == 111
    late = await run.send(paid, 1, idempotency_key="m-1")
    assert (late.is_new, late.is_delivered) == (False, True)


def test_sync_clients_and_those_in_a_transaction_say_it_too(flow, dsn):
    run = launch(flow, sums_up.options(key="k"), 1)
    with psycopg.connect(dsn) as mine:
        assert flow.app.using(mine).send("k", paid, 5, idempotency_key="m").is_new
        mine.rollback()
    with psycopg.connect(dsn) as mine:
        assert flow.app.using(mine).send("k", paid, 5, idempotency_key="m").is_new
        assert not flow.app.using(mine).send("k", paid, 5, idempotency_key="m").is_new
        mine.commit()
    assert not run.send(paid, 5, idempotency_key="m").is_new
    assert run.result(SOON) == 5


@pytest.mark.full
async def test_a_step_that_runs_again_sends_one_message(aflow, conn):
    tries: list[int] = []

    @step(retries=pgflow.Retries(max_attempts=3))
    async def pays() -> None:
        await aflow.app.send("k", paid, 7, idempotency_key=pgflow.idempotency_key())
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("again")

    @workflow
    async def sender() -> None:
        await pays()

    await launch(aflow, sums_up.options(key="k"), 2, beside=[sender])
    await (await aflow.start(sender)).result(SOON)
    assert len(tries) == 3
    assert rows(
        conn, "select count(*) from pgflow.timeline where key = 'k' and event = 'signal_received'"
    ) == [1]
    await aflow.app.send("k", paid, 1)


def test_the_key_is_of_one_run_and_goes_with_its_history(conn):
    for key in ("k", "other"):
        start(conn, key=key)
        assert post(conn, key)[3] is True
        assert post(conn, key)[3] is False
    assert rows(conn, "select count(*) from pgflow.signal group by chain_id") == [1, 1]
    for _ in range(2):
        finish(conn, *_claimed(conn))
    conn.execute("select pgflow.wake()")
    assert post(conn)[2:] == ("completed", False)  # it was put aside: nobody has taken it
    conn.execute("select pgflow.drop_history(clock_timestamp())")
    assert count(conn, "pgflow.sent_key") == 0
    start(conn, key="k")
    assert post(conn)[3] is True


def _claimed(conn: Conn) -> list[Any]:
    from sqlkit import claim

    return claim(conn, 1)


def test_of_two_that_send_at_once_one_sends(dsn, conn):
    begin(conn, key="k")
    with connect(dsn) as mine, Actor(dsn) as other:
        with mine.transaction():
            first = post(mine)
            waiting = other.do(post)
            other.until_waiting(conn)
        assert waiting.result(HANG_SECONDS)[1] == first[1]
        with mine.transaction(force_rollback=True):
            post(mine, idempotency_key="n")
            waiting = other.do(post, idempotency_key="n")
            other.until_waiting(conn)
        assert waiting.result(HANG_SECONDS)[3] is True
    assert one(conn, "select count(*) from pgflow.signal") == 2


def test_a_key_that_cannot_be_is_refused_in_a_line(flow, dsn, conn):
    start(conn, key="k")
    for key in ("", "x" * 256):
        with pytest.raises(
            InvalidArgument,
            match=f"an idempotency key must be 1 to 255 characters long, not {len(key)}",
        ):
            flow.app.send("k", paid, 1, idempotency_key=key)
    sent = [cli(dsn, "signal", "k", "paid", "1", "--idempotency-key", "m") for _ in range(2)]
    assert [answer.data["new"] for answer in sent] == [True, False]
    conn.execute("select pgflow.cancel_run('k')")
    conn.execute("select pgflow.wake()")
