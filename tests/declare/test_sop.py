"""The Agent SOPs of the original, today's and earlier ones: nothing of them gets lost on the way to
the graph.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby

import pytest

from pgflow.declare.play.dryrun import dry_run
from pgflow.declare.sop import read_file
from tests.kits.sopkit import CORPUS, COUNTS, FILES, constraints, prompts

KEYWORD = re.compile(r"\b(MUST|SHOULD|MAY|SHALL|REQUIRED|RECOMMENDED|OPTIONAL)\b")
OVERVIEW = re.compile(r"## Overview\s*\n(.*?)(?=\n##|\n#|\Z)", re.DOTALL)
"""Pattern by which the original finds descriptions."""


@cache
def compiled(file):
    verdict = read_file(CORPUS / file)
    assert verdict.ok and verdict.graph is not None
    return verdict.graph


def source(file):
    return (CORPUS / file).read_text(encoding="utf-8")


def outside_of_fences(text):
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced:
            yield number, line


def test_every_file_of_the_corpus_is_counted_and_has_a_source():
    files = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*.md"))
    sources = [
        line.split("\t")[0] for line in (CORPUS / "SOURCES.tsv").read_text().splitlines()[1:]
    ]
    assert sorted(FILES) == files == sorted(sources)
    assert len(files) == 6


@pytest.mark.parametrize("row", COUNTS, ids=FILES)
def test_what_is_read_is_what_a_person_counts(row):
    graph = compiled(row["file"])
    substeps = sum(len(node.body.substeps) for node in graph.nodes)
    found = (len(graph.nodes), substeps, len(graph.inputs), len(constraints(graph)))
    assert found == tuple(
        int(row[name]) for name in ("steps", "substeps", "parameters", "constraints")
    )


@pytest.mark.parametrize("row", COUNTS, ids=FILES)
def test_each_block_of_constraints_has_its_bullets(row):
    graph = compiled(row["file"])
    labels = [
        number
        for number, line in outside_of_fences(source(row["file"]))
        if line.startswith("**Constraints")
    ]
    owners = [
        max(label for label in labels if label < constraint.position.line)
        for constraint in constraints(graph)
    ]
    assert len(labels) == int(row["blocks"])
    found = [len(list(rules)) for _, rules in groupby(owners)]
    assert found == [int(count) for count in row["constraints_by_block"].split(",")]


@pytest.mark.parametrize("file", FILES)
def test_every_line_of_the_source_is_in_some_prompt_and_what_is_said_of_all_steps_in_each(file):
    told = [set(prompt.split("\n")) for prompt in prompts(compiled(file))]
    steps = re.compile(r"### \d")
    for number, line in outside_of_fences(source(file)):
        if line.strip() and line != "## Steps":
            assert any(line.rstrip() in {other.rstrip() for other in lines} for lines in told), (
                number,
                line,
            )
    for _, line in outside_of_fences(source(file)):
        if line.startswith("## ") and line != "## Steps":
            assert all(line in lines for lines in told), line
        if steps.match(line):
            assert sum(line in lines for lines in told) == 1, line


@pytest.mark.parametrize("file", FILES)
def test_every_line_with_a_keyword_is_in_some_prompt_inside_fences_too(file):
    told = "\n".join(prompts(compiled(file))).split("\n")
    told = {line.strip() for line in told}
    lines = [line.strip() for line in source(file).split("\n") if KEYWORD.search(line)]
    assert len(lines) > 40
    assert [line for line in lines if line not in told] == []


@pytest.mark.parametrize("file", FILES)
def test_positions_are_where_things_stand(file):
    graph = compiled(file)
    lines = source(file).split("\n")

    def at(position):
        return lines[position.line - 1][position.column - 1 :]

    for node in graph.nodes:
        assert at(node.position).startswith("### ") and at(node.position).rstrip().endswith(
            node.title
        )
        for substep in node.body.substeps:
            assert at(substep.position).rstrip() == f"#### {substep.number} {substep.title}"
        for use in node.reads:
            assert at(use.position).casefold().startswith(use.location.split(".")[0].casefold())
    for parameter in graph.inputs:
        assert at(parameter.position).startswith(f"- **{parameter.name}** (")
    for constraint in constraints(graph):
        assert at(constraint.position).rstrip() == "- " + constraint.text.split("\n")[0]


@pytest.mark.parametrize("file", FILES)
def test_steps_are_prompts_one_after_the_other(file):
    graph = compiled(file)
    ids = [node.id for node in graph.nodes]
    assert all(re.fullmatch(r"step-\d+-[a-z0-9-]+", each) for each in ids)
    assert [node.depends_on for node in graph.nodes] == [(), *((each,) for each in ids[:-1])]
    assert all(
        node.body.text.count(f"${before}.output") == 1
        for before, node in zip(ids, graph.nodes[1:], strict=False)
    )
    assert graph.returns == ids[-1]


@pytest.mark.parametrize("file", FILES)
def test_the_name_is_the_files_and_the_description_what_the_original_would_say(file):
    graph = compiled(file)
    assert graph.name == file.split("/")[1].removesuffix(".sop.md").removesuffix(".script.md")
    found = OVERVIEW.search(source(file))
    assert found is not None and graph.description == found[1].strip().replace("\n", " ")


@pytest.mark.parametrize("file", FILES)
def test_a_constraint_has_the_level_that_its_line_says_first(file):
    for constraint in constraints(compiled(file)):
        said = re.search(
            r"MUST NOT|MUST NEVER|SHOULD NOT|SHOULD NEVER|MUST|SHOULD|MAY", constraint.text
        )
        assert said is not None and constraint.level == said[0].replace("NEVER", "NOT")
        if " because " in constraint.text.split("\n")[0]:
            assert constraint.because and constraint.because in constraint.text


def test_parameters_of_code_assist_have_their_defaults_and_their_continuation_lines():
    inputs = {
        parameter.name: parameter for parameter in compiled("strands/code-assist.sop.md").inputs
    }
    found = [name for name, parameter in inputs.items() if parameter.required]
    assert found == ["task_description"]
    assert inputs["documentation_dir"].default == ".agents/scratchpad/{project_name}"
    assert inputs["repo_root"].default == "current working directory"
    assert inputs["task_name"].default == "" and not inputs["task_description"].has_default
    assert inputs["mode"].default == "auto"
    assert inputs["mode"].description.split("\n") == [
        "The interaction mode:",
        '- "interactive": Collaboration with user confirmation at each step',
        '- "auto": No user interaction after initial setup',
    ]


def test_defaults_that_are_no_quotations_keep_their_type():
    inputs = {
        parameter.name: parameter.default
        for parameter in compiled("history/codebase-summary.script.md").inputs
    }
    assert (inputs["consolidate"], inputs["update_mode"], inputs["code_analysis_depth"]) == (
        True,
        False,
        2,
    )
    assert inputs["codebase_path"] == "current directory"


def test_only_required_parameters_are_asked_for_and_before_the_first_step():
    graph = compiled("history/sop-generator.sop.md")
    gates = [(node.id, gate) for node in graph.nodes for gate in node.gates]
    assert [(node, gate.at, gate.name) for node, gate in gates if gate.kind == "input"] == [
        (graph.nodes[0].id, "before", "sop_name"),
        (graph.nodes[0].id, "before", "sop_purpose"),
    ]


@pytest.mark.parametrize("file", FILES)
def test_a_dry_run_takes_every_step_and_fills_in_what_was_given(file):
    graph = compiled(file)
    stubs = {node.id: f"said by {node.id}" for node in graph.nodes}
    inputs = {each.name: f"my {each.name}" for each in graph.inputs if each.required}
    run = dry_run(graph, stubs=stubs, message="do it", inputs=inputs).as_json()
    assert run["outcome"] == "completed"
    assert [step["id"] for step in run["trace"]] == list(stubs)
    for before, step in zip([None, *stubs], run["trace"], strict=False):
        assert not re.search(r"\$(INPUTS|ARGUMENTS|step)", step["text"])
        assert before is None or f"said by {before}\n" in step["text"]
        for parameter in graph.inputs:
            value = f"my {parameter.name}" if parameter.required else parameter.default
            value = str(value).lower() if isinstance(value, bool) else value
            for name, given in inputs.items() if parameter.is_template else ():
                value = value.replace(f"{{{name}}}", given)
            assert f'<parameter name="{parameter.name}">{value}</parameter>' in step["text"]


def test_how_to_ask_for_parameters_is_told_to_the_first_step_only():
    first, *later = prompts(compiled("strands/pdd.sop.md"))
    assert "upfront in a single prompt" in first
    assert not any("upfront in a single prompt" in prompt for prompt in later)


def test_headings_in_a_fenced_template_are_no_sections():
    graph = compiled("strands/code-task-generator.sop.md")
    assert [node.title for node in graph.nodes] == [
        "Detect Input Mode", "Analyze Input", "Structure Requirements", "Plan Tasks",
        "Generate Tasks", "Report Results",
    ]  # fmt: skip
    assert all("## Acceptance Criteria" in prompt for prompt in prompts(graph))


def test_the_constraints_of_a_substep_say_which_it_is():
    graph = compiled("strands/code-assist.sop.md")
    assert [substep.number for substep in graph.nodes[1].body.substeps] == ["2.1", "2.2", "2.3"]
    assert [constraint.scope for constraint in graph.nodes[1].body.constraints].count("2.2") == 6
    found = {constraint.scope for constraint in graph.nodes[0].body.constraints}
    assert found == {"parameters", ""}


def test_nested_bullets_and_fences_belong_to_their_constraint():
    rules = {rule.position.line: rule for rule in constraints(compiled("strands/pdd.sop.md"))}
    plan = next(
        rule
        for rule in rules.values()
        if rule.text.startswith("You MUST use the following specific instructions")
    )
    assert plan.text.count("```") == 2 and "test-driven manner" in plan.text
    sections = next(
        rule
        for rule in rules.values()
        if rule.text.startswith("You MUST include the following sections")
    )
    assert sections.text.count("\n- ") == 8


def test_a_step_that_slipped_behind_another_section_is_still_a_step():
    verdict = read_file(CORPUS / "history/pdd-code-task-generator.script.md")
    last = verdict.graph.nodes[-1]
    assert (last.id, last.position.line) == ("step-6-report-results", 191)
    found = {problem.message for problem in verdict.warnings}
    assert "Step 6 is in section 'Code Task Format Specification'" in found
    assert "## Code Task Format Specification" in prompts(verdict.graph)[0]
    assert "### 6. Report Results" not in prompts(verdict.graph)[0]


def test_what_an_sop_says_of_others_is_recorded():
    graph = compiled("strands/code-task-generator.sop.md")
    (use,) = graph.nodes[-1].reads
    assert (use.location, use.scope) == ("code-assist.sop.md", "sop")
    assert use.why == "- You MUST suggest running code-assist on each task in appropriate sequence"


def test_the_corpus_has_no_prohibition_without_a_reason_but_those_known():
    bare = [
        (file, problem.line)
        for file in FILES
        if file.startswith("strands/")
        for problem in read_file(CORPUS / file).warnings
        if problem.message.startswith("Negative constraint without context")
    ]
    assert bare == [
        ("strands/code-assist.sop.md", 203),
        ("strands/code-task-generator.sop.md", 72),
        ("strands/code-task-generator.sop.md", 104),
    ]
