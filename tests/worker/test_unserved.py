"""Runs that nobody takes say so: in the view of runs, to the doctor, and where a queue asks for it
at the start.
"""

from __future__ import annotations

import re

import psycopg
import pytest
from clikit import pgflow as cli
from records import SOON, launch, result_of, wait_until

import pgflow
from pgflow import App, InvalidArgument, workflow

WHY = "select key, reason from pgflow.runs where status = 'queued' order by key"


@workflow(version="1")
async def greets() -> str:
    return "hello"


@workflow
async def has_a_child() -> str:
    return await pgflow.run_child(greets.options(queue="strict"))


def test_a_queued_run_says_why_nobody_takes_it(dsn, conn):
    for key, options in [
        ("typo", "'greet'"),
        ("other queue", "'greets', queue => 'other'"),
        ("version", "'greets', version => '2'"),
    ]:
        conn.execute(f"select pgflow.start_run({options}, key => '{key}')")
    conn.execute("select pgflow.start_run('greets', queue => 'resting', key => 'paused')")
    conn.execute("select pgflow.pause_queue('resting')")
    assert dict(conn.execute(WHY).fetchall())["typo"] == "no worker serves queue default"
    with (
        App(dsn, include=[greets]) as app,
        app.worker(queues=["default", "resting"], grace_seconds=1.0),
    ):
        app.start(greets).result(SOON)
        assert dict(conn.execute(WHY).fetchall()) == {
            "typo": "no worker of queue default has workflow greet",
            "other queue": "no worker serves queue other",
            "version": "no worker of queue default has version 2 of workflow greets",
            "paused": "queue resting is paused",
        }
        assert conn.execute(
            "select workflow, queued from pgflow.lanes where why is null"
        ).fetchall() == [("greets", 0)]
        conn.execute("update pgflow.ready set ready_at = ready_at - interval '1 h'")
        found = [
            row["found"] for row in cli(dsn, "doctor", "--json").data if row["check"] == "queues"
        ]
        assert [text.partition(":")[0] for text in found] == [
            "queue other has 1 run queued for up to 60m, and no worker",
            "queue resting is paused with 1 run queued",
            "no worker of queue default has workflow greet",
            "no worker of queue default has version 2 of workflow greets",
        ]
    assert "every queue with work is served" not in found


def test_a_queue_may_refuse_what_no_worker_has_ever_had(flow, conn):
    result_of(flow, greets)
    answer = cli(flow.app.dsn, "queues", "require-known", "default", tty=True, width=200)
    assert (answer.code, "known workflows only" in answer.out) == (0, True)
    assert conn.execute(
        "select refuses_unknown from pgflow.queues where queue = 'default'"
    ).fetchone() == (True,)
    for call in ("start_run('greet')", "start_runs('greet', '[[null, \"{}\"]]')"):
        with pytest.raises(
            psycopg.Error,
            match="no worker has ever had a workflow 'greet', and queue 'default' takes known ones "
            "only",
        ) as error:
            conn.execute(f"select pgflow.{call}")
        assert error.value.sqlstate == "PF003"
    with pytest.raises(
        psycopg.Error, match="no worker has ever had version '2' of workflow 'greets'"
    ):
        conn.execute("select pgflow.start_run('greets', version => '2')")

    @workflow
    async def comes_later() -> str:
        return "late"

    with pytest.raises(
        InvalidArgument, match="Correct the name, or start a worker that has the workflow first"
    ):
        flow.app.start(comes_later)
    assert flow.start(greets).result(SOON) == "hello"
    assert conn.execute(
        "select count(*) from pgflow.lane where workflow like '%%later' or workflow = 'greet'"
    ).fetchone() == (0,)
    cli(flow.app.dsn, "queues", "require-known", "default", "--off")
    flow.app.start(comes_later)
    flow.include(comes_later)


@pytest.mark.full
def test_a_child_is_not_refused(flow, conn):
    conn.execute("select pgflow.require_known('strict')")
    run = launch(flow, has_a_child)
    reason = "select reason from pgflow.runs where status = 'queued'"
    wait_until(
        lambda: conn.execute(reason).fetchall() == [("no worker serves queue strict",)],
        "the child waits for a worker",
    )
    run.cancel()


@workflow
async def unknown_child() -> None: ...


@workflow
async def waits_for_child() -> None:
    await pgflow.run_child(unknown_child)


@pytest.mark.parametrize("is_child", [False, True])
def test_who_waits_in_vain_for_a_result_is_told_why(dsn, *, is_child):
    with App(dsn, include=[waits_for_child]) as app, app.worker():
        run = app.start(waits_for_child if is_child else unknown_child)
        if is_child:
            wait_until(lambda: run.status() == "waiting", "the child is started")
        with pytest.raises(TimeoutError) as told:
            run.result(1)
    begins = "its child .* is queued" if is_child else "it is queued"
    assert re.search(
        f"after 0:00:01: {begins}, and no worker of queue default has workflow unknown_child$",
        str(told.value),
    )
