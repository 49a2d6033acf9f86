"""Rules of the two known validators, in their words: errors in the layout of icm, warnings in the
protocol's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from pgflow.declare import icm
from tests.kits.icmkit import CONTRACT, CORPUS, workspace


@pytest.fixture
def of_icm(tmp_path):
    """A workspace as ``icm new`` makes it."""
    return Path(shutil.copytree(CORPUS / "icm-workspace-template/icm-workspace", tmp_path / "made"))


def errors(root: Path) -> list[str]:
    return [
        problem.message.removeprefix("stages/00_intake/CONTEXT.md: ")
        for problem in icm.read_workspace(root).errors
    ]


def warnings(root: Path) -> list[str]:
    verdict = icm.read_workspace(root)
    assert verdict.errors == ()
    return [problem.message for problem in verdict.warnings]


@pytest.mark.parametrize(("missing", "message"), [
    ("AGENTS.md", "Missing Layer 0 identity file: add AGENTS.md or CLAUDE.md"),
    ("CONTEXT.md", "Missing Layer 1 routing file: CONTEXT.md"),
    ("_config", "Missing required directory: _config/"),
    ("shared", "Missing required directory: shared/"),
    ("stages/00_intake/CONTEXT.md", "Missing stage contract: stages/00_intake/CONTEXT.md"),
    ("stages/00_intake/references", "Missing Layer 3 folder: stages/00_intake/references/"),
    ("stages/00_intake/output", "Missing Layer 4 handoff folder: stages/00_intake/output/"),
])  # fmt: skip
def test_what_is_missing_in_the_layout_of_icm_is_its_error(of_icm, missing, message):
    path = of_icm / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert errors(of_icm) == [message]


@pytest.mark.parametrize("heading", ["Inputs", "Process", "Outputs", "Review Gate", "Verify"])
def test_a_missing_heading_in_the_layout_of_icm_is_its_error(of_icm, heading):
    file = of_icm / "stages/00_intake/CONTEXT.md"
    file.write_text(file.read_text().replace(f"## {heading}\n", "## Otherwise\n"))
    assert errors(of_icm) == [f"stages/00_intake/CONTEXT.md missing heading: {heading}"]


def test_the_layout_of_icm_has_its_own_names_and_layers(of_icm):
    (of_icm / "stages/05_validation").rename(of_icm / "stages/05-validation")
    file = of_icm / "stages/00_intake/CONTEXT.md"
    file.write_text(file.read_text().replace("Layer 3", "Reference"))
    assert warnings(of_icm) == [
        "Stage name should match NN_slug: stages/05-validation/",
        "stages/00_intake/CONTEXT.md should explicitly separate Layer 3 and Layer 4 inputs",
    ]


def test_a_workspace_without_stages_is_an_error_everywhere(tmp_path):
    assert errors(workspace(tmp_path)) == ["No stage directories found under stages/"]


def test_a_numbered_folder_without_a_contract_is_an_error_and_another_folder_is_not(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    for name in ("02-b", "archive"):
        (root / "stages" / name).mkdir()
        (root / "stages" / name / "notes.md").touch()
    assert errors(root) == ["Missing stage contract: stages/02-b/CONTEXT.md"]
    shutil.rmtree(root / "stages/02-b")
    assert [node.id for node in icm.read_workspace(root).graph.nodes] == ["01-a"]


def test_in_other_layouts_what_icm_misses_is_a_warning(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    (root / "CLAUDE.md").unlink()
    (root / "CONTEXT.md").unlink()
    assert warnings(root) == [
        "Missing Layer 0 identity file: add AGENTS.md or CLAUDE.md",
        "Missing Layer 1 routing file: CONTEXT.md",
    ]


FILE = "stages/01-a/CONTEXT.md"


def test_a_workspace_by_the_rules_has_nothing_to_complain_of(tmp_path):
    assert icm.read_workspace(workspace(tmp_path, {"01-a": CONTRACT})).problems == ()


@pytest.mark.parametrize(("before", "after", "message"), [
    ("1. Do it\n", "1. Do it\n" * 80, f"{FILE}: CONTEXT.md under 80 lines: it has 98"),
    ("## Process", "## Steps",
        (f"{FILE}: Stage CONTEXT.md has Inputs, Process, Outputs in order: one of them is "
            "missing")),
    ("| Full file |", "|  |", f"{FILE}: Inputs rows carry a Section/Scope value"),
    ("references/rules.md", "references/rule.md",
        f"{FILE}: Inputs-table paths resolve: references/rule.md does not"),
    ("What it is for.", "What \u2014 it is for.", f"{FILE}: No em dashes (U+2014): it has 1"),
    ("What it is for.", "See [this](TODO).", f"{FILE}: Markdown links have real targets"),
    ("What it is for.", "For {{BRAND}}, not `{{OTHER}}`.",
        f"{FILE}: placeholder {{{{BRAND}}}} is not filled in"),
    ("## Process", "{{?A}}\n\n## Process", f"{FILE}: conditional section A is not closed"),
    ("## Process", "{{/A}}\n\n## Process",
        f"{FILE}: conditional section A is closed but not open"),
])  # fmt: skip
def test_a_contract_against_the_rules_is_warned_of(tmp_path, before, after, message):
    contract = dedent(CONTRACT)
    assert before in contract
    assert warnings(workspace(tmp_path, {"01-a": contract.replace(before, after)})) == [message]


def test_sections_out_of_order_are_warned_of(tmp_path):
    contract = (
        dedent(CONTRACT)
        .replace("## Process", "## X")
        .replace("## Inputs", "## Process")
        .replace("## X", "## Inputs")
    )
    assert (
        f"{FILE}: Stage CONTEXT.md has Inputs, Process, Outputs in order: they are out of order"
        in warnings(workspace(tmp_path, {"01-a": contract}))
    )


@pytest.mark.parametrize("location", [
    "`../01-a/output/result.md`", "`references/{{NAME}}.md`", "`references/*`",
    "`output/[slug].md`",
])  # fmt: skip
def test_paths_that_are_there_only_at_run_time_need_not_resolve(tmp_path, location):
    contract = dedent(CONTRACT).replace("`references/rules.md`", location)
    assert [
        said for said in warnings(workspace(tmp_path, {"01-a": contract})) if "resolve" in said
    ] == []


def test_stages_that_read_from_each_other_are_warned_of(tmp_path):
    contract = dedent(CONTRACT)
    root = workspace(
        tmp_path,
        {
            "01-a": contract + "\nSee 02-b.\n",
            "02-b": contract + "\nSee 01-a.\n",
            "03-c": contract + "\nSee 01-a.\n",
        },
    )
    assert warnings(root) == ["Stage cross-references are one-way: 01-a <-> 02-b"]


@pytest.mark.parametrize(("path", "text", "message"), [
    ("shared/long.md", "x\n" * 201,
        "shared/long.md: Reference files under 200 lines: it has 201"),
    ("shared/two words.md", "x\n", "No spaces in file or folder names: shared/two words.md"),
    ("shared/Upper.md", "x\n", "Names are lowercase-with-hyphens: shared/Upper.md"),
    ("stages/01-a/output/made.md", "x\n",
        "Output folders contain only .gitkeep: stages/01-a/output/made.md"),
])  # fmt: skip
def test_files_against_the_rules_are_warned_of(tmp_path, path, text, message):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text(text)
    assert warnings(root) == [message]


def test_what_runs_leave_in_a_workspace_is_not_warned_of(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    for path in (".pgflow/runs/weekly/Out of it.md", "stages/01-a/output/made.md"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x\n")
    (root / ".pgflow/state").mkdir()
    assert warnings(root) == []


def test_empty_folders_and_odd_names_of_stages_are_warned_of(tmp_path):
    root = workspace(tmp_path, {"1-a": CONTRACT})
    (root / "shared").mkdir()
    assert warnings(root) == [
        "Stage folders use a zero-padded numeric prefix: stages/1-a",
        "Empty persistent folders carry .gitkeep: shared/",
    ]


def test_bundled_skills_keep_their_own_style(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    (root / "skills/pptx/Scripts").mkdir(parents=True)
    (root / "skills/pptx/Scripts/Run.md").write_text("a \u2014 b\n" * 300)
    assert warnings(root) == []


def test_a_verdict_has_a_moderate_number_of_warnings(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    for number in range(500):
        (root / f"A{number}.md").touch()
    assert len(warnings(root)) == 200
