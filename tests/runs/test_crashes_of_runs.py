"""Workers are killed inside nodes and between them: what is recorded is never done again, and no
node ever has two processes.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import WorkerProcess
from runkit import WITNESS, recorded, seen, write
from servers import wait_until

from pgflow import AsyncApp
from pgflow.declare import parse_workflow
from pgflow.declare.durable import declared, freeze
from pgflow.declare.durable.frozen import Settings

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

pytestmark = pytest.mark.full

NODES = """
- id: a
  bash: {a}
- id: b
  bash: {b}
- id: think
  loop: {{prompt: "think $a.output", until: DONE, max_iterations: 5}}
  depends_on: [a, b]
- id: rounds
  depends_on: [a]
  loop_group:
    max_iterations: 4
    until_bash: 'test -e second'
    nodes:
      - id: x
        bash: {x}
      - id: "y"
        depends_on: [x]
        bash: 'test ! -e first || touch second; touch first; echo $x.output'
- id: kids
  workflow: kid
  depends_on: [b]
  fan_out: {{items: '["1", "2"]', max_parallel: 2}}
- id: last
  bash: {last}
  depends_on: [think, rounds, kids]
"""
KID = """
- id: born
  bash: 'echo "born $ARGUMENTS" >> witness; sync witness; echo $ARGUMENTS'
"""
SAYS = {
    "a": "echo a",
    "b": "echo b",
    "x": "echo $b.output$LOOP_PREV.y.output",
    "last": "echo $rounds.output $kids.output",
}


@pytest.mark.full
@pytest.mark.parametrize("after", [3, 8, 15])
def test_what_is_recorded_is_never_done_again(dsn, conn, tmp_path, after):
    write(tmp_path, KID, "mutates_checkout: false", name="kid")
    marks = {name: json.dumps(WITNESS + said) for name, said in SAYS.items()}
    path = write(tmp_path, NODES.format(**marks))
    key = asyncio.run(begin(dsn, path, tmp_path))
    first = WorkerProcess(dsn, module="pgflow.declare.durable")
    try:
        wait_until(lambda: sum(seen(tmp_path).values()) >= after, "it works")
    finally:
        first.send(signal.SIGKILL)
        first.finish()
    done, before = recorded(conn, key), seen(tmp_path)
    known = {name: before[f"{name} begins"] for name in done}
    assert after < 5 or any(known.values())
    second = WorkerProcess(dsn, module="pgflow.declare.durable")
    try:
        wait_until(
            lambda: conn.execute(
                "select status from pgflow.runs where key = %s and status = 'completed'", (key,)
            ).fetchone(),
            "it ends",
        )
    finally:
        second.send(signal.SIGTERM)
        second.finish()
    after_all = seen(tmp_path)
    assert {name: after_all[f"{name} begins"] for name in done} == known
    assert not any(line.endswith("twice") for line in after_all)
    assert all(count <= 2 for count in after_all.values()), after_all


async def begin(dsn: str, path: Path, folder: Path) -> str:
    async with AsyncApp(dsn, include=[declared]) as app:
        settings: Any = Settings(cwd=str(folder), provider="python:declared_agents:answer")
        run = await app.start(declared, freeze(parse_workflow(path)), settings, "go", {})
        return run.key
