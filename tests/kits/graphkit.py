"""Runs whose graphs are looked at: a DAG with nodes of many kinds, an SOP and a workspace, each of
which waits somewhere, and a DAG that was cancelled there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sopkit import sop

from pgflow import AsyncApp
from pgflow.declare import parse_workflow
from pgflow.declare.durable import declared, freeze
from pgflow.declare.durable.frozen import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
DAG = """name: release
description: Build, ask, ship
nodes:
  - {id: build, bash: "echo built"}
  - {id: notes, bash: "echo sorry >&2; exit 3"}
  - id: refine
    depends_on: [build]
    loop_group:
      until_bash: echo pass
      max_iterations: 3
      nodes:
        - {id: edit, bash: "echo better"}
        - {id: approve, approval: {message: "Ship it?"}, depends_on: [edit]}
  - {id: plan, prompt: "Plan it", depends_on: [build]}
  - {id: count, script: "print(1)", runtime: uv, depends_on: [refine]}
  - {id: polish, loop: {prompt: "Polish it", until: DONE, max_iterations: 3}, depends_on: [refine]}
  - {id: stop, cancel: "Not today", depends_on: [refine], when: "$build.output == 'bad'"}
  - {id: ship, bash: "echo shipped", depends_on: [refine], when: "$build.output == 'built'"}
  - {id: announce, bash: "echo told", depends_on: [ship, notes]}
"""
STEPS = """### 1. Look

**Constraints:**
- You MUST look
- You MUST NOT touch anything

### 2. Ask

**Constraints:**
- You MUST ask the user which part matters
- You SHOULD tell why

### 3. Tell

**Constraints:**
- You MUST tell what you saw"""


async def begin_graphs(app: AsyncApp, folder: Path) -> list[str]:
    """Start the runs, each in a folder of its own, and return their keys."""
    texts = {"dag": ("flow.yaml", DAG), "ended": ("flow.yaml", DAG)}
    texts["sop"] = ("flow.sop.md", sop(steps=STEPS))
    for key, (name, text) in texts.items():
        (folder / key).mkdir()
        (folder / key / name).write_text(text)
        await _begin(app, key, folder / key / name)
    await _begin(app, "icm", Path(shutil.copytree(EXAMPLES / "meeting-summarizer", folder / "icm")))
    return [*texts, "icm"]


async def _begin(app: AsyncApp, key: str, path: Path) -> None:
    agent = {"sop": "sop_agents:answer", "icm": "declared_agents:scribe"}
    settings = Settings(
        cwd=str(path if path.is_dir() else path.parent),
        provider=f"python:{agent.get(key, 'declared_agents:answer')}",
    )
    inputs = {"topic": "tea"} if key == "sop" else {}
    frozen = freeze(parse_workflow(path), path)
    await app.start(declared.options(key=key), frozen, settings, "", inputs)
