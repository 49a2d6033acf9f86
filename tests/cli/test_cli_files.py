"""`pgflow run FILE`: what is refused before there is a run, what is said, and with which exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clikit import finish, pgflow, process

from pgflow.declare.durable.processes import close_keeper

pytestmark = pytest.mark.timeout(60)

COUNT = """\
name: count
description: Counts lines.
inputs:
  file: {required: true}
nodes:
  - id: lines
    bash: wc -l < "$INPUTS_FILE"
  - id: report
    prompt: "$INPUTS.file: $lines.output lines, $ARGUMENTS"
    depends_on: [lines]
"""
ASK = """\
name: release
description: Asks.
interactive: true
nodes:
  - id: ask
    approval: {message: "Release 1.4?", capture_response: true}
  - id: tell
    bash: echo "they said $ask.output"
    depends_on: [ask]
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path)
    Path("count.yaml").write_text(COUNT)
    Path("release.yaml").write_text(ASK)
    yield
    close_keeper()
    os.chdir(before)


def test_a_file_is_run_and_says_what_its_last_node_said(dsn: str) -> None:
    said = finish(
        process(
            dsn, "run", str(Path("count.yaml").absolute()), "well", "done", "--table", "--watch",
            "--cwd", str(Path.cwd()), "--input", "file=count.yaml", "--provider", "cmd:tr a-z A-Z",
            "--key", "count-1",
        )
    )  # fmt: skip
    assert (said.code, said.out) == (0, "count-1 completed: COUNT.YAML: 10 LINES, WELL DONE\n"), (
        said
    )
    assert said.err.splitlines() == ["completed lines", "completed report"]


def test_a_workflow_is_named_where_archon_has_them(dsn: str) -> None:
    folder = Path(".archon", "workflows")
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text(
        "name: one-node\ndescription: d\nnodes: [{id: a, bash: echo hi}]\n"
    )
    said = pgflow(dsn, "run", "one-node", "--json")
    assert said.code == 0, said.err
    assert said.data["output"]["output"] == "hi"
    assert said.data["output"]["nodes"] == {"a": "completed"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["count.yaml"], "pass --provider"),
        (["count.yaml", "--provider", "cmd:cat"], "needs input 'file'"),
        (["count.yaml", "--provider", "cmd:cat", "-i", "files=x"], "has no input 'files'"),
        (["count.yaml", "--provider", "no:x", "-i", "file=x"], "no provider 'no'"),
        (["count.yaml", "--cwd", "nowhere"], "is no folder"),
        (["count.yaml", "--env", "NO_SUCH_NAME"], "no such variable"),
        (["missing.yaml"], "No such file"),
    ],
)
def test_what_can_be_refused_is_refused_before_there_is_a_run(
    dsn: str, arguments: list[str], why: str
) -> None:
    said = pgflow(dsn, "run", *arguments)
    assert said.code == 2
    assert why in said.err
    assert pgflow(dsn, "list", "--json").data == []


def test_a_run_that_waits_for_a_person_says_so_and_goes_on_under_its_key(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    command = ("run", "release.yaml", "--key", "release-1", "--table")
    said = pgflow(dsn, *command)
    assert said.code == 4, said
    assert "ask asks: Release 1.4?" in said.err
    gate = said.err.split("pgflow approve ")[1].split()[0]
    assert pgflow(dsn, "edit", gate, '{"response": "go"}').code == 0
    said = pgflow(dsn, *command)
    assert (said.code, said.out) == (0, "release-1 completed: they said go\n"), said


def test_a_detached_run_waits_for_a_worker(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    said = pgflow(dsn, "run", "release.yaml", "--key", "release-2", "--detach", "--table")
    assert (said.code, said.out) == (
        0,
        "Started release-2 (pgflow.declared, queue declared)\n",
    )
    assert pgflow(dsn, "list", "--json").data[0]["status"] == "queued"
