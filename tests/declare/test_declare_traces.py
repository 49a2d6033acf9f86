"""Dry runs of real workflows, against what the original's own dry run did with them.

Each file was played with four sets of stubs. The conventions of these traces are the defaults of
`dry_run`: a placeholder for commands, approvals approved, checks counted as passed, ``/DRYRUN`` for
the working directory.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pgflow.declare.dag import read_file
from pgflow.declare.play.dryrun import dry_run

CORPUS = Path(__file__).parents[1] / "corpus" / "dag"
MESSAGE = "do $1 & 'thing' $ARGUMENTS"


def traces() -> dict[str, list[dict[str, Any]]]:
    by_file = defaultdict(list)
    with gzip.open(CORPUS / "dryrun_traces.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            trace = json.loads(line)
            by_file[trace["file"]].append(trace)
    return by_file


TRACES = traces()


def test_there_are_traces_of_four_dry_runs_of_each_file():
    assert {file: len(variants) for file, variants in TRACES.items()} == dict.fromkeys(TRACES, 4)
    assert sum(len(trace["trace"]) for variants in TRACES.values() for trace in variants) == 570


@pytest.mark.parametrize("file", TRACES)
def test_a_dry_run_tells_what_the_original_tells(file):
    graph = read_file(CORPUS / file).graph
    assert graph is not None
    for expected in TRACES[file]:
        told = dry_run(graph, stubs=expected["stubs"], message=MESSAGE).as_json()
        assert told == {key: expected[key] for key in told}
        assert [list(entry) for entry in told["trace"]] == [
            list(entry) for entry in expected["trace"]
        ]  # type: ignore[union-attr]
