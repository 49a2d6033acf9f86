"""Workspaces that wait for a time, for messages until a deadline, and answer queries meanwhile."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from records import settle
from runkit import ended

import pgflow
from pgflow.declare import parse_workflow
from pgflow.declare.durable import declared, freeze
from pgflow.declare.durable.frozen import Settings
from pgflow.testing import AsyncHarness
from tests.kits.icmkit import workspace

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

FLOW = """
    name: timed
    state:
      notes: {{ type: file, location: notes.md, written_by: 01-notes }}
      target: {{ type: signal, schema: {{ folder: string }} }}
    stages:
      - {{ id: 01-notes, writes: [notes], wait: {wait} }}
      - id: 02-send
        reads: [notes]
        deadline: 3 days
        on_deadline: {late}
        side_effects: [{{ system: filesystem, idempotency_key: {key} }}]
      - {{ id: 03-end, reads: [notes], writes: [] }}
"""
TARGET: pgflow.Signal[Any] = pgflow.Signal("target", dict)


async def begin(aflow: AsyncHarness, root: Path, **fields: str) -> Any:
    told = {"wait": "seven days", "late": "skip", "key": "target.folder", **fields}
    workspace(root, workflow=FLOW.format(**told))
    if declared.name not in aflow.app.definitions.workflows:
        aflow.include(declared)
    settings = Settings(cwd=str(root), provider="cmd:echo noted")
    return await settle(
        aflow, declared.options(key="timed"), freeze(parse_workflow(root), root), settings, "", {}
    )


@pytest.mark.parametrize(
    ("late", "status"), [("skip", "completed"), ("fail", "failed")], ids=["skip", "fail"]
)
async def test_a_stage_waits_for_its_time_and_then_for_its_message_until_the_deadline(
    aflow, tmp_path, late, status
):
    run = await begin(aflow, tmp_path / "timed", late=late)
    assert await run.query("stage") == ["01-notes"]
    assert await run.query("state") == {"notes": None, "target": None}
    await aflow.skip(timedelta(days=6))
    assert await run.query("stage") == ["01-notes"]
    await aflow.skip(timedelta(days=1, minutes=1))
    assert await run.query("stage") == ["02-send"]
    assert await run.query("stages") == {"01-notes": "completed"}
    assert await run.query("state") == {"notes": "notes.md", "target": None}
    await aflow.skip(timedelta(days=3, minutes=1))
    end = await ended(run)
    assert end.status == status, end
    if late == "skip":
        assert (end.states["02-send"], end.states["03-end"]) == ("skipped", "completed")
        assert await run.query("stage") == []
    else:
        assert "stage '02-send': no message 'target' came within 3 days" in end.error


@pytest.mark.parametrize(
    ("key", "folder"),
    [
        ("out/weekly", "out/weekly"),
        ('"out/{target.folder}-{run.key}"', "out/a-timed"),
        ("target.folder", "a"),
    ],
)
async def test_a_key_is_a_path_a_literal_or_a_template(aflow, conn, tmp_path, key, folder):
    run = await begin(aflow, tmp_path / "timed", wait="1s", key=key)
    await aflow.skip(timedelta(seconds=2))
    if "target" in key:
        await run.send(TARGET, {"folder": "a"})
        await aflow.until_idle()
    end = await ended(run)
    assert end.status == "completed", end
    assert (tmp_path / "timed" / folder / "notes.md").read_text() == "noted\n"
    assert conn.execute("select * from pgflow.check()").fetchall() == []
