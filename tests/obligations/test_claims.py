"""The support agent of examples/agents: whatever reply is lost, it has promised nothing that is not
on the books, and each promise is kept once.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from records import SOON
from sqlkit import rows

import pgflow
from examples.agents import claims, world
from examples.agents.counterparty import LOSSES


@pytest.fixture(autouse=True)
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(world, "_known", {})


def lines(name: str) -> list[dict[str, Any]]:
    return world.counterparty(name).lines()


@pytest.mark.parametrize("loss", [None, *LOSSES], ids=str)
async def test_each_promise_of_a_reply_is_kept_once_whatever_answer_is_lost(aflow, conn, loss):
    for name in ("mail", "bank"):
        world.counterparty(name).lose = {} if loss is None else {1: loss}
    aflow.include(claims.reply)
    run = await aflow.start(claims.reply, "ada", "where is my parcel?")
    text = await run.result(SOON)
    assert "refund of $20" in text, "the policy forbids 200"
    assert [line["act"] for line in lines("mail")] == ["send"]
    assert [(line["act"], line["cents"]) for line in lines("bank")] == [("pay", 2000)]
    found = rows(conn, "select name, owed_to, holder, state from pgflow.obligations")
    assert found == [("call", "ada", "support desk", "open")]
    said = "select name, payload->>'verdict' from pgflow.unit where kind = 'D' order by seq"
    assert rows(conn, said) == [("refund", "discharged"), ("call", "transferred")]


async def test_the_promises_are_on_the_books_before_the_sentence_is_sent(aflow, conn):
    seen: list[Any] = []

    async def fake(customer: str, text: str) -> str:
        del customer, text
        seen.extend(rows(conn, "select name from pgflow.obligations where kind = 'obligation'"))
        return "mail-1"

    aflow.include(claims.reply)
    aflow.replace(claims.send, fake)
    run = await aflow.start(claims.reply, "ada", "where is my parcel?")
    await run.result(SOON)
    assert sorted(seen) == ["call", "refund"]


async def test_a_promise_that_nobody_keeps_pages_a_person(aflow, conn):
    aflow.include(claims.reply)
    run = await aflow.start(claims.reply, "ada", "where is my parcel?")
    await run.result(SOON)
    await aflow.skip(timedelta(days=3))
    assert rows(conn, "select name, state from pgflow.obligations") == [("call", "breached")]
    assert rows(conn, "select kind from pgflow.needs_person_()") == ["obligation"]
    ((key,),) = conn.execute("select effect from pgflow.obligations").fetchall()
    await aflow.app.discharge(pgflow.authority.Obligation(key, "call"), "called at noon", by="bob")
    assert rows(conn, "select name from pgflow.obligations") == []
