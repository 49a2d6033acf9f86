"""Draws on a pool wait for whoever has it, and are decided by what that one has left."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from records import SOON
from sqlkit import Actor, Claim, begin, commit, flush

import pgflow
from pgflow import transaction, workflow
from pgflow.authority import Admit, Pool

Conn = psycopg.Connection[Any]


def ask(conn: Conn, claim: Claim, usd: str) -> tuple[str, dict[str, Any]]:
    """Answer of the database to the next call."""
    row = {"call": claim.seq + 1, "name": "ask", "amounts": {"usd": usd}}
    answer = commit(conn, flush(claim, closes=(), admits=[row]))
    ((_, _, kind, _, payload, *_),) = answer.units_of(claim)
    return kind, json.loads(payload)


@pytest.mark.parametrize(("granted", "kind"), [(True, "m"), (False, "q")])
def test_an_admission_waits_for_a_grant_and_sees_it(dsn, conn, granted, kind):
    conn.execute("""select pgflow.set_pool('p', '{"usd": 1}')""")
    run = begin(conn, pool="p")
    with Actor(dsn) as drawer:
        with conn.transaction(force_rollback=not granted):
            conn.execute("""select pgflow.grant_budget('p', '{"usd": 1}')""")
            answer = drawer.do(ask, run, "2")
            with psycopg.connect(dsn, autocommit=True) as observer:
                drawer.until_waiting(observer)
        assert answer.result()[0] == kind


def test_two_that_ask_for_the_rest_get_it_once(dsn, conn):
    conn.execute("""select pgflow.set_pool('top', '{"usd": 1}')""")
    conn.execute("""select pgflow.set_pool('a', '{"usd": 1}', 'top')""")
    conn.execute("""select pgflow.set_pool('b', '{"usd": 1}', 'top')""")
    one, other = begin(conn, pool="a"), begin(conn, pool="b")
    with Actor(dsn) as drawer:
        with conn.transaction():
            assert ask(conn, one, "0.75")[0] == "m"
            answer = drawer.do(ask, other, "0.75")
            with psycopg.connect(dsn, autocommit=True) as observer:
                drawer.until_waiting(observer)
        kind, said = answer.result()
        assert (kind, said["pool"], said["left"]) == ("q", "top", "0.25")


def test_a_batch_at_repeatable_read_never_admits_by_what_it_has_not_seen(dsn, conn):
    conn.execute("""select pgflow.set_pool('p', '{"usd": 1}')""")
    one, other = begin(conn, pool="p"), begin(conn, pool="p")
    assert ask(conn, one, "0.25")[0] == "m"
    with psycopg.connect(dsn) as late:
        late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        late.execute("select 1 from pgflow.pool")
        assert ask(conn, one, "0.5")[0] == "m"
        with pytest.raises(psycopg.errors.SerializationFailure):
            ask(late, other, "0.5")
    assert ask(conn, other, "0.5")[0] == "q"


@pytest.mark.full
async def test_a_transaction_whose_pool_has_changed_since_is_played_again(aflow, conn):
    tries = []

    @transaction(isolation="repeatable read")
    async def book(tx: psycopg.AsyncConnection[Any]) -> str:
        pgflow.authority.charge(usd=Decimal("0.1"))
        await tx.execute("select 1")
        tries.append(1)
        if len(tries) == 1:
            conn.execute("""select pgflow.grant_budget('user', '{"usd": 1}')""")
        return "booked"

    @workflow
    async def spend() -> str:
        return await book.options(admit=Admit(usd=Decimal("0.5")))()

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    assert await run.result(SOON) == "booked"
    assert len(tries) == 2
    found = conn.execute(
        "select charged, reserved, remaining from pgflow.budgets where unit = 'usd'"
    )
    assert found.fetchone() == (Decimal("0.2"), 0, Decimal("1.8"))
