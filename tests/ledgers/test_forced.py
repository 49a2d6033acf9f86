"""Debts of a run ended by force: they are seen, told and closed by people, and handed on to whoever
takes them back after all.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from records import settle
from sqlkit import one, rows

import pgflow
from pgflow import RunNotFound, Signal, workflow
from pgflow.effects import Accepted, effect
from pgflow.errors import NotAllowed, WrongState
from pgflow.testing import AsyncHarness

Conn = psycopg.Connection[Any]

go = Signal("go", str)
calls: list[str] = []
trouble: set[str] = set()


class LostReply(Exception):
    """Nobody knows whether it was done."""


@pytest.fixture(autouse=True)
def world() -> None:
    calls.clear()
    trouble.clear()


@effect(risk="compensable")
async def charge(name: str) -> str:
    calls.append(f"charge {name}")
    if name in trouble:
        raise LostReply(name)
    return f"paper of {name}"


@charge.compensate
async def refund(paper: str, name: str) -> None:
    calls.append(f"refund {name}")
    if f"refund {name}" in trouble:
        raise LostReply(name)


@effect(risk="compensable")
async def ship(name: str) -> Accepted:
    calls.append(f"ship {name}")
    return Accepted(f"ref {name}")


@effect(risk="irreversible")
async def mail(name: str) -> str:
    calls.append(f"mail {name}")
    return "sent"


@workflow
async def order(names: str) -> str:
    async with pgflow.effects.saga():
        for name in names:
            await charge(name)
        return await go.wait()


@workflow
async def posted() -> str:
    await mail("letter")
    return await go.wait()


@workflow
async def shipped() -> str:
    await ship("box")
    return await go.wait()


@workflow
async def leg(name: str) -> str:
    return await charge(name)


@workflow
async def slow_leg(name: str) -> str:
    await charge(name)
    while True:
        try:
            return await go.wait()
        except asyncio.CancelledError:
            calls.append("went on all the same")


@workflow
async def journey(child: str) -> str:
    async with pgflow.effects.saga():
        await pgflow.run_child({"leg": leg, "slow_leg": slow_leg}[child].options(key="leg"), "leg")
        return await go.wait()


@workflow
async def lap(n: int) -> str:
    await charge(f"lap {n}")
    if n < 2:
        pgflow.continue_as_new(n + 1)
    return await go.wait()


WORKFLOWS = (order, posted, shipped, leg, slow_leg, journey, lap)


def force(conn: Conn, key: str) -> None:
    """A wake leaves a run alone that another looks at just then."""
    chain = one(
        conn, "select pgflow.cancel_run(%s, 'enough', force => true, sent_by => 'ada')", key
    )
    for _ in range(1000):
        conn.execute("select pgflow.wake(array[%s::bigint])", (chain,))
        if one(conn, "select pgflow.run_status(%s)", key) == "cancelled":
            return
    raise AssertionError(f"run {key} is not cancelled")


def owed(conn: Conn) -> list[tuple[str, str, str]]:
    return rows(conn, "select key, state, reason from pgflow.obligations order by opened_at, call")


def keys(conn: Conn) -> list[str]:
    return rows(conn, "select effect from pgflow.obligations order by opened_at, call")


async def begin(
    aflow: AsyncHarness, flow: pgflow.Workflow[..., Any], *args: Any
) -> pgflow.AsyncRun[Any]:
    aflow.include(*WORKFLOWS)
    return await settle(aflow, flow.options(key="k"), *args)


@pytest.mark.full
async def test_what_was_done_and_not_taken_back_stays_owed(aflow, conn):
    await begin(aflow, order, "ab")
    force(conn, "k")
    assert owed(conn) == [("k", "uncompensated", "forced"), ("k", "uncompensated", "forced")]
    found = rows(conn, "select status, owed from pgflow.effects order by seq")
    assert found == [("confirmed", "forced")] * 2
    assert rows(
        conn,
        "select name, payload->>'force' from pgflow.timeline where event = 'operator' and name = "
        "'cancel'",
    ) == [("cancel", "true")]
    assert rows(conn, "select reason_code, reason_detail from pgflow.runs where key = 'k'") == [
        ("asked", {"by": "ada (postgres)", "force": True})
    ]
    assert one(conn, "select runs from pgflow.drop_history(pgflow.now_())") == 0
    assert calls == ["charge a", "charge b"]


async def test_what_cannot_be_taken_back_leaves_nothing_to_do(aflow, conn):
    await begin(aflow, posted)
    force(conn, "k")
    assert owed(conn) == []


async def test_an_ordinary_cancel_leaves_nothing_owed(aflow, conn):
    run = await begin(aflow, order, "a")
    await run.cancel()
    await aflow.until_idle()
    assert (owed(conn), calls) == ([], ["charge a", "refund a"])


@pytest.mark.full
async def test_what_is_being_taken_back_is_owed_as_that_alone(aflow, conn):
    trouble.add("refund b")
    run = await begin(aflow, order, "ab")
    await run.cancel()
    await aflow.until_idle()
    force(conn, "k")
    found = sorted(rows(conn, "select name, state from pgflow.obligations"))
    assert found == [("charge", "uncompensated"), ("refund", "unknown")]
    await aflow.app.settle_effect(
        one(conn, "select effect from pgflow.obligations where name = 'refund'"), "confirmed"
    )
    assert rows(conn, "select name, state from pgflow.obligations") == [("charge", "uncompensated")]


@pytest.mark.full
async def test_a_refund_that_was_not_done_leaves_the_charge_owed(aflow, conn):
    trouble.add("refund a")
    run = await begin(aflow, order, "a")
    await run.cancel()
    await aflow.until_idle()
    force(conn, "k")
    assert rows(conn, "select name, state from pgflow.obligations") == [("refund", "unknown")]
    await aflow.app.settle_effect(keys(conn)[0], "failed", why="the bank has nothing", by="ada")
    found = rows(conn, "select name, state, reason from pgflow.obligations")
    assert found == [("charge", "uncompensated", "forced")]


@pytest.mark.full
async def test_what_turns_out_to_have_been_done_is_owed_from_then_on(aflow, conn):
    trouble.add("a")
    await begin(aflow, order, "a")
    force(conn, "k")
    assert owed(conn) == [("k", "unknown", "forced")]
    (key,) = keys(conn)
    await aflow.app.settle_effect(key, "confirmed", "found")
    assert owed(conn) == [("k", "uncompensated", "forced")]
    assert rows(conn, "select status, result from pgflow.effects") == [("confirmed", "found")]
    await aflow.app.settle_effect(key, "taken_back", by="ada")
    assert owed(conn) == []


async def test_what_was_accepted_is_confirmed_and_then_taken_back(aflow, conn):
    await begin(aflow, shipped)
    force(conn, "k")
    assert owed(conn) == [("k", "accepted", "forced")]
    await aflow.app.confirm_effect("ref box")
    assert owed(conn) == [("k", "uncompensated", "forced")]
    await aflow.app.confirm_effect("ref box")  # a provider that sends its word again
    assert owed(conn) == [("k", "uncompensated", "forced")]
    await aflow.app.settle_effect(keys(conn)[0], "stands")
    assert owed(conn) == []


@pytest.mark.full
async def test_effects_of_a_child_that_has_completed_are_owed_by_its_parent(aflow, conn):
    await begin(aflow, journey, "leg")
    force(conn, "k")
    assert owed(conn) == [("k", "uncompensated", "forced")]
    assert (
        one(
            conn,
            "select o.effect = e.effect from pgflow.obligations o, pgflow.effects e where e.key = "
            "'leg'",
        )
        is True
    )


@pytest.mark.full
async def test_a_child_is_cancelled_with_its_code(aflow, conn):
    @workflow
    async def waiting() -> str:
        return await pgflow.run_child(order.options(key="child"), "a")

    aflow.include(waiting)
    await begin(aflow, waiting)
    force(conn, "k")
    await aflow.until_idle()
    assert one(conn, "select pgflow.run_status('child')") == "cancelled"
    assert (owed(conn), calls) == ([], ["charge a", "refund a"])


@pytest.mark.full
async def test_a_child_that_completes_after_its_parent_was_forced_owes_what_it_did(aflow, conn):
    await begin(aflow, journey, "slow_leg")
    force(conn, "k")
    await aflow.until_idle()
    assert owed(conn) == []
    await aflow.app.send("leg", go, "on")
    await aflow.until_idle()
    assert owed(conn) == [("leg", "uncompensated", "parent_forced")]
    await aflow.app.settle_effect(keys(conn)[0], "stands", why="the customer keeps it")


@pytest.mark.full
async def test_a_result_that_the_forced_parent_never_took_is_owed_by_the_child(aflow, conn):
    await begin(aflow, journey, "slow_leg")
    await aflow.app.pause("k")
    await aflow.until_idle()
    await aflow.app.send("leg", go, "on")
    await aflow.until_idle()
    assert one(conn, "select pgflow.run_status('leg')") == "completed"
    force(conn, "k")
    assert owed(conn) == [("leg", "uncompensated", "parent_forced")]


@pytest.mark.full
async def test_what_earlier_generations_did_is_owed_by_the_last(aflow, conn):
    await begin(aflow, lap, 1)
    force(conn, "k")
    found = rows(conn, "select state, call >= 1000000000 from pgflow.obligations order by call")
    assert found == [("uncompensated", False), ("uncompensated", True)]
    for key in keys(conn):
        await aflow.app.settle_effect(key, "taken_back")
    assert owed(conn) == []


@pytest.mark.full
async def test_a_cancel_before_the_code_goes_on_still_takes_back_what_a_restart_was_told_to(
    aflow, conn
):
    await begin(aflow, order, "a")
    await aflow.crash()
    conn.execute("select pgflow.restart_run('k', effects => 'compensate'), pgflow.cancel_run('k')")
    conn.execute("select pgflow.wake()")
    await aflow.until_idle()
    assert (calls, owed(conn)) == (["charge a", "refund a"], [])


@pytest.mark.full
async def test_force_before_a_restart_has_taken_back_leaves_that_owed(aflow, conn):
    await begin(aflow, order, "a")
    await aflow.crash()
    conn.execute("select pgflow.restart_run('k', effects => 'compensate')")
    force(conn, "k")
    assert owed(conn) == [("k", "uncompensated", "forced")]
    conn.execute("select pgflow.restart_run('k', effects => 'repeat')")
    assert owed(conn) == [("k", "uncompensated", "forced")]


@pytest.mark.full
async def test_a_rewind_behind_what_was_done_has_it_in_hand_again(aflow, conn):
    run = await begin(aflow, order, "ab")
    force(conn, "k")
    cut = one(conn, "select max(seq) from pgflow.timeline where event = 'effect_confirmed'")
    conn.execute("select pgflow.rewind_run('k', %s)", (cut,))
    assert owed(conn) == []
    await aflow.until_idle()
    await run.cancel()
    await aflow.until_idle()
    assert (calls, owed(conn)) == (["charge a", "charge b", "refund b", "refund a"], [])


@pytest.mark.parametrize(("effects", "left", "done"), [
    ("reuse", 0, ["charge a"]), ("repeat", 1, ["charge a", "charge a"]), ("compensate", 0, ["charge a", "refund a", "charge a"]),
])  # fmt: skip
async def test_a_restart_says_what_becomes_of_what_was_left(aflow, conn, effects, left, done):
    await begin(aflow, order, "a")
    force(conn, "k")
    conn.execute("select pgflow.restart_run('k', effects => %s)", (effects,))
    assert len(owed(conn)) == left
    await aflow.until_idle()
    assert calls == done
    force(conn, "k")
    assert len(owed(conn)) == left + 1


@pytest.mark.full
async def test_what_a_person_has_taken_back_is_done_no_more(aflow, conn):
    await begin(aflow, order, "a")
    force(conn, "k")
    await aflow.app.settle_effect(keys(conn)[0], "taken_back")
    cut = one(conn, "select max(seq) from pgflow.timeline where event = 'effect_confirmed'")
    with pytest.raises(psycopg.Error, match="was taken back"):
        conn.execute("select pgflow.rewind_run('k', %s)", (cut,))
    conn.execute("select pgflow.restart_run('k', effects => 'reuse')")
    await aflow.until_idle()
    assert calls == ["charge a", "charge a"]


@pytest.mark.full
async def test_what_a_person_has_taken_back_of_an_earlier_generation_is_not_taken_back_again(
    aflow, conn
):
    run = await begin(aflow, lap, 1)
    force(conn, "k")
    for key in keys(conn):
        await aflow.app.settle_effect(key, "taken_back")
    conn.execute("select pgflow.restart_run('k', effects => 'reuse')")
    await aflow.until_idle()
    await run.cancel()
    await aflow.until_idle()
    assert calls == ["charge lap 1", "charge lap 2", "charge lap 2", "refund lap 2"]
    assert owed(conn) == []


@pytest.mark.full
async def test_a_fork_owes_nothing_of_its_origin(aflow, conn):
    await begin(aflow, order, "a")
    force(conn, "k")
    cut = one(conn, "select max(seq) from pgflow.timeline where event = 'effect_confirmed'")
    conn.execute("select pgflow.fork_run('k', 'fork', at_seq => %s)", (cut,))
    await aflow.until_idle()
    force(conn, "fork")
    assert [key for key, *_ in owed(conn)] == ["k"]


@pytest.mark.full
async def test_a_parent_that_is_restarted_has_its_childs_effects_again(aflow, conn):
    await begin(aflow, journey, "slow_leg")
    force(conn, "k")
    await aflow.app.send("leg", go, "on")
    await aflow.until_idle()
    assert [key for key, *_ in owed(conn)] == ["leg"]
    conn.execute("select pgflow.restart_run('k', effects => 'reuse')")
    await aflow.until_idle()
    assert owed(conn) == []
    assert calls == ["charge leg", "went on all the same"]
    force(conn, "k")
    assert [key for key, *_ in owed(conn)] == ["k"]


async def test_only_a_verdict_that_fits_closes_it(aflow, conn):
    await begin(aflow, order, "a")
    force(conn, "k")
    (key,) = keys(conn)
    with pytest.raises(
        WrongState, match="was done and is not compensated any more: it cannot be confirmed"
    ):
        await aflow.app.settle_effect(key, "confirmed")
    await aflow.app.settle_effect(key, "taken_back", why="by hand", by="ada")
    assert owed(conn) == []
    said = one(
        conn,
        "select payload->>'verdict', payload->>'by', payload->>'why' from pgflow.timeline where "
        "name = 'discharged'",
    )
    assert said == ("taken_back", "ada (postgres)", "by hand")
    with pytest.raises(RunNotFound):
        await aflow.app.settle_effect(key, "stands")


async def test_an_effect_that_is_open_is_neither_taken_back_nor_let_stand(aflow, conn):
    trouble.add("a")
    await begin(aflow, order, "a")
    for verdict in ("taken_back", "stands"):
        with pytest.raises(WrongState, match="is unknown: only one that is uncompensated can be"):
            await aflow.app.settle_effect(keys(conn)[0], verdict)  # type: ignore[arg-type]


async def test_a_person_is_told_of_it(aflow, conn):
    await begin(aflow, order, "a")
    force(conn, "k")
    found = rows(conn, "select kind, name, effect from pgflow.claim_pages()")
    assert found == [("effect", "charge", keys(conn)[0])]


@pytest.mark.full
async def test_the_command_line_shows_and_closes_it(aflow, conn, pgflow_dsn):
    await begin(aflow, order, "a")
    answer = cli(pgflow_dsn, "cancel", "k", "--force", tty=True)
    assert "1 effect of it stays owed: `pgflow owed` lists them." in answer.err + answer.out
    (debt,) = cli(pgflow_dsn, "owed", "--state", "uncompensated").data
    assert (debt["key"], debt["state"], debt["reason"]) == ("k", "uncompensated", "forced")
    assert (
        cli(pgflow_dsn, "settle", debt["effect"], "--taken-back", "--why", "by hand").data[
            "verdict"
        ]
        == "taken_back"
    )
    assert owed(conn) == []


FORCE = "select pgflow.cancel_run('k', force => true)"


def test_force_is_an_operators_right(flow, conn):
    flow.include(*WORKFLOWS)
    flow.start(order.options(key="k"), "a")
    for role, may in (
        ("pgflow_client", False),
        ("pgflow_worker", False),
        ("pgflow_operator", True),
    ):
        with conn.transaction(force_rollback=True):
            conn.execute(f"set local role {role}")  # type: ignore[arg-type]
            conn.execute("select pgflow.cancel_run('k')")
            if may:
                conn.execute(FORCE)
                continue
            with pytest.raises(
                psycopg.Error, match=f"role {role} may cancel run 'k', and not by force"
            ) as refused:
                conn.execute(FORCE)
            assert refused.value.sqlstate == NotAllowed.sqlstate
