"""`pgflow --help` answers at once, every command has help, and the shell can complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from clikit import TESTS, environment, pgflow
from pgflow_cli.commands import app
from pgflow_cli.selection import complete_key, complete_status

HEAVY = {"psycopg", "sqlglot", "asyncio", "pgflow", "currency_converter", "sqlalchemy", "django"}


def commands() -> list[tuple[str, ...]]:
    """Every command, with those of groups."""
    from typer.main import get_command

    found: list[tuple[str, ...]] = []

    def walk(command, path):
        for name, inner in getattr(command, "commands", {}).items():
            found.append((*path, name))
            walk(inner, (*path, name))

    walk(get_command(app), ())
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_explains_itself_and_its_options(command):
    answer = pgflow(None, *command, "--help", width=100)
    assert answer.code == 0
    text = re.sub(r"[│╭╰─╮╯]", " ", answer.out)
    assert re.search(rf"Usage: pgflow {' '.join(command)}", text)
    for option in re.findall(r"^ +(?:\* +)?(--[a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"{option}\b.* [A-Z\[]", text), f"{option} has no help"


def test_help_imports_nothing_heavy():
    for arguments in (["--help"], ["list", "--help"], ["tick", "--help"], ["demo", "--help"]):
        code = f"import sys; from pgflow_cli.commands import run; run({arguments!r}); print(*sorted(m.split('.')[0] for m in sys.modules), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS, check=True)
        assert set(done.stderr.split()) & HEAVY == set()


def test_each_command_is_one_line_in_a_terminal_of_eighty():
    listed = [line for line in pgflow(None, "--help", width=80).out.splitlines() if re.match(r"│ [a-z][a-z-]* {2,}\S", line)]
    assert len(listed) == len([path for path in commands() if len(path) == 1])
    assert "Exit codes: 0 done" in pgflow(None, "--help", width=200).out


def test_the_version():
    assert re.fullmatch(r"pgflow \d+\.\d+\.\d+\S*\n", pgflow(None, "--version").out)


def test_the_shell_completes_commands():
    env = {**os.environ, "_PGFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "pgflow ti", "COMP_CWORD": "1"}
    program = "import sys; sys.argv = ['pgflow']; from pgflow_cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, cwd=TESTS, check=False)
    assert set(done.stdout.split()) == {"tick", "timeline"}


def test_the_shell_completes_statuses_and_keys(dsn, conn):
    conn.execute("select pgflow.start_run('greet', '{}', k) from unnest('{order-1,order-2,other}'::text[]) k")
    assert complete_status("pa") == ["paused"]
    with environment(PGFLOW_DSN=dsn):
        assert complete_key("order-") == ["order-2", "order-1"]
    with environment(PGFLOW_DSN="postgresql://127.0.0.1:1/none"):
        assert complete_key("order-") == []
