"""docs/cli.md: every command is there with an example, and the examples run, in their order, in a
new project.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import servers
from clikit import finish, make_stuck, pgflow, process
from declarekit import write_examples
from pgflow_cli.commands import app
from pgflow_cli.look import failures
from test_cli_help import commands
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (servers.REPOSITORY / "docs" / "cli.md").read_text()

RUN_UNTIL_STOPPED = (
    "pgflow workers flows.py",
    "pgflow web",
    "pgflow mcp",
    "pgflow list --watch",
    "pgflow pg start",
)
TESTED_ELSEWHERE = (
    "pgflow demo", "pgflow pg", "pgflow cluster join", "pgflow import", "pgflow migrate-from",
    "pgflow update", "pgflow request", "pgflow rotate", "pgflow serve",
)  # fmt: skip


def sections() -> dict[str, str]:
    """Return the text under each command's heading on the page."""
    parts = re.split(r"^#{2,3} (.*)$", PAGE, flags=re.MULTILINE)
    return {
        heading.strip("`"): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def examples() -> list[str]:
    return re.findall(r"^\$ (pgflow .*)$", PAGE, re.MULTILINE)


def leaves() -> list[str]:
    """Every command, and groups that do something by themselves; those of ``audit`` stand under its
    own heading.
    """
    groups = {" ".join(path[:-1]) for path in commands()}
    speaking = {"queues", "budgets", "locks", "audit", "schedules", "flow", "retention"}
    return [
        " ".join(("pgflow", *path))
        for path in commands()
        if (" ".join(path) not in groups and path[:-1] != ("audit",)) or " ".join(path) in speaking
    ]


def faults(command: str, text: str) -> list[str]:
    """Return what the text under a command's heading lacks."""
    words = re.sub(r"```.*?```", "", text, flags=re.DOTALL).strip()
    return [
        *(
            ["an example"]
            if not re.search(rf"^\$ {re.escape(command)}\b", text, re.MULTILINE)
            else []
        ),
        *(["words"] if len(words) <= 20 else []),
    ]


def test_every_command_is_documented_with_an_example_and_nothing_else_is():
    documented = {name: text for name, text in sections().items() if name.startswith("pgflow ")}
    assert set(documented) == set(leaves()), "headings of docs/cli.md"
    lacking = {name: faults(name, text) for name, text in documented.items()}
    assert {name: lack for name, lack in lacking.items() if lack} == {}


def test_the_exit_codes_are_those_of_the_program():
    table = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert {int(code): meaning for code, meaning in table} == failures.MEANINGS


def understood(words: list[str]) -> None:
    """Raises if a command line is none."""
    command = get_command(app)
    context = command.make_context("pgflow", list(words), resilient_parsing=True)
    while hasattr(command, "resolve_command") and words:
        name, inner, rest = command.resolve_command(context, words)
        if inner is None:
            break
        context, command, words = (
            inner.make_context(name, list(rest), parent=context),
            inner,
            [word for word in rest if not word.startswith("-")],
        )


def durations() -> set[str]:
    """Return the options of all commands that take a duration."""
    found = set()
    for path in commands():
        command: Any = get_command(app)
        for name in path:
            command = command.commands[name]
        found |= {opt for one in command.params if one.metavar == "DURATION" for opt in one.opts}
    return {name for name in found if name.startswith("--")}


def test_no_page_passes_a_duration_without_its_unit() -> None:
    assert {"--dead-after", "--grace", "--transaction-idle"} <= durations()
    bare = re.compile(rf"(?:{'|'.join(sorted(durations()))})[ =]\d+(?![\w.])")
    pages = [servers.REPOSITORY / "README.md", *(servers.REPOSITORY / "docs").rglob("*.md")]
    assert [(page.name, found) for page in pages for found in bare.findall(page.read_text())] == []


@pytest.fixture(scope="module")
def project(
    server_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, object]]:
    """An empty database, and a folder with nothing but declared workflows."""
    name = servers.create_database(server_dsn)
    folder = tmp_path_factory.mktemp("project")
    write_examples(folder)
    yield servers.dsn_of(server_dsn, name), folder
    servers.drop_database(server_dsn, name)


@pytest.mark.full
def test_the_examples_run_in_their_order(project, monkeypatch):
    dsn, folder = project
    monkeypatch.chdir(folder)
    for example in examples():
        words = shlex.split(example)[1:]
        if example.startswith(RUN_UNTIL_STOPPED + TESTED_ELSEWHERE):
            understood(words)
            continue
        if words[0] == "sql":
            monkeypatch.setenv("PGFLOW_AUDITOR_DSN", servers.as_auditor(dsn))
        if words[0] == "tick":
            answer = finish(process(dsn, words[0], str(folder / words[1]), *words[2:]))
        else:
            answer = pgflow(dsn, *words, tty=True, width=100)
        expected = (
            (0, 1) if words[0] == "doctor" else (0,)
        )  # a server for tests may not sync what it writes
        assert answer.code in expected, f"{example}: {answer.err}"
        if words[:2] == ["doctor", "--deep"]:
            with psycopg.connect(dsn, autocommit=True) as conn:
                make_stuck(
                    conn, "stuck-1"
                )  # the doctor, who has just been there, would have found it
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = dict(conn.execute("select key, status from pgflow.runs").fetchall())
    assert (found["order-2"], found["stuck-1"], found["hello-1"]) == (
        "queued",
        "queued",
        "waiting",
    ), "a run that is cancelled may clean up first"
