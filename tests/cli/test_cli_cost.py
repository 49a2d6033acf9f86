"""What an answer costs: the modules that a command imports, the statements that it sends, and the
collections of garbage that it runs into. Counts, never times.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from pgflow.console.output import make_table, table

PROGRAM = """
import gc, json, sys
import psycopg, pgflow_cli

counts = {"statements": 0, "collections": 0}

def count(execute):
    def counting(*given, **named):
        counts["statements"] += 1
        return execute(*given, **named)
    return counting

def collected(phase, _):
    counts["collections"] += phase == "start"

psycopg.Cursor.execute = count(psycopg.Cursor.execute)
sys.argv = ["pgflow", *sys.argv[1:]]
gc.collect()
gc.set_threshold(0)  # up to the command's own
gc.callbacks.append(collected)
try:
    pgflow_cli.main()
finally:
    print(json.dumps({**counts, "modules": [*sys.modules]}), file=sys.stderr)
"""


def cost(dsn: str, *command: str) -> dict[str, Any]:
    """Return what a command has cost, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, "--dsn", dsn],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return found


FILE = """
name: one
description: One node.
nodes:
  - id: greet
    bash: echo hi
"""


@pytest.mark.parametrize("command", [("list",), ("queues",), ("owed",), ("gates",), ("schedules",)])
def test_a_list_imports_no_validators_and_sends_few_statements(dsn, conn, command):
    conn.execute("select pgflow.start_run('greet', '{}', key => 'k1')")
    found = cost(dsn, *command)
    assert {"pydantic", "sqlglot", "textual"}.isdisjoint(found["modules"])
    assert found["statements"] <= 4  # of the session, the schema, the list, and the time


def calls_of_table(rows: int) -> int:
    """Return how many functions in Python it takes to draw a table of so many rows."""
    columns = table("key! status queue workflow# why*120", workflow=len)
    held = [{"key": f"k{n}", "status": "failed", "queue": n, "workflow": 1} for n in range(rows)]
    out, calls = Console(file=io.StringIO(), width=100), 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        out.print(make_table(columns, held, out.width))
    finally:
        sys.setprofile(None)
    return calls


def test_a_row_of_a_table_takes_few_calls():
    calls_of_table(1)
    assert calls_of_table(60) - calls_of_table(10) <= 50 * 300  # a table of rich takes 870


@pytest.mark.full
def test_the_run_of_a_file_runs_into_no_collection_of_garbage(dsn, tmp_path):
    (tmp_path / "one.yaml").write_text(FILE)
    found = cost(dsn, "run", str(tmp_path / "one.yaml"))
    assert found["collections"] == 0
    assert {"sqlglot", "textual"}.isdisjoint(found["modules"])
