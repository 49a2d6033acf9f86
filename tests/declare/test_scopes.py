"""Scopes: what a file finds beyond its own tree, and which of several it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgflow.declare import discover_workflows, parse_workflow, validate
from pgflow.declare.dag import scopes
from pgflow.declare.durable import Frozen, freeze
from pgflow.declare.durable.freezing import freeze_named
from pgflow.declare.graph import Prompt
from pgflow.errors import InvalidWorkflow

MAIN = "name: main\ndescription: d\nnodes: [{id: part, include: shared}]\n"
MENTIONS = """
name: main
description: d
nodes:
  - {id: a, command: greet}
  - {id: b, script: count, runtime: uv}
  - {id: c, workflow: shared}
"""


def shared(said: str) -> str:
    return f"name: shared\ndescription: d\nnodes: [{{id: a, prompt: {said}}}]\n"


def put(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def said_by(path: Path, *search: Path) -> str:
    """The prompt of what a workflow includes."""
    (node,) = parse_workflow(path, search=search).nodes
    assert isinstance(node.body, Prompt)
    return node.body.text


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder."""
    monkeypatch.setenv("ARCHON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A file of a repository, which includes a workflow that is not there."""
    return put(tmp_path / "repo" / ".archon" / "workflows", "main.yaml", MAIN)


def test_a_workflow_is_taken_from_the_nearest_scope_that_has_it(tmp_path, home, main):
    first, second = tmp_path / "first", tmp_path / "second"
    put(second, "of-second.yaml", shared("from the second"))
    put(home / "workflows", "of-home.yaml", shared("from home"))
    first.mkdir()
    assert said_by(main) == "from home"
    assert said_by(main, first, second) == "from the second"
    put(first, "of-first.yaml", shared("from the first"))
    assert said_by(main, first, second, first) == "from the first"
    put(main.parent, "of-repo.yaml", shared("its own"))
    assert said_by(main, first, second) == "its own"
    (verdict, _) = discover_workflows(tmp_path / "repo", search=[first])
    assert verdict.ok
    assert verdict.graph is not None


def test_two_of_a_name_in_one_scope_are_none_and_what_is_further_off_is_not_taken(home, main):
    put(home / "workflows", "x.yaml", shared("from home"))
    put(main.parent, "one.yaml", shared("one"))
    put(main.parent, "two.yaml", shared("two"))
    (verdict,) = validate(main)
    assert "include target 'shared' not found" in verdict.unresolved[0].message


def test_a_file_hides_those_of_its_name_in_the_scopes_after_it(home, main):
    put(home / "workflows", "shared.yaml", shared("from home"))
    assert said_by(main) == "from home"
    put(main.parent, "shared.yaml", shared("other").replace("name: shared", "name: other"))
    (verdict,) = validate(main)
    assert verdict.graph is None
    assert verdict.unresolved


def test_an_installed_package_brings_workflows_along(tmp_path, main, monkeypatch):
    site = tmp_path / "site"
    put(site / "team_flows", "__init__.py", "raise ValueError('nobody imports this')")
    put(site / "team_flows" / "workflows", "x.yaml", shared("from a package"))
    named = "[pgflow.workflows]\nteam = team_flows\nnone = no_such_module\n"
    put(site / "team_flows-1.dist-info", "entry_points.txt", named)
    put(site / "team_flows-1.dist-info", "METADATA", "Name: team-flows\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(site))
    scopes._bundled.cache_clear()
    try:
        assert said_by(main) == "from a package"
    finally:
        scopes._bundled.cache_clear()


def test_commands_scripts_and_children_are_found_where_workflows_are(tmp_path, home):
    main = put(tmp_path / "repo" / ".archon" / "workflows", "main.yaml", MENTIONS)
    put(home / "commands", "greet.md", "Greet them.")
    put(home / "scripts", "count.py", "print(1)")
    put(home / "workflows", "shared.yaml", shared("from home"))
    library = tmp_path / "library"
    put(library / "commands" / "team", "greet.md", "Greet all.")
    put(library / "workflows", "x.yaml", shared("from the library"))
    assert mentioned(freeze(parse_workflow(main))) == ("Greet them.", ("print(1)",), "from home")
    frozen = freeze(parse_workflow(main), search=[library / "workflows"])
    assert mentioned(frozen) == ("Greet all.", ("print(1)",), "from the library")


def mentioned(frozen: Frozen) -> tuple[str, tuple[str, ...], str]:
    """The texts of the command, the script and the child that a workflow mentions."""
    (node,) = freeze_named("shared", frozen.source, frozen.search).graph.nodes
    assert isinstance(node.body, Prompt)
    return frozen.commands["greet"], frozen.programs["count"].texts, node.body.text


def test_no_name_leads_out_of_the_scopes(tmp_path, home, main):
    put(tmp_path, "shared.yaml", shared("outside"))
    (home / "workflows").mkdir(parents=True)
    main.write_text(MAIN.replace("shared", "../../../shared"))
    with pytest.raises(InvalidWorkflow):
        parse_workflow(main)
