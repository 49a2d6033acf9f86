"""Gates: a run asks, holds nothing while it waits, and goes on with the first answer that counts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from gatekit import asked, gates
from records import SOON, count, events, eventually, launch, result_of, run_row, settle

import pgflow
from pgflow import InvalidArgument, RunNotFound, step, workflow
from pgflow.authority import (
    Approve,
    Approved,
    Escalate,
    Escalated,
    Expired,
    Reject,
    Rejected,
    TakenOver,
    TakeOver,
)
from pgflow.errors import GateClosed, NotAllowed, PayloadChanged, WrongState

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Order:
    sku: str
    qty: int


@dataclass(frozen=True)
class Price:
    cents: int


def told(verdict: Any) -> str:
    """A verdict, in a form that a result has."""
    return repr(verdict)


@workflow
async def ship(order: Order) -> str:
    return told(await pgflow.authority.gate("approve-order", order))


@workflow
async def ship_by(
    order: Order,
    approvers: list[str],
    quorum: int = 1,
    escalate: list[str] | None = None,
    on_timeout: str = "expire",
    timeout: float | None = None,
) -> str:
    verdict = await pgflow.authority.gate(
        "approve-order",
        order,
        approvers=approvers,
        quorum=quorum,
        escalate=escalate or [],
        on_timeout=on_timeout,  # type: ignore[arg-type]
        timeout=timeout,
    )
    return told(verdict)


@workflow
def ship_sync(order: Order) -> str:
    return told(pgflow.sync.gate("approve-order", order))


@workflow
async def price(order: Order) -> str:
    return told(await pgflow.authority.gate("price", order, answer=Price))


def gate_of(conn: psycopg.Connection, key: str, name: str | None = None) -> str:
    """The open gate of a run."""
    rows = conn.execute(
        "select gate from pgflow.gates where key = %s and coalesce(name = %s, true)", (key, name)
    ).fetchall()
    ((gate,),) = rows
    return str(gate)


BOOTS = Order("boots", 2)


@pytest.mark.full
async def test_a_run_at_a_gate_costs_rows_and_nothing_else(aflow, conn):
    run = await settle(aflow, ship, BOOTS)
    assert await run.status() == "waiting"
    assert count(conn, "pgflow.lease") == 0
    (gate,) = gates(conn, "gate, key, workflow, name, approvers, quorum, answers, request, path")
    root = conn.execute("select root from pgflow.run").fetchall()[0][0]
    assert gate == (
        f"{root}/approve-order/1",
        run.key,
        "ship",
        "approve-order",
        [],
        1,
        [],
        {"sku": "boots", "qty": 2},
        [run.key],
    )
    found = conn.execute("select kind, name, state from pgflow.obligations").fetchall()
    assert found == [("gate", "approve-order", "asked")]
    assert run_row(conn, run.key, "reason, reason_code") == ("gate approve-order", "gate")


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Approve(), Approved(BOOTS, ("ann",), False)),
        (Approve(edit=Order("boots", 1)), Approved(Order("boots", 1), ("ann",), True)),
        (Reject("too many"), Rejected("too many", ("ann",))),
        (Escalate("cto"), Escalated("cto")),
        (TakeOver({"sent": True}), TakenOver({"sent": True}, ("ann",))),
    ],
    ids=lambda answer: type(answer).__name__,
)
async def test_the_answer_is_the_verdict_that_the_code_gets(answer, verdict, aflow, conn):
    run, gate = await asked(aflow, conn, ship, BOOTS)
    await aflow.app.answer(gate, answer, by="ann")
    assert await run.result(SOON) == told(verdict)
    assert [kind for kind, _ in events(conn, run.key)] == ["gate_asked", "gate_answered"]
    assert gates(conn) == []
    assert count(conn, "pgflow.owed") == 0


def test_so_do_sync_workflows_and_sync_clients(flow, conn):
    run = settle(flow, ship_sync, BOOTS)
    (gate,) = gates(conn)
    flow.app.answer(gate, Approve(edit={"sku": "socks", "qty": 9}), by="ann")
    assert run.result(SOON) == told(Approved(Order("socks", 9), ("ann",), True))


@pytest.mark.full
async def test_an_answer_in_the_callers_transaction_counts_once_that_is_committed(
    aflow, conn, pgflow_dsn
):
    run, gate = await asked(aflow, conn, ship, BOOTS)
    for level in ("read committed", "repeatable read", "serializable"):
        async with await psycopg.AsyncConnection.connect(pgflow_dsn) as own:
            await own.execute(f"set transaction isolation level {level}")
            await aflow.app.using(own).answer(gate, Reject(level), by="ann")
            await own.rollback()
        assert gates(conn) == [gate]
    async with await psycopg.AsyncConnection.connect(pgflow_dsn) as own:
        await own.execute("set transaction isolation level serializable")
        await aflow.app.using(own).answer(gate, Approve(), by="ann")
    await aflow.app.nudge()
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))


@pytest.mark.full
async def test_an_answer_by_sql_is_found_by_the_next_poll(aflow, conn):
    run, gate = await asked(aflow, conn, ship, BOOTS)
    conn.execute("select pgflow.answer_gate(%s, 'approve', by => 'ann', reason => 'fine')", (gate,))
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))
    found = conn.execute("select answered_by, sent_by, reason from pgflow.gate_answers").fetchall()
    assert found == [("ann", conn.info.user, "fine")]


@pytest.mark.full
async def test_the_inbox_has_nothing_that_is_answered(aflow, conn):
    run = await settle(aflow, ship, BOOTS)
    await aflow.crash()
    (gate,) = gates(conn)
    await aflow.app.answer(gate, Approve(), by="ann")
    assert gates(conn) == []
    await aflow.until_idle()
    await run.result(SOON)


@pytest.mark.full
async def test_a_gate_outlives_the_worker(aflow, conn):
    run = await settle(aflow, ship, BOOTS)
    await aflow.crash()
    (gate,) = gates(conn)
    await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.until_idle()
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))


BIG = "x" * 100_000


@pytest.mark.full
@pytest.mark.parametrize("answer", [Approve(), Approve(edit=BIG + "y"), TakeOver(BIG)])
async def test_long_requests_and_answers_are_kept_whole(answer, aflow, conn):
    @workflow
    async def long(text: str) -> bool:
        verdict = await pgflow.authority.gate("g", text)
        return verdict in (
            Approved(BIG, ("ann",), False),
            Approved(BIG + "y", ("ann",), True),
            TakenOver(BIG, ("ann",)),
        )

    run, gate = await asked(aflow, conn, long, BIG)
    await aflow.app.answer(gate, answer, by="ann")
    assert await run.result(SOON)


@workflow
async def ask_twice(order: Order) -> list[str]:
    both = await asyncio.gather(
        pgflow.authority.gate("a", order), pgflow.authority.gate("a", order.qty)
    )
    return [told(verdict) for verdict in both]


async def test_several_gates_of_a_run_have_keys_of_their_own(aflow, conn):
    run = await settle(aflow, ask_twice, BOOTS)
    first, second = sorted(gates(conn))
    assert (first.rsplit("/", 2)[1:], second.rsplit("/", 2)[1:]) == (["a", "1"], ["a", "2"])
    await aflow.app.answer(second, Approve(edit=7), by="ann")
    await aflow.until_idle()
    assert gates(conn) == [first]
    assert count(conn, "pgflow.gate") == 1
    await aflow.app.answer(first, Approve(), by="bob")
    found = await run.result(SOON)
    assert found == [told(Approved(BOOTS, ("bob",), False)), told(Approved(7, ("ann",), True))]


@pytest.mark.full
async def test_a_later_answer_is_told_who_when_and_what(aflow, conn):
    await settle(aflow, ship, BOOTS)
    (gate,) = gates(conn)
    await aflow.app.answer(gate, Reject("no"), by="ann")
    for _ in range(2):  # before the run has taken it, and after
        with pytest.raises(
            GateClosed, match=r"was answered at .*: reject by ann, because no"
        ) as late:
            await aflow.app.answer(gate, Approve(), by="bob")
        assert (late.value.verdict, late.value.by, late.value.reason) == ("reject", "ann", "no")
        assert late.value.at
        await aflow.until_idle()
    with pytest.raises(RunNotFound, match="no open gate has the key 'x'"):
        await aflow.app.answer("x", Approve(), by="bob")


async def test_who_is_not_asked_may_not_answer_and_may_be_delegated_to(aflow, conn):
    run, gate = await asked(aflow, conn, ship_by, BOOTS, ["ann"])
    with pytest.raises(NotAllowed, match=r"'bob' may not answer gate .*: it asks ann"):
        await aflow.app.answer(gate, Approve(), by="bob")
    with pytest.raises(NotAllowed):
        await aflow.app.delegate_gate(gate, "bob", by="carl")
    with pytest.raises(WrongState, match="'ann' may answer gate .* already"):
        await aflow.app.delegate_gate(gate, "ann", by="ann")
    await aflow.app.delegate_gate(gate, "bob", by="ann", why="on leave")
    assert gates(conn, "approvers") == [["bob"]]
    with pytest.raises(NotAllowed):
        await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.app.answer(gate, Approve(), by="bob")
    assert await run.result(SOON) == told(Approved(BOOTS, ("bob",), False))


@pytest.mark.full
async def test_the_app_says_which_roles_somebody_has(aflow, conn):
    asked: list[tuple[str, Any]] = []

    @aflow.app.approvers
    def roles_of(gate: pgflow.authority.OpenGate, by: str) -> Any:
        asked.append((gate.name, gate.request))
        return {"ann": ["ops", "staff"], "bob": False, "carl": True}.get(by, ["staff"])

    aflow.include(ship, ship_by)
    asking = [await aflow.start(ship_by, BOOTS, approvers) for approvers in (["ops"], ["ops"])]
    for_bob, for_all = await aflow.start(ship_by, BOOTS, ["bob"]), await aflow.start(ship, BOOTS)
    await aflow.until_idle()
    first, second = sorted(gate_of(conn, run.key) for run in asking)
    for gate in (gate_of(conn, for_bob.key), gate_of(conn, for_all.key)):
        with pytest.raises(NotAllowed, match="'bob' may not answer gate .*: app.approvers refused"):
            await aflow.app.answer(gate, Approve(), by="bob")
    for nobody in ("bob", "dora"):
        with pytest.raises(NotAllowed):
            await aflow.app.answer(first, Approve(), by=nobody)
    await aflow.app.answer(first, Approve(), by="ann")
    await aflow.app.answer(second, Approve(), by="carl")
    assert asked[0] == ("approve-order", {"sku": "boots", "qty": 2})
    for _ in range(2):  # before the run has taken it, and after
        with pytest.raises(GateClosed, match="approve by ann"):
            await aflow.app.answer(first, Approve(), by="carl")
        await aflow.until_idle()
    assert conn.execute(
        "select answered_by, acting_as from pgflow.gate_answers order by n, gate"
    ).fetchall() == [("ann", ["ops", "staff"]), ("carl", ["ops"])]


@pytest.mark.full
async def test_a_quorum_counts_each_person_once_and_one_veto_is_enough(aflow, conn):
    run = await launch(aflow, ship_by, BOOTS, ["ann", "bob", "carl"], 2)
    other = await settle(aflow, ship_by, BOOTS, ["ann", "bob", "carl"], 2)
    gate, vetoed = gate_of(conn, run.key), gate_of(conn, other.key)
    for one in (gate, vetoed):
        await aflow.app.answer(one, Approve(), by="ann")
    with pytest.raises(WrongState, match="ann has approved gate .* already, and counts once"):
        await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await aflow.app.answer(gate, Approve(), by="bob")
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann", "bob"), False))
    await aflow.app.answer(vetoed, Reject("no"), by="carl")
    assert await other.result(SOON) == told(Rejected("no", ("carl",)))


async def test_nobody_counts_twice_by_delegating(aflow, conn):
    run, gate = await asked(aflow, conn, ship_by, BOOTS, ["ann", "bob"], 2)
    await aflow.app.answer(gate, Approve(), by="ann")
    with pytest.raises(WrongState, match="'ann' has approved gate .* already"):
        await aflow.app.delegate_gate(gate, "eve", by="ann")
    with pytest.raises(WrongState, match="'ann' may answer gate .* already"):
        await aflow.app.delegate_gate(gate, "ann", by="bob")
    await aflow.app.answer(gate, Approve(edit=Order("boots", 1)), by="bob")
    await aflow.app.delegate_gate(gate, "eve", by="ann")
    await aflow.app.answer(gate, Approve(), by="eve")
    assert await run.result(SOON) == told(Approved(Order("boots", 1), ("bob", "eve"), True))


@pytest.mark.full
async def test_an_edit_voids_the_approvals_of_what_was_asked_before(aflow, conn):
    run, gate = await asked(aflow, conn, ship_by, BOOTS, ["ann", "bob", "carl"], 2)
    (shown,) = gates(conn, "payload_hash")
    await aflow.app.answer(gate, Approve(), by="ann", payload_hash=shown)
    await aflow.app.answer(gate, Approve(edit=Order("boots", 1)), by="bob", payload_hash=shown)
    assert gates(conn, "request, edited") == [({"sku": "boots", "qty": 1}, True)]
    with pytest.raises(PayloadChanged, match="is not what was answered"):
        await aflow.app.answer(gate, Approve(), by="carl", payload_hash=shown)
    (now,) = gates(conn, "payload_hash")
    await aflow.app.answer(gate, Approve(), by="ann", payload_hash=now)
    assert await run.result(SOON) == told(Approved(Order("boots", 1), ("bob", "ann"), True))


async def test_an_edit_that_does_not_fit_is_refused_where_it_is_made(aflow, conn):
    run, gate = await asked(aflow, conn, ship, BOOTS)
    with pytest.raises(InvalidArgument, match="does not fit what gate .* asks for: qty"):
        await aflow.app.answer(gate, Approve(edit={"sku": "boots", "qty": "many"}), by="ann")
    assert gates(conn, "answers") == [[]]
    await aflow.app.answer(gate, Approve(), by="ann")
    await run.result(SOON)


@dataclass(frozen=True)
class Even:
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("odd")


@workflow
async def even(value: int) -> str:
    return told(await pgflow.authority.gate("even", Even(value)))


@pytest.mark.full
async def test_an_edit_that_only_the_code_can_refuse_leaves_the_gate_open_and_says_why(aflow, conn):
    run, gate = await asked(aflow, conn, even, 2)
    await aflow.app.answer(gate, Approve(edit={"n": 3}), by="ann")
    await aflow.until_idle()
    assert gates(conn) == [gate]
    ((refusal,),) = conn.execute("select refusal from pgflow.gate_answers").fetchall()
    assert "odd" in refusal
    assert await run.status() == "waiting"
    await aflow.crash()
    await aflow.app.answer(gate, Approve(edit={"n": 4}), by="ann")
    await aflow.until_idle()
    assert await run.result(SOON) == told(Approved(Even(4), ("ann",), True))


async def test_a_gate_that_asks_for_a_value_is_not_approved_without_one(aflow, conn):
    run, gate = await asked(aflow, conn, price, BOOTS)
    with pytest.raises(InvalidArgument, match="asks for a value"):
        await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.app.answer(gate, Approve(edit=Price(995)), by="ann")
    assert await run.result(SOON) == told(Approved(Price(995), ("ann",), True))


@pytest.mark.parametrize(
    ("on_timeout", "verdict"),
    [
        ("expire", Expired()),
        ("reject", Rejected("timeout", ())),
        ("escalate", Escalated("ann")),
        ("approve", Approved(BOOTS, (), False)),
    ],
)
async def test_what_the_time_brings(on_timeout, verdict, aflow, conn):
    run, gate = await asked(aflow, conn, ship_by, BOOTS, ["ann"], 1, None, on_timeout, 3600)
    await aflow.skip(HOUR / 2)
    assert await run.status() == "waiting"
    await aflow.skip(HOUR)
    assert await run.result(SOON) == told(verdict)
    with pytest.raises(GateClosed, match="expired at"):
        await aflow.app.answer(gate, Approve(), by="ann")


@pytest.mark.full
async def test_an_answer_after_the_time_is_refused_though_no_worker_has_looked(
    aflow, conn, pgflow_dsn
):
    run, gate = await asked(aflow, conn, ship_by, BOOTS, ["ann"], 1, None, "expire", 3600)
    await aflow.crash()
    pgflow.testing.set_clock(pgflow_dsn, 2 * HOUR)
    with pytest.raises(GateClosed, match="expired") as late:
        await aflow.app.answer(gate, Approve(), by="ann")
    assert late.value.verdict == "expire"
    await aflow.until_idle()
    assert await run.result(SOON) == told(Expired())


@pytest.mark.full
async def test_an_answer_in_time_counts_however_late_a_worker_looks(aflow, conn, pgflow_dsn):
    run, gate = await asked(aflow, conn, ship_by, BOOTS, ["ann"], 1, None, "expire", 3600)
    await aflow.crash()
    await aflow.app.answer(gate, Approve(), by="ann")
    pgflow.testing.set_clock(pgflow_dsn, 2 * HOUR)
    await aflow.until_idle()
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))


@pytest.mark.full
async def test_a_chain_is_asked_one_after_the_other_each_alone(aflow, conn):
    run = await launch(aflow, ship_by, BOOTS, ["ann", "bob"], 2, ["lead", "cto"], "expire", 3600)
    other = await settle(aflow, ship_by, BOOTS, ["ann"], 1, ["lead"], "escalate", 3600)
    gate, ends = gate_of(conn, run.key), gate_of(conn, other.key)
    await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.skip(HOUR + timedelta(minutes=1))
    assert gates(conn, "approvers, quorum") == [(["lead"], 1), (["lead"], 1)]
    with pytest.raises(NotAllowed):
        await aflow.app.answer(gate, Approve(), by="bob")
    await aflow.skip(HOUR)
    assert gates(conn, "gate, approvers") == [(gate, ["cto"])]
    await aflow.app.answer(gate, Approve(), by="cto")
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann", "cto"), False))
    assert await other.result(SOON) == told(Escalated("lead"))
    with pytest.raises(GateClosed):
        await aflow.app.answer(ends, Approve(), by="lead")


async def test_whoever_is_answering_as_the_time_ends_was_in_time(aflow, conn, pgflow_dsn):
    run, gate = await asked(aflow, conn, ship_by, BOOTS, ["ann"], 1, None, "expire", 3600)
    async with await psycopg.AsyncConnection.connect(pgflow_dsn) as own:
        await aflow.app.using(own).answer(gate, Approve(), by="ann")
        await asyncio.to_thread(pgflow.testing.set_clock, pgflow_dsn, 2 * HOUR)
        worker = await aflow._work()
        worker.poll_now()
        await eventually(lambda: count(conn, "pgflow.lease"), "the run is looked at")
        assert gates(conn) == [gate]
    await aflow.app.nudge()
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))


@workflow
async def impatient(order: Order) -> str:
    try:
        async with asyncio.timeout(60):
            return told(await pgflow.authority.gate("g", order))
    except TimeoutError:
        return told(await pgflow.authority.gate("h", order))


async def test_a_gate_that_the_code_gives_up_is_closed(aflow, conn):
    run, gate = await asked(aflow, conn, impatient, BOOTS)
    await aflow.skip(timedelta(minutes=2))
    assert gates(conn, "name") == ["h"]
    with pytest.raises(RunNotFound, match="has given it up"):
        await aflow.app.answer(gate, Approve(), by="ann")
    (other,) = gates(conn)
    await aflow.app.answer(other, Reject("x"), by="ann")
    assert await run.result(SOON) == told(Rejected("x", ("ann",)))


@workflow
async def leaves_open(order: Order) -> str:
    task = asyncio.ensure_future(pgflow.authority.gate("g", order))
    await pgflow.authority.gate("h", order)
    del task
    return "done"


@workflow
async def goes_on(n: int) -> str:
    if n:
        return "done"
    task = asyncio.ensure_future(pgflow.authority.gate("g", n))
    await pgflow.authority.gate("h", n)
    del task
    return pgflow.continue_as_new(1)


@pytest.mark.parametrize("code", [leaves_open, goes_on], ids=lambda w: w.name)
async def test_a_gate_closes_with_its_run(code, aflow, conn):
    run = await settle(aflow, code, BOOTS if code is leaves_open else 0)
    left, last = gate_of(conn, run.key, "g"), gate_of(conn, run.key, "h")
    await aflow.app.answer(last, Approve(), by="ann")
    assert await run.result(SOON) == "done"
    assert gates(conn) == []
    with pytest.raises(RunNotFound):
        await aflow.app.answer(left, Approve(), by="ann")


@pytest.mark.full
@pytest.mark.parametrize("force", [False, True])
async def test_a_cancel_closes_it(force, aflow, conn):
    run = await settle(aflow, ship, BOOTS)
    if force:
        conn.execute("select pgflow.force_cancel_run(%s)", (run.key,))
    else:
        await run.cancel()
    await aflow.skip(1)
    assert await run.status() == "cancelled"
    assert gates(conn) == []
    assert count(conn, "pgflow.owed") == 0


@workflow
async def counted(order: Order) -> str:
    await look(order.sku)
    first = await pgflow.authority.gate("first", order)
    second = await pgflow.authority.gate("second", order)
    return told((first, second))


@step
async def look(sku: str) -> str:
    return sku


@pytest.mark.full
async def test_a_rewind_asks_anew_what_is_open_at_the_cut(aflow, conn):
    run = await settle(aflow, counted, BOOTS)
    (first,) = gates(conn)
    await aflow.app.answer(first, Approve(), by="ann")
    await aflow.until_idle()
    (second,) = gates(conn)
    seq = conn.execute(
        "select seq from pgflow.timeline where key = %s and event = 'gate_asked' order by seq",
        (run.key,),
    ).fetchall()[0][0]
    await aflow.app.rewind(run.key, to=seq)
    await aflow.until_idle()
    (again,) = gates(conn)
    root = first.split("/")[0]
    assert again == f"{root}~2/first/1"
    for old in (first, second):
        with pytest.raises((GateClosed, RunNotFound)):
            await aflow.app.answer(old, Approve(), by="ann")
    await aflow.app.answer(again, Reject("no"), by="bob")
    await aflow.until_idle()
    (second,) = gates(conn)
    await aflow.app.answer(second, Approve(), by="bob")
    found = await run.result(SOON)
    assert found == told((Rejected("no", ("bob",)), Approved(BOOTS, ("bob",), False)))


@pytest.mark.full
async def test_a_fork_asks_for_itself(aflow, conn):
    run, gate = await asked(aflow, conn, ship, BOOTS)
    await aflow.app.fork(run.key, at=1, new_key="other")
    await aflow.until_idle()
    other = gate_of(conn, "other")
    assert other != gate == gate_of(conn, run.key)
    await aflow.app.answer(other, Reject("no"), by="ann")
    await aflow.until_idle()
    assert gates(conn) == [gate]
    await aflow.app.answer(gate, Approve(), by="ann")
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))


@workflow
async def parent(order: Order) -> str:
    return await pgflow.run_child(ship.options(key="the-child"), order)


@pytest.mark.full
async def test_the_gate_of_a_child_shows_its_path(aflow, conn):
    aflow.include(parent, ship)
    run = await settle(aflow, parent.options(key="the-root"), BOOTS)
    ((gate, path),) = gates(conn, "gate, path")
    assert path == ["the-root", "the-child"]
    await aflow.app.answer(gate, Approve(), by="ann")
    await run.result(SOON)


@pgflow.decisions.decision(retries=1)
async def decide() -> pgflow.decisions.Choice[str]:
    return pgflow.decisions.Choice("boots", why="they are cheap", evidence=["price list"])


@workflow
async def decided(order: Order) -> str:
    choice = await decide()
    with pgflow.because(choice):
        return told(await pgflow.authority.gate("g", order))


async def test_the_inbox_says_why(aflow, conn):
    run = await settle(aflow, decided, BOOTS)
    ((gate, why, evidence),) = gates(conn, "gate, why, evidence")
    assert (why, evidence) == ("they are cheap", ["price list"])
    await aflow.app.answer(gate, Approve(), by="ann")
    await run.result(SOON)


mails: list[pgflow.authority.GateRequest] = []


@step
async def mail(request: pgflow.authority.GateRequest) -> None:
    mails.append(request)


@workflow
async def told_of(order: Order) -> str:
    return told(await pgflow.authority.gate("g", order, notify=mail))


@pytest.mark.full
async def test_who_is_asked_is_told_once(aflow, conn):
    mails.clear()
    run, gate = await asked(aflow, conn, told_of, BOOTS)
    await aflow.crash()
    await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.until_idle()
    await run.result(SOON)
    shown = mails[0].payload_hash
    assert mails == [pgflow.authority.GateRequest(gate, "g", run.key, BOOTS, shown)]
    assert conn.execute("select payload_hash from pgflow.gate_answers").fetchall() == [(shown,)]


@workflow
async def checked(order: Order) -> str:
    return told(await pgflow.authority.gate("g", order, verify=in_stock))


@step
async def in_stock(order: Order) -> bool:
    return order.qty < 2


@pytest.mark.full
async def test_an_approval_that_no_longer_holds_is_stale(aflow, conn):
    run = await launch(aflow, checked, BOOTS)
    good = await settle(aflow, checked, BOOTS)
    first, second = gate_of(conn, run.key), gate_of(conn, good.key)
    await aflow.app.answer(first, Approve(), by="ann")
    with pytest.raises(pgflow.RunFailed, match="does not hold any more"):
        await run.result(SOON)
    await aflow.app.answer(second, Approve(edit=Order("boots", 1)), by="ann")
    assert await good.result(SOON) == told(Approved(Order("boots", 1), ("ann",), True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quorum": 0}, "quorum"),
        ({"on_timeout": "shrug", "timeout": 1}, "on_timeout"),
        ({"on_timeout": "approve"}, "timeout="),
        ({"timeout": 0}, "longer than nothing"),
        ({"approvers": "ann"}, "sequence of names"),
        ({"escalate": ["a"]}, "timeout="),
        ({"approvers": [f"somebody-{n}" for n in range(1000)]}, "say a role"),
        ({"name": "policy/charge"}, "are the policy's"),
    ],
)
async def test_a_gate_that_can_never_be_asked_is_refused(options, said, aflow):
    @workflow
    async def wrong() -> str:
        try:
            await pgflow.authority.gate(
                **{"name": "g", "request": 1, **json.loads(json.dumps(options))}
            )
        except InvalidArgument as error:
            return str(error)
        return "asked"

    assert said in await result_of(aflow, wrong)
