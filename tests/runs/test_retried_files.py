"""Retries of runs of files: each node that failed is done again, and nothing else, whoever asks."""

from __future__ import annotations

import pytest
from runkit import ended, start, write

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

AGENT = "cmd:sh -c 'test -e tried || { touch tried; exit 1; }; echo agent >> ran; echo hi'"
OUTER = """
- id: agent
  prompt: hello
  retry: {max_attempts: 2, delay_ms: 1000, on_error: all}
- {id: a, bash: 'echo a >> ran; test -e fine', depends_on: [agent]}
- {id: b, bash: 'echo b >> ran; test -e fine', depends_on: [agent]}
- {id: call, workflow: inner, depends_on: [agent]}
- {id: lost, workflow: empty, depends_on: [agent]}
- {id: c, bash: 'echo c >> ran', depends_on: [a, b, call, lost], trigger_rule: all_done}
- {id: d, bash: 'echo d >> ran', depends_on: [a, b, call]}
"""
INNER = """
- {id: first, bash: 'echo first >> ran'}
- {id: x, bash: 'echo x >> ran; test -e fine', depends_on: [first]}
- {id: y, bash: 'echo y >> ran; test -e fine', depends_on: [first]}
- {id: z, bash: 'echo z >> ran', depends_on: [first]}
"""
EMPTY = "- {id: never, bash: 'true', when: \"$ARGUMENTS == 'never'\"}"


async def test_a_retry_does_all_that_failed_again_also_in_the_runs_that_were_called(
    aflow, tmp_path
):
    write(tmp_path, INNER, name="inner")
    write(tmp_path, EMPTY, name="empty")
    run = await start(aflow, write(tmp_path, OUTER), provider=AGENT, key="k", lease="share")
    await aflow.until_idle()
    ran = tmp_path / "ran"
    assert sorted(ran.read_text().split()) == ["a", "agent", "b", "c", "first", "x", "y", "z"]
    ran.write_text("")
    (tmp_path / "fine").touch()
    await aflow.app.retry("k")
    await aflow.until_idle()
    assert sorted(ran.read_text().split()) == ["a", "b", "d", "x", "y"]
    said = await ended(run)
    assert said.status == "failed", "the run that never ran anything cannot go on"
    assert said.error.startswith("node 'lost' failed")


FRESH = """
- {id: fetch, bash: 'echo fetch >> ran; cat news', always_run: true}
- {id: known, bash: 'echo known >> ran; echo said', depends_on: [fetch]}
- {id: agent, prompt: 'about $known.output', depends_on: [known]}
- {id: told, bash: 'echo "told $fetch.output" >> ran', depends_on: [fetch]}
- id: rounds
  always_run: true
  depends_on: [fetch]
  loop_group:
    max_iterations: 2
    until: DONE
    nodes: [{id: round, bash: 'echo round >> ran; echo DONE'}]
- {id: late, bash: 'echo late >> ran; test -e fine', depends_on: [agent, told, rounds]}
"""


async def test_a_node_that_always_runs_is_done_again_and_what_reads_something_new_of_it(
    aflow, tmp_path
):
    (tmp_path / "news").write_text("old")
    agent = "cmd:sh -c 'echo agent >> ran; echo hi'"
    run = await start(aflow, write(tmp_path, FRESH), provider=agent, key="k", lease="share")
    await aflow.until_idle()
    ran = tmp_path / "ran"
    first = ["agent", "fetch", "known", "late", "round", "told old"]
    assert sorted(ran.read_text().splitlines()) == first
    ran.write_text("")
    await aflow.app.retry("k")
    await aflow.until_idle()
    assert sorted(ran.read_text().splitlines()) == ["fetch", "late", "round"]
    ran.write_text("")
    (tmp_path / "news").write_text("new")
    (tmp_path / "fine").touch()
    await aflow.app.retry("k")
    await aflow.until_idle()
    assert sorted(ran.read_text().splitlines()) == ["fetch", "late", "round", "told new"]
    assert (await ended(run)).status == "completed"
