"""Logs of runs: an event a line in the run's own folder, each told once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runkit import ended, play, start, write

from pgflow.authority import Approve

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

NODES = """
- {id: see, bash: 'echo out; echo err >&2'}
- {id: never, bash: 'true', when: "$see.output == 'no'", depends_on: [see]}
- {id: think, prompt: "$see.output", depends_on: [see]}
- {id: ask, approval: {message: "All right?"}, depends_on: [think]}
- {id: stop, bash: 'echo why >&2; exit 3', depends_on: [ask]}
"""


def events(folder: Path, key: str) -> list[dict[str, Any]]:
    """The events of a run."""
    path = folder / ".pgflow/runs" / key / "logs" / f"{key}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.full
async def test_a_log_tells_of_each_node_once_though_the_run_waits_and_goes_on(aflow, tmp_path):
    run = await start(aflow, write(tmp_path, NODES), "hello", key="r-1", provider="cmd:cat")
    await aflow.until_idle()
    await aflow.answer("ask", Approve())
    await aflow.until_idle()
    assert (await ended(run)).status == "failed"
    told = events(tmp_path, "r-1")
    assert [(one["type"], one.get("step")) for one in told] == [
        ("workflow_start", None),
        ("node_start", "see"),
        ("exec_output", "see"),
        ("node_complete", "see"),
        ("node_skipped", "never"),
        ("node_start", "think"),
        ("assistant", "think"),
        ("node_complete", "think"),
        ("node_suspended", "ask"),
        ("workflow_resume", None),
        ("gate_decision", "ask"),
        ("node_complete", "ask"),
        ("node_start", "stop"),
        ("exec_output", "stop"),
        ("node_error", "stop"),
        ("workflow_error", None),
    ]
    assert {one["workflow_id"] for one in told} == {"r-1"}
    assert all(len(one["ts"]) == len("2027-03-01T02:30:00.000Z") for one in told)
    by = {(one["type"], one.get("step")): one for one in told}
    assert by["workflow_start", None]["content"] == "hello"
    seen = by["exec_output", "see"]
    assert (seen["stdout_tail"], seen["stderr_tail"], seen["exit_code"]) == ("out\n", "err\n", 0)
    assert by["assistant", "think"]["content"] == "out"
    assert by["node_suspended", "ask"]["content"] == "All right?"
    assert by["gate_decision", "ask"]["decision"] == "approve"
    assert by["exec_output", "stop"]["exit_code"] == 3
    assert "exit 3" in by["node_error", "stop"]["error"]
    assert "stop" in by["workflow_error", None]["error"]


async def test_a_log_does_not_say_a_secret(aflow, tmp_path, monkeypatch):
    monkeypatch.setenv("THE_TOKEN", "sesame-open-now")
    nodes = """
    - {id: leak, bash: 'echo "$THE_TOKEN"; echo "$THE_TOKEN" >&2'}
    - {id: say, prompt: x, depends_on: [leak]}
    - {id: fail, bash: 'echo "$THE_TOKEN" >&2; exit 1', depends_on: [say]}
    """
    provider = "cmd:sh -c 'echo \"$THE_TOKEN\"'"
    run = await play(
        aflow, write(tmp_path, nodes), key="s-1", secrets=("THE_TOKEN",), provider=provider
    )
    assert run.status == "failed"
    text = (tmp_path / ".pgflow/runs/s-1/logs/s-1.jsonl").read_text()
    assert ("sesame" in text, text.count("***")) == (False, 6)


async def test_a_log_that_cannot_be_written_stops_no_run(aflow, tmp_path, caplog):
    folder = tmp_path / ".pgflow/runs/f-1"
    folder.mkdir(parents=True)
    (folder / "logs").write_text("no folder")
    run = await play(aflow, write(tmp_path, "- {id: a, bash: 'echo a'}"), key="f-1")
    assert (run.status, run.output) == ("completed", "a")
    warned = [one for one in caplog.messages if "cannot be written" in one]
    assert len(warned) == 1
    assert (folder / "logs").read_text() == "no folder"


async def test_a_log_makes_no_working_folder_and_stays_out_of_its_history(aflow, tmp_path):
    path = write(tmp_path, "- {id: a, prompt: x}")
    run = await play(aflow, path, provider="stub:", stubs={"a": "x"}, cwd=str(tmp_path / "gone"))
    assert (run.status, (tmp_path / "gone").exists()) == ("completed", False)
    await play(aflow, path, provider="stub:", stubs={"a": "x"})
    assert (tmp_path / ".pgflow/.gitignore").read_text() == "*\n"


async def test_a_rehearsal_logs_no_node_that_is_given(aflow, tmp_path):
    path = write(tmp_path, "- {id: a, bash: 'exit 1'}\n- {id: b, prompt: x, depends_on: [a]}")
    run = await play(aflow, path, key="st-1", provider="stub:", stubs={"a": "one", "b": "two"})
    assert run.output == "two"
    found = [one["type"] for one in events(tmp_path, "st-1")]
    assert found == ["workflow_start", "workflow_complete"]
