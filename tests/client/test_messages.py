"""A message that the code cannot take ends no run: it stays where it was, the run says why it is
stuck, and people mend it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from records import SOON, settle
from sqlkit import begin, finish, one, rows, send, wake

import pgflow
from pgflow import RunNotFound, Signal, step, workflow
from pgflow.errors import WrongState
from pgflow.testing import AsyncHarness

Conn = psycopg.Connection[Any]


paid = Signal("paid", int)
word = Signal("word", str)
done: list[str] = []


@pytest.fixture(autouse=True)
def world() -> None:
    done.clear()


@step
async def pack(cents: int) -> str:
    done.append(f"pack {cents}")
    return f"packed for {cents}"


@workflow
async def order() -> str:
    return await pack(await paid.wait())


@workflow
def order_too() -> int:
    return paid.sync.wait()


@workflow
async def twice() -> list[int]:
    return [await paid.wait(), await paid.wait()]


@workflow
async def patient() -> str:
    try:
        return str(await paid.wait(timeout=timedelta(hours=1)))
    except TimeoutError:
        return "in vain"


@workflow
async def both() -> list[str]:
    first = asyncio.create_task(word.wait())
    return [str(await paid.wait()), await first]


@workflow
async def cleans_up() -> str:
    try:
        return str(await paid.wait())
    finally:
        await pack(0)


WORKFLOWS = (order, order_too, twice, patient, both, cleans_up)


def said(conn: Conn, key: str, payload: str, name: str = "paid") -> None:
    chain = one(conn, "select chain_id from pgflow.post_signal(%s, %s, %s)", key, name, payload)
    conn.execute("select pgflow.wake(array[%s::bigint])", (chain,))


def why(conn: Conn, key: str = "k") -> tuple[str, str | None]:
    return one(conn, "select status, reason from pgflow.runs where key = %s", key)


def message(conn: Conn, key: str = "k") -> int:
    return one(
        conn, "select message from pgflow.messages where key = %s and refused is not null", key
    )


async def stuck(
    aflow: AsyncHarness, conn: Conn, flow: pgflow.Workflow[[], Any], *, is_early: bool
) -> pgflow.AsyncRun[Any]:
    """A run that got a message of the wrong type: before it began, so that the database takes it,
    or while it was parked for it.
    """
    aflow.include(*WORKFLOWS)
    run = await aflow.start(flow.options(key="k"))
    if is_early:
        said(conn, "k", '"a"', "other")
        said(conn, "k", '"five"')
        await aflow.until_idle()
    else:
        await aflow.until_idle()
        said(conn, "k", '"five"')
        await aflow.until_idle()
    return run


@pytest.mark.parametrize("is_early", [True, False], ids=["recorded", "offered"])
async def test_the_run_is_stuck_and_says_why_and_nothing_is_consumed(aflow, conn, is_early):
    await stuck(aflow, conn, order, is_early=is_early)
    assert why(conn) == ("stuck", "signal")
    signal, error, number = one(
        conn,
        "select error->>'signal', error->>'error', (error->>'message_id')::bigint from pgflow.runs "
        "where key = 'k'",
    )
    assert (signal, number) == ("paid", message(conn))
    assert "the payload of signal 'paid' does not fit its annotation int" in error
    found = one(conn, "select payload::text, refused from pgflow.messages where signal = 'paid'")
    assert found == ('"five"', error)


@pytest.mark.full
@pytest.mark.parametrize("is_early", [True, False], ids=["recorded", "offered"])
@pytest.mark.parametrize("verb", ["drop", "replace", "requeue"])
async def test_once_it_is_mended_the_run_goes_on(aflow, conn, verb, is_early):
    run = await stuck(aflow, conn, order, is_early=is_early)
    await aflow.app.send("k", paid, 7)
    assert why(conn) == ("stuck", "signal")
    if verb == "drop":
        await aflow.app.drop_message("k", message(conn), why="a typo", by="ada")
    elif verb == "replace":
        await aflow.app.replace_message("k", message(conn), 5, why="a typo", by="ada")
    else:
        await aflow.app.requeue_message("k", message(conn), why="a typo", by="ada")
    await aflow.until_idle()
    assert await run.result(SOON) == f"packed for {5 if verb == 'replace' else 7}"
    assert len(done) == 1
    assert rows(
        conn,
        "select payload->>'why', payload->>'by' from pgflow.timeline where name = %s",
        f"{verb}_message",
    ) == [("a typo", "ada (postgres)")]
    put_aside = {
        "drop": [("dropped", '"five"')],
        "replace": [("replaced", '"five"'), ("ended", "7")],
        "requeue": [("ended", '"five"')],
    }
    query = "select reason, payload::text from pgflow.undelivered_messages where signal = 'paid' order by reason desc"
    assert rows(conn, query) == sorted(put_aside[verb], reverse=True)


@pytest.mark.full
async def test_a_replay_passes_over_what_went_back(aflow, conn):
    run = await stuck(aflow, conn, twice, is_early=True)
    await aflow.app.replace_message("k", message(conn), 1)
    await aflow.until_idle()
    await aflow.crash()
    await aflow.app.send("k", paid, 2)
    await aflow.until_idle()
    assert await run.result(SOON) == [1, 2]
    assert rows(conn, "select event, name from pgflow.timeline order by seq") == [
        ("signal_received", "paid"),
        ("operator", "signal_returned"),
        ("operator", "replace_message"),
        ("signal_received", "paid"),
        ("signal_received", "paid"),
    ]


@pytest.mark.full
def test_a_sync_run_is_stuck_and_mended_too(flow, conn):
    flow.include(*WORKFLOWS)
    run = flow.start(order_too.options(key="k"))
    said(conn, "k", '"five"')
    flow.until_idle()
    assert why(conn) == ("stuck", "signal")
    (waiting,) = flow.app.messages("k")
    assert (waiting.signal, waiting.payload, waiting.state, waiting.why is None) == (
        "paid",
        "five",
        "waiting",
        False,
    )
    flow.app.replace_message("k", waiting.message, 5)
    flow.until_idle()
    assert run.result(SOON) == 5
    flow.app.send("k", paid, 6)
    (late,) = [m for m in flow.app.messages() if m.state == "ended"]
    (found,) = [row for row in cli(flow.app.dsn, "doctor").data if row["check"] == "messages"]
    assert (found["found"], found["do"]) == (
        "1 signal for a run that had ended",
        "pgflow messages k; then --drop or --requeue it",
    )
    assert late.payload == 6
    flow.app.drop_message("k", late.message, why="too late")
    assert [m.state for m in flow.app.messages("k")] == ["replaced", "dropped"]


@pytest.mark.full
async def test_a_cancel_goes_before_a_message_that_the_code_cannot_take(aflow, conn):
    run = await stuck(aflow, conn, cleans_up, is_early=False)
    await run.cancel()
    await aflow.until_idle()
    assert (why(conn)[0], done) == ("cancelled", ["pack 0"])
    found = rows(conn, "select reason, why is not null from pgflow.undelivered_messages")
    assert found == [("ended", True)]


@pytest.mark.full
async def test_a_time_out_goes_before_it_once_somebody_lets_the_run_go_on(aflow, conn):
    run = await stuck(aflow, conn, patient, is_early=True)
    await aflow.skip(timedelta(hours=2))
    assert why(conn) == ("stuck", "signal")
    await aflow.app.retry("k")
    await aflow.until_idle()
    assert await run.result(SOON) == "in vain"


@pytest.mark.full
async def test_retried_as_it_is_the_run_is_stuck_again(aflow, conn):
    await stuck(aflow, conn, order, is_early=True)
    first = message(conn)
    await aflow.app.retry("k")
    await aflow.until_idle()
    assert why(conn) == ("stuck", "signal")
    assert one(conn, "select count(*) from pgflow.messages where signal = 'paid'") == 1
    assert message(conn) < first


@pytest.mark.full
async def test_code_with_another_type_takes_it(aflow, conn):
    await stuck(aflow, conn, order, is_early=True)
    freed = one(conn, "select pgflow.release_stuck(array['order'], array['newer'])")
    assert (freed, why(conn)[0]) == (1, "queued")


@pytest.mark.full
async def test_other_branches_get_on_before_the_run_is_held(aflow, conn):
    run = await stuck(aflow, conn, both, is_early=False)
    said(conn, "k", '"hello"', "word")
    await aflow.app.replace_message("k", message(conn), 5)
    await aflow.until_idle()
    assert await run.result(SOON) == ["5", "hello"]


@pytest.mark.full
@pytest.mark.parametrize("verb", ["rewind_run('k', 0)", "restart_run('k')"])
async def test_a_part_done_again_has_the_message_once(aflow, conn, verb):
    run = await stuck(aflow, conn, order, is_early=True)
    conn.execute(f"select pgflow.{verb}")
    await aflow.until_idle()
    assert why(conn) == ("stuck", "signal")
    assert one(conn, "select count(*) from pgflow.messages where signal = 'paid'") == 1
    await aflow.app.replace_message("k", message(conn), 5)
    await aflow.until_idle()
    assert await run.result(SOON) == "packed for 5"


@pytest.mark.full
async def test_no_run_begins_between_the_taking_and_the_giving_back(aflow, conn):
    await stuck(aflow, conn, order, is_early=True)
    with pytest.raises(psycopg.Error, match="signal paid, taken at unit 1, went back at unit 2"):
        conn.execute("select pgflow.rewind_run('k', 1)")


@pytest.mark.full
async def test_a_paused_run_stays_paused(aflow, conn):
    await stuck(aflow, conn, order, is_early=False)
    number = message(conn)
    await aflow.app.send("k", paid, 7)
    conn.execute("select pgflow.pause_run('k')")
    conn.execute("select pgflow.wake()")
    await aflow.app.drop_message("k", number)
    await aflow.until_idle()
    assert why(conn)[0] in ("paused", "completed")


def test_a_message_for_an_ended_run_is_sent_to_another(db):
    run = begin(db, key="old")
    finish(db, run)
    send(db, "old", "paid", "5")
    wake(db, run.chain_id)
    (number, reason, ended_as) = one(
        db, "select message, reason, ended_as from pgflow.undelivered_messages"
    )
    assert (reason, ended_as) == ("ended", "completed")
    with (
        pytest.raises(psycopg.Error, match="run 'old' is completed: it takes no more messages"),
        db.transaction(),
    ):
        db.execute("select pgflow.requeue_message('old', %s)", (number,))
    db.execute("select pgflow.start_run('demo', key => 'new')")
    chain, lane, again = one(
        db,
        "select chain_id, lane_id, message_id from pgflow.requeue_message('old', %s, 'new')",
        number,
    )
    assert (
        lane,
        one(db, "select key, payload::text, message = %s from pgflow.messages", again),
    ) == (None, ("new", "5", True))
    assert one(db, "select count(*) from pgflow.undelivered_messages") == 0
    assert chain == one(db, "select chain_id from pgflow.runs where key = 'new'")


@pytest.mark.parametrize(
    "verb", ["drop_message('k', %s)", "replace_message('k', %s, '1')", "requeue_message('k', %s)"]
)
def test_nothing_is_mended_under_a_worker(db, verb):
    begin(db, key="k")
    number = one(db, "select message_id from pgflow.post_signal('k', 'paid', '1')")
    with pytest.raises(
        psycopg.Error, match="run 'k' is running, and may be taking the message"
    ) as refused:
        db.execute(f"select pgflow.{verb}", (number,))  # type: ignore[arg-type]
    assert refused.value.sqlstate == WrongState.sqlstate


@pytest.mark.parametrize(
    "verb",
    ["drop_message('k', 4711)", "replace_message('k', 4711, '1')", "requeue_message('k', null)"],
)
def test_a_message_that_is_not_there_is_named(db, verb):
    db.execute("select pgflow.start_run('demo', key => 'k')")
    with pytest.raises(psycopg.Error, match=r"run 'k' has no message (4711|\?)") as refused:
        db.execute(f"select pgflow.{verb}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == RunNotFound.sqlstate


def test_a_message_keeps_its_place_when_it_is_replaced_and_loses_it_when_it_is_requeued(db):
    db.execute("select pgflow.start_run('demo', key => 'k')")
    first, second = (
        one(db, "select message_id from pgflow.post_signal('k', 'paid', %s)", n) for n in "12"
    )
    db.execute("select pgflow.replace_message('k', %s, '10')", (first,))
    found = rows(db, "select message, payload::text from pgflow.messages order by message")
    assert found == [(first, "10"), (second, "2")]
    again = one(db, "select message_id from pgflow.requeue_message('k', %s)", first)
    found = rows(db, "select message, payload::text from pgflow.messages order by message")
    assert found == [(second, "2"), (again, "10")]
    found = one(db, "select payload::text, replaced_in from pgflow.undelivered_messages")
    assert found == ("1", first)


@pytest.mark.full
async def test_the_command_line_lists_and_mends(aflow, conn, pgflow_dsn):
    run = await stuck(aflow, conn, order, is_early=False)
    (row,) = cli(pgflow_dsn, "messages").data
    assert (row["key"], row["signal"], row["state"], row["payload"]) == (
        "k",
        "paid",
        "refused",
        "five",
    )
    found = cli(pgflow_dsn, "doctor", tty=True, width=200).out
    assert "that the code of its run could not take" in found
    answer = cli(pgflow_dsn, "messages", "k", "--replace", str(row["message"]), "--with", "5")
    assert (answer.code, answer.data["done"], answer.data["status"]) == (0, "replaced", "queued")
    await aflow.until_idle()
    assert await run.result(SOON) == "packed for 5"
    assert cli(pgflow_dsn, "messages").data == []


@pytest.mark.parametrize(("options", "says"), [
    (("k", "--drop", "1", "--requeue", "1"), "pass one of --drop, --replace and --requeue"),
    (("k", "--replace", "1"), "--replace MESSAGE and --with JSON go together"),
    (("--drop", "1"), "name the run that the message is for"),
    (("k", "--to", "x"), "--to requires --requeue MESSAGE"),
    (("k", "--drop", "1"), "run 'k' has no message 1"),
    (("nobody",), "no run has the key 'nobody'"),
])  # fmt: skip
def test_what_cannot_be_mended_is_one_clear_line(flow, pgflow_dsn, options, says):
    flow.include(*WORKFLOWS)
    settle(flow, order.options(key="k"))
    answer = cli(pgflow_dsn, "messages", *options)
    assert says in answer.err
    assert (answer.code, answer.err.count("\n")) == (2, 1)
