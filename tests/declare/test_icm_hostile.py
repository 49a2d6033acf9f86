"""Workspaces that somebody made to do harm, or by accident: one clear error each, never a
traceback, nothing read outside.
"""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from pgflow.declare import icm
from pgflow.declare.icm.folders import MAX_BYTES
from tests.kits.icmkit import CONTRACT, workspace

FLOW = """
    name: hostile
    state:
      result: {{ type: file, location: {location} }}
    stages:
      - {{ id: 01-a, writes: [result] }}
"""


def the_error(root: Path):
    verdict = icm.read_workspace(root)
    (problem,) = verdict.errors
    assert verdict.graph is None
    assert "\n" not in problem.message
    return problem


def row(location: str, section: str = "Inputs") -> str:
    return dedent(CONTRACT).replace(
        "`references/rules.md`" if section == "Inputs" else "`output/result.md`", f"`{location}`"
    )


@pytest.mark.parametrize("location", [
    "../../etc/passwd", "/etc/passwd", "..", "~/.ssh/id_rsa", "'C:\\Windows\\system.ini'",
    "'..\\..\\secret'", "a/../../b", "link/secret.txt",
])  # fmt: skip
def test_a_location_that_leads_out_is_an_error(tmp_path, location):
    root = workspace(tmp_path / "inside", {"01-a": CONTRACT}, FLOW.format(location=location))
    (root / "link").symlink_to(tmp_path)
    problem = the_error(root)
    assert problem.message.startswith("workflow.yaml: location ")
    assert problem.line == 3


def test_a_location_with_a_nul_is_refused_as_any_such_text_is(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT}, FLOW.format(location='"a/\\0b"'))
    problem = the_error(root)
    assert (problem.message, problem.line) == ("workflow.yaml: A NUL in a text", 3)


@pytest.mark.parametrize("location", [
    "../../../../../../../../etc/passwd", "../../../secret.md", "../../link/secret.md",
    "..\\..\\..\\secret.md", "C:\\secret.md",
])  # fmt: skip
@pytest.mark.parametrize("section", ["Inputs", "Outputs"])
def test_a_row_that_leads_out_is_an_error_where_it_stands(tmp_path, location, section):
    root = workspace(tmp_path / "inside", {"01-a": row(location, section)})
    (root / "link").symlink_to(tmp_path)
    problem = the_error(root)
    assert problem.message == f"stages/01-a/CONTEXT.md: {location!r} leads out of the workspace"
    assert problem.line == (9 if section == "Inputs" else 19)


def test_nothing_is_written_outside_even_in_a_collection(tmp_path):
    (tmp_path / "_core").mkdir()
    root = workspace(tmp_path / "workspaces" / "a", {"01-a": row("/_core/rules.md", "Outputs")})
    found = the_error(root).message
    assert found == "stages/01-a/CONTEXT.md: '/_core/rules.md' leads out of the workspace"


def test_what_a_collection_shares_may_be_read_with_a_warning(tmp_path):
    (tmp_path / "_core").mkdir()
    for location in ("/_core/rules.md", "../../../../_core/rules.md"):
        root = workspace(tmp_path / "workspaces" / f"a{len(location)}", {"01-a": row(location)})
        verdict = icm.read_workspace(root)
        found = [p.message for p in verdict.problems]
        assert found == [f"stages/01-a/CONTEXT.md: {location!r} lies outside the workspace"]
    root = workspace(tmp_path / "workspaces" / "c", {"01-a": row("../../../../../secret.md")})
    found = the_error(root).message
    assert found == "stages/01-a/CONTEXT.md: '../../../../../secret.md' leads out of the workspace"


def test_a_contract_that_is_a_link_out_of_the_workspace_is_not_read(tmp_path):
    (tmp_path / "secret.md").write_text("SECRET")
    root = workspace(tmp_path / "inside", {"01-a": CONTRACT})
    (root / "stages/01-a/CONTEXT.md").unlink()
    (root / "stages/01-a/CONTEXT.md").symlink_to(tmp_path / "secret.md")
    problem = the_error(root)
    assert (
        problem.message
        == "stages/01-a/CONTEXT.md: is a link that leads out of the workspace, which is not "
        "followed"
    )


