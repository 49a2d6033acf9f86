"""`pgflow apply` and `pgflow flow`: files become versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
from clikit import pgflow

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
        in pgflow(dsn, "flow", "greet", "--table").out
    )
    assert json.loads(pgflow(dsn, "flow", "--json").out)[0]["workflow"] == "greet"
    assert "no workflow in SQL is named 'x'" in pgflow(dsn, "flow", "x").err
