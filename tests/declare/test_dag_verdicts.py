"""Verdicts on real workflow files: the same as their original's."""

from __future__ import annotations

import json

import pytest

from pgflow.declare.dag import read_file
from pgflow.declare.dag.loading import load_file
from pgflow.declare.dag.noderules import NODE
from pgflow.declare.dag.shapes import problems_of
from tests.kits.dagkit import CORPUS, errors, rows

VERDICTS = rows("loader_verdicts.jsonl")
MADE_HERE = {"README.md", "SOURCES.tsv", "LICENSE"}


def judged(file):
    """Our verdict on a file, in the form of the original's."""
    ours = load_file(CORPUS / file, file)
    wrong = next((problem for problem in ours.problems if problem.severity == "error"), None)
    return {
        "file": file,
        "ok": ours.ok,
        "errorType": None if wrong is None else wrong.kind,
        "error": None if wrong is None else wrong.message,
        "warnings": [each.message for each in ours.problems if each.severity == "warning"]
        if ours.ok
        else [],
        "nodes": len(ours.nodes) if ours.ok else None,
    }


def test_real_files_are_judged_as_the_original_judges_them():
    differ = [(theirs, ours) for theirs in VERDICTS if (ours := judged(theirs["file"])) != theirs]
    assert differ == []


@pytest.mark.full
def test_real_files_that_are_right_have_a_graph():
    graphs = {each["file"]: read_file(CORPUS / each["file"]).graph for each in VERDICTS}
    assert [
        each["file"]
        for each in VERDICTS
        if each["ok"]
        and (graphs[each["file"]] is None or len(graphs[each["file"]].nodes) < each["nodes"])
    ] == []


def test_every_file_of_the_corpus_has_a_source():
    sources = {
        line.split("\t")[0]
        for line in (CORPUS / "SOURCES.tsv").read_text(encoding="utf-8").splitlines()[1:]
    }
    found = {path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*") if path.is_file()}
    made_here = {
        name for name in found if "/" not in name and (name in MADE_HERE or ".jsonl" in name)
    }
    assert found - made_here == sources


@pytest.mark.parametrize(
    "case", rows("node_cases.jsonl"), ids=lambda case: json.dumps(case["node"])[:60]
)
def test_a_node_is_judged_as_by_the_originals_schema(case):
    said = errors(json.dumps({"name": "w", "description": "d", "nodes": [case["node"]]}))
    if case["errors"]:
        assert said[0] == f"DAG node validation failed: {case['errors'][0]}"
        assert said[1 : len(case["errors"])] == case["errors"][1:]
    else:
        assert problems_of(NODE, case["node"])[1] == []
