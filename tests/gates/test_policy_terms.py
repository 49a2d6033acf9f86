"""Terms of gates by policy: a rule says who may answer, how many must, and until when."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from clikit import pgflow as pgflow_cli
from gatekit import gates
from records import SOON, count, eventually, launch, recover, result_of, settle

import pgflow
from pgflow import step, workflow
from pgflow.authority import Approve, GateRequest, Reject
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import GateRejected, NotAllowed
from pgflow.inspect import ask, judge_act

done: list[int] = []
told: list[tuple[GateRequest, str]] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()
    told.clear()


def rule(conn: psycopg.Connection, *rules: dict[str, Any]) -> None:
    conn.execute("select pgflow.set_policy(%s, 'limits')", (json.dumps(rules),))


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


@pytest.mark.full
async def test_a_rule_says_who_may_answer_and_how_many_must(aflow, conn):
    rule(conn, {"name": "charge", "approvers": ["ann", "bob", "cfo"], "quorum": 2})
    run = await settle(aflow, pay, 600)
    assert gates(conn, "approvers, quorum, expires_at") == [(["ann", "bob", "cfo"], 2, None)]
    (gate,) = gates(conn)
    with pytest.raises(NotAllowed, match="eve"):
        await aflow.app.answer(gate, Approve(), by="eve")
    await aflow.app.answer(gate, Approve(), by="ann")
    await aflow.until_idle()
    assert done == []
    await aflow.app.answer(gate, Approve(), by="bob")
    assert await run.result(SOON) == "charge of 600"


@pytest.mark.full
@pytest.mark.parametrize(
    ("at_last", "result", "acts"),
    [
        ("expire", "expire: ", []),
        ("reject", "reject: timeout", []),
        ("escalate", "escalate: ", []),
        ("approve", "charge of 600", [600]),
    ],
)
async def test_a_rule_says_until_when_whom_next_and_what_then(at_last, result, acts, aflow, conn):
    rule(
        conn,
        {
            "name": "charge",
            "approvers": ["ann"],
            "timeout": "8 hours",
            "escalate": ["cto"],
            "on_timeout": at_last,
        },
    )
    run = await settle(aflow, pay, 600)
    await aflow.skip(timedelta(hours=9))
    assert gates(conn, "approvers") == [["cto"]]
    await aflow.skip(timedelta(hours=8))
    assert await run.result(SOON) == result
    assert done == acts
    assert count(conn, "pgflow.owed") == 0


@pytest.mark.full
def test_so_it_does_for_a_sync_workflow(flow, conn):
    rule(conn, {"name": "charge", "timeout": 3600})
    run = settle(flow, pay_sync, 600)
    assert [gate.request for gate, _ in told] == [{"cents": 600}]
    flow.skip(timedelta(hours=2))
    assert run.result(SOON) == "expire: "


@pytest.mark.full
async def test_a_gate_that_is_asked_keeps_the_terms_of_the_rule_that_asked_it(aflow, conn):
    rule(conn, {"name": "charge", "approvers": ["ann"]})
    run = await settle(aflow, pay, 600)
    await aflow.crash()
    rule(conn, {"name": "charge", "approvers": ["bob"]})
    await aflow.until_idle()
    assert gates(conn, "approvers") == [["ann"]]
    await aflow.answer("policy/charge", Approve(), by="ann")
    assert await run.result(SOON) == "charge of 600"


@pytest.mark.full
async def test_whoever_the_policy_asks_is_told_once(aflow, conn):
    rule(conn, {"name": "charge", "approvers": ["ann"]})
    run = await settle(aflow, pay, 600)
    await recover(aflow)
    ((gate, _),) = told
    assert gate == GateRequest(
        gates(conn)[0], "policy/charge", run.key, {"cents": 600}, gates(conn, "payload_hash")[0]
    )
    await aflow.app.answer(gate.id, Reject("no"), by="ann")
    assert await run.result(SOON) == "reject: no"
    assert len(told) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("flow_of", "approved"), [(pay_all, 2), (pay_all_sync, 2)], ids=["async", "sync"]
)
async def test_each_item_of_a_map_asks(flow_of, approved, aflow, conn):
    rule(conn, {"name": "charge", "amount": "$.cents", "above": 500, "approvers": ["ann"]})
    run = await settle(aflow, flow_of, [600, 5, 700])
    asked = conn.execute("select gate from pgflow.gates order by request->>'cents'").fetchall()
    assert len(asked) == approved
    assert done == [5]
    for (gate,) in asked:
        await aflow.app.answer(gate, Approve(), by="ann")
    assert await run.result(SOON) == ["charge of 600", "charge of 5", "charge of 700"]
    assert sorted(done) == [5, 600, 700]


@pytest.mark.parametrize("flow_of", [enough, enough_sync], ids=["async", "sync"])
async def test_an_item_that_is_not_wanted_any_more_closes_its_gate(flow_of, aflow, conn):
    rule(conn, {"name": "charge", "amount": "$.cents", "above": 500})
    assert await result_of(aflow, flow_of, [600, 5]) == ["charge of 5"]
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


@pytest.mark.full
async def test_a_rule_may_be_for_what_a_model_has_chosen(aflow, conn):
    rule(conn, {"author": "model", "approvers": ["ann"]})
    aflow.include(choose_and_pay, pay)
    for run in (await aflow.start(choose_and_pay, "code"), await aflow.start(pay, 600)):
        assert await run.result(SOON) == "charge of 600"
    run = await settle(aflow, choose_and_pay, "model")
    assert gates(conn, "name, why, approvers") == [("policy/charge", "the largest", ["ann"])]
    await aflow.answer("policy/charge", Approve(), by="ann")
    assert await run.result(SOON) == "charge of 600"


def test_a_decision_that_cannot_be_looked_at_counts_as_a_models(conn):
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


@pytest.mark.full
async def test_terms_hold_for_a_whole_tree_and_the_gate_shows_the_path(aflow, conn):
    rule(conn, {"name": "charge", "approvers": ["ann"], "quorum": 1, "timeout": "1 day"})
    aflow.include(root, branch, leaf)
    run = await settle(aflow, root.options(key="root"), 600)
    found = gates(conn, "path, approvers, expires_at is not null")
    assert found == [(["root", "branch", "leaf"], ["ann"], True)]
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
def test_terms_that_cannot_be_are_refused(conn, said, says):
    with pytest.raises(psycopg.Error, match=says) as refused:
        rule(conn, said)
    assert refused.value.sqlstate == "PF003"
    assert len(str(refused.value).splitlines()[0]) > 20


@pytest.fixture
def roles(conn: psycopg.Connection) -> Iterator[str]:
    """A group of roles, and a login that is a member of it, for workers of agents."""
    tag, known = f"pf{os.getpid()}", f"login password '{conn.info.password}'"
    conn.execute(f"create role {tag}_group in role pgflow_worker")  # type: ignore[call-overload]
    conn.execute(f"create role {tag}_bot {known} in role {tag}_group")  # type: ignore[call-overload]
    conn.execute(f"create role {tag}_other {known} in role pgflow_worker")  # type: ignore[call-overload]
    yield tag
    for name in ("bot", "other", "group"):
        conn.execute(f"drop role {tag}_{name}")  # type: ignore[call-overload]


def tried(conn: psycopg.Connection, *args: Any) -> list[Any]:
    marks = ", ".join(["%s"] * len(args))
    rows = conn.execute(
        f"select rule, needs, fits, counts from pgflow.try_policy({marks})",  # type: ignore[call-overload]
        args,
    )
    return rows.fetchall()


def test_a_rule_looks_at_the_role_that_acts(conn, roles):
    rule(conn, {"role": f"{roles}_group", "approvers": ["ann"]}, {"needs": "nothing"})
    asks, acts = [(1, "gate", True, True), (2, "nothing", True, False)], [(1, "gate", False, False)]
    for name, expected in (("bot", asks), ("group", asks), ("other", acts)):
        assert (
            tried(conn, "charge", "irreversible", "{}", False, f"{roles}_{name}")[: len(expected)]
            == expected
        )
    # The judgement of an effect is of whoever commits; a superuser is a member of nothing by that.
    needs = "select needs from pgflow.needs_('charge', 'irreversible', '{}')"
    assert conn.execute(needs).fetchone() == ("nothing",)
    conn.execute("grant usage on schema pgflow to public")
    conn.execute("grant execute on all functions in schema pgflow to public")
    conn.execute("grant select on all tables in schema pgflow to public")
    for name, expected in (("bot", "gate"), ("other", "nothing")):
        with conn.transaction(force_rollback=True):
            conn.execute(f"set local role {roles}_{name}")  # type: ignore[call-overload]
            assert conn.execute(needs).fetchone() == (expected,)


@pytest.mark.full
async def test_a_worker_of_a_role_asks_where_another_acts(aflow, conn, roles):
    rule(conn, {"name": "charge", "role": f"{roles}_group"})
    run = await launch(aflow, pay, 100)
    assert await run.result(SOON) == "charge of 100"
    assert count(conn, "pgflow.gate") == 0
    run = await aflow.start(pay.options(queue="agents"), 200)
    bot = psycopg.conninfo.make_conninfo(aflow.app.dsn, user=f"{roles}_bot")
    async with pgflow.AsyncApp(bot, include=[pay]) as app, app.worker(queues=["agents"]):
        await eventually(lambda: count(conn, "pgflow.gate") == 1, "leave is asked for")
    (gate,) = gates(conn)
    await aflow.app.answer(gate, Reject("no"), by="ann")
    async with pgflow.AsyncApp(bot, include=[pay]) as app, app.worker(queues=["agents"]):
        assert await run.result(SOON) == "reject: no"


def test_a_rule_for_a_role_that_there_is_not_is_refused(conn):
    with pytest.raises(psycopg.Error, match="looks for a role that there is not: 'nobody_here'"):
        rule(conn, {"role": "nobody_here"})
    with pytest.raises(psycopg.Error, match="role 'nobody_here' does not exist"):
        tried(conn, "charge", "irreversible", "{}", False, "nobody_here")
    assert tried(conn, "charge", "irreversible") == []


def test_a_try_says_of_each_rule_whether_it_fits_and_which_one_counts(conn):
    rule(
        conn,
        {"name": "refund", "needs": "nothing", "predicate": "$.test == true"},
        {"amount": "$.cents", "above": 1000, "approvers": ["desk"]},
        {"author": "model"},
        {"risk": "irreversible"},
    )
    assert tried(conn, "refund", "irreversible", '{"cents": 5000}') == [
        (1, "nothing", False, False),
        (2, "gate", True, True),
        (3, "gate", False, False),
        (4, "gate", True, False),
    ]
    found = [fits for _, _, fits, _ in tried(conn, "refund", "reversible", '{"cents": 5}')]
    assert found == [False, False, False, False]
    by_model = tried(conn, "refund", "reversible", '{"cents": 5, "test": true}', True)
    found = [(fits, counts) for _, _, fits, counts in by_model]
    assert found == [(True, True), (False, False), (True, False), (False, False)]
    # What cannot be judged counts as fitting: an amount that is no number.
    assert tried(conn, "refund", "reversible", '{"cents": "many"}')[1][2:] == (True, True)
    assert ask(conn, judge_act("refund", "irreversible", {"cents": 5000}))[1].terms == {
        "approvers": ["desk"],
        "quorum": 1,
        "timeout": None,
        "on_timeout": "expire",
        "escalate": [],
    }
    for wrong in (("", "irreversible"), ("x", "dangerous"), ("x", "irreversible", "[]")):
        with pytest.raises(psycopg.Error) as raised:
            tried(conn, *wrong)
        assert raised.value.sqlstate == "PF003"


def test_a_person_tries_rules_that_are_not_in_force_yet(conn, pgflow_dsn):
    said = pgflow_cli(pgflow_dsn, "policy", "check", "refund", "--risk", "irreversible", "--table")
    assert (said.code, said.out) == (0, "")
    assert "No policy is in force." in said.err
    rules = json.dumps([{"name": "refund", "amount": "$.cents", "above": 1000}])
    call = ("policy", "check", "refund", '{"cents": 5000}', "--risk", "irreversible")
    said = pgflow_cli(pgflow_dsn, *call, "--rules", rules, "--exit-code", "--json")
    assert said.code == 4
    (row,) = json.loads(said.out)
    assert (row["fits"], row["counts"], row["needs"]) == (True, True, "gate")
    assert "refund asks at gate policy/refund: rule 1 counts." in said.err
    assert count(conn, "pgflow.policy") == 0
    rule(conn, {"name": "refund", "needs": "nothing"})
    said = pgflow_cli(pgflow_dsn, *call, "--exit-code", "--table")
    assert said.code == 0
    assert "refund goes ahead: rule 1 counts." in said.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["refund"], "Missing option '--risk'"),
        (["refund", "--risk", "dangerous"], "--risk is reversible, compensable or irreversible"),
        (["refund", "[]", "--risk", "reversible"], "an object of their names"),
        (["refund", "{", "--risk", "reversible"], "JSON"),
        (["", "--risk", "reversible"], "the name of an effect"),
        (
            ["refund", "--risk", "reversible", "--role", "nobody_here"],
            "role 'nobody_here' does not exist",
        ),
        (["refund", "--risk", "reversible", "--role", ""], "--role"),
        (["refund", "--risk", "reversible", "--rules", '{"a": 1}'], "must be an array"),
        (["refund", "--risk", "reversible", "--rules", '[{"a": 1}]'], "a rule of a policy has"),
    ],
)
def test_a_try_that_cannot_be_made_says_so_in_one_line(pgflow_dsn, args, says):
    said = pgflow_cli(pgflow_dsn, "policy", "check", *args)
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert said.err.count("\n") == 1
