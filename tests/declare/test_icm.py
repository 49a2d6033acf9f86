"""ICM workspaces as published: everything their contracts declare is in the graph, counted by
hand.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgflow.declare import icm
from pgflow.declare.graph import Graph, Node, Prompt
from tests.kits.icmkit import CORPUS

# Read by eye from the files: rows of Inputs, of Outputs, of Checkpoints (or review gates), of Audit
# (or bullets of Verify).
COUNTS = {
    "mwp/workspaces/course-deck-production": {"01-extraction": (4, 2, 1, 4),
        "02-curriculum": (5, 2, 1, 4), "03-outline": (8, 2, 1, 4), "04-generation": (6, 1, 0, 4),
        "05-qa-delivery": (5, 3, 0, 0)},
    "mwp/workspaces/script-to-animation": {"01-script": (8, 1, 2, 6), "02-spec": (5, 1, 0, 6),
        "03-build": (7, 1, 0, 6)},
    "mwp/workspaces/workspace-builder": {"01-discovery": (3, 1, 1, 4), "02-mapping": (2, 1, 1, 4),
        "03-scaffolding": (6, 1, 0, 6), "04-questionnaire-design": (4, 1, 0, 4),
        "05-validation": (4, 1, 0, 0)},
    "icm-workspace-template/icm-workspace": {"00_intake": (4, 1, 1, 3),
        "01_discovery": (4, 1, 1, 4), "02_stage_mapping": (4, 1, 1, 3), "03_scaffold": (4, 1, 1, 3),
        "04_questionnaire": (4, 1, 1, 3), "05_validation": (5, 1, 1, 3)},
}  # fmt: skip


def compiled(workspace: str | Path) -> Graph:
    verdict = icm.read_workspace(CORPUS / workspace)
    assert verdict.errors == ()
    assert verdict.graph is not None
    return verdict.graph


def own_reads(node: Node) -> list:
    """Return the reads that the contract names, without the identity file that every stage has."""
    return [use for use in node.reads if use.label != "Layer 0"]


def text_of(node: Node) -> str:
    assert isinstance(node.body, Prompt)
    return node.body.text


@pytest.mark.parametrize("workspace", COUNTS)
def test_every_row_of_a_published_workspace_is_in_the_graph(workspace):
    graph = compiled(workspace)
    counted = {
        node.id: (len(own_reads(node)), len(node.writes), len(node.gates), len(node.checks))
        for node in graph.nodes
    }
    assert counted == COUNTS[workspace]


@pytest.mark.parametrize("workspace", COUNTS)
def test_every_word_of_a_contracts_tables_is_in_the_graph_on_the_line_where_it_stands(workspace):
    """An independent plain reading of the file: no row that begins with a bar is missing, and no
    cell of one.
    """
    graph = compiled(workspace)
    rows = 0
    for node in graph.nodes:
        file = f"stages/{node.id}/CONTEXT.md"
        lines = (CORPUS / workspace / file).read_text().split("\n")
        said = {
            part.position.line: part
            for part in (*node.reads, *node.writes, *node.gates, *node.checks)
            if part.position.file == file
        }
        for number, line in enumerate(lines, 1):
            if (
                not line.startswith("|")
                or set(line) <= set("|- :")
                or re.search(r"\| (Why|Use|Format|Purpose|Human Decides|Pass Condition) \|", line)
            ):
                continue
            rows += 1
            words = said[number].model_dump_json()
            for cell in line.strip("|").split("|"):
                for word in re.findall(r"[\w-]{4,}", cell):
                    assert word in words, (file, number, cell)
    assert rows == sum(sum(counts) for counts in COUNTS[workspace].values()) - prose_entries(
        workspace
    )


def prose_entries(workspace: str) -> int:
    """Review gates and bullets of Verify, which stand in no table."""
    return (
        sum(gates + checks for _, _, gates, checks in COUNTS[workspace].values())
        if "template" in workspace
        else 0
    )


@pytest.mark.parametrize("workspace", COUNTS)
def test_stages_run_one_after_the_other_in_the_order_of_their_numbers(workspace):
    graph = compiled(workspace)
    ids = list(COUNTS[workspace])
    assert [node.id for node in graph.nodes] == ids
    assert [node.depends_on for node in graph.nodes] == [(), *((before,) for before in ids[:-1])]


def test_a_stage_is_told_its_whole_contract_and_where_it_works():
    node = compiled("mwp/workspaces/script-to-animation").node("01-script")
    contract = (
        CORPUS / "mwp/workspaces/script-to-animation/stages/01-script/CONTEXT.md"
    ).read_text()
    assert (
        text_of(node)
        == f"You work in stages/01-script/; the paths below are from there.\n\n{contract.strip()}"
    )
    assert node.body.literal
    assert (node.title, node.description) == (
        "Stage 01: Script Writing",
        "Take a topic or content idea and produce a finished script ready for animation spec work.",
    )


def test_what_one_stage_writes_and_another_reads_is_one_artifact():
    graph = compiled("mwp/workspaces/course-deck-production")
    reads = {node.id: [use.artifact for use in node.reads if use.artifact] for node in graph.nodes}
    assert reads == {
        "01-extraction": [],
        "02-curriculum": ["extracted_content", "course_metadata"],
        "03-outline": ["curriculum", "course_metadata_02"],
        "04-generation": ["session_outlines"],
        "05-qa-delivery": ["session_deck_files"],
    }
    written = {
        artifact.name: (artifact.written_by, artifact.location) for artifact in graph.artifacts
    }
    found = written["course_metadata_02"]
    assert found == ("02-curriculum", "stages/02-curriculum/output/[course-slug]-meta.md")
    found = written["session_deck_files"]
    assert found == ("04-generation", "stages/04-generation/output/[session-slug]/")


def test_a_folder_that_is_read_stands_for_the_one_artifact_in_it():
    node = compiled("mwp/workspaces/script-to-animation").node("02-spec")
    first = node.reads[0]
    assert (first.artifact, first.location, first.scope, first.why) == (
        "finished_script",
        "../01-script/output/",
        "Most recent script file (full)",
        "The script to spec",
    )


def test_a_row_keeps_its_label_place_scope_reason_and_position():
    use = compiled("mwp/workspaces/script-to-animation").node("01-script").reads[1]
    assert (use.label, use.location, use.scope, use.why) == (
        "Brand vault",
        "../../brand-vault/voice-rules.md",
        '"Hard Constraints" through "What the Voice Is NOT"',
        "Tone guidance for writing",
    )
    assert (use.position.file, use.position.line, use.position.column) == (
        "stages/01-script/CONTEXT.md",
        10,
        1,
    )


def test_what_stands_in_no_file_is_read_too():
    first = compiled("mwp/workspaces/script-to-animation").node("01-script").reads[0]
    assert (first.label, first.location, first.artifact, first.why) == (
        "User", "(conversation)", None, "The starting point",
    )  # fmt: skip


def test_checkpoints_say_after_which_step_who_sees_what():
    gates = compiled("mwp/workspaces/script-to-animation").node("01-script").gates
    found = [(gate.kind, gate.at, gate.after_step) for gate in gates]
    assert found == [("checkpoint", "inside", "2"), ("checkpoint", "inside", "4")]
    found = gates[0].presents
    assert found == "3-5 concept angles, each as one sentence with value slot tags and format"
    assert gates[1].decides == "Confirm value direction before drafting begins"


def test_a_review_gate_comes_after_its_stage():
    (gate,) = compiled("icm-workspace-template/icm-workspace").node("03_scaffold").gates
    assert (gate.kind, gate.at, gate.name) == ("review", "after", "Review Gate")
    assert gate.decides.startswith("Before continuing, a human should approve the proposed tree")


def test_the_identity_of_the_workspace_is_read_by_every_stage():
    for name, identity in (
        ("mwp/workspaces/workspace-builder", "../../CLAUDE.md"),
        ("icm-workspace-template/icm-workspace", "../../AGENTS.md"),
    ):
        assert all(node.reads[-1].location == identity for node in compiled(name).nodes)


def test_every_workspace_below_a_folder_is_found():
    found = [path.relative_to(CORPUS).as_posix() for path in icm.find_workspaces(CORPUS)]
    assert found == sorted(COUNTS)


def test_the_template_of_icm_has_nothing_to_complain_of():
    assert icm.read_workspace(CORPUS / "icm-workspace-template/icm-workspace").problems == ()


def specimen() -> Graph:
    verdict = icm.read_file(CORPUS / "meeting-summarizer.workflow.yaml")
    assert verdict.problems == ()
    assert verdict.graph is not None
    return verdict.graph


def test_the_published_specimen_compiles_to_five_stages():
    graph = specimen()
    assert (graph.name, graph.version) == ("meeting-summarizer", "1")
    assert [node.id for node in graph.nodes] == [
        "01-meeting-notes", "02-action-items", "03-key-insights", "04-extended-notes",
        "05-assemble-and-deliver",
    ]  # fmt: skip
    found = [use.artifact for use in graph.node("03-key-insights").reads]
    assert found == ["transcript", "meeting_notes"]
    assert [use.artifact for use in graph.node("03-key-insights").writes] == ["key_insights"]


def test_the_specimens_state_has_its_files_and_its_signal():
    entries = {artifact.name: artifact for artifact in specimen().artifacts}
    assert [(e.kind, e.location, e.written_by, e.optional) for e in entries.values()] == [
        ("file", "shared/transcript.md", None, False),
        ("file", "stages/01-meeting-notes/output/meeting_notes.md", "01-meeting-notes", False),
        ("file", "stages/02-action-items/output/action_items.md", "02-action-items", False),
        ("file", "stages/03-key-insights/output/key_insights.md", "03-key-insights", False),
        ("file", "stages/04-extended-notes/output/extended_notes.md", "04-extended-notes", True),
        ("signal", None, None, False),
    ]
    assert entries["delivery_target"].json_schema == {
        "type": "object",
        "properties": {"folder_path": {"type": "string"}},
        "required": ["folder_path"],
    }


def test_the_specimens_gate_interrupt_signal_and_effect_are_there():
    graph = specimen()
    found = [(gate.kind, gate.at) for gate in graph.node("04-extended-notes").gates]
    assert found == [("request", "before")]
    last = graph.node("05-assemble-and-deliver")
    assert [(gate.kind, gate.at, gate.name) for gate in last.gates] == [
        ("interrupt", "before", "05-assemble-and-deliver"),
        ("signal", "before", "delivery_target"),
    ]
    found = [(effect.system, effect.idempotency_key) for effect in last.effects]
    assert found == [("filesystem", "delivery_target.folder_path")]
    assert last.effects[0].position.line == 19


def test_the_last_stage_runs_whether_or_not_the_optional_one_is_asked_for():
    last = specimen().node("05-assemble-and-deliver")
    assert (last.depends_on, last.trigger_rule) == (
        ("04-extended-notes", "03-key-insights"),
        "none_failed_min_one_success",
    )
    assert [use.optional for use in last.reads] == [False, False, False, True]


def test_the_specimen_as_printed_has_lost_its_indentation_and_is_told_so():
    verdict = icm.read_file(CORPUS / "meeting-summarizer.flattened.yaml")
    (problem,) = verdict.problems
    assert "lost its indentation" in problem.message
    assert (
        "transcript, meeting_notes, action_items, key_insights, extended_notes, delivery_target"
        in problem.message
    )
    assert problem.line == 3
    assert problem.hint.startswith("Indent the entries by two spaces below `state:`")
    assert verdict.graph is None
