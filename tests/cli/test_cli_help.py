"""`pgflow --help` answers at once, every command has help, and the shell can complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from clikit import APPS, environment, pgflow
from pgflow_cli.commands import SECTIONS, app
from pgflow_cli.look.selection import complete_key, complete_status

HEAVY = {
    "psycopg", "psycopg_pool", "sqlglot", "pydantic", "rich", "asyncio", "pgflow._surface",
    "pgflow.inspect._surface", "currency_converter", "sqlalchemy", "django",
}  # fmt: skip


def commands() -> list[tuple[str, ...]]:
    """Every command that help names, with those of groups."""
    from typer.main import get_command

    found: list[tuple[str, ...]] = []

    def walk(command, path):
        for name, inner in getattr(command, "commands", {}).items():
            if inner.hidden:
                continue
            found.append((*path, name))
            walk(inner, (*path, name))

    walk(get_command(app), ())
    return found


def faults(command: tuple[str, ...]) -> list[str]:
    """Return the faults in what a command says of itself."""
    answer = pgflow(None, *command, "--help", width=100)
    if answer.code != 0 or not re.match(rf"Usage: pgflow {' '.join(command)}\b", answer.out):
        return ["has no help"]
    types = re.findall(r"<(?:str|int|float|bool|list|path)\b", answer.out, re.IGNORECASE)
    options = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", answer.out, re.MULTILINE)
    silent = [o for o in options if not re.search(rf"{o}\b.*\s [A-Z\[]", answer.out)]
    return [
        *(f"shows {name}, a type of Python" for name in types),
        *(f"{option} has no help" for option in silent),
    ]


@pytest.mark.full
def test_every_command_explains_itself_and_its_options():
    found = [f"pgflow {' '.join(command)}: {f}" for command in commands() for f in faults(command)]
    assert found == []


ALONE = [(), *((name,) for section in SECTIONS.values() for name in section)]
IMPORTS = """
import json, os, sys
from pgflow_cli.commands import run
for command in json.loads(sys.argv[1]):
    if os.fork() == 0:
        run([*command, "--help"])
        print(json.dumps(sorted(sys.modules)), file=sys.stderr)
        os._exit(0)
    os.wait()
"""


LIGHT = ("commands", "look", "look.coercing", "look.declaring", "look.failures", "look.help")


@pytest.mark.full
def test_help_imports_nothing_heavy():
    """Modules that are there when each command has explained itself, in a child of one process."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, json.dumps(ALONE)],
        capture_output=True,
        text=True,
        cwd=APPS,
        check=True,
    )
    heavy = {}
    for command, line in zip(ALONE, done.stderr.splitlines(), strict=True):
        modules = json.loads(line)
        ours = {name.removeprefix("pgflow_cli.") for name in modules if "pgflow_cli." in name}
        heavy[command] = HEAVY.intersection(modules)
        heavy[command] |= set() if command else ours - set(LIGHT)
    assert {command: modules for command, modules in heavy.items() if modules} == {}


def test_what_help_says_of_a_command_is_what_the_command_says_of_itself():
    from typer.main import get_command

    summaries = {
        name: summary for section in SECTIONS.values() for name, (_, summary) in section.items()
    }
    assert {
        name: command.help.split("\n")[0] for name, command in get_command(app).commands.items()
    } == summaries


@pytest.mark.parametrize("group", ["", "pg", "queues"])
def test_each_command_is_one_line_in_a_terminal_of_eighty(group):
    shown = pgflow(None, *group.split(), "--help", width=80).out
    listed = [
        line for line in shown.splitlines() if re.match(r"  [a-z][a-z-]* {2,}\S.*[^.]\.$", line)
    ]
    assert len(listed) == len([path for path in commands() if " ".join(path[:-1]) == group])
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_the_exit_codes_stand_below_the_help():
    assert "Exit codes: 0 done" in pgflow(None, "--help", width=80).out


@pytest.mark.parametrize(("typed", "said"), [
    (["lst"], "pgflow: No such command 'lst'. Did you mean 'list', 'cluster'? See `pgflow --help`\n"),
    (["queues", "resum"], ("pgflow queues: No such command 'resum'. Did you mean 'resume'? See `pgflow "
                          "queues --help`\n")),
    (["show"], "pgflow show: Missing argument 'KEY'. See `pgflow show --help`\n"),
    (["list", "--limit", "many"], "pgflow list: Invalid value for '--limit' / '-n'"),
])  # fmt: skip
def test_what_cannot_be_read_is_one_line(typed, said):
    answer = pgflow(None, *typed)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith(said)


def test_the_version():
    assert re.fullmatch(
        r"pgflow \d+\.\d+\.\d+\S* \(schema \d+, files \w{8}\)( \(compiled\))?\n",
        pgflow(None, "--version").out,
    )


def test_the_shell_completes_commands():
    env = {
        **os.environ,
        "_PGFLOW_COMPLETE": "complete_bash",
        "COMP_WORDS": "pgflow ti",
        "COMP_CWORD": "1",
    }
    program = "import sys; sys.argv = ['pgflow']; from pgflow_cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        capture_output=True,
        text=True,
        cwd=APPS,
        check=False,
    )
    assert set(done.stdout.split()) == {"tick", "timeline"}


def test_the_shell_completes_statuses_and_keys(dsn, conn):
    conn.execute(
        "select pgflow.start_run('greet', '{}', k) from unnest('{order-1,order-2,other}'::text[]) k"
    )
    assert complete_status("pa") == ["paused"]
    with environment(PGFLOW_DSN=dsn):
        assert complete_key("order-") == ["order-2", "order-1"]
        assert complete_key("caf\udce9") == []
    with environment(PGFLOW_DSN="postgresql://127.0.0.1:1/none"):
        assert complete_key("order-") == []
