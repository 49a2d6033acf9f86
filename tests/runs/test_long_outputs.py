"""Outputs that are too long for the journal: it has their beginning, and files have all of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from runkit import ended, play, start, write

from pgflow._model.codecs import codec_for
from pgflow.authority import Approve
from pgflow.declare.durable import Result, Settings, bodies
from pgflow.declare.durable.long import IN_JOURNAL, KIND, READABLE, is_there
from pgflow.effects import Ref

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

LONG = """
- id: shell
  bash: |
    echo x >> shells
    printf '{"n": "é", "more": "%0200000d"}\\n' 0
- id: vast
  bash: head -c 5000000 /dev/zero | tr '\\0' v
- {id: agent, prompt: "$shell.output", depends_on: [shell]}
- {id: field, bash: 'printf "$shell.output.n" > field', depends_on: [shell], when: "$shell.output.n != 'x'"}
- {id: whole, bash: 'printf %s "$agent.output" | wc -c > whole', depends_on: [agent]}
- {id: child, workflow: kid, depends_on: [ask]}
- {id: ask, approval: {message: "Go?"}, depends_on: [whole, field, vast]}
- {id: again, bash: '(printf "$shell.output" | tail -c 3; echo "$child.output" | wc -c) > again',
   depends_on: [ask, child]}
- {id: reader, bash: 'echo "$vast.output"', depends_on: [vast], trigger_rule: all_done}
"""

SIZE = 200_000 + len('{"n": "é", "more": ""}'.encode())


@pytest.mark.full
async def test_a_long_output_is_a_file_that_references_read(aflow, conn, tmp_path):
    write(tmp_path, "- {id: a, bash: 'head -c 800000 /dev/zero | tr \"\\\\0\" k'}", name="kid")
    path = write(tmp_path, LONG, more="interactive: true")
    begun = await start(aflow, path, provider="python:declared_agents:answer", key="long-1")
    await aflow.until_idle()
    size = conn.execute("select max(octet_length(payload::text)) from pgflow.unit").fetchone()
    assert size is not None
    assert IN_JOURNAL < size[0] < IN_JOURNAL + 1000

    spills = {one.stat().st_size: one for one in tmp_path.glob(".pgflow/runs/long-1/spills/*")}
    assert sorted(spills) == [SIZE, SIZE + 1, 5_000_000]
    printed = spills[SIZE + 1]
    assert printed.name == hashlib.sha256(printed.read_bytes()).hexdigest()
    printed.write_text("something else")
    await aflow.answer("ask", Approve())
    run = await ended(begun)
    found = (tmp_path / "shells").read_text()
    assert found == "x\n" * 2, "the shell whose file was lost runs again"
    assert run.status == "failed", run
    said = {end["id"]: end["reason"] for end in run.ends}
    assert str(spills[5_000_000]) in said.pop("reader")
    assert run.states == dict.fromkeys(said, "completed") | {"reader": "failed"}
    told = {name: (tmp_path / name).read_text().strip() for name in ("field", "whole", "again")}
    assert told == {"field": "é", "whole": f"{SIZE}", "again": '0"}800001'}


@pytest.mark.full
async def test_a_program_that_prints_without_end_is_ended(aflow, tmp_path, monkeypatch):
    monkeypatch.setattr(bodies, "MOST", 3 << 20)
    run = await play(aflow, write(tmp_path, "- {id: a, bash: 'yes & echo $! > pid; wait'}"))
    assert run.error == "node 'a' failed: bash node 'a' printed more than 3 MiB"
    assert not list(tmp_path.glob(".pgflow/runs/*/spills/*"))
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_file_is_there_if_it_is_what_it_was(tmp_path):
    name = hashlib.sha256(b"it").hexdigest()
    (tmp_path / name).write_bytes(b"it")
    assert is_there(Ref(KIND, str(tmp_path / name)))
    (tmp_path / name).write_bytes(b"no")
    assert not is_there(Ref(KIND, str(tmp_path / name)))
    assert not is_there(Ref(KIND, str(tmp_path / "none")))
    assert not is_there(Ref(KIND, str(tmp_path / name / "below")))
    (tmp_path / name).write_bytes(b"x" * (READABLE + 1))
    assert is_there(Ref(KIND, str(tmp_path / name)))


def test_what_older_workers_do_not_know_is_left_out_where_it_says_nothing():
    assert set(bodies.Done().model_dump()) == {"text", "value", "has_value", "error", "unknown"}
    assert "long" not in Result().model_dump()
    assert "models" not in Settings(cwd=".").model_dump()


def test_an_outcome_comes_back_as_it_is_without_a_word_on_what_was_left_out():
    codec = codec_for(bodies.Done)
    for done in (bodies.Done(text="it"), bodies.Done(error="no", skipped="timeout")):
        text = codec.encode(done, "an outcome")
        assert set(json.loads(text)) == done.model_fields_set
        assert codec.decode(text, "an outcome") == done
