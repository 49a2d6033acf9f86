"""Answerers that race for one gate: one wins, and each loser is told so."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from gaterace import race
from records import SOON, count, settle
from servers import HANG_SECONDS, wait_until_blocked
from test_gates import BOOTS, gate_of, ship, ship_by

import pgflow

ANSWERERS = 16


@pytest.mark.full
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_sixteen_answerers_of_one_gate_have_one_winner(level, flow, conn, pgflow_dsn):
    run = settle(flow, ship, BOOTS)
    gate = gate_of(conn, run.key)
    together = threading.Barrier(ANSWERERS)

    def answer(n: int) -> str:
        with psycopg.connect(pgflow_dsn) as own:
            own.execute(f"set transaction isolation level {level}")
            own.execute("select 1")
            together.wait(HANG_SECONDS)
            try:
                own.execute(
                    "select pgflow.answer_gate(%s, 'reject', reason => %s, by => %s)",
                    (gate, str(n), f"p{n}"),
                )
                own.commit()
            except psycopg.Error as error:
                return error.sqlstate or ""
            return "won"

    with ThreadPoolExecutor(ANSWERERS) as pool:
        outcomes = list(pool.map(answer, range(ANSWERERS)))
    assert outcomes.count("won") == 1
    assert set(outcomes) <= {"won", "PF022", *(() if level == "read committed" else ("40001",))}
    assert count(conn, "pgflow.gate_answer") == 1
    found = run.result(SOON)
    assert found == f"Rejected(reason='{outcomes.index('won')}', by=('p{outcomes.index('won')}',))"


def test_a_quorum_is_met_once_however_many_approve_at_the_same_time(flow, conn, pgflow_dsn):
    flow.include(ship_by)
    names = [f"p{n}" for n in range(8)]
    run = settle(flow, ship_by, BOOTS, names, 3)
    gate = gate_of(conn, run.key)
    together = threading.Barrier(len(names))

    def approve(name: str) -> Any:
        with psycopg.connect(pgflow_dsn, autocommit=True) as own:
            together.wait(HANG_SECONDS)
            try:
                own.execute("select pgflow.answer_gate(%s, 'approve', by => %s)", (gate, name))
            except psycopg.Error as error:
                return error.sqlstate
            return "counts"

    with ThreadPoolExecutor(len(names)) as pool:
        outcomes = list(pool.map(approve, names))
    assert outcomes.count("counts") == 3
    assert outcomes.count("PF022") == 5
    result = run.result(SOON)
    assert all(
        name in result for name, said in zip(names, outcomes, strict=True) if said == "counts"
    )


@pytest.mark.full
def test_who_comes_second_waits_for_the_first_and_wins_if_that_rolls_back(flow, conn, pgflow_dsn):
    run = settle(flow, ship, BOOTS)
    gate = gate_of(conn, run.key)
    with psycopg.connect(pgflow_dsn) as first, ThreadPoolExecutor(1) as pool:
        first.execute("select pgflow.answer_gate(%s, 'approve', by => 'ann')", (gate,))

        def second() -> None:
            with psycopg.connect(pgflow_dsn, autocommit=True) as own:
                own.execute("select pgflow.answer_gate(%s, 'reject', by => 'bob')", (gate,))

        waiting = pool.submit(second)
        first.rollback()
        waiting.result(HANG_SECONDS)
    assert run.result(SOON) == "Rejected(reason='', by=('bob',))"


@pytest.mark.full
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_expiry_sees_an_answer_that_was_committed_as_it_took_the_lock(
    level, flow, conn, pgflow_dsn
):
    run = settle(flow, ship_by, BOOTS, ["ann"], 1, None, "expire", 3600)
    gate = gate_of(conn, run.key)
    flow.crash()
    conn.execute("alter function pgflow.latch_(text) rename to soundly_")
    conn.execute(
        """create function pgflow.latch_(name text) returns bigint
        language plpgsql as $$ begin
          if current_setting('test.slow', true) = 'yes' then
            perform pg_advisory_lock(4711), pg_advisory_unlock(4711);
          end if;
          return pgflow.soundly_(name);
        end $$"""
    )
    conn.execute("select pg_advisory_lock(4711)")
    ((run_id, call),) = conn.execute("select run_id, call from pgflow.gate").fetchall()
    question = f'[{{"run": {run_id}, "gates": [[{call}, "approve-order"]]}}]'

    def expire() -> Any:
        with psycopg.connect(pgflow_dsn) as own:
            own.execute(f"set transaction isolation level {level}")
            own.execute("set local test.slow = 'yes'")
            try:
                return own.execute(
                    "select pgflow.expire_gates_(%s::jsonb, array[1], pgflow.now_())", (question,)
                ).fetchall()
            except psycopg.errors.SerializationFailure:
                return [([],)]

    with psycopg.connect(pgflow_dsn) as first, ThreadPoolExecutor(1) as pool:
        first.execute("select pgflow.answer_gate(%s, 'approve', by => 'ann')", (gate,))
        pgflow.testing.set_clock(pgflow_dsn, timedelta(hours=2))
        late = pool.submit(expire)
        wait_until_blocked(pgflow_dsn)
        first.commit()
        conn.execute("select pg_advisory_unlock(4711)")
        assert late.result(HANG_SECONDS) == [([],)]
    conn.execute("drop function pgflow.latch_(text)")
    conn.execute("alter function pgflow.soundly_(text) rename to latch_")
    assert conn.execute("select verdict from pgflow.gate_answer").fetchall() == [("approve",)]
    flow.until_idle()
    found = run.result(SOON)
    assert found == "Approved(value=Order(sku='boots', qty=2), by=('ann',), edited=False)"


def test_an_answer_that_is_committed_while_another_is_judged_comes_first(flow, conn, pgflow_dsn):
    run = settle(flow, ship, BOOTS)
    gate = gate_of(conn, run.key)
    of_gate = "pgflow.approvers_of_(pgflow.gate, timestamptz)"
    conn.execute(f"alter function {of_gate} rename to soundly_")  # type: ignore[arg-type]
    conn.execute(
        """create function pgflow.approvers_of_(asked pgflow.gate, t timestamptz) returns text[]
        language plpgsql as $$ begin
          if current_setting('test.slow', true) = 'yes' then
            perform pg_advisory_lock(4711), pg_advisory_unlock(4711);
          end if;
          return pgflow.soundly_(asked, t);
        end $$"""
    )
    conn.execute("select pg_advisory_lock(4711)")

    def reject() -> str:
        with psycopg.connect(pgflow_dsn) as own:
            own.execute("set local test.slow = 'yes'")
            try:
                own.execute("select pgflow.answer_gate(%s, 'reject', by => 'bob')", (gate,))
            except psycopg.Error as error:
                return error.sqlstate or ""
            return "counts"

    with psycopg.connect(pgflow_dsn, autocommit=True) as first, ThreadPoolExecutor(1) as pool:
        second = pool.submit(reject)
        wait_until_blocked(pgflow_dsn)
        first.execute("select pgflow.answer_gate(%s, 'approve', by => 'ann')", (gate,))
        conn.execute("select pg_advisory_unlock(4711)")
        assert second.result(HANG_SECONDS) == "PF022"
    conn.execute(f"drop function {of_gate}")  # type: ignore[arg-type]
    conn.execute("alter function pgflow.soundly_(pgflow.gate, timestamptz) rename to approvers_of_")
    found = run.result(SOON)
    assert found == "Approved(value=Order(sku='boots', qty=2), by=('ann',), edited=False)"


@pytest.mark.full
def test_expiry_waits_for_nobody_who_is_answering(flow, conn, pgflow_dsn):
    run = settle(flow, ship_by, BOOTS, ["ann"], 1, None, "expire", 3600)
    gate = gate_of(conn, run.key)
    flow.crash()
    ((run_id, call),) = conn.execute("select run_id, call from pgflow.gate").fetchall()
    question = f'[{{"run": {run_id}, "gates": [[{call}, "approve-order"]]}}]'
    with psycopg.connect(pgflow_dsn) as first:
        first.execute("select pgflow.answer_gate(%s, 'approve', by => 'ann')", (gate,))
        pgflow.testing.set_clock(pgflow_dsn, timedelta(hours=2))
        with psycopg.connect(pgflow_dsn) as own:
            own.execute(f"set local statement_timeout = '{HANG_SECONDS}s'")
            said = own.execute(
                "select pgflow.expire_gates_(%s::jsonb, array[1], pgflow.now_())", (question,)
            ).fetchall()
            assert said == [([],)]
        first.rollback()
    flow.until_idle()
    assert run.result(SOON) == "Expired()"


@pytest.mark.full
def test_a_small_race_for_many_gates(pgflow_dsn):
    found = race(pgflow_dsn, gates=6, answerers=6)
    assert (found.wrong, found.winners) == ([], {1: 6})
