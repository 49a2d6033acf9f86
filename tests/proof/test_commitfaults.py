"""COMMIT itself refused on every path through the API."""

from __future__ import annotations

import asyncio

import commitfaults
from commitfaults import REFUSALS, UNWRITTEN
from wirepaths import PATHS

SEED = 7
PATHS_HERE = (
    "start",
    "flush, a batch",
    "transaction, psycopg",
    "transaction, psycopg in a thread",
    "park, timers and time-outs",
    "signal",
)


def test_where_the_commit_itself_is_refused_the_work_is_done_once(server_dsn):
    tallies = asyncio.run(commitfaults.refuse_on_paths(server_dsn, 0, SEED, PATHS_HERE, most=6))
    assert [f"{t.path}: {wrong}" for t in tallies for wrong in t.wrong] == []
    assert [(t.lost, t.doubled) for t in tallies] == [(0, 0)] * len(PATHS_HERE)
    assert all(t.refused for t in tallies)


def test_every_path_that_writes_says_which_promises_it_tests():
    assert {
        promise
        for name, path in PATHS.items()
        for promise in path.promises
        if name not in UNWRITTEN
    } - {"G39"} == set(commitfaults.FAULTS)
    assert "40001" in REFUSALS
