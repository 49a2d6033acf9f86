"""Leave by policy: an effect that the policy does not let through asks for it, without a line in the
workflow.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from gatekit import asked, gates
from records import SOON, count, events, launch, settle

import pgflow
from pgflow import InvalidArgument, workflow
from pgflow.authority import Admit, Approve, Escalate, Pool, Reject, TakeOver
from pgflow.effects import effect
from pgflow.errors import GateRejected, NeedsGate

done: list[tuple[int, str, str]] = []


@pytest.fixture(autouse=True)
def policy(conn: psycopg.Connection) -> None:
    done.clear()
    conn.execute(
        """select pgflow.set_policy('[{"name": "charge", "amount": "$.cents", "above": 500}]', 'limits')"""
    )


@effect(risk="compensable")
async def charge(cents: int, to: str = "shop") -> str:
    done.append((cents, to, pgflow.idempotency_key()))
    return f"charge of {cents}"


@workflow
async def pay(cents: int) -> str:
    try:
        return await charge(cents)
    except GateRejected as refused:
        return f"{refused.verdict}: {refused.reason}"


@workflow
def pay_sync(cents: int) -> str:
    return charge.sync(cents, to="bank")


@pytest.mark.full
async def test_an_approved_effect_acts_once_with_what_was_approved(aflow, conn):
    run = await launch(aflow, pay, 600)
    assert await (await aflow.start(pay, 5)).result(SOON) == "charge of 5"
    await aflow.until_idle()
    ((gate, name, request),) = gates(conn, "gate, name, request")
    assert (name, request) == ("policy/charge", {"cents": 600})
    assert [cents for cents, _, _ in done] == [5]
    await aflow.crash()
    await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.until_idle()
    assert await run.result(SOON) == "charge of 600"
    root = gate.split("/")[0]
    assert done[1] == (600, "shop", f"{root}/charge/1")
    assert [kind for kind, _ in events(conn, run.key)] == [
        "effect_failed",
        "gate_asked",
        "gate_answered",
        "effect_intended",
        "effect_confirmed",
    ]
    ((leave,),) = conn.execute(
        "select payload->>'leave' from pgflow.unit where kind = 'i' and payload->>'leave' is not null"
    ).fetchall()
    assert leave == gate


@pytest.mark.full
def test_so_does_one_of_a_sync_workflow(flow, conn):
    run = settle(flow, pay_sync, 600)
    flow.answer("policy/charge")
    assert run.result(SOON) == "charge of 600"
    assert [(cents, to) for cents, to, _ in done] == [(600, "bank")]


@pytest.mark.full
async def test_an_edit_is_what_is_done(aflow, conn):
    run, gate = await asked(aflow, conn, pay, 600)
    with pytest.raises(InvalidArgument, match="dollars is unknown"):
        await aflow.app.answer(gate, Approve(edit={"cents": 1, "dollars": 6}), by="ann")
    with pytest.raises(InvalidArgument, match="cents is missing"):
        await aflow.app.answer(gate, Approve(edit={"to": "bank"}), by="ann")
    await aflow.app.answer(gate, Approve(edit={"cents": 550, "to": "bank"}), by="ann")
    assert await run.result(SOON) == "charge of 550"
    assert [(cents, to) for cents, to, _ in done] == [(550, "bank")]
    found = conn.execute("select request from pgflow.effects").fetchall()
    assert found == [({"cents": 550, "to": "bank"},)]


@effect(risk="compensable")
async def book(cents: int, at: datetime) -> str:
    return f"{cents} at {at:%H:%M}"


@workflow
async def book_it(cents: int, at: datetime) -> str:
    return await book(cents, at)


@pytest.mark.full
async def test_an_edit_may_be_written_in_another_way_than_the_code_would(aflow, conn):
    conn.execute("select pgflow.set_policy('[{\"name\": \"book\"}]', 'all')")
    run = await launch(aflow, book_it, 600, datetime(2026, 1, 2, 10, tzinfo=UTC))
    await aflow.answer("policy/book", Approve(edit={"cents": 5, "at": "2026-01-02 09:30:00Z"}))
    assert await run.result(SOON) == "5 at 09:30"


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "said"),
    [(Reject("too much"), "reject: too much"), (Escalate("cto"), "escalate: ")],
    ids=["rejected", "escalated"],
)
async def test_without_leave_nothing_is_done(answer, said, aflow, conn):
    run = await launch(aflow, pay, 600)
    await aflow.answer("policy/charge", answer)
    assert await run.result(SOON) == said
    assert done == []
    assert issubclass(GateRejected, NeedsGate)
    assert count(conn, "pgflow.owed") == 0


async def test_what_a_person_took_over_is_recorded_and_never_run(aflow, conn):
    run = await launch(aflow, pay, 600)
    await aflow.answer("policy/charge", TakeOver("by hand"), by="ann")
    assert await run.result(SOON) == "by hand"
    assert done == []
    found = conn.execute("select status, result, said_by from pgflow.effects").fetchall()
    assert found == [("confirmed", "by hand", "ann")]
    assert count(conn, "pgflow.owed") == 0


@workflow
async def pay_through_child(cents: int) -> str:
    return await pgflow.run_child(pay.options(key="child"), cents)


@pytest.mark.full
async def test_the_policy_holds_for_a_whole_tree(aflow, conn):
    aflow.include(pay_through_child, pay)
    run = await settle(aflow, pay_through_child.options(key="root"), 600)
    assert gates(conn, "path") == [["root", "child"]]
    await aflow.answer("policy/charge")
    assert await run.result(SOON) == "charge of 600"


async def test_a_leave_is_for_these_arguments_and_for_one_act(aflow, conn):
    run, gate = await asked(aflow, conn, pay, 600)
    run_id = conn.execute("select run_id from pgflow.gates").fetchall()[0][0]
    await aflow.app.answer(gate, Approve(), by="ann")
    assert await run.result(SOON) == "charge of 600"
    may = "select pgflow.leave_of_(%s, %s, %s, %s::jsonb) is not null"

    def has_leave(of: int, name: str, cents: int) -> Any:
        return conn.execute(may, (of, gate, name, f'{{"cents": {cents}}}')).fetchall()[0][0]

    assert not has_leave(run_id, "charge", 600)  # it has acted
    with conn.transaction(force_rollback=True):
        conn.execute(
            "insert into pgflow.unit (run_id, seq, call, kind, name, key, payload, token, at, recorded_at)"
            " select run_id + 1, seq, call, kind, name, key, payload, token, at, recorded_at"
            " from pgflow.unit where run_id = %s and kind in ('g', 'G')",
            (run_id,),
        )
        assert has_leave(run_id + 1, "charge", 600)
        assert not has_leave(run_id + 1, "charge", 700)
        assert not has_leave(run_id + 1, "charges", 600)


@workflow
async def impatient(cents: int) -> str:
    try:
        async with asyncio.timeout(60):
            return await charge(cents)
    except TimeoutError:
        return "gave up"


@pytest.mark.full
async def test_who_gives_the_effect_up_closes_the_gate(aflow, conn):
    run = await settle(aflow, impatient, 600)
    assert len(gates(conn)) == 1
    await aflow.skip(61)
    assert await run.result(SOON) == "gave up"
    assert gates(conn) == []
    assert done == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "result", "calls"),
    [(Approve(), "charge of 600", 1), (TakeOver("paid by hand"), "paid by hand", 0)],
)
async def test_what_waits_for_leave_reserves_nothing_and_is_admitted_when_it_acts(
    aflow, conn, answer, result, calls
):
    @workflow
    async def spend() -> str:
        return await charge.options(admit=Admit(usd=Decimal("0.5")))(600)

    aflow(pools=[Pool("user", usd=1, calls=1)]).include(spend)
    run = await settle(aflow, spend.options(pool="user"))
    assert count(conn, "pgflow.reservation") == 0
    if not calls:  # whoever has done it needs no pool
        conn.execute("select pgflow.revoke_pool('user')")
    await aflow.app.answer(gates(conn)[0], answer, by="ann")
    assert await run.result(SOON) == result
    spent = conn.execute(
        "select unit, charged, reserved from pgflow.budgets where pool = 'user' order by unit"
    ).fetchall()
    assert spent == [("calls", calls, 0), ("usd", 0, 0)]
