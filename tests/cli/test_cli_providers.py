"""Commands on files whose nodes have different providers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from clikit import pgflow
from runkit import write

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder without files, and a user without a config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARCHON_HOME", str(tmp_path / "home"))


SEVERAL = """
- {id: a, prompt: x}
- {id: b, prompt: x, provider: codex}
- {id: c, prompt: x, provider: pi, depends_on: [a, b]}
"""


def stand_in(name: str) -> None:
    """A program of that name, which says it and its model."""
    events = [
        {"type": "system", "subtype": "init", "session_id": "s", "model": "m"},
        {"type": "result", "subtype": "success", "is_error": False, "result": "RESULT"},
    ]
    program = Path(name)
    lines = "\n".join(map(json.dumps, events))
    program.write_text(
        f'#!/bin/bash\ncat > /dev/null\nfor word in "$@"; do case "$word" in --model=*) '
        f"model=${{word#*=}};; esac; done\ncat <<E\n{lines.replace('RESULT', f'{name} $model')}\nE\n"
    )
    program.chmod(0o755)


@pytest.mark.full
def test_a_file_that_names_its_provider_needs_no_option(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path.cwd()}{os.pathsep}{os.environ['PATH']}")
    stand_in("claude")
    path = write(Path(), "- {id: a, prompt: x, model: large}", "provider: claude")
    said = pgflow(dsn, "run", str(path), "--json")
    assert (said.code, said.data["output"]["output"]) == (0, "claude opus"), said
    assert "warning" not in said.err
    Path(".archon").mkdir()
    Path(".archon/config.yaml").write_text("assistant: claude")
    said = pgflow(dsn, "run", str(write(Path(), "- {id: a, prompt: x, model: large}")), "--json")
    assert (said.code, said.data["output"]["output"]) == (0, "claude opus"), said


def test_words_of_a_file_are_mapped_to_providers(dsn: str) -> None:
    path = write(Path(), SEVERAL, "returns: c")
    refused = pgflow(dsn, "run", str(path), "--map", "codex=cmd:cat")
    assert refused.code == 2
    assert "a, c: no provider for these agents" in refused.err
    mapped = ("--map", "pi=cmd:echo three", "--map", "typo=cmd:cat")
    said = pgflow(dsn, "run", str(path), "--provider", "cmd:cat", *mapped, "--json")
    assert (said.code, said.data["output"]["output"]) == (0, "three\n"), said
    assert "--map typo: no agent of w is for typo" in said.err
    for wrong, why in (("codex", "--map is written NAME=VALUE"), ("codex=nope:", "'nope'")):
        refused = pgflow(dsn, "run", str(path), "--provider", "cmd:cat", "--map", wrong)
        assert (refused.code, why in refused.err) == (2, True), refused


def test_a_provider_that_is_not_meant_is_warned_about(dsn: str) -> None:
    path = write(Path(), SEVERAL, "returns: c")
    said = pgflow(dsn, "run", str(path), "--provider", "gemini:", "--map", "pi=cmd:cat", "--detach")
    assert "node 'b' is for codex, and gemini takes its turns: --map codex=PROVIDER" in said.err
    assert "'c'" not in said.err
