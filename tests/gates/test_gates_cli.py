"""Gates from a shell: the inbox, and answers by hand."""

from __future__ import annotations

import asyncio
import json
import shlex

import pytest
from clikit import pgflow
from records import SOON, settle
from test_gates import BOOTS, Order, gate_of, ship, ship_by, told

from pgflow import run_child
from pgflow import workflow as pgflow_workflow
from pgflow.authority import Approved, Rejected, TakenOver, gate
from pgflow.inspect import ask, find_gate, list_gates, list_gates_below


@pytest.mark.full
def test_a_person_at_a_terminal_finds_and_answers_a_gate(flow, conn, pgflow_dsn):
    run = settle(flow, ship.options(key="order-1"), BOOTS)
    gate = gate_of(conn, "order-1")
    shown = pgflow(pgflow_dsn, "gates", "--table")
    assert gate in shown.out
    assert "order-1" in shown.out
    (row,) = json.loads(pgflow(pgflow_dsn, "gates", "--json").out)
    assert (row["request"], row["approvers"]) == ({"sku": "boots", "qty": 2}, [])
    assert pgflow(pgflow_dsn, "gates", "--exit-code").code == 4
    advice = pgflow(pgflow_dsn, "show", "order-1", "--table").out
    assert "`pgflow approve order-1`, or `pgflow reject order-1`" in " ".join(advice.split())
    refused = pgflow(pgflow_dsn, "edit", gate, '{"sku": "boots"}')
    assert refused.code == 2
    assert "qty is missing" in refused.err
    stale = pgflow(pgflow_dsn, "approve", gate, "--hash", "other")
    assert (stale.code, "is not what was answered" in stale.err) == (2, True)
    done = pgflow(
        pgflow_dsn, "approve", gate, "--hash", row["payload_hash"], "--by", "ann", "--json"
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["verdict"] == "approve"
    assert run.result(SOON) == told(Approved(BOOTS, ("ann",), False))
    late = pgflow(pgflow_dsn, "reject", gate, "--by", "bob")
    assert late.code == 2
    assert "approve by ann" in late.err
    flow.until_idle()
    assert "No gate waits for an answer." in pgflow(pgflow_dsn, "gates", "--table").err


@pytest.mark.full
def test_names_are_whole_on_a_narrow_terminal_and_advice_works_as_printed(flow, pgflow_dsn):
    flow.include(ship_by)
    key = "refund/of a customer with a long name/o'neil/17"
    run = settle(flow, ship_by.options(key=key), BOOTS, ["desk of the shop", "ann"])
    said = pgflow(pgflow_dsn, "gates", tty=True, width=80).out
    assert key in said
    assert "{" not in said
    assert key in pgflow(pgflow_dsn, "list", tty=True, width=100).out
    advice = pgflow(pgflow_dsn, "show", key, tty=True, width=400).out
    command = advice.split("`")[1]
    assert shlex.split(command) == ["pgflow", "approve", key, "--as", "desk of the shop"]
    done = pgflow(pgflow_dsn, *shlex.split(command)[1:])
    assert done.code == 0, done.err
    assert run.result(SOON).startswith("Approved")


def test_an_answer_to_a_run_that_has_ended_is_pointed_to_its_page(conn, pgflow_dsn):
    conn.execute("select pgflow.start_run('ship', '{}', 'an order'), pgflow.cancel_run('an order')")
    conn.execute("select pgflow.wake()")
    for order in (["approve"], ["edit"], ["reject"], ["delegate"]):
        more = {"edit": ["1"], "delegate": ["--to", "bob"]}.get(order[0], [])
        answer = pgflow(pgflow_dsn, *order, "an order", *more)
        assert (answer.code, answer.err) == (
            2,
            (
                "pgflow: run 'an order' is cancelled and waits at no gate; nothing was answered. "
                "See it with: pgflow show 'an order'\n"
            ),
        )
        unknown = pgflow(pgflow_dsn, *order, "k/nothing/1", *more).err
        assert unknown == (
            "pgflow: no open gate has the key 'k/nothing/1'. Its run has ended or has given it "
            "up, or it never existed; `pgflow gates` lists what is open\n"
        )


@pytest.mark.full
def test_the_other_answers_have_commands_too(flow, conn, pgflow_dsn):
    flow.include(ship_by)
    runs = [flow.start(ship_by.options(key=f"o-{n}"), BOOTS, ["ann"]) for n in range(3)]
    flow.until_idle()
    first, second, third = (gate_of(conn, run.key) for run in runs)
    assert pgflow(pgflow_dsn, "delegate", first, "--by", "ann", "--to", "bob").code == 0
    assert pgflow(pgflow_dsn, "reject", first, "--by", "bob", "--why", "no").code == 0
    answer = pgflow(pgflow_dsn, "take-over", second, "--result", "7", "--by", "zoe", "--as", "ann")
    assert answer.code == 0, answer.err
    assert pgflow(pgflow_dsn, "escalate", third, "--to", "cto", "--by", "ann").code == 0
    assert [run.result(SOON) for run in runs] == [
        told(Rejected("no", ("bob",))),
        told(TakenOver(7, ("zoe",))),
        "Escalated(to='cto')",
    ]


@pgflow_workflow
async def ship_all(order: Order) -> None:
    parts = (run_child(ship_by, order, ["ann"]) for _ in range(2))
    await asyncio.gather(gate("all", order), *parts)


@pytest.mark.full
def test_a_run_waits_at_its_own_gates_and_at_those_of_the_runs_that_it_started(flow, pgflow_dsn):
    flow.include(ship_all, ship_by)
    for key in ("all-1", "other"):
        flow.start(ship_all.options(key=key), BOOTS)
    flow.until_idle()
    below = ask(flow.app, list_gates_below("all-1"))
    assert [(one.name, one.path[0]) for one in below].count(("approve-order", "all-1")) == 2
    assert [one.key for one in below if one.name == "all"] == ["all-1"]
    assert len(below) == 3
    assert ask(flow.app, list_gates_below("all-1", tenant="t")) == []
    assert pgflow(pgflow_dsn, "approve", "all-1").code == 0
    several = pgflow(pgflow_dsn, "approve", "all-1")
    assert (several.code, "waits at several gates" in several.err) == (2, True)


def test_readers_page_through_the_inbox(flow, conn):
    flow.include(ship_by)
    for n in range(3):
        settle(flow, ship_by.options(key=f"o-{n}"), BOOTS, ["ann"] if n else ["bob"])
    page = ask(flow.app, list_gates(limit=2))
    rest = ask(flow.app, list_gates(limit=2, after=page.next))
    assert [gate.key for gate in (*page, *rest)] == ["o-0", "o-1", "o-2"]
    assert [gate.key for gate in ask(flow.app, list_gates(asks="ann"))] == ["o-1", "o-2"]
    (of_one,) = ask(flow.app, list_gates("o-1"))
    assert ask(flow.app, find_gate(of_one.gate)) == of_one
    assert ask(flow.app, find_gate("x")) is None
    assert [gate.key for gate in flow.gates("o-1")] == ["o-1"]


MANY_GATES = """
insert into pgflow.run select (jsonb_populate_record(r, jsonb_build_object(
  'run_id', r.run_id + n, 'chain_id', r.run_id + n, 'key', r.key || n))).* from pgflow.run r, generate_series(1, 1000) n;
insert into pgflow.unit select (jsonb_populate_record(u, jsonb_build_object('run_id', u.run_id + n))).*
from pgflow.unit u, generate_series(1, 1000) n;
insert into pgflow.unit select (jsonb_populate_record(u, jsonb_build_object('seq', u.seq + n * 10, 'kind', 'e'))).*
from pgflow.unit u, generate_series(1, 3000) n where u.kind = 'g' and u.run_id = (select min(run_id) from pgflow.run);
insert into pgflow.gate select (jsonb_populate_record(g, jsonb_build_object('run_id', g.run_id + n, 'gate', g.gate || n,
  'asked_at', g.asked_at - n * interval '1 s'))).* from pgflow.gate g, generate_series(1, 1000) n;
insert into pgflow.gate_answer (gate, n, run_id, answered_at, closes, verdict, answered_by, sent_by)
select 'old' || gate || n, 1, run_id, now(), true, 'approve', 'ann', 'ann' from pgflow.gate g, generate_series(1, 3) n;
analyze pgflow.run, pgflow.unit, pgflow.gate, pgflow.gate_answer
"""


@pytest.mark.full
def test_a_page_of_a_long_inbox_is_read_in_its_order_and_no_further(flow, conn):
    settle(flow, ship_by.options(key="o-"), BOOTS, ["ann"])
    with conn.transaction(force_rollback=True):
        for text in MANY_GATES.split(";"):
            conn.execute(text)
        for page, rows in (
            (list_gates(), 50),
            (list_gates(asks="ann"), 50),
            (list_gates("o-7"), 1),
            (list_gates_below("o-"), 1),
        ):
            query = page.first
            explain = "explain (analyze, buffers, format json) " + query.sql
            (((plan,),),) = conn.execute(explain, query.params)
            assert len(query.read(conn.execute(query.sql, query.params).fetchall())) == rows
            assert plan["Plan"]["Shared Hit Blocks"] < 1000, json.dumps(plan)
