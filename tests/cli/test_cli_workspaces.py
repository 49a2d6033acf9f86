"""`pgflow run FOLDER`: a workspace is run from a terminal, asked for stages, and told where to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from clikit import pgflow

from pgflow.declare.durable.processes import close_keeper

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "meeting-summarizer"
RUN = ("run", "meeting", "--provider", "stub:meeting/meeting.stubs.yaml", "--table")
FOLDER = '{"folder_path": "out"}'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path)
    shutil.copytree(EXAMPLE, "meeting")
    yield
    close_keeper()
    os.chdir(before)


@pytest.mark.full
def test_a_workspace_is_run_asked_for_a_stage_and_told_where_to_deliver(dsn: str) -> None:
    command = (*RUN, "--key", "weekly")
    said = pgflow(dsn, *command, "--detach")
    assert said.code == 0, said
    assert "runs on request only: it has 04" in pgflow(dsn, "request", "weekly", "01").err
    for answer in (
        "weekly will run stage 04-extended-notes",
        "Stage 04-extended-notes of weekly was already requested",
    ):
        assert pgflow(dsn, "request", "weekly", "04-extended-notes", "--table").out.startswith(
            answer
        )
    said = pgflow(dsn, *command)
    assert said.code == 4, said
    assert "pgflow signal weekly delivery_target JSON" in said.err
    for wrong, why in (("{}", "is a required property"), ('{"folder_path": "../x"}', "leads out")):
        refused = pgflow(dsn, "signal", "weekly", "delivery_target", wrong)
        assert (refused.code, why in refused.err) == (2, True), refused
    assert pgflow(dsn, "signal", "weekly", "delivery_target", FOLDER).code == 0
    said = pgflow(dsn, *command, "--watch")
    assert said.code == 0, said
    assert said.out.startswith("weekly completed: The export is released on Friday")
    assert Path("meeting/out/extended-notes.md").read_text().startswith("Ann asks for")


def test_a_stage_that_the_run_has_passed_is_refused(dsn: str) -> None:
    said = pgflow(dsn, *RUN, "--key", "weekly")
    assert said.code == 4, said
    late = pgflow(dsn, "request", "weekly", "04-extended-notes")
    assert (late.code, "has passed stage" in late.err) == (2, True), late
    unknown = pgflow(dsn, "signal", "weekly", "delivery_targt", FOLDER)
    assert (unknown.code, "has no signal 'delivery_targt'" in unknown.err) == (2, True), unknown
    asked = json.loads(pgflow(dsn, "query", "weekly").out)
    assert asked["stage"] == ["05-assemble-and-deliver"]
    assert asked["stages"]["04-extended-notes"] == "skipped"
    assert asked["state"]["delivery_target"] is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--with", "01-meeting-notes"], "runs on request only: it has 04-extended-notes"),
        (["--input", "nonesuch=x"], "has no input 'nonesuch': it has delivery_target"),
        (["--input", "delivery_target=x"], "does not fit the schema"),
        (["--input", 'delivery_target:={"folder_path": "/tmp"}'], "is absolute"),
    ],
)
def test_what_a_workspace_cannot_be_given_is_refused_before_there_is_a_run(
    dsn: str, arguments: list[str], why: str
) -> None:
    said = pgflow(dsn, *RUN, *arguments)
    assert (said.code, why in said.err) == (2, True), said
    assert pgflow(dsn, "list", "--json").data == []
