"""Gates from a shell: the inbox, and answers by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest
from clikit import pgflow
from records import SOON
from test_gates import BOOTS, gate_of, ship, ship_by, told

from pgflow import Approved, Rejected, TakenOver
from pgflow.inspect import ask, find_gate, list_gates

if TYPE_CHECKING:
    from pgflow.testing import Harness

pytestmark = pytest.mark.timeout(90)


def test_a_person_at_a_terminal_finds_and_answers_a_gate(
    flow: Harness, conn: psycopg.Connection, pgflow_dsn: str
) -> None:
    flow.include(ship)
    run = flow.start(ship.options(key="order-1"), BOOTS)
    flow.until_idle()
    gate = gate_of(conn, "order-1")
    shown = pgflow(pgflow_dsn, "gates", "--table")
    assert gate in shown.out
    assert "order-1" in shown.out
    (row,) = json.loads(pgflow(pgflow_dsn, "gates", "--json").out)
    assert (row["request"], row["approvers"]) == ({"sku": "boots", "qty": 2}, [])
    assert pgflow(pgflow_dsn, "gates", "--exit-code").code == 4
    advice = pgflow(pgflow_dsn, "show", "order-1", "--table").out
    assert f"pgflow approve {gate}" in " ".join(advice.split())
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


def test_the_other_answers_have_commands_too(
    flow: Harness, conn: psycopg.Connection, pgflow_dsn: str
) -> None:
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


def test_readers_page_through_the_inbox(flow: Harness, conn: psycopg.Connection) -> None:
    flow.include(ship_by)
    for n in range(3):
        flow.start(ship_by.options(key=f"o-{n}"), BOOTS, ["ann"] if n else ["bob"])
        flow.until_idle()
    page = ask(flow.app, list_gates(limit=2))
    rest = ask(flow.app, list_gates(limit=2, after=page.next))
    assert [gate.key for gate in (*page, *rest)] == ["o-0", "o-1", "o-2"]
    assert [gate.key for gate in ask(flow.app, list_gates(asks="ann"))] == ["o-1", "o-2"]
    (of_one,) = ask(flow.app, list_gates("o-1"))
    assert ask(flow.app, find_gate(of_one.gate)) == of_one
    assert ask(flow.app, find_gate("x")) is None
    assert [gate.key for gate in flow.gates("o-1")] == ["o-1"]
