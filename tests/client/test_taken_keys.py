"""Starts whose key is taken: the same run, a conflict that says why, that run all the same, or
another in its place.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from records import SOON, count, launch, result_of, settle
from servers import HANG_SECONDS
from sqlkit import (
    Actor,
    begin,
    claim,
    claim_one,
    connect,
    finish,
    one,
    rows,
    start,
    start_many,
    status,
)

import pgflow
from pgflow import InvalidArgument, KeyConflict, RunCancelled, Signal, step, workflow

Conn = psycopg.Connection[Any]

go = Signal("go", int)


@workflow
async def adds(a: int, b: int = 5, c: str = "c") -> int:
    return a + b + await go.wait()


def poll(conn: Conn) -> None:
    conn.execute("select pgflow.poll()")


def test_a_parameter_that_is_left_out_is_the_same_as_its_default(flow, conn):
    flow.include(adds)
    runs = [flow.start(adds.options(key="k"), *args) for args in [(1,), (1, 5), (1, 5, "c")]]
    runs += flow.app.start_many(adds, [(1, 5)], keys=["k"])
    assert count(conn, "pgflow.run") == 1
    with pytest.raises(
        KeyConflict,
        match=r"key 'k' already names a run of adds, which is \w+ and has another input \(b\)\.",
    ):
        flow.start(adds.options(key="k"), 1, 6)
    with pytest.raises(KeyConflict, match=r"has another input \(a, c\)"):
        flow.app.start_many(adds, [(2, 5, "d")], keys=["k"])
    runs[-1].send(go, 1)
    assert {run.result(SOON) for run in runs} == {7}


async def test_a_parameter_that_a_deploy_has_added_is_no_other_input(aflow, conn):
    @workflow(name="grows")
    async def before(a: int) -> int:
        return a

    @workflow(name="grows")
    async def after(a: int, b: list[int] = [], c: Any = object()) -> int:  # noqa: B006, B008 - never changed; and one that cannot be stored
        return a

    await aflow.app.start(before.options(key="k"), 1)
    await aflow.app.start(after.options(key="k"), 1)
    await aflow.app.start(after.options(key="k"), 1, [])
    with pytest.raises(KeyConflict, match=r"another input \(b\)"):
        await aflow.app.start(after.options(key="k"), 1, [2])
    assert count(conn, "pgflow.run") == 1
    aflow.include(after)


def test_the_defaults_can_be_said_in_sql(db):
    first = start(db, key="k", input='{"a": 1}')
    assert start(db, key="k", input='{"a": 1, "b": 5}', defaults='{"b": 5}').run_id == first.run_id
    with pytest.raises(psycopg.Error, match="has another input") as error, db.transaction():
        start(db, key="k", input='{"a": 1, "b": 5}')
    assert error.value.sqlstate == "PF002"
    with (
        pytest.raises(psycopg.Error, match="defaults must be an object") as error,
        db.transaction(),
    ):
        start(db, key="k", defaults="7")
    assert error.value.sqlstate == "PF003"


def test_a_conflict_says_which_run_has_the_key_what_it_does_and_what_is_different(db):
    start(db, key="k", input='{"a": 1, "b": "secret"}')
    for status_of, options, different in [
        ("queued", {"workflow": "other", "input": '{"a": 1, "b": "secret"}'}, "another workflow"),
        ("running", {"input": '{"a": 2}'}, r"another input \(a, b\)"),
        ("completed", {"workflow": "other"}, r"another workflow and another input \(a, b\)"),
    ]:
        with pytest.raises(
            psycopg.Error,
            match=f"key 'k' already names a run of demo, which is {status_of} and has {different}\n",
        ) as error:  # noqa: SIM117
            with db.transaction():
                start(db, **{"workflow": "demo", "key": "k", **options})
        assert "secret" not in str(error.value)
        if status_of == "queued":
            held = claim_one(db)
        elif status_of == "running":
            finish(db, held)


def test_starts_of_known_keys_use_up_no_numbers_of_runs(conn):
    start_many(conn, [(f"k{n}", "{}") for n in range(10)])
    before = one(conn, "select last_value from pgflow.run_id_seq")
    for _ in range(3):
        again = start_many(conn, [(f"k{n}", "{}") for n in range(10)])
        assert not any(s.is_new for s in again)
        assert not start(conn, key="k3").is_new
    assert one(conn, "select last_value from pgflow.run_id_seq") == before
    mixed = start_many(conn, [("new 1", "{}"), ("k1", "{}"), ("new 2", "{}")])
    assert [s.is_new for s in mixed] == [True, False, True]
    assert one(conn, "select last_value from pgflow.run_id_seq") == before + 2
    assert [s.run_id for s in mixed][::2] == [before + 1, before + 2]


def test_reject_takes_no_run_of_somebody_else_and_its_own_when_it_is_sent_again(db):
    mine = "00000000-0000-4000-8000-000000000001"
    first = start(db, key="k", if_taken="reject", start_id=mine)
    assert first.is_new
    assert start(db, key="k", if_taken="reject", start_id=mine)[1:3] == (first.run_id, False)
    for start_id in ("00000000-0000-4000-8000-000000000002", None):
        with (
            pytest.raises(psycopg.Error, match="which is queued and has the same input") as error,
            db.transaction(),
        ):
            start(db, key="k", if_taken="reject", start_id=start_id)
        assert error.value.sqlstate == "PF002"
    opened = start_many(db, [("a", "{}"), ("b", "{}")], if_taken="reject", start_id=mine)
    found = start_many(db, [("a", "{}"), ("b", "{}")], if_taken="reject", start_id=mine)[0].run_id
    assert found == opened[0].run_id
    with (
        pytest.raises(psycopg.Error, match="key 'b' already names a run") as error,
        db.transaction(),
    ):
        start_many(db, [("c", "{}"), ("b", "{}")], if_taken="reject")


@pytest.mark.full
def test_attach_is_that_run_whatever_its_input_is(flow, conn):
    first = launch(flow, adds.options(key="k"), 1)
    attached = flow.start(adds.options(key="k", if_taken="attach"), 100, 200)
    many = flow.app.start_many(adds.options(if_taken="attach"), [(9,), (2,)], keys=["k", "new"])
    first.send(go, 1)
    many[1].send(go, 3)
    assert [run.result(SOON) for run in (first, attached, *many)] == [7, 7, 7, 10]
    with pytest.raises(KeyConflict, match="which is completed and has the same input"):
        flow.start(adds.options(key="k", if_taken="reject"), 1)
    assert count(conn, "pgflow.run") == 2


@pytest.mark.full
async def test_what_cannot_be_said_of_a_taken_key_is_refused(aflow, conn):
    app = aflow.app
    with pytest.raises(
        InvalidArgument,
        match="if_taken= is 'match', 'reject', 'attach' or 'replace', not 'perhaps'",
    ):
        adds.options(if_taken="perhaps")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="if_taken='reject' requires options"):
        await app.start(adds.options(if_taken="reject"), 1)
    with pytest.raises(InvalidArgument, match="a batch cannot replace runs"):
        await app.start_many(adds.options(if_taken="replace"), [(1,)], keys=["a"])
    with pytest.raises(InvalidArgument, match="cannot have a run_at"):
        now = one(conn, "select clock_timestamp()")
        await app.start(adds.options(key="k", if_taken="replace", run_at=now), 1)
    assert count(conn, "pgflow.run") == 0

    @workflow
    async def parent() -> str:
        try:
            await pgflow.run_child(adds.options(key="x", if_taken="attach"), 1)
        except InvalidArgument as error:
            return str(error)
        return "started"

    assert "a child is this run's own" in await result_of(aflow, parent)


cleaned: list[int] = []


@step
async def clean_up(n: int) -> None:
    cleaned.append(n)


@workflow
async def holds(n: int) -> int:
    try:
        return n + await go.wait()
    except asyncio.CancelledError:
        await clean_up(n)
        raise


@pytest.mark.full
async def test_replace_cancels_the_run_lets_it_clean_up_and_then_begins(aflow, conn):
    old = await settle(aflow, holds.options(key="k"), 1)
    new = await aflow.app.start(holds.options(key="k", if_taken="replace"), 2)
    await new.send(go, 40)
    assert await new.result(SOON) == 42
    with pytest.raises(RunCancelled, match="replaced"):
        await old.result(SOON)
    assert cleaned[-1] == 1
    ended, earlier = rows(
        conn,
        "select (select finished_at from pgflow.runs where chain_id = %s), (select "
        "min(recorded_at) from pgflow.timeline where run_id = %s)",
        old._chain_id,
        new._chain_id,
    )[0]
    assert ended <= earlier
    found = rows(conn, "select status from pgflow.runs where key = 'k' order by run_id")
    assert found == ["cancelled", "completed"]
    assert await aflow.app.get("k", holds).result(SOON) == 42
    assert count(conn, "pgflow.replacement") == 0


def test_a_run_that_replaces_waits_as_long_as_the_other_is_open_and_says_so(conn):
    old = begin(conn, key="k")
    new = start(conn, key="k", input='{"n": 2}', if_taken="replace")
    assert new.is_new and new.run_id != old.run_id  # noqa: PT018
    poll(conn)
    assert claim(conn, 10) == []
    found = rows(conn, "select status, reason from pgflow.runs where run_id = %s", new.run_id)
    assert found == [("waiting", "until the run that it replaces has ended")]
    found = rows(conn, "select kind, name from pgflow.signal where chain_id = %s", old.run_id)
    assert found == [("x", "cancel")]
    finish(conn, old, status="cancelled")
    poll(conn)
    assert [c.run_id for c in claim(conn, 10)] == [new.run_id]
    assert one(conn, "select pgflow.find_chain('k')") == new.run_id


def test_what_is_replaced_again_before_it_began_ends_and_the_last_waits_for_all(conn):
    first = begin(conn, key="k")
    second = start(conn, key="k", if_taken="replace")
    third = start(conn, key="k", if_taken="replace")
    conn.execute("select pgflow.wake()")
    poll(conn)
    assert (status(conn, second.run_id), status(conn, third.run_id)) == ("cancelled", "waiting")
    finish(conn, first, status="cancelled")
    poll(conn)
    assert [c.run_id for c in claim(conn, 10)] == [third.run_id]


def test_replace_of_a_run_that_has_ended_begins_at_once_and_the_old_one_keeps_its_outcome(conn):
    old = begin(conn, key="k")
    finish(conn, old, output="7")
    mine = "00000000-0000-4000-8000-000000000001"
    new = start(conn, key="k", if_taken="replace", start_id=mine)
    assert [c.run_id for c in claim(conn, 10)] == [new.run_id]
    assert start(conn, key="k", if_taken="replace", start_id=mine)[1:3] == (new.run_id, False)
    assert status(conn, old.run_id) == "completed"
    assert count(conn, "pgflow.run") == 2


def test_a_start_under_a_free_key_is_a_start_whatever_is_said(conn):
    for if_taken in ("match", "reject", "attach", "replace"):
        assert start(conn, key=if_taken, if_taken=if_taken).is_new
    assert count(conn, "pgflow.ready") == 4


@pytest.mark.parametrize("order", ["the other ends first", "it is resumed first"])
def test_a_run_that_replaces_and_is_paused_meanwhile_begins_after_both(conn, order):
    old = begin(conn, key="k")
    new = start(conn, key="k", if_taken="replace")
    conn.execute("select pgflow.pause_run('k')")
    conn.execute("select pgflow.wake()")
    assert status(conn, new.run_id) == "paused"
    steps = [
        lambda: finish(conn, old, status="cancelled"),
        lambda: conn.execute("select pgflow.resume_run('k')"),
    ]
    for act in steps if order == "the other ends first" else reversed(steps):
        assert claim(conn, 10) == []
        act()
        conn.execute("select pgflow.wake()")
        poll(conn)
    assert [c.run_id for c in claim(conn, 10)] == [new.run_id]


def test_a_run_that_replaces_can_be_cancelled_but_not_restarted_before_it_begins(conn):
    old = begin(conn, key="k")
    new = start(conn, key="k", if_taken="replace")
    with pytest.raises(
        psycopg.Error, match="waits until the one that it replaces has ended"
    ) as error:
        conn.execute("select pgflow.restart_run('k')")
    assert error.value.sqlstate == "PF006"
    conn.execute("select pgflow.cancel_run('k')")
    conn.execute("select pgflow.wake()")
    assert status(conn, new.run_id) == "cancelled"
    finish(conn, old, status="cancelled")
    poll(conn)
    assert (claim(conn, 10), count(conn, "pgflow.replacement")) == ([], 0)


def test_two_that_replace_at_once_come_one_after_the_other(dsn, conn):
    old = begin(conn, key="k")
    with connect(dsn) as mine, Actor(dsn) as other:
        with mine.transaction():
            first = start(mine, key="k", input='{"n": 1}', if_taken="replace")
            waiting = other.do(start, key="k", input='{"n": 2}', if_taken="replace")
            other.until_waiting(conn)
        last = waiting.result(HANG_SECONDS)
    conn.execute("select pgflow.wake()")
    finish(conn, old, status="cancelled")
    poll(conn)
    assert [c.run_id for c in claim(conn, 10)] == [last.run_id]
    assert status(conn, first.run_id) == "cancelled"


@pytest.mark.full
def test_the_command_line_starts_under_a_taken_key_as_it_is_told(dsn, conn):
    start(conn, key="k", input='{"n": 1}')
    assert cli(dsn, "start", "demo", "n:=1", "--key", "k", "--if-taken", "reject").code == 2
    attached = cli(dsn, "start", "demo", "n:=2", "--key", "k", "--if-taken", "attach", "--json")
    assert json.loads(attached.out)["new"] is False
    replaced = cli(dsn, "start", "demo", "n:=2", "--key", "k", "--if-taken", "replace", "--json")
    assert (json.loads(replaced.out)["new"], json.loads(replaced.out)["replaced"]) == (True, True)
    assert rows(conn, "select status from pgflow.runs order by run_id") == ["cancelled", "waiting"]
    missing = cli(dsn, "start", "demo", "--if-taken", "reject")
    assert (missing.code, "--if-taken reject requires --key" in missing.err) == (2, True)


def test_a_replacement_in_a_transaction_that_is_rolled_back_leaves_the_run_its_key(flow, dsn, conn):
    old = launch(flow, holds.options(key="k"), 1)
    with psycopg.connect(dsn) as mine:
        flow.app.using(mine).start(holds.options(key="k", if_taken="replace"), 2)
        mine.rollback()
    old.send(go, 1)
    assert old.result(SOON) == 2
    with psycopg.connect(dsn) as mine:
        flow.app.using(mine).start(holds.options(key="k", if_taken="replace"), 2)
        mine.commit()
    flow.app.send("k", go, 40)
    assert flow.app.get("k", holds).result(SOON) == 42
