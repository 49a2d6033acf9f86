"""The dialects of stage contracts, and contracts that are not as they should be: nothing that an
author wrote goes silently.
"""

from __future__ import annotations

from textwrap import dedent

import pytest

from pgflow.declare.icm.cells import pointers
from pgflow.declare.icm.contracts import Contract, read_contract
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.markdown import split_cells


def read(text: str) -> tuple[Contract, list[str]]:
    findings = Findings()
    contract = read_contract(dedent(text).lstrip("\n"), "stages/02-b/CONTEXT.md", findings)
    return contract, [
        f"{p.line}: {p.message.removeprefix('stages/02-b/CONTEXT.md: ')}" for p in findings.problems
    ]


def entries(found: tuple) -> list[tuple[str, str, str, str]]:
    return [(e.label, e.location, e.scope, e.why) for e in found]


def test_inputs_with_layer_path_and_use():
    contract, said = read("""
        # Stage 02: B
        ## Inputs
        | Layer | Path | Use |
        | --- | --- | --- |
        | Layer 3 | `../../_config/style.md` | Style |
        | Layer 4 | `../01_a/output/draft.md` | The draft, if any |
    """)
    assert entries(contract.inputs) == [
        ("Layer 3", "../../_config/style.md", "", "Style"),
        ("Layer 4", "../01_a/output/draft.md", "", "The draft, if any"),
    ]
    assert [entry.optional for entry in contract.inputs] == [False, True]
    assert said == []


def test_inputs_without_a_scope_column():
    contract, _ = read("""
        ## Inputs
        | Source | File/Location | Why |
        |---|---|---|
        | Utility | utils/credibility.md | Scores |
        | User | (conversation) | The idea |
    """)
    assert entries(contract.inputs) == [
        ("Utility", "utils/credibility.md", "", "Scores"),
        ("User", "(conversation)", "", "The idea"),
    ]
    assert [entry.is_path for entry in contract.inputs] == [True, False]


def test_inputs_as_bullets():
    contract, said = read("""
        ## Inputs
        - working: ../01/output/
        - Reference: `../../_shared/rules.md` (sections 1-3)
        - **Working:** the product + `icm/` diff
        - References:
          - ../../_shared/a.md
          - ../../_shared/b.md
        - whatever the owner says

        Do NOT load: `../03_later/output/`.
    """)
    assert entries(contract.inputs) == [
        ("working", "../01/output/", "", ""),
        ("Reference", "../../_shared/rules.md", "(sections 1-3)", ""),
        ("Working", "icm/", "the product + diff", ""),
        ("References", "../../_shared/a.md", "", ""),
        ("References", "../../_shared/b.md", "", ""),
        ("", "whatever the owner says", "", ""),
    ]
    assert [entry.position.line for entry in contract.inputs] == [2, 3, 4, 6, 7, 8]
    assert said == []


def test_outputs_in_each_dialect():
    contract, _ = read("""
        ## Outputs
        | File | Location | Purpose |
        | --- | --- | --- |
        | `brief.md` | `output/` | The brief |
    """)
    assert entries(contract.outputs) == [("brief.md", "output/brief.md", "", "The brief")]
    contract, _ = read("""
        ## Outputs
        | Artifact | Location |
        | --- | --- |
        | Brief | output/brief.md |
    """)
    assert entries(contract.outputs) == [("Brief", "output/brief.md", "", "")]
    contract, _ = read("""
        ## Outputs
        - PR on `main`
        - `output/pr.md`
    """)
    assert entries(contract.outputs) == [("", "PR on `main`", "", ""), ("", "output/pr.md", "", "")]


def test_outputs_as_a_sentence_and_what_is_in_the_file():
    contract, _ = read("""
        ## Outputs
        Write to `output/spec.md`:

        - tick flow
        - state rules
    """)
    found = entries(contract.outputs)
    assert found == [("", "output/spec.md", "Write to; tick flow; state rules", "")]


def test_a_remark_below_a_table_is_no_output():
    contract, _ = read("""
        ## Outputs
        | Artifact | Location | Format |
        |---|---|---|
        | Spec | `output/spec.md` | Markdown |

        The file in `output/` is the human edit surface.
    """)
    assert len(contract.outputs) == 1
    assert "human edit surface" in contract.text


def test_several_paths_in_one_cell_are_several_inputs():
    contract, _ = read("""
        ## Inputs
        | Source | File/Location | Section/Scope | Why |
        |---|---|---|---|
        | Shared | `../../shared/a.md`, `../../shared/b.md` | Full file | Both |
    """)
    assert entries(contract.inputs) == [
        ("Shared", "../../shared/a.md", "Full file", "Both"),
        ("Shared", "../../shared/b.md", "Full file", "Both"),
    ]


def test_verify_bullets_and_audit_rows_are_checks():
    contract, _ = read("""
        ## Audit
        | Check | Pass Condition |
        |---|---|
        | Length | Under 80 lines |
        ## Verify
        - Confirm `output/a.md`
          exists.
        - [ ] Names are right
    """)
    assert [(c.check, c.passes_if, c.position.line) for c in contract.checks] == [
        ("Length", "Under 80 lines", 4),
        ("Confirm `output/a.md` exists.", "", 6),
        ("Names are right", "", 8),
    ]


def test_a_review_gate_has_all_its_prose():
    contract, _ = read("""
        ## Review Gate
        A human should check:

        - The output matches
        - Nothing is missing
    """)
    (gate,) = contract.gates
    assert (gate.kind, gate.at, gate.decides) == (
        "review",
        "after",
        "A human should check:\nThe output matches\nNothing is missing",
    )


