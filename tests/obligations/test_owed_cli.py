"""The command line, the readers and the roles: what is owed is seen and closed there too."""

from __future__ import annotations

import re

import psycopg
import pytest
from clikit import pgflow as cli
from records import SOON, settle

import pgflow
from pgflow import workflow
from pgflow.inspect import ask, list_obligations


@workflow
async def promises() -> list[str]:
    """Promises three things."""
    return [
        pgflow.authority.owe("refund", to="ada", due=3600, detail={"eur": 30}).key,
        pgflow.authority.owe("call", to="ada").key,
        pgflow.authority.owe("letter", outlives=True).key,
    ]


@pytest.mark.full
async def test_the_command_line_shows_and_closes_what_is_owed(aflow, dsn):
    run = await settle(aflow, promises.options(key="k"))
    refund, call, letter = cli(dsn, "owed").data
    (shown,) = cli(dsn, "list").data
    assert shown["why"] == "obligation call, obligation refund"
    several = cli(dsn, "discharge", "k").err
    assert "run 'k' has several open obligations, name one by its key: refund (" in several
    assert (refund["kind"], refund["state"], refund["owed_to"], refund["detail"]) == (
        "obligation",
        "open",
        "ada",
        {"eur": 30},
    )
    table = cli(dsn, "owed", tty=True, width=200).out
    assert "refund" in table
    assert re.search(r"refund .* in (59|60|1)\S* ", table), "it is due in about an hour"
    assert cli(dsn, "owed", "--state", "breached").data == []
    closed = cli(dsn, "discharge", refund["effect"], "--evidence", '"r-1"', "--by", "bob").data
    assert (closed["obligation"], closed["verdict"], closed["key"]) == (
        refund["effect"],
        "discharged",
        "k",
    )
    await aflow.until_idle()
    said = cli(dsn, "transfer", call["effect"], "desk", "--why", "by phone", tty=True)
    assert said.code == 0
    assert f"Transferred {call['effect']}: run k is " in said.out.replace("\n", " ")
    assert len(await run.result(SOON)) == 3
    found = {row["name"]: row["holder"] for row in cli(dsn, "owed").data}
    assert found == {"call": "desk", "letter": None}
    assert cli(dsn, "waive", letter["effect"]).code == 2, "a reason must be given"
    assert cli(dsn, "waive", letter["effect"], "--why", "lost").data["status"] == "completed"
    unknown = cli(dsn, "discharge", letter["effect"])
    assert unknown.code == 2
    assert "no open obligation" in unknown.err
    story = cli(dsn, "audit", "k", tty=True, width=300).out
    assert "promised" in story
    assert 'evidence "r-1"' in story
    assert "transferred, says" in story


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("discharge", "nothing"), "no open obligation has the key 'nothing'"),
        (("discharge", "nothing", "--evidence", "{"), "the evidence is not JSON"),
        (("transfer", "nothing", "desk"), "no open obligation has the key 'nothing'"),
        (("transfer", "nothing", ""), "who holds an obligation must be 1 to 255 bytes long"),
        (("waive", "nothing", "--why", "x"), "no open obligation has the key 'nothing'"),
        (("waive", "nothing", "--why", ""), "say why"),
        (("owed", "--state", "gone"), "what is owed is intended"),
    ],
)
def test_what_cannot_be_closed_is_one_clear_line(conn, dsn, words, says):
    answer = cli(dsn, *words)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert says in answer.err


def test_a_reader_gives_what_the_view_has(flow, conn):
    settle(flow, promises)
    found = ask(conn, list_obligations(state="open"))
    assert [(o.name, o.owed_to, o.outlives, o.detail) for o in found.items] == [
        ("refund", "ada", False, {"eur": 30}),
        ("call", "ada", False, None),
        ("letter", None, True, None),
    ]


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("pgflow_client", True),
        ("pgflow_worker", True),
        ("pgflow_operator", True),
        ("pgflow_auditor", False),
    ],
)
def test_closing_is_for_those_who_act(flow, conn, role, may):
    settle(flow, promises)
    for key in (row[0] for row in conn.execute("select effect from pgflow.obligations").fetchall()):
        with conn.transaction(force_rollback=True):
            conn.execute(f"set local role {role}")  # type: ignore[arg-type]
            assert conn.execute("select count(*) from pgflow.obligations").fetchone() == (3,)
            if may:
                conn.execute("select pgflow.waive_obligation(%s, 'x')", (key,))
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute("select pgflow.waive_obligation(%s, 'x')", (key,))
