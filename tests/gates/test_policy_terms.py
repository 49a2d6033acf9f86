"""Terms of gates by policy: a rule says who may answer, how many must, and until when."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import SOON, count

import pgflow
from pgflow import (
    Approve,
    Choice,
    GateRejected,
    GateRequest,
    NotAllowed,
    Reject,
    decision,
    effect,
    step,
    workflow,
)

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness, Harness

pytestmark = pytest.mark.timeout(90)

done: list[int] = []
told: list[tuple[GateRequest, str]] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()
    told.clear()


def rule(conn: psycopg.Connection, *rules: dict[str, Any]) -> None:
    conn.execute("select pgflow.set_policy(%s, 'limits')", (json.dumps(rules),))


def gates(conn: psycopg.Connection, columns: str = "gate") -> list[Any]:
    rows = conn.execute(f"select {columns} from pgflow.gates order by asked_at, gate").fetchall()  # type: ignore[arg-type]
    return [row[0] if len(row) == 1 else row for row in rows]


@step
async def tell(gate: GateRequest) -> None:
    told.append((gate, pgflow.idempotency_key()))


@effect(risk="compensable", notify=tell)
async def charge(cents: int) -> str:
    done.append(cents)
    return f"charge of {cents}"


@workflow
async def pay(cents: int) -> str:
    try:
        return await charge(cents)
    except GateRejected as refused:
        return f"{refused.verdict}: {refused.reason}"


@workflow
def pay_sync(cents: int) -> str:
    try:
        return charge.sync(cents)
    except GateRejected as refused:
        return f"{refused.verdict}: {refused.reason}"


@workflow
def pay_all_sync(cents: list[int]) -> list[str]:
    return list(pgflow.sync.map(charge, cents).values)


@workflow
async def pay_all(cents: list[int]) -> list[str]:
    return list((await pgflow.map(charge, cents)).values)


@workflow
async def enough(cents: list[int]) -> list[str]:
    return list((await pgflow.map(charge, cents, min_successful=1)).values)


@workflow
def enough_sync(cents: list[int]) -> list[str]:
    return list(pgflow.sync.map(charge, cents, min_successful=1).values)


async def test_a_rule_says_who_may_answer_and_how_many_must(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(conn, {"name": "charge", "approvers": ["ann", "bob", "cfo"], "quorum": 2})
    aflow.include(pay)
    run = await aflow.start(pay, 600)
    await aflow.until_idle()
    assert gates(conn, "approvers, quorum, expires_at") == [(["ann", "bob", "cfo"], 2, None)]
    (gate,) = gates(conn)
    with pytest.raises(NotAllowed, match="eve"):
        await aflow.app.answer(gate, Approve(), by="eve")
    await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.until_idle()
    assert done == []
    await aflow.app.answer(gate, Approve(), by="bob")
    assert await run.result(SOON) == "charge of 600"


@pytest.mark.parametrize(
    ("at_last", "result", "acts"),
    [
        ("expire", "expire: ", []),
        ("reject", "reject: timeout", []),
        ("escalate", "escalate: ", []),
        ("approve", "charge of 600", [600]),
    ],
)
async def test_a_rule_says_until_when_whom_next_and_what_then(
    at_last: str, result: str, acts: list[int], aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(
        conn,
        {
            "name": "charge", "approvers": ["ann"], "timeout": "8 hours", "escalate": ["cto"],
            "on_timeout": at_last,
        },
    )  # fmt: skip
    aflow.include(pay)
    run = await aflow.start(pay, 600)
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=9))
    assert gates(conn, "approvers") == [["cto"]]
    await aflow.skip(timedelta(hours=8))
    assert await run.result(SOON) == result
    assert done == acts
    assert count(conn, "pgflow.owed") == 0


def test_so_it_does_for_a_sync_workflow(flow: Harness, conn: psycopg.Connection) -> None:
    rule(conn, {"name": "charge", "timeout": 3600})
    flow.include(pay_sync)
    run = flow.start(pay_sync, 600)
    flow.until_idle()
    assert [gate.request for gate, _ in told] == [{"cents": 600}]
    flow.skip(timedelta(hours=2))
    assert run.result(SOON) == "expire: "


async def test_a_gate_that_is_asked_keeps_the_terms_of_the_rule_that_asked_it(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(conn, {"name": "charge", "approvers": ["ann"]})
    aflow.include(pay)
    run = await aflow.start(pay, 600)
    await aflow.until_idle()
    await aflow.crash()
    rule(conn, {"name": "charge", "approvers": ["bob"]})
    await aflow.until_idle()
    assert gates(conn, "approvers") == [["ann"]]
    await aflow.answer("policy/charge", Approve(), by="ann")
    assert await run.result(SOON) == "charge of 600"


async def test_whoever_the_policy_asks_is_told_once(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(conn, {"name": "charge", "approvers": ["ann"]})
    aflow.include(pay)
    run = await aflow.start(pay, 600)
    await aflow.until_idle()
    await aflow.crash()
    await aflow.until_idle()
    ((gate, _),) = told
    assert gate == GateRequest(
        gates(conn)[0], "policy/charge", run.key, {"cents": 600}, gates(conn, "payload_hash")[0]
    )
    await aflow.app.answer(gate.id, Reject("no"), by="ann")
    assert await run.result(SOON) == "reject: no"
    assert len(told) == 1


@pytest.mark.parametrize(
    ("flow_of", "approved"), [(pay_all, 2), (pay_all_sync, 2)], ids=["async", "sync"]
)
async def test_each_item_of_a_map_asks(
    flow_of: Any, approved: int, aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(conn, {"name": "charge", "amount": "$.cents", "above": 500, "approvers": ["ann"]})
    aflow.include(flow_of)
    run = await aflow.start(flow_of, [600, 5, 700])
    await aflow.until_idle()
    asked = conn.execute("select gate from pgflow.gates order by request->>'cents'").fetchall()
    assert len(asked) == approved
    assert done == [5]
    for (gate,) in asked:
        await aflow.app.answer(gate, Approve(), by="ann")
    assert await run.result(SOON) == ["charge of 600", "charge of 5", "charge of 700"]
    assert sorted(done) == [5, 600, 700]


@pytest.mark.parametrize("flow_of", [enough, enough_sync], ids=["async", "sync"])
async def test_an_item_that_is_not_wanted_any_more_closes_its_gate(
    flow_of: Any, aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(conn, {"name": "charge", "amount": "$.cents", "above": 500})
    aflow.include(flow_of)
    run = await aflow.start(flow_of, [600, 5])
    assert await run.result(SOON) == ["charge of 5"]
    assert gates(conn) == []
    assert done == [5]


@decision()
async def by_model() -> Choice[int]:
    return Choice(600, why="the largest", model="m-1")


@decision()
async def by_code() -> Choice[int]:
    return Choice(600, why="the largest")


@workflow
async def choose_and_pay(who: str) -> str:
    chosen = await (by_model if who == "model" else by_code)()
    with pgflow.because(chosen):
        return await charge(chosen.value)


async def test_a_rule_may_be_for_what_a_model_has_chosen(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(conn, {"author": "model", "approvers": ["ann"]})
    aflow.include(choose_and_pay, pay)
    for run in (await aflow.start(choose_and_pay, "code"), await aflow.start(pay, 600)):
        assert await run.result(SOON) == "charge of 600"
    run = await aflow.start(choose_and_pay, "model")
    await aflow.until_idle()
    assert gates(conn, "name, why, approvers") == [("policy/charge", "the largest", ["ann"])]
    await aflow.answer("policy/charge", Approve(), by="ann")
    assert await run.result(SOON) == "charge of 600"


def test_a_decision_that_cannot_be_looked_at_counts_as_a_models(conn: psycopg.Connection) -> None:
    rule(conn, {"author": "model"})
    needs = "select needs from pgflow.needs_('a', 'reversible', '{}', 1, %s, %s)"
    assert conn.execute(needs, ("of/another/run", False)).fetchone() == ("gate",)
    assert conn.execute(needs, (None, False)).fetchone() == (None,)
    assert conn.execute(needs, (None, True)).fetchone() == ("gate",)


@workflow
async def leaf(cents: int) -> str:
    return await charge(cents)


@workflow
async def branch(cents: int) -> str:
    return await pgflow.run_child(leaf.options(key="leaf"), cents)


@workflow
async def root(cents: int) -> str:
    return await pgflow.run_child(branch.options(key="branch"), cents)


async def test_terms_hold_for_a_whole_tree_and_the_gate_shows_the_path(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    rule(conn, {"name": "charge", "approvers": ["ann"], "quorum": 1, "timeout": "1 day"})
    aflow.include(root, branch, leaf)
    run = await aflow.start(root.options(key="root"), 600)
    await aflow.until_idle()
    assert gates(conn, "path, approvers, expires_at is not null") == [
        (["root", "branch", "leaf"], ["ann"], True)
    ]
    await aflow.answer("policy/charge", Approve(), by="ann")
    assert await run.result(SOON) == "charge of 600"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"aprovers": ["ann"]}, "a rule of a policy has .* not 'aprovers'"),
        ({"approvers": "ann"}, "rule 1 of a policy: approvers must be an array of names"),
        ({"approvers": []}, "rule 1 of a policy: approvers must be an array of names"),
        ({"approvers": ["ann", ""]}, "rule 1 of a policy: approvers must be an array of names"),
        ({"timeout": 5, "escalate": [7]}, "rule 1 of a policy: escalate must be an array of names"),
        ({"escalate": ["cto"]}, "rule 1 of a policy says what becomes of its gate in time"),
        ({"on_timeout": "reject"}, "rule 1 of a policy says what becomes of its gate in time"),
        ({"timeout": 5, "on_timeout": "shrug"}, "cannot be"),
        ({"timeout": 0}, "cannot be"),
        ({"timeout": "soon"}, "cannot be read"),
        ({"quorum": 0}, "cannot be"),
        ({"quorum": 101}, "cannot be"),
        ({"quorum": "two"}, "cannot be read"),
        ({"author": "poet"}, "cannot be"),
        ({"needs": "nothing", "approvers": ["ann"]}, "cannot be"),
    ],
    ids=str,
)
def test_terms_that_cannot_be_are_refused(
    conn: psycopg.Connection, said: dict[str, Any], says: str
) -> None:
    with pytest.raises(psycopg.Error, match=says) as refused:
        rule(conn, said)
    assert refused.value.sqlstate == "PF003"
    assert len(str(refused.value).splitlines()[0]) > 20
