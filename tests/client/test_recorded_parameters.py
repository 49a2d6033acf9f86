"""A start by name is refused if it lacks a parameter that the workflow needs, or has one that it
does not take, as far as workers have recorded its parameters.
"""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from clikit import pgflow
from sqlkit import one

from pgflow import App, Slot, schedule, workflow


def refused(conn: psycopg.Connection, sql: str, *params: str) -> str:
    with pytest.raises(psycopg.Error) as caught:
        one(conn, sql, *params)
    assert caught.value.sqlstate == "PF003"
    return str(caught.value)


@workflow
async def fulfil(wanted: str, count: int = 1) -> str:
    return f"{count} {wanted}"


@workflow(name="fulfil")
async def fulfil_later(wanted: str, count: int = 1, *, gift: bool) -> str:
    return f"{count} {wanted} {gift}"


@workflow
async def keep(wanted: str) -> str:
    return wanted


START = "select run_key from pgflow.start_run('fulfil', %s)"


def test_a_start_in_sql_is_held_against_the_recorded_parameters(flow, conn):
    assert one(conn, START, "{}")  # nothing is known yet
    flow.include(fulfil)
    flow.until_idle()
    lacking = refused(conn, START, "{}")
    assert "workflow fulfil does not take this input: parameter wanted is missing" in lacking
    many = "select pgflow.start_runs('fulfil', %s)"
    wrong = refused(conn, START, '{"wanted": "boots", "cuont": 2}')
    assert "parameter cuont is unknown. Nothing was started" in wrong
    refused(conn, many, '[[null, "{\\"wanted\\": \\"x\\"}"], [null, "{}"]]')
    key = one(conn, START, '{"wanted": "boots"}')
    flow.until_idle()
    assert one(conn, "select output from pgflow.result(%s)", key) == "1 boots"


def test_a_batch_of_no_runs_starts_nothing(flow, conn):
    flow.include(keep)
    flow.until_idle()
    assert conn.execute("select pgflow.start_runs('keep', '[]')").fetchall() == []


def test_newer_code_starts_what_older_workers_do_not_take(flow, dsn, conn):
    flow.include(fulfil)
    flow.until_idle()
    given = '{"wanted": "boots", "gift": true}'
    refused(conn, START, given)
    with App(dsn, include=[fulfil_later]) as newer:
        assert newer.start(fulfil_later, "boots", gift=True).key  # as in a rolling deploy
        with newer.worker(queues=["other"]):
            assert one(conn, START, given)  # one of the two takes it


def test_the_command_line_says_what_is_missing_in_one_line(flow, dsn):
    flow.include(fulfil)
    flow.until_idle()
    answer = pgflow(dsn, "start", "fulfil")
    assert answer.code == 2
    assert "parameter wanted is missing" in answer.err
    assert "It takes wanted, [count]." in answer.err
    assert pgflow(dsn, "start", "fulfil", "wanted=boots").code == 0


@pytest.mark.full
def test_a_slot_starts_its_run_whatever_is_recorded(flow, dsn):
    @schedule(every=timedelta(seconds=60))
    @workflow(name="sweep")
    async def sweep(slot: Slot) -> None:
        pass

    flow.include(sweep)
    flow.until_idle()
    flow.skip(61)
    flow.until_idle()
    answer = pgflow(dsn, "list", "--workflow", "sweep", "--json")
    assert {run["status"] for run in answer.data} == {"completed"}
