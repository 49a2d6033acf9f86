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


def by_file(verdict):
    return verdict["file"]


@pytest.mark.parametrize("theirs", VERDICTS, ids=by_file)
def test_a_real_file_is_judged_as_the_original_judges_it(theirs):
    ours = load_file(CORPUS / theirs["file"], theirs["file"])
    wrong = [problem for problem in ours.problems if problem.severity == "error"]
    assert ours.ok == theirs["ok"]
    assert [
        problem.message for problem in ours.problems if problem.severity == "warning"
    ] == theirs["warnings"]
    if theirs["ok"]:
        assert len(ours.nodes) == theirs["nodes"]
    else:
        assert (wrong[0].message, wrong[0].kind) == (theirs["error"], theirs["errorType"])


@pytest.mark.parametrize("theirs", [verdict for verdict in VERDICTS if verdict["ok"]], ids=by_file)
def test_a_real_file_that_is_right_has_a_graph(theirs):
    verdict = read_file(CORPUS / theirs["file"])
    assert verdict.graph is not None
    assert len(verdict.graph.nodes) >= theirs["nodes"]


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
        assert said[0] == f"DAG node validation failed: {'; '.join(case['errors'])}"
        assert said[1 : len(case["errors"])] == case["errors"][1:]
    else:
        assert problems_of(NODE, case["node"])[1] == []