def test_a_workflow_that_is_a_link_out_of_the_workspace_is_not_read(tmp_path):
    (tmp_path / "secret.yaml").write_text("a: b")
    root = workspace(tmp_path / "inside", {"01-a": CONTRACT})
    (root / "workflow.yaml").symlink_to(tmp_path / "secret.yaml")
    assert (
        the_error(root).message
        == "workflow.yaml: is a link that leads out of the workspace, which is not followed"
    )


def test_a_stage_that_is_a_link_out_of_the_workspace_is_not_read(tmp_path):
    elsewhere = workspace(tmp_path / "elsewhere", {"02-b": CONTRACT})
    root = workspace(tmp_path / "inside", {"01-a": CONTRACT})
    (root / "stages/02-b").symlink_to(elsewhere / "stages/02-b")
    found = the_error(root).message
    assert found == "stages/02-b is a link that leads out of the workspace, which is not followed"


@pytest.mark.parametrize("target", ["stages/01-a/CONTEXT.md", "nowhere"])
def test_a_link_to_itself_or_to_nothing_is_an_error(tmp_path, target):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    file = root / "stages/01-a/CONTEXT.md"
    file.unlink()
    file.symlink_to(root / target)
    assert the_error(root).message.startswith("stages/01-a/CONTEXT.md: cannot be read")


def test_a_pipe_is_not_waited_for(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    (root / "stages/01-a/CONTEXT.md").unlink()
    os.mkfifo(root / "stages/01-a/CONTEXT.md")
    assert the_error(root).message == "stages/01-a/CONTEXT.md: is not a regular file"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# A\0B\n", "has a NUL character, so it is not text"),
        (b"# A\xff\n", "is not UTF-8 text (byte 3)"),
        ("# A\n".encode("utf-16"), "is not UTF-8 text (byte 0)"),
        (b"x" * (MAX_BYTES + 1), "is larger than 256 KiB"),
        (b"\n" * 10_000, "has more than 5000 lines"),
    ],
    ids=["nul", "latin", "utf-16", "large", "long"],
)
@pytest.mark.parametrize("file", ["stages/01-a/CONTEXT.md", "workflow.yaml"])
def test_a_file_that_is_no_moderate_text_is_an_error(tmp_path, file, content, message):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    (root / file).write_bytes(content)
    assert the_error(root).message == f"{file}: {message}"


@pytest.mark.parametrize(
    "content",
    [
        "| a |\n|---|\n" + "| x |\n" * 4_900,
        "- a\n" * 4_900,
        "> " * 60_000,
        "\n".join(" " * depth + "- a" for depth in range(300)),
        "[a]: <" * 30_000,
        "|" * 100_000,
        "`" * 100_000,
        "## Inputs\n" + "- " + "[" * 50_000,
        "## Inputs\n" + "- `" + "{" * 50_000 + "`",
        "## Inputs\n| a | b |\n|--|--|\n| `a/<" + "<" * 50_000 + "` | `" + "[" * 50_000 + "` |",
        "## Outputs\n- " + "a/" * 60_000,
        "{{?A}}\n" * 4_000,
        "## Outputs\n- " + " ".join(f"a{n}/b.md" for n in range(4_000)),
        "## Outputs\n- " + " ".join(f"`b{n}/`" for n in range(4_000)),
    ],
    ids=[
        "rows",
        "items",
        "quotes",
        "nested",
        "definitions",
        "bars",
        "ticks",
        "brackets",
        "braces",
        "cells",
        "path",
        "conditions",
        "words",
        "paths",
    ],
)
def test_a_tangled_contract_is_read_in_moderate_time(tmp_path, content):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    (root / "stages/01-a/CONTEXT.md").write_text(content)
    assert icm.read_workspace(root).errors == ()


