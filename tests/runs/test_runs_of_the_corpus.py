"""Runs of real workflows on made-up outputs: they end as their dry runs do, node by node.

A file is played with the sets of stubs that the original's own dry run was recorded with. Whoever
is asked says yes, as a dry run assumes. Files that call other workflows are left out: a dry run does
not follow them.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from runkit import ended, start

from pgflow.authority import Approve
from pgflow.declare.dag import read_file
from pgflow.declare.graph import Call, every_node
from pgflow.declare.play.dryrun import dry_run
from pgflow.testing import AsyncHarness

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

CORPUS = Path(__file__).parents[1] / "corpus" / "dag"
PARTS = 3
Told = tuple[str, str, str, str, int]


@cache
def plays() -> list[tuple[str, dict[str, Any]]]:
    """Files without those that call others, with one of their four sets of stubs."""
    sets = (0, 3, 1, 2)
    with gzip.open(CORPUS / "dryrun_traces.jsonl.gz", "rt", encoding="utf-8") as lines:
        traces = [json.loads(line) for line in lines]
    found = []
    for number, trace in enumerate(traces):
        if number % 4 != sets[number // 4 % len(sets)]:
            continue
        graph = read_file(CORPUS / trace["file"]).graph
        assert graph is not None
        if not any(isinstance(node.body, Call) for node in every_node(graph.nodes)):
            found.append((trace["file"], trace["stubs"]))
    return found


def test_most_files_of_the_corpus_are_played():
    assert len({file for file, _ in plays()}) >= 20


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_run_ends_as_its_dry_run_does(aflow, tmp_path, part):
    started = [
        (file, stubs, await begin(aflow, file, stubs, tmp_path))
        for file, stubs in plays()[part::PARTS]
    ]
    await aflow.until_idle()
    while asked := await aflow.gates():
        for gate in asked:
            await aflow.app.answer(gate.gate, Approve(), by="test")
        await aflow.until_idle()
    for file, stubs, run in started:
        graph = read_file(CORPUS / file).graph
        assert graph is not None
        expected, got = dry_run(graph, stubs=stubs), await ended(run)
        found = sorted(map(as_run, expected.as_json()["trace"]))
        assert found == sorted(map(as_run, got.ends)), file
        assert got.status == expected.outcome or ran_nothing(got), (file, got.error)


async def begin(aflow: AsyncHarness, file: str, stubs: dict[str, Any], cwd: Path) -> Any:
    return await start(
        aflow,
        CORPUS / file,
        cwd=str(cwd),
        provider="stub:",
        stubs=stubs,
        base_branch="main",
        inputs={},
    )


def as_run(entry: dict[str, Any]) -> Told:
    """An entry of either trace in the words of both: a stub is an output, and a yes is a yes."""
    state = "completed" if entry["state"] == "stubbed" else entry["state"]
    reason = "" if entry["reason"] == "auto-approved" else entry["reason"] or ""
    return entry["id"], entry["type"], state, reason[:1000], entry.get("iteration") or 0


def ran_nothing(run: Any) -> bool:
    """Return True if a run failed for having done nothing, which a dry run does not mind."""
    return run.status == "failed" and "no node of it ran" in run.error
