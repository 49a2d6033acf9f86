"""``pgflow.send``: signals that the code of a workflow, or the body of a transaction, sends to
another run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from records import SOON, launch, result_of, settle, steps

import pgflow
from pgflow import InvalidArgument, RunFailed, RunNotFound, Signal, transaction, workflow
from pgflow.errors import NotInRunError, NotStorable, WrongColourError

go = Signal("go", int)
done = Signal("done", str)


@workflow
async def receives() -> int:
    return await go.wait()


@workflow
async def sends(key: str) -> list[Any]:
    first = await pgflow.send(key, go, 5)
    word = await done.wait()
    return [first.is_delivered, word]


@workflow
def sends_sync(key: str) -> list[Any]:
    first = pgflow.sync.send(key, go, 5)
    word = done.sync.wait()
    return [first.is_delivered, word]


@pytest.mark.parametrize("made", [sends, sends_sync])
async def test_a_message_is_sent_once_however_often_the_code_is_replayed(aflow, conn, made):
    receiver = await settle(aflow, receives.options(key="receiver"), beside=[made])
    run = await settle(aflow, made.options(key="sender"), "receiver")
    assert await receiver.result(SOON) == 5
    await aflow.crash()
    await run.send(done, "well")
    await aflow.until_idle()
    assert await run.result(SOON) == [True, "well"]
    assert conn.execute("select count(*) from pgflow.undelivered_messages").fetchone() == (0,)
    assert [name for name, *_ in steps(conn, "sender")] == ["send"]


@workflow
async def asks_twice(key: str) -> list[Any]:
    told = []
    try:
        await pgflow.send("nobody", go, 1)
    except RunNotFound as error:
        told.append("nobody" in str(error))
    told.append((await pgflow.send(key, go, 2)).ended_as)
    return told


@workflow
def asks_twice_sync(key: str) -> list[Any]:
    told = []
    try:
        pgflow.sync.send("nobody", go, 1)
    except RunNotFound as error:
        told.append("nobody" in str(error))
    told.append(pgflow.sync.send(key, go, 2).ended_as)
    return told


@pytest.mark.parametrize("made", [asks_twice, asks_twice_sync])
async def test_a_run_that_is_not_there_or_has_ended_is_told_to_the_sender(aflow, made):
    receiver = await launch(aflow, receives.options(key="receiver"), beside=[made])
    await receiver.send(go, 1)
    await receiver.result(SOON)
    assert await (await aflow.start(made, "receiver")).result(SOON) == [True, "completed"]


@workflow
async def parent() -> int:
    child = await pgflow.start_child(receives)
    await child.send(go, 6)
    return await child.result()


@workflow
def parent_sync() -> int:
    child = pgflow.sync.start_child(receives)
    child.send(go, 6)
    return child.result()


@pytest.mark.parametrize("made", [parent, parent_sync])
async def test_a_parent_sends_to_its_child(aflow, made):
    assert await result_of(aflow, made, beside=[receives]) == 6


@transaction(raises=[ValueError])
async def books(conn: psycopg.AsyncConnection[Any], key: str, *, fails: bool) -> None:
    await pgflow.send(key, go, 7)
    if fails:
        raise ValueError("no")


@transaction(raises=[ValueError])
def books_sync(conn: psycopg.Connection[Any], key: str, *, fails: bool) -> None:
    pgflow.sync.send(key, go, 7)
    if fails:
        raise ValueError("no")


@workflow
async def booking(key: str, is_sync: bool, fails: bool) -> None:  # noqa: FBT001
    await (books_sync if is_sync else books).aio(key, fails=fails)


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_transaction_sends_with_what_it_writes(aflow, *, is_sync):
    receiver = await launch(aflow, receives.options(key="receiver"), beside=[booking])
    with pytest.raises(RunFailed):
        await (await aflow.start(booking, "receiver", is_sync, True)).result(SOON)
    assert await aflow.app.messages("receiver") == []
    await (await aflow.start(booking, "receiver", is_sync, False)).result(SOON)
    assert await receiver.result(SOON) == 7


@workflow
async def sends_wrongly(what: str) -> None:
    if what == "payload":
        await pgflow.send("receiver", go, "five")  # type: ignore[arg-type]
    elif what == "signal":
        await pgflow.send("receiver", "go", 5)  # type: ignore[arg-type]
    elif what == "colour":
        pgflow.sync.send("receiver", go, 5)


@pytest.mark.parametrize(
    ("what", "error"),
    [("payload", NotStorable), ("signal", InvalidArgument), ("colour", WrongColourError)],
)
async def test_what_cannot_be_sent_is_refused_in_the_code(aflow, what, error):
    await launch(aflow, receives.options(key="receiver"), beside=[sends_wrongly])
    with pytest.raises(RunFailed) as failure:
        await (await aflow.start(sends_wrongly, what)).result(SOON)
    assert isinstance(failure.value.__cause__, error)
    assert await aflow.app.messages("receiver") == []


def test_plain_code_is_sent_to_the_client():
    with pytest.raises(NotInRunError, match=r"app\.send\(\)"):
        asyncio.run(pgflow.send("receiver", go, 5))
