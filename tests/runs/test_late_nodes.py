"""Nodes whose time is over: failed, or skipped where the file says so."""

from __future__ import annotations

import pytest
from runkit import play, write

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

LATE = """
- {{id: late, bash: mkfifo gate; cat gate, timeout: 200{more}}}
- {{id: after, bash: echo on, depends_on: [late], trigger_rule: all_done}}
"""


@pytest.mark.parametrize(
    ("more", "status", "state", "reason"),
    [
        (", on_timeout: skip", "completed", "skipped", "timeout"),
        (", on_timeout: fail", "failed", "failed", "bash node 'late' timed out after 200ms"),
        ("", "failed", "failed", "bash node 'late' timed out after 200ms"),
    ],
)
async def test_a_node_that_is_late_is_what_its_file_says(
    aflow, tmp_path, more, status, state, reason
):
    run = await play(aflow, write(tmp_path, LATE.format(more=more)))
    assert (run.status, run.states["after"]) == (status, "completed"), run
    found = [(one["state"], one["reason"]) for one in run.ends if one["id"] == "late"]
    assert found == [(state, reason)]
