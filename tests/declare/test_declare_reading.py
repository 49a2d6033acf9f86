"""Reading any path or text to the right family, a verdict and a graph; nothing that stands in a
file is raised.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from declarekit import CONTRACT, REVIEW, SOP, make_workspace, write_examples

from pgflow.declare import Graph, Verdict, discover_workflows, parse_workflow, validate
from pgflow.declare.reading import family_of
from pgflow.errors import DefinitionError, InvalidWorkflow

STAGES = "name: essays\nstages:\n  - {id: draft, next: END}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_examples(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "text", "family"), [
    ("a.yaml", REVIEW, "dag"), ("a.YML", REVIEW, "dag"), ("a.yaml", "not: a workflow", "dag"),
    ("a.yaml", STAGES, "icm"), ("workflow.yaml", STAGES, "icm"), ("workflow.yaml", REVIEW, "dag"),
    ("a.sop.md", SOP, "sop"), ("a.script.md", SOP, "sop"), ("CONTEXT.md", CONTRACT, None),
    ("a.json", "{}", None),
])  # fmt: skip
def test_a_file_belongs_to_the_family_of_its_name_and_yaml_with_stages_to_icm(
    tmp_path, name, text, family
):
    (tmp_path / name).write_text(text)
    assert family_of(tmp_path / name) == family


def test_the_workflow_of_a_workspace_stands_for_the_whole_workspace(folder):
    (folder / "essays" / "workflow.yaml").write_text(
        "name: mine\nstages:\n  - {id: 01-draft, next: 02-polish}\n  - {id: 02-polish, next: END}\n"
    )
    graph = parse_workflow(folder / "essays" / "workflow.yaml")
    assert (graph.name, [node.id for node in graph.nodes]) == ("mine", ["01-draft", "02-polish"])
    assert graph == parse_workflow(folder / "essays")


@pytest.mark.parametrize(("text", "ids"), [
    (REVIEW, ["size", "quick", "thorough", "report"]), (SOP, ["step-1-look", "step-2-greet"]),
    (STAGES, ["draft"]),
])  # fmt: skip
def test_a_text_is_compiled_too(text, ids):
    graph = parse_workflow(text)
    assert isinstance(graph, Graph)
    assert [node.id for node in graph.nodes] == ids


def test_a_path_may_be_a_text_of_one_line(folder):
    assert parse_workflow(str(folder / "review.yaml")).name == "review"


def test_a_workflow_that_cannot_be_used_is_an_error_that_knows_all_of_it(folder):
    (folder / "bad.yaml").write_text(REVIEW.replace("depends_on: [size]", "depends_on: [sizes]"))
    with pytest.raises(InvalidWorkflow, match=r"bad\.yaml:\d+:\d+: .*'sizes'") as caught:
        parse_workflow(folder / "bad.yaml")
    assert isinstance(caught.value, DefinitionError)
    assert len([problem for problem in caught.value.problems if problem.line is not None]) >= 2


@pytest.mark.parametrize("path", ["nowhere.yaml", "nowhere", "a\0b", "x" * 5000, ""])
def test_a_path_that_is_none_is_that_error_too(path):
    with pytest.raises(InvalidWorkflow, match="Cannot be read: "):
        parse_workflow(path)


def test_a_workflow_that_includes_what_is_not_there_is_sound_and_has_no_graph(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "name: a\ndescription: d\nnodes:\n  - id: inner\n    include: elsewhere\n"
    )
    [verdict] = validate(tmp_path / "a.yaml")
    assert (verdict.ok, verdict.graph) == (True, None)
    with pytest.raises(InvalidWorkflow, match="elsewhere"):
        parse_workflow(tmp_path / "a.yaml")


def test_a_folder_of_several_is_not_one(folder):
    with pytest.raises(InvalidWorkflow, match="Several workflows are found here"):
        parse_workflow(folder)
    (folder / "only").mkdir()
    (folder / "only" / "a.yaml").write_text(REVIEW)
    assert parse_workflow(folder / "only").name == "review"


def names(verdicts: list[Verdict], folder: Path) -> list[str]:
    return [Path(verdict.file).relative_to(folder).as_posix() for verdict in verdicts]


def test_a_folder_is_searched_in_the_order_of_names(folder):
    (folder / "b").mkdir()
    for name in ("z.yaml", "a.yml", "notes.md", "x.stubs.yaml"):
        (folder / "b" / name).write_text(REVIEW)
    found = names(discover_workflows(folder), folder)
    assert found == ["greet.sop.md", "review.yaml", "b/a.yml", "b/z.yaml", "essays"]


def test_what_is_somebody_elses_is_not_looked_into(folder):
    for name in (".git", ".github", "node_modules", "fixtures", ".hidden"):
        (folder / name).mkdir()
        (folder / name / "a.yaml").write_text(REVIEW)
    (folder / "essays" / "stages" / "01-draft" / "output" / "plan.yaml").write_text("a: 1")
    assert names(discover_workflows(folder), folder) == ["greet.sop.md", "review.yaml", "essays"]


def test_where_dags_have_their_own_place_other_yaml_is_none(folder):
    place = folder / ".archon" / "workflows"
    place.mkdir(parents=True)
    for name in ("one.yaml", "two.yaml"):
        (place / name).write_text(REVIEW)
    (folder / "compose.yaml").write_text("services: {}\n")
    found = discover_workflows(folder)
    assert names(found, folder) == [
        ".archon/workflows/one.yaml", ".archon/workflows/two.yaml", "greet.sop.md", "essays",
    ]  # fmt: skip
    assert [verdict.ok for verdict in found] == [False, False, True, True], "two of one name"


def test_a_link_to_a_folder_is_not_followed_and_a_pipe_is_not_read(folder):
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.yaml")
    assert names(discover_workflows(folder), folder) == ["greet.sop.md", "review.yaml", "essays"]


def test_one_bad_file_stops_no_other(folder):
    (folder / "a.yaml").write_bytes(b"\x00\xff")
    (folder / "a.sop.md").write_bytes(b"\xff\xfe")
    found = discover_workflows(folder)
    assert {
        name: verdict.ok for name, verdict in zip(names(found, folder), found, strict=True)
    } == {
        "a.sop.md": False, "a.yaml": False, "greet.sop.md": True, "review.yaml": True,
        "essays": True,
    }  # fmt: skip


def test_verdicts_come_one_by_one(folder):
    verdicts = validate(folder / "review.yaml", folder / "late.yaml")
    assert next(verdicts).ok
    (folder / "late.yaml").write_text(REVIEW)
    assert next(verdicts).ok
    assert next(verdicts, None) is None


HOSTILE = {
    "an alias bomb": "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + "nodes: *i\n",
    "depth": "name: " + "[" * 50_000,
    "nesting of mappings": "".join(f"{' ' * n}a:\n" for n in range(2_000)),
    "ten megabytes": "name: x\ndescription: " + "x" * 10_000_000,
    "a key twice": "name: a\nname: b\ndescription: d\nnodes: []\n",
    "a NUL": "name: a\0b\n",
    "a tag of Python": "name: !!python/object/apply:os.system [true]\nnodes: []\n",
    "nothing": "",
    "nothing but a comment": "# nothing\n",
    "a scalar": "hello\n",
}


@pytest.mark.parametrize(
    "suffix", [".yaml", ".sop.md", "/workflow.yaml", "/stages/01-a/CONTEXT.md"]
)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_has_a_verdict(tmp_path, suffix, text):
    root = tmp_path / "w"
    if suffix.startswith("/"):
        make_workspace(root)
        path = root / suffix[1:].replace("01-a", "01-draft")
    else:
        path = tmp_path / f"w{suffix}"
    path.write_text(text)
    [verdict] = validate(root if suffix.startswith("/") else path)
    assert not verdict.ok or verdict.warnings or verdict.graph is not None
    assert all("Traceback" not in problem.message for problem in verdict.problems)
    if suffix == ".yaml":
        assert not verdict.ok


@pytest.mark.full
def test_what_reading_files_needs_is_imported_by_those_who_read_them():
    unwanted = ("pgflow.declare", "ruamel")
    code = f"import sys, pgflow; print([n for n in sys.modules if n.startswith({unwanted!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
