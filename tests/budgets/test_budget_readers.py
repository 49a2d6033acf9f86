"""Budgets as people see them: the readers in both colours, and the command line."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli

import pgflow
from pgflow import InvalidArgument, inspect, step, workflow
from pgflow.authority import Pool
from pgflow.testing import Harness


@step
async def ask(question: str) -> str:
    pgflow.authority.charge(usd=Decimal("0.25"), tokens=10, model="m1")
    return question


@workflow
async def agent(times: int) -> str:
    for n in range(times):
        await ask(str(n))
    pgflow.authority.charge(usd=1)
    return "done"


@pytest.fixture
def spent(flow: Harness, dsn: str) -> str:
    """A database in which two runs have spent something; its DSN."""
    flow(pools=[Pool("acme", usd=100, per="1 month"), Pool("ada", usd=2, tokens=50, parent="acme")])
    flow.include(agent)
    flow.start(agent.options(pool="ada", key="a"), 2).result()
    flow.start(agent.options(key="b"), 1).result()
    return dsn


def both(dsn: str, question: inspect.Question[Any]) -> Any:
    """The answer to a question, which is the same in both colours."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = inspect.ask(conn, question)

    async def ask_async() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            return await inspect.ask_async(conn, question)

    assert asyncio.run(ask_async()) == found
    return found


def test_pools_are_read_unit_by_unit_and_in_pages(spent):
    rows = both(spent, inspect.list_budgets())
    assert [(row.pool, row.unit, row.charged, row.remaining) for row in rows] == [
        ("acme", "tokens", 20, None),
        ("acme", "usd", Decimal("1.50"), Decimal("98.50")),
        ("ada", "tokens", 20, 30),
        ("ada", "usd", Decimal("1.50"), Decimal("0.50")),
    ]
    assert (rows.items[1].per, rows.items[2].parent) == ("month", "acme")
    page = both(spent, inspect.list_budgets("ada", limit=1))
    found = [row.unit for row in both(spent, inspect.list_budgets("ada", after=page.next))]
    assert found == ["usd"]
    with pytest.raises(InvalidArgument):
        inspect.list_budgets(after="nowhere")


@pytest.mark.full
def test_charges_are_read_one_by_one_and_added_up_by_anything(spent):
    with psycopg.connect(spent) as conn:
        run_id = inspect.ask(conn, inspect.find_run("a")).run_id
    first, second, own = both(spent, inspect.list_charges(run_id))
    assert (first.step, first.model, first.pool, first.amounts) == (
        "ask",
        "m1",
        "ada",
        {"usd": Decimal("0.25"), "tokens": 10},
    )
    assert (own.step, own.amounts) == (None, {"usd": 1})
    assert both(spent, inspect.list_charges(run_id, after=first.seq)).items == [second, own]

    def sums(by: Any, **options: Any) -> dict[str | None, Decimal]:
        rows = both(spent, inspect.sum_charges(by, **options))
        return {row.name: row.amount for row in rows if row.unit == "usd"}

    assert sums("run") == {"a": Decimal("1.50"), "b": Decimal("1.25")}
    assert sums("model") == {"m1": Decimal("0.75"), None: 2}
    assert sums("pool") == {"ada": Decimal("1.50"), None: Decimal("1.25")}
    assert sums("workflow", pool="acme") == {"agent": Decimal("1.50")}
    assert sums("step", run_id=run_id) == {"ask": Decimal("0.50"), None: 1}
    assert sum(sums("day").values()) == Decimal("2.75")
    assert sums("decision") == {None: Decimal("2.75")}
    assert sums("run", newest=1) == {"b": 1}
    assert sums("run", newest=3) == {"a": 1, "b": Decimal("1.25")}
    assert sums("run", newest=2, pool="acme") == {}
    at_once = both(spent, inspect.sum_charges_by(["model", "run"], since=timedelta(days=1)))
    assert at_once == {
        "model": both(spent, inspect.sum_charges("model")),
        "run": both(spent, inspect.sum_charges("run")),
    }
    nothing = {"run": []}
    assert both(spent, inspect.sum_charges_by(["run"], since=timedelta(0))) == nothing
    assert both(spent, inspect.sum_charges_by(["run"], tenant="other")) == nothing
    with pytest.raises(InvalidArgument, match="added up by run, step"):
        inspect.sum_charges("moon")  # type: ignore[arg-type]


