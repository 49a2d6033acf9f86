"""`pgflow apply` and `pgflow flow`: files become versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
from clikit import pgflow
from ownserver import OwnServer
from servers import find_extension, install_schema

Conn = psycopg.Connection[Any]
TEXT = "select pgflow.create_workflow('greet(name text)', $$\nbegin\n  return 'hello ' || name;\nend $$);\n"


def test_files_become_versions_in_one_transaction(dsn: str, conn: Conn, tmp_path: Path) -> None:
    (tmp_path / "greet.sql").write_text(TEXT)
    done = pgflow(dsn, "apply", str(tmp_path), "--json")
    assert json.loads(done.out) == {"files": 1, "dry_run": False, "changed": {"greet": 1}}
    (tmp_path / "greet.sql").write_text(TEXT.replace("hello", "good day,"))
    (tmp_path / "wrong.sql").write_text(
        "select pgflow.create_workflow('w()', 'begin retur 1; end');"
    )
    refused = pgflow(dsn, "apply", str(tmp_path))
    assert refused.code != 0
    assert "wrong.sql: line 1, column 7: syntax error" in refused.err
    assert conn.execute("select max(version) from pgflow.workflows").fetchone() == (1,)


def test_a_dry_run_shows_the_difference(dsn: str, conn: Conn, tmp_path: Path) -> None:
    file = tmp_path / "greet.sql"
    file.write_text(TEXT)
    pgflow(dsn, "apply", str(file))
    file.write_text(TEXT.replace("hello", "good day,"))
    shown = pgflow(dsn, "apply", str(file), "--dry-run", "--table").out
    assert "greet would become version 2" in shown
    assert "-  return 'hello ' || name;\n+  return 'good day, ' || name;" in shown
    assert conn.execute("select max(version) from pgflow.workflows").fetchone() == (1,)


def test_a_workflow_is_shown_with_its_text(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "greet.sql").write_text(TEXT)
    pgflow(dsn, "apply", str(tmp_path))
    assert (
        "greet(name text)\nbegin\n  return 'hello ' || name;\nend"
        in pgflow(dsn, "flow", "show", "greet", "--table").out
    )
    assert json.loads(pgflow(dsn, "flow", "--json").out)[0]["workflow"] == "greet"
    assert "no workflow in SQL is named 'x'" in pgflow(dsn, "flow", "show", "x").err


PICTURE = """\
flowchart TD
  n0(["pay(n int)"])
  n1["reserve, retry 2, timeout 5 s"]
  n3(["wait for paid"])
  n4{"n &lt; 3"}
  n5[["run ship"]]
"""


def test_a_workflow_is_drawn(dsn: str, conn: Conn) -> None:
    text = """begin
      reserve timeout '5 s' retry 2: perform 1; undo reserve: perform 2;
      begin
        wait for paid;
        if n < 3 then run ship(n => n); end if;
      exception when division_by_zero then expire: perform 3; end;
    end"""
    conn.execute("select pgflow.create_workflow('pay(n int)', %s)", (text,))
    drawn = pgflow(dsn, "flow", "draw", "pay").out
    assert drawn.startswith(PICTURE)
    for line in ("n0 --> n1", "n1 -.->|undo| n", "n3 -.->|on error| n", "n4 -->|yes| n5"):
        assert line in drawn
    assert pgflow(dsn, "flow", "draw", "pay", "--version", "1").out == drawn
    assert "there is no workflow 'x' in SQL" in pgflow(dsn, "flow", "draw", "x").err


def test_a_check_needs_its_extension(dsn: str, conn: Conn) -> None:
    conn.execute("select pgflow.create_workflow('w()', 'begin return 1; end')")
    assert "the extension plpgsql_check is not installed" in pgflow(dsn, "flow", "check", "w").err


def test_a_check_lists_errors_by_line() -> None:
    """On Debian's server, which has the extension where it was installed."""
    with OwnServer(str(find_extension("plpgsql_check"))) as server:
        install_schema(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute("create extension plpgsql_check; create table t (x int)")
            said: list[str | None] = []
            conn.add_notice_handler(lambda notice: said.append(notice.message_primary))
            text = (
                "begin\n  a: insert into t values (1);\n  undo a: delete from t where y = 1;\nend"
            )
            conn.execute("select pgflow.create_workflow('w()', %s)", (text,))
        checked = pgflow(server.dsn, "flow", "check", "w", "--json")
        assert said == ['line 3: column "y" does not exist']
        assert (checked.code, json.loads(checked.out)) == (
            1,
            [
                {
                    "line": 3,
                    "sqlstate": "42703",
                    "message": 'column "y" does not exist',
                    "hint": None,
                }
            ],
        )
