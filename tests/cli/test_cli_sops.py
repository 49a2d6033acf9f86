"""`pgflow run` of an Agent SOP: by its name, with parameters that are asked for, and questions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clikit import pgflow
from sopkit import sop

from pgflow.declare.durable.processes import close_keeper

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

ASKING = """### 1. Look

**Constraints:**
- You MUST ask the user which part matters"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path)
    Path("sops").mkdir()
    Path("sops", "looking.sop.md").write_text(sop(steps=ASKING))
    Path("replies.json").write_text(json.dumps({"step-1-look": "<ask-user>Which?</ask-user>"}))
    yield
    close_keeper()
    os.chdir(before)


RUN = ("run", "looking", "--provider", "python:sop_agents:answer")


@pytest.mark.full
def test_a_run_asks_for_its_parameters_and_for_what_its_agent_asks(dsn: str) -> None:
    command = (*RUN, "--key", "look-1", "--table")
    said = pgflow(dsn, *command)
    assert (said.code, said.err.splitlines()[0]) == (4, "parameters asks: Give topic"), said
    gate = said.err.split("pgflow edit ")[1].split()[0]
    assert f"""pgflow edit {gate} '{{"topic": "..."}}'""" in said.err
    for wrong in ('{"topic": "tea", "colour": 1}', "{}"):
        refused = pgflow(dsn, "edit", gate, wrong)
        assert (refused.code, "stays open" in refused.err) == (2, True), refused
    assert pgflow(dsn, "edit", gate, '{"topic": "tea"}').code == 0
    said = pgflow(dsn, *command)
    assert (said.code, "step-1-look:ask#1 asks: Which?" in said.err) == (4, True), said
    gate = said.err.split("pgflow approve ")[1].split()[0]
    assert pgflow(dsn, "approve", gate, "left").code == 0
    said = pgflow(dsn, *command)
    assert (said.code, said.out) == (0, "look-1 completed: did step-1-look\n"), said
    assert "left" in Path("prompt-step-1-look:turn#2").read_text()


def test_parameters_are_asked_for_at_a_terminal(dsn: str) -> None:
    command = (*RUN, "--key", "look-2", "--table")
    for typed in ("tea\n", None):
        said = pgflow(dsn, *command, typed=typed)
        assert (said.code, "step-1-look:ask#1 asks: Which?" in said.err) == (4, True), said
        assert said.err.startswith("topic") == (typed is not None)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((*RUN, "-i", "colour=red"), "has no input 'colour': it has topic"),
        (("run", "looking"), "pass --provider"),
        (("run", "treasury:pay", "--chain"), "--chain requires a file"),
    ],
)
def test_a_mistake_is_said_before_there_is_a_run(
    dsn: str, arguments: tuple[str, ...], why: str
) -> None:
    said = pgflow(dsn, *arguments)
    assert said.code == 2
    assert why in said.err
    assert pgflow(dsn, "list", "--json").data == []