@pytest.mark.full
def test_the_command_line_shows_what_was_spent(spent):
    (tokens, usd) = cli(spent, "budgets", "spent").data
    assert (tokens["unit"], tokens["amount"], usd["amount"], usd["charges"]) == (
        "tokens",
        "30",
        "2.75",
        5,
    )
    rows = cli(spent, "budgets", "spent", "--by", "run").data
    found = [(row["name"], row["amount"]) for row in rows]
    assert found == [("a", "20"), ("b", "10"), ("a", "1.50"), ("b", "1.25")]
    assert len(cli(spent, "budgets", "spent", "acme", "--by", "model").data) == 3
    shown = cli(spent, "budgets", "spent", "--by", "step", "-n", "2", tty=True)
    assert "none named" in shown.out
    assert "The first 2 of 3: --limit 0 shows all." in shown.err
    assert cli(spent, "budgets", "spent", "--since", "0s", tty=True).err == (
        "Nothing was spent since then.\n"
    )
    for wrong in (["--by", "moon"], ["--since", "yesterday"]):
        assert cli(spent, "budgets", "spent", *wrong).code == 2


@pytest.mark.full
def test_the_command_line_shows_pools_and_what_a_run_has_spent(spent):
    shown = cli(spent, "budgets", tty=True, width=140).out
    assert "ada" in shown
    assert "0.5" in shown
    assert cli(spent, "budgets").data[3]["remaining"] == "0.50"
    assert len(cli(spent, "budgets", "--limit", "3").data) == 3
    assert "--limit 0 shows all" in cli(spent, "budgets", "-n", "3", tty=True, width=140).err
    assert "1.5 usd" in cli(spent, "show", "a", tty=True).out
    assert cli(spent, "show", "a").data["spent"] == {"tokens": "20", "usd": "1.50"}
    assert "budget charged ask" in cli(spent, "timeline", "a", tty=True).out


@pytest.mark.full
def test_the_command_line_sets_grants_and_revokes(dsn, conn):
    assert cli(dsn, "budgets", tty=True).err == "There are no pools yet.\n"
    made = cli(
        dsn, "budgets", "set", "ada", "usd=5", "gpu_hours=2", "--per", "day", "--why", "trial"
    )
    found = [(row["unit"], row["allowed"]) for row in made.data]
    assert found == [("gpu_hours", "2"), ("usd", "5")]
    granted = cli(dsn, "budgets", "grant", "ada", "usd=2.5")
    assert granted.data[1]["allowed"] == "7.5"
    assert (
        cli(dsn, "budgets", "revoke", "ada", "--why", "unpaid").data[0]["revoked_why"] == "unpaid"
    )
    assert "revoked" in cli(dsn, "budgets", tty=True, width=140).out
    assert cli(dsn, "budgets", "revoke", "ada", "--restore").data[0]["revoked_at"] is None
    conn.execute("select pgflow.set_pool('bare')")
    shown = cli(dsn, "budgets", "revoke", "bare", "--restore", tty=True)
    assert (shown.code, shown.err) == (
        0,
        "bare has no limits, and nothing was drawn on it in this period.\n",
    )
    said = conn.execute(
        "select what, why from pgflow.pool_change where pool <> 'bare' order by changed_at"
    ).fetchall()
    assert said == [("set", "trial"), ("granted", None), ("revoked", "unpaid"), ("restored", None)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "ada", "usd=many"], "the amount of usd must be a number, not 'many'"),
        (["set", "ada", "usd=-1"], "usd must be a number from 0"),
        (["set", "ada", "usd=1", "--per", "fortnight"], "per= of pool 'ada' is"),
        (["set", "ada", "usd=NaN"], "usd must be a number from 0"),
        (["set", "ada", "usd"], "usd"),
        (["set", "ada", "per=1"], "per is an option of a pool and cannot be a unit"),
        (["set", "ada", "US-D=1"], "a unit is a name in lower case"),
        (["set", "ada", "usd=1", "--tz", "Mars/Olympus"], "unknown time zone 'Mars/Olympus'"),
        (["set", "ada", "usd=1", "--parent", "nobody"], "no pool is named 'nobody'"),
        (["set", "run/1", "usd=1"], "a name for the pool that a run has of its own"),
        (["grant", "nobody", "usd=1"], "no pool is named 'nobody'"),
        (["revoke", "nobody"], "no pool is named 'nobody'"),
    ],
)
def test_a_mistake_is_one_line(dsn, words, said):
    answer = cli(dsn, "budgets", *words)
    assert answer.code != 0
    assert said in answer.err
    assert answer.err.count("\n") == 1
