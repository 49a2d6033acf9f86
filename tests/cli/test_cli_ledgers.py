"""`pgflow owed`, `settle` and `audit`: what is open, who says what became of it, and the story of a
run.
"""

from __future__ import annotations

import asyncio
import html
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import psycopg
import pytest
from clikit import pgflow

from pgflow import AsyncApp, Workflow, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import effect, saga

if TYPE_CHECKING:
    from collections.abc import Callable


class Lost(Exception):
    """No reply."""


@decision()
async def pick() -> Choice[str]:
    return Choice(
        "<b>lamp</b>",
        why="it is dark",
        evidence=["meter-3"],
        alternatives=["candle"],
        policy="thrift",
    )


@effect(risk="irreversible")
async def order(what: str) -> str:
    raise Lost(what)


@effect(risk="compensable")
async def send(what: str) -> str:
    return what


@workflow
async def shop() -> str:
    chosen = await pick()
    return await order.because(chosen)(chosen.value)


@workflow
async def regret() -> None:
    async with saga():
        await send("lamp")
        raise Lost("lamp")


@pytest.fixture
def stuck(dsn: str, conn: psycopg.Connection) -> str:
    """A run whose effect nobody knows; its key."""
    work_until(dsn, lambda: statuses(conn) == ["stuck"], start=shop)
    return dsn


def statuses(conn: psycopg.Connection) -> list[str]:
    return [status for (status,) in conn.execute("select status from pgflow.runs").fetchall()]


def work_until(
    dsn: str, holds: Callable[[], bool], start: Workflow[[], object] | None = None
) -> None:
    async def work() -> None:
        async with AsyncApp(dsn, include=[shop, regret]) as app:
            if start is not None:
                await app.start(start.options(key="order-7"))
            async with app.worker():
                while not await asyncio.to_thread(holds):
                    await asyncio.sleep(0.01)

    asyncio.run(work())


def effect_key(conn: psycopg.Connection) -> str:
    ((key,),) = conn.execute("select effect from pgflow.effects").fetchall()
    return str(key)


def test_nothing_is_owed_by_nobody(dsn: str) -> None:
    assert pgflow(dsn, "owed").data == []
    assert pgflow(dsn, "owed", tty=True).err == "Nothing is owed.\n"


def test_what_is_owed_is_listed_with_its_key(stuck: str, conn: psycopg.Connection) -> None:
    (row,) = pgflow(stuck, "owed").data
    assert (row["key"], row["name"], row["state"], row["effect"], row["status"]) == (
        "order-7",
        "order",
        "unknown",
        effect_key(conn),
        "stuck",
    )
    said = pgflow(stuck, "owed", tty=True, width=160).out
    assert re.search(
        r"^order-7 +order +unknown +\S+ +a person +" + re.escape(effect_key(conn)),
        said,
        re.MULTILINE,
    )
    assert pgflow(stuck, "owed", "--state", "accepted").data == []
    (found,) = [row for row in pgflow(stuck, "doctor").data if row["check"] == "stuck runs"]
    assert found["do"].endswith("find out what the other side did, then pgflow settle each")
    assert (
        pgflow(stuck, "owed", "--state", "late").err
        == "pgflow: what is owed is intended, unknown, absent, accepted, uncompensated, open or "
        "breached, not 'late'\n"
    )


@pytest.mark.parametrize(("options", "says", "code"), [
    ([],
        ("pgflow: name the outcome: pass one of --confirmed JSON, --failed, --absent, "
            "--taken-back and --stands\n"), 2),
    (["--failed", "--absent"],
        ("pgflow: name the outcome: pass one of --confirmed JSON, --failed, --absent, "
            "--taken-back and --stands\n"), 2),
    (["--confirmed", "{"], "the result", 2),
    (["--failed"], "no open effect has the key 'nothing'", 1),
])  # fmt: skip
def test_what_cannot_be_settled_is_one_clear_line(
    stuck: str, options: list[str], says: str, code: int
) -> None:
    answer = pgflow(stuck, "settle", "nothing", *options)
    assert says in answer.err
    assert answer.err.count("\n") == 1
    assert answer.code in (code, 2)
    assert pgflow(stuck, "owed").data != []