def test_more_inputs_than_anybody_could_mean_are_an_error(tmp_path):
    root = workspace(tmp_path, {f"{n:02}-a": CONTRACT for n in range(3)})
    for stage in root.glob("stages/*/CONTEXT.md"):
        stage.write_text("## Inputs\n- " + " ".join(f"a{n}/b.md" for n in range(2_000)))
    assert the_error(root).message == "the contracts have more than 5000 inputs and outputs"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(("yaml", "message"), [
    ("- a\n- b", "frontmatter must be a mapping, not a list"),
    ("just words", "frontmatter must be a mapping, not 'just words'"),
    ("42", "frontmatter must be a mapping, not 42"),
    ("stage_id: [1]", "stage_id must be a text, not a list"), ("a: 1\na: 2", "Duplicate key 'a'"),
    ("reads: [", "Unexpected token"), (BOMB, "More than 100,000 values"),
    ("reads: *nothing", "Unresolved alias"),
    ("a: " + "[" * 200 + "]" * 200, "Nested deeper than 100 levels"),
], ids=["list", "words", "number", "id", "twice", "open", "bomb", "alias", "deep"])  # fmt: skip
def test_frontmatter_that_is_no_mapping_or_no_yaml_is_an_error(tmp_path, yaml, message):
    root = workspace(tmp_path, {"01-a": f"---\n{yaml}\n---\n" + dedent(CONTRACT)})
    problem = the_error(root)
    assert problem.message.startswith(f"stages/01-a/CONTEXT.md: {message}")
    assert problem.line >= 2


def test_empty_frontmatter_says_nothing(tmp_path):
    verdict = icm.read_workspace(workspace(tmp_path, {"01-a": "---\n---\n" + dedent(CONTRACT)}))
    assert verdict.problems == ()


def test_a_line_at_the_top_that_nothing_closes_is_no_frontmatter(tmp_path):
    root = workspace(tmp_path, {"01-a": "---\n" + dedent(CONTRACT)})
    assert icm.read_workspace(root).ok
    assert len(icm.write_missing(root).files) == 2
    assert icm.write_missing(root).files == ()


@pytest.mark.parametrize("text", [
    "", "[]", "a", "stages: 1", "stages: [1]", "state: 1\nstages: [{id: a}]",
    "stages: [{id: a, next: [[]]}]", BOMB,
])  # fmt: skip
def test_a_workflow_of_the_wrong_shape_has_errors_and_no_graph(text):
    verdict = icm.read_text(text, "workflow.yaml")
    assert verdict.graph is None
    assert len(verdict.errors) in {1, 2}


def test_duplicate_stage_numbers_are_an_error(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT, "01-b": CONTRACT})
    assert the_error(root).message == "stages/01-b/CONTEXT.md: Duplicate stage number: 01"


def test_two_stages_with_one_id_are_an_error(tmp_path):
    root = workspace(
        tmp_path, {"01-a": CONTRACT, "02-b": "---\nstage_id: 01-a\n---\n" + dedent(CONTRACT)}
    )
    assert the_error(root).message == "stages/02-b/CONTEXT.md: Duplicate stage_id: '01-a'"


def test_a_folder_that_is_missing_or_a_file_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    found = the_error(tmp_path / "nothing").message
    assert found == f"Workspace does not exist: {tmp_path / 'nothing'}"
    found = the_error(tmp_path / "file").message
    assert found == f"Workspace is not a directory: {tmp_path / 'file'}"
    found = [p.message for p in icm.read_file(tmp_path / "nothing.yaml").errors]
    assert found == ["file cannot be read: No such file or directory"]


def test_one_bad_workspace_does_not_stop_the_others(tmp_path):
    workspace(tmp_path / "a", {"01-a": CONTRACT})
    workspace(tmp_path / "b", {"01-a": "---\n[\n---\n"})
    workspace(tmp_path / "c/deeper", {"01-a": CONTRACT})
    found = icm.find_workspaces(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["a", "b", "c/deeper"]
    assert [icm.read_workspace(path).ok for path in found] == [True, False, True]


def test_looking_for_workspaces_follows_no_links(tmp_path):
    workspace(tmp_path / "elsewhere", {"01-a": CONTRACT})
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here/circle").symlink_to(tmp_path / "here")
    assert icm.find_workspaces(tmp_path / "here") == []


def test_numbered_folders_alone_are_no_workspace(tmp_path):
    (tmp_path / "stages/01-build").mkdir(parents=True)
    assert not icm.is_workspace(tmp_path)
    (tmp_path / "stages/01-build/CONTEXT.md").write_text("# Build\n")
    assert icm.is_workspace(tmp_path)


def test_a_link_to_a_workspace_is_read_as_the_workspace(tmp_path):
    workspace(tmp_path / "real", {"01-a": CONTRACT})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert icm.read_workspace(tmp_path / "link").problems == ()
