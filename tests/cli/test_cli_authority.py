"""Words on authority that cannot be taken, each refused in one clear line: answers to gates, words
on debts, limits of pools, locks, entities, updates, redactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
import servers
from clikit import pgflow

if TYPE_CHECKING:
    from collections.abc import Iterator

NOWHERE = "k/nothing/1"

WRONG: list[tuple[list[str], str]] = [
    *(
        ([order, NOWHERE, *more], "no open gate has the key")
        for order, *more in (
            ("approve",),
            ("edit", "1"),
            ("reject",),
            ("escalate", "--to", "cfo"),
            ("take-over",),
            ("delegate", "--to", "bob"),
        )
    ),
    (["approve", ""], "gate"),
    (["approve"], "Missing argument 'GATE'"),
    (["edit", NOWHERE], "Missing argument 'JSON'"),
    (["edit", NOWHERE, "{"], "the edit is not JSON"),
    (["edit", NOWHERE, "@/nowhere.json"], "/nowhere.json"),
    (["take-over", NOWHERE, "--result", "{"], "the result is not JSON"),
    (["escalate", NOWHERE], "Missing option '--to'"),
    (["escalate", NOWHERE, "--to", ""], "--to"),
    (["delegate", NOWHERE, "--to", ""], "--to"),
    (["approve", NOWHERE, "--by", ""], "--by"),
    (["approve", NOWHERE, "--as", ""], "--as"),
    (["approve", NOWHERE, "--by", "x" * 2000], "1 to 1024 bytes"),
    (["approve", NOWHERE, "--edit", "1"], "No such option"),
    (["gates", "nobody"], "nobody"),
    (["owed", "--state", "lost"], "not 'lost'"),
    (["settle", NOWHERE], "name the outcome"),
    (["settle", NOWHERE, "--failed", "--absent"], "name the outcome"),
    (["settle", NOWHERE, "--failed"], "no open effect has the key"),
    (["settle", NOWHERE, "--confirmed", "{"], "the result is not JSON"),
    (["discharge", NOWHERE], "or never existed; `pgflow owed` lists what is open"),
    (["discharge", NOWHERE, "--evidence", "{"], "the evidence is not JSON"),
    (["transfer", NOWHERE, "bob"], "no open obligation has the key"),
    (["transfer", NOWHERE, ""], "who holds an obligation"),
    (["transfer", NOWHERE], "Missing argument 'HOLDER'"),
    (["waive", NOWHERE], "Missing option '--why'"),
    (["waive", NOWHERE, "--why", "no need"], "no open obligation has the key"),
    (["discharge", NOWHERE, "--by", ""], "--by"),
    (["budgets", "set", "p", "usd"], "usd"),
    (["budgets", "set", "p", "usd=much"], "much"),
    (["budgets", "set", "p", "usd=-1"], "-1"),
    (["budgets", "set", "p", "usd=nan"], "NaN"),
    (["budgets", "set", "", "usd=1"], "name"),
    (["budgets", "set", "p", "usd=1", "--per", "blink"], "blink"),
    (["budgets", "set", "p", "usd=1", "--per", "1 day", "--tz", "Mars"], "Mars"),
    (["budgets", "set", "p", "usd=1", "--parent", "nobody"], "nobody"),
    (["budgets", "grant", "nobody", "usd=1"], "nobody"),
    (["budgets", "revoke", "nobody"], "nobody"),
    (["locks", "release", "nobody", "--why", "it hangs"], "nobody"),
    (["entities", "nothing", "k"], "nothing"),
    (["update", "nobody", "add"], "nobody"),
    (["update", "k", "add", "[]"], "an object of their names"),
    (["update", "k", "add", "{"], "ARGS is not JSON"),
    (["update", "k", "add", "--id", ""], "--id"),
    (["update", "k", "add", "--timeout", "soon"], "soon"),
    (["update", "k", ""], "the name of an update"),
    (["update", "k", "add", "--id", "x" * 300], "1 to 255 characters"),
    (["query", "nobody", "items"], "nobody"),
    (["query", "k", "items"], "has published nothing under the name"),
    (["redact", "nobody", "input", "--why", "x"], "nobody"),
    (["redact", "k", "input"], "Missing option '--why'"),
    (["redact", "k", "input", "--why", " "], "say why"),
    (["redact", "k", "all", "--why", "x"], "not 'all'"),
    (["redact", "k", "-1", "--why", "x"], "-1"),
    (["redact", "k", "update:", "--why", "x"], "not 'update:'"),
    (["redact", "k", "update:u", "--why", "x", "--generation", "1"], "--generation"),
    (["redact", "k", "update:u", "--why", "x"], "run 'k' is open"),
    (["redact", "k", "input", "--why", "x"], "run 'k' is open"),
    (["audit", "show", "nobody"], "nobody"),
    (["audit", "proof", "nobody"], "nobody"),
    (["audit", "verify", "--anchor", "/nowhere.json"], "/nowhere.json"),
    (["audit", "check", "/nowhere.json", "--anchor", "/nowhere.json"], "/nowhere.json"),
]


@pytest.fixture(scope="module")
def dsn_with_a_run(server_dsn: str, template: str) -> Iterator[str]:
    """DSN of a database with one run, which is open."""
    name = servers.create_database(server_dsn, template)
    dsn = servers.dsn_of(server_dsn, name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select from pgflow.start_run('w', key => 'k')")
    yield dsn
    servers.drop_database(server_dsn, name)


@pytest.mark.parametrize(("args", "says"), WRONG, ids=[" ".join(args)[:60] for args, _ in WRONG])
def test_a_word_that_cannot_be_taken_is_refused_in_one_clear_line(
    dsn_with_a_run: str, args: list[str], says: str
) -> None:
    said = pgflow(dsn_with_a_run, *args)
    assert said.code == 2, (said.out, said.err)
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