def test_the_key_of_a_run_names_its_only_open_effect(stuck: str, conn: psycopg.Connection) -> None:
    effect = effect_key(conn)
    answer = pgflow(stuck, "settle", "order-7", "--failed").data
    assert (answer["effect"], answer["key"], answer["status"]) == (effect, "order-7", "queued")


def test_a_run_stuck_on_an_effect_shows_the_command_that_settles_it(
    stuck: str, conn: psycopg.Connection
) -> None:
    said = pgflow(stuck, "show", "order-7", tty=True, width=400).out
    assert (
        f"`pgflow settle {effect_key(conn)}` with `--confirmed JSON`, `--failed` or `--absent` "
        "records its outcome" in said
    )
    assert "pgflow retry" not in said
    assert said.splitlines()[-1] == "More: pgflow timeline order-7, pgflow owed"


@pytest.mark.full
def test_a_run_that_nothing_takes_back_shows_what_a_person_must_do(
    dsn: str, conn: psycopg.Connection
) -> None:
    work_until(dsn, lambda: statuses(conn) == ["stuck"], start=regret)
    by_hand = conn.execute("select effect from pgflow.obligations").fetchall()[0][0]
    done = by_hand.removesuffix("/send.compensate/1")
    said = pgflow(dsn, "show", "order-7", tty=True, width=400).out
    assert "nobody knows" not in said
    assert "there is no @send.compensate, so nothing was called" in said
    assert f"take {done} back by hand, then `pgflow settle {by_hand} --confirmed null`" in said
    assert pgflow(dsn, "settle", by_hand, "--confirmed", "null").code == 0
    work_until(dsn, lambda: statuses(conn) == ["failed"])


@pytest.mark.full
def test_a_person_answers_and_the_run_goes_on(stuck: str, conn: psycopg.Connection) -> None:
    answer = pgflow(
        stuck,
        "settle",
        effect_key(conn),
        "--confirmed",
        '"on its way"',
        "--why",
        "the shop says so",
        tty=True,
    )
    assert answer.out == f"Settled {effect_key(conn)} as confirmed: run order-7 is queued.\n"
    work_until(
        stuck,
        lambda: (
            conn.execute("select status, output #>> '{}' from pgflow.runs").fetchall()
            == [("completed", "on its way")]
        ),
    )
    assert pgflow(stuck, "owed").data == []


def test_the_story_of_a_run_names_reasons_acts_and_debts(
    stuck: str, conn: psycopg.Connection
) -> None:
    story = pgflow(stuck, "audit", "order-7", tty=True, width=200).out.splitlines()
    assert story[0].startswith("order-7 shop stuck: effect: the outcome of ")
    told = [" ".join(re.sub(r"^\d\d:\d\d:\d\d  ", "", line).split()) for line in story[2:]]
    decided = effect_key(conn).removesuffix("/order/1")
    assert (
        told[0]
        == 'decided pick "<b>lamp</b>", because it is dark; evidence meter-3; instead of candle; '
        "policy thrift"
    )
    assert told[1] == f'intended order {{"what": "<b>lamp</b>"}}; irreversible; rests on {decided}'
    assert told[2] == "unknown order it raised (Lost: <b>lamp</b>)"
    assert told[3].startswith("owes order: unknown since ")
    as_data = pgflow(stuck, "audit", "order-7", "--json").data
    assert [event["what"] for event in as_data["events"]] == ["decided", "intended", "unknown"]
    assert as_data["owed"][0]["effect"] == effect_key(conn)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_the_story_and_runs_nothing_of_it(stuck: str) -> None:
    page = pgflow(stuck, "audit", "order-7", "--html").out
    read = _Text()
    read.feed(page)
    assert "b" not in read.tags
    assert "script" not in read.tags
    assert '"<b>lamp</b>", because it is dark' in read.text
    assert html.escape("<b>lamp</b>") in page


def test_a_run_without_effects_has_a_short_story(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("select pgflow.start_run('greet', '{}', 'plain')")
    assert "It decided nothing" in pgflow(dsn, "audit", "plain", tty=True).out
    missing = pgflow(dsn, "audit", "nothing")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert pgflow(dsn, "audit", "plain", "--html", "--json").code == 2