def test_marked_steps_are_checkpoints_where_there_is_no_table_of_them():
    contract, _ = read("""
        ## Process
        1. Draft
        2. **[Checkpoint]** -- Present the draft
        3. Save
    """)
    found = [(g.kind, g.after_step, g.presents, g.position.line) for g in contract.gates]
    assert found == [("checkpoint", "1", "Present the draft", 3)]


def test_headings_of_any_level_and_case_are_known():
    contract, _ = read("""
        # Stage
        ### INPUTS
        | Source | File/Location | Why |
        |---|---|---|
        | A | `a.md` | x |
        #### Layer 3
        | Source | File/Location | Why |
        |---|---|---|
        | B | `b.md` | y |
        ### Outputs
        - `output/c.md`
    """)
    assert [entry.location for entry in contract.inputs] == ["a.md", "b.md"]
    assert [entry.location for entry in contract.outputs] == ["output/c.md"]


def test_examples_in_fences_and_comments_declare_nothing():
    contract, said = read("""
        ## Inputs
        <!--
        | Source | File/Location | Why |
        |---|---|---|
        | A | `a.md` | x |
        -->
        | Source | File/Location | Why |
        |---|---|---|
        | B | `b.md` | y |

        ```
        ## Outputs
        | Artifact | Location |
        |---|---|
        | C | `output/c.md` |
        ```
    """)
    assert [entry.location for entry in contract.inputs] == ["b.md"]
    assert contract.outputs == ()
    assert said == []


def test_a_row_with_too_many_cells_keeps_them_and_is_warned_of():
    contract, said = read("""
        ## Audit
        | Check | Pass Condition |
        |---|---|
        | Kind | `a|b` or c |
    """)
    assert [(c.check, c.passes_if) for c in contract.checks] == [("Kind", "`a | b` or c")]
    assert said == ["4: row has 3 cells, its header has 2; it is read as far as it goes"]


def test_a_protected_bar_is_part_of_its_cell():
    contract, said = read("""
        ## Audit
        | Check | Pass Condition |
        |---|---|
        | Kind | a \\| b |
    """)
    assert contract.checks[0].passes_if == "a | b"
    assert said == []


def test_a_row_with_too_few_cells_is_kept_and_warned_of():
    contract, said = read("""
        ## Inputs
        | Source | File/Location | Section/Scope | Why |
        |---|---|---|---|
        | Reference | `references/a.md` |
        | Reference |
    """)
    found = entries(contract.inputs)
    assert found == [("Reference", "references/a.md", "", ""), ("Reference", "", "", "")]
    assert said == [
        "4: row has 2 cells, its header has 4; it is read as far as it goes",
        "5: row has 1 cells, its header has 4; it is read as far as it goes",
        "5: row in Inputs names no location: Reference",
    ]


def test_a_table_that_is_none_to_markdown_is_read_all_the_same():
    contract, said = read("""
        ## Inputs
        | Source | File/Location | Why |
        |---|---|
        | A | `a.md` | x |
    """)
    assert entries(contract.inputs) == [("A", "a.md", "", "x")]
    assert said == [
        (
            "2: table is not a Markdown table: its second line must have one `---` for each column; "
            "its rows are read all the same"
        )
    ]


def test_unknown_columns_keep_their_words():
    contract, _ = read("""
        ## Inputs
        | Was | Wo | Wozu | Why |
        |---|---|---|---|
        | A | `a.md` | c | d |
    """)
    assert entries(contract.inputs) == [("", "a.md", "", "d; was: A; wozu: c")]


def test_empty_rows_and_sections_without_anything_known_are_warned_of():
    contract, said = read("""
        ## Inputs
        | Source | File/Location | Why |
        |---|---|---|
        |  |  |  |
        ## Outputs
        Something nice.
        ## Audit
    """)
    assert (contract.inputs, contract.outputs) == ((), ())
    assert said == [
        "4: empty row in Inputs",
        "1: nothing could be read from the section 'Inputs'",
        "5: nothing could be read from the section 'Outputs'",
    ]


@pytest.mark.parametrize(("cell", "found"), [
    ("`output/[topic slug]-spec.md`", [("output/[topic slug]-spec.md", True, "")]),
    ("output/[slug]-spec.md", [("output/[slug]-spec.md", True, "")]),
    ("`output/x.md` (one per session)", [("output/x.md", True, "(one per session)")]),
    ("`{{BRAND_FOLDER}}/voice.md`", [("{{BRAND_FOLDER}}/voice.md", True, "")]),
    ("../01-a/output/", [("../01-a/output/", True, "")]),
    ("`/_core/CONVENTIONS.md`", [("/_core/CONVENTIONS.md", True, "")]),
    ("`references/*`", [("references/*", True, "")]),
    ("`npm run build`", [("npm run build", False, "")]),
    ("https://example.org/a.md", [("https://example.org/a.md", False, "")]),
    ("text and/or sound", [("text and/or sound", False, "")]),
    ("(uploaded files)", [("(uploaded files)", False, "")]), ("brief.md", [("brief.md", True, "")]),
    ("", []),
])  # fmt: skip
def test_where_a_cell_points(cell, found):
    assert [(p.location, p.is_path, p.remark) for p in pointers(cell)] == found


@pytest.mark.parametrize(("line", "cells"), [
    ("| a | b |", ["a", "b"]), ("a | b", ["a", "b"]), ("|a|b", ["a", "b"]),
    ("| a \\| b |", ["a | b"]), ("|  |", [""]), ("| a | \\|", ["a", "|"]),
])  # fmt: skip
def test_the_cells_of_a_line(line, cells):
    assert split_cells(line) == cells
