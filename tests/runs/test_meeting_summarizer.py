"""The meeting summarizer of the article "Beyond ICM", literally: each of the five concepts that it
asks for is shown by a run of it.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from records import settle
from ruamel.yaml import YAML
from runkit import ended, seen

import pgflow
from pgflow.declare import parse_workflow
from pgflow.declare.durable import declared, freeze
from pgflow.declare.durable.frozen import Settings
from pgflow.testing import AsyncHarness
from tests.kits.icmkit import CORPUS

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "meeting-summarizer"
TARGET: pgflow.Signal[Any] = pgflow.Signal("delivery_target", dict)
STAGES = ("01-meeting-notes", "02-action-items", "03-key-insights", "05-assemble-and-deliver")
LAST = STAGES[-1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "meeting"))


async def begin(aflow: AsyncHarness, root: Path, agent: str = "scribe") -> Any:
    aflow.include(declared)
    settings = Settings(cwd=str(root), provider=f"python:declared_agents:{agent}")
    frozen = freeze(parse_workflow(root), root)
    return await settle(aflow, declared.options(key="weekly"), frozen, settings, "", {})


async def deliver(aflow: AsyncHarness, run: Any) -> None:
    await run.send(TARGET, {"folder_path": "out/weekly"})
    await aflow.until_idle()
    assert (await ended(run)).status == "completed"


def begun(root: Path) -> dict[str, int]:
    """How often the agent of each stage has begun."""
    return {stage: seen(root)[f"{stage} begins"] for stage in STAGES}


def test_the_example_is_the_articles_own_workflow():
    ours, theirs = EXAMPLE / "workflow.yaml", CORPUS / "meeting-summarizer.workflow.yaml"
    assert YAML(typ="safe").load(ours) == YAML(typ="safe").load(theirs)


@pytest.mark.full
async def test_deterministic_replay_does_no_stage_again(aflow, root):
    run = await begin(aflow, root)
    await aflow.crash()
    await deliver(aflow, run)
    assert begun(root) == dict.fromkeys(STAGES, 1)


@pytest.mark.full
async def test_each_stage_is_a_checkpoint_from_which_a_retry_goes_on(aflow, root):
    run = await begin(aflow, root, "moody_scribe")
    assert (await ended(run)).status == "failed"
    (root / "mended").touch()
    before = begun(root)
    await aflow.app.retry("weekly")
    await aflow.until_idle()
    await deliver(aflow, run)
    assert begun(root) == {**dict.fromkeys(STAGES, 1), STAGES[2]: before[STAGES[2]] + 1}


@pytest.mark.full
async def test_the_idempotency_key_makes_a_second_delivery_the_same_folder(aflow, root):
    await deliver(aflow, await begin(aflow, root))
    first = {path.name: path.read_bytes() for path in (root / "out/weekly").iterdir()}
    await aflow.app.restart("weekly", effects="repeat")
    await aflow.until_idle()
    assert [path.name for path in (root / "out").iterdir()] == ["weekly"]
    assert {path.name for path in (root / "out/weekly").iterdir()} == set(first)


@pytest.mark.full
async def test_the_delivery_is_compensated_if_a_stage_after_it_fails(aflow, root):
    workflow = root / "workflow.yaml"
    text = workflow.read_text().replace(f"{LAST}, next: END", f"{LAST}, next: 06-tell")
    text = text.replace("state:\n", "state:\n  list: { type: file, location: nowhere.md }\n", 1)
    text = text.replace('folder_path" }', 'folder_path", compensation: "Remove it." }')
    workflow.write_text(text + "  - { id: 06-tell, next: END, reads: [list] }\n")
    run = await begin(aflow, root)
    await run.send(TARGET, {"folder_path": "out/weekly"})
    await aflow.until_idle()
    end = await ended(run)
    assert (end.status, "reads nowhere.md, which is not there" in end.error) == ("failed", True)
    assert begun(root) == dict.fromkeys(STAGES, 1)
    assert not (root / "out/weekly").exists()


@pytest.mark.full
async def test_it_waits_for_its_signal_for_days_and_answers_queries_meanwhile(aflow, root):
    run = await begin(aflow, root)
    await aflow.skip(timedelta(days=7))
    await aflow.crash()
    assert await run.query("stage") == [LAST]
    assert (await run.query("state"))["delivery_target"] is None
    done = dict.fromkeys(STAGES[:3], "completed")
    assert await run.query("stages") == {**done, "04-extended-notes": "skipped"}
    await deliver(aflow, run)
    assert (await run.query("state"))["delivery_target"] == {"folder_path": "out/weekly"}
