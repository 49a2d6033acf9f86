"""Durable runs of ICM workspaces: stages, their files, the people who are asked, and deliveries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from records import settle
from runkit import Run, ended, seen

import pgflow
from pgflow.authority import Approve, Reject
from pgflow.declare import icm, parse_workflow
from pgflow.declare.durable import declared, freeze
from pgflow.declare.durable.frozen import Settings
from pgflow.inspect import ask_async, list_gates
from pgflow.testing import AsyncHarness
from tests.kits.icmkit import CONTRACT, CORPUS, workspace

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

SCRIBE = "python:declared_agents:scribe"
EXAMPLE = Path(__file__).parents[2] / "examples" / "meeting-summarizer"
TARGET: pgflow.Signal[Any] = pgflow.Signal("delivery_target", dict)
OUTPUTS = {
    "01-meeting-notes": "meeting-notes",
    "02-action-items": "action-items",
    "03-key-insights": "key-insights",
}


async def begin(aflow: AsyncHarness, root: Path, key: str | None = None, **options: Any) -> Any:
    """Starts a run of a workspace, and lets it go as far as it goes."""
    if declared.name not in aflow.app.definitions.workflows:
        aflow.include(declared)
    inputs, message = options.pop("inputs", {}), options.pop("message", "")
    settings = Settings(cwd=str(root), **{"provider": SCRIBE, **options})
    frozen = freeze(parse_workflow(root), root)
    return await settle(aflow, declared.options(key=key), frozen, settings, message, inputs)


async def answer(aflow: AsyncHarness, run: Any, name: str, said: Any) -> None:
    """Answers the gate of a run that has this name."""
    gates = list(await ask_async(aflow.app, list_gates(run.key, limit=None)))
    assert [gate.name for gate in gates] == [name]
    await aflow.app.answer(gates[0].gate, said, by="ann")
    await aflow.until_idle()


async def go_on(aflow: AsyncHarness, run: Any) -> Run:
    await aflow.until_idle()
    return await ended(run)


@pytest.fixture
def meeting(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "meeting"))


@pytest.mark.full
async def test_the_papers_workspace_waits_for_its_folder_and_delivers_to_it_once(
    aflow, conn, meeting
):
    run = await begin(aflow, meeting)
    assert await run.status() == "waiting"
    await run.send(TARGET, {"folder_path": "out/weekly"})
    end = await go_on(aflow, run)
    assert end.status == "completed", end
    assert end.states == {
        **dict.fromkeys(OUTPUTS, "completed"),
        "04-extended-notes": "skipped",
        "05-assemble-and-deliver": "completed",
    }
    for stage, name in OUTPUTS.items():
        text = (meeting / f"stages/{stage}/output/{name}.md").read_text()
        assert text.startswith(f"{stage} of ["), text
        assert (meeting / f"out/weekly/{name}.md").read_text() == text
    assert {path.name for path in (meeting / "out/weekly").iterdir()} == {
        "meeting-notes.md",
        "action-items.md",
        "key-insights.md",
        "summary.md",
        ".pgflow-delivery.json",
    }
    effects = conn.execute("select count(*) from pgflow.effects where name like '%deliver'")
    assert effects.fetchone() == (1,)


@pytest.mark.full
async def test_a_stage_runs_again_only_if_what_it_reads_has_changed(aflow, meeting):
    options: Any = {"inputs": {"delivery_target": {"folder_path": "out"}}}
    first = await begin(aflow, meeting, **options)
    await answer(aflow, first, "05-assemble-and-deliver:before", Approve())
    assert (await ended(first)).status == "completed"
    before = seen(meeting)
    (meeting / "stages/02-action-items/output/action-items.md").write_text("edited by a person")
    second = await begin(aflow, meeting, **options)
    assert seen(meeting) == before, "nothing that a stage before the delivery reads has changed"
    await refuse_delivery(aflow, second)
    notes = meeting / "stages/01-meeting-notes/output/meeting-notes.md"
    notes.write_text("notes as a person wants them")
    third = await begin(aflow, meeting, **options)
    again = {line for line, count in seen(meeting).items() if count > before[line]}
    assert again == {"02-action-items begins", "03-key-insights begins"}
    assert notes.read_text() == "notes as a person wants them"
    await refuse_delivery(aflow, third)


async def refuse_delivery(aflow: AsyncHarness, run: pgflow.AsyncRun[Any]) -> None:
    await answer(aflow, run, "05-assemble-and-deliver:before", Reject("not today"))
    assert (await ended(run)).status == "cancelled"


@pytest.mark.full
@pytest.mark.parametrize("at_start", [True, False])
async def test_a_stage_behind_a_request_runs_if_somebody_asks_in_time(aflow, tmp_path, at_start):
    root = workspace(tmp_path, {"01-a": CONTRACT, "02-b": CONTRACT}, ON_REQUEST)
    run = await begin(aflow, root, requested=("02-b",) if at_start else ())
    if not at_start:
        await run.send(pgflow.Signal("request:02-b", dict), {})
    await answer(aflow, run, "01-a:before", Approve())
    assert (await ended(run)).states == {"01-a": "completed", "02-b": "completed"}
    late = await begin(aflow, root, message="another")
    await answer(aflow, late, "01-a:before", Approve())
    assert (await ended(late)).states == {"01-a": "completed", "02-b": "skipped"}


ON_REQUEST = """
    name: w
    state:
      one: { type: file, written_by: 01-a }
      two: { type: file, written_by: 02-b, optional: true }
    stages:
      - { id: 01-a, writes: [one], interrupt_before: true }
      - { id: 02-b, writes: [two], gate: explicit_request }
"""


@pytest.mark.full
async def test_a_message_that_does_not_fit_is_refused_and_another_is_waited_for(
    aflow, meeting, tmp_path
):
    (meeting / "link").symlink_to(tmp_path)
    run = await begin(aflow, meeting)
    for wrong in ({"folder": "x"}, {"folder_path": 3}, *({"folder_path": one} for one in OUTSIDE)):
        await run.send(TARGET, wrong)
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await run.send(TARGET, {"folder_path": "out"})
    end = await go_on(aflow, run)
    refused = [one["reason"] for one in end.ends if one["state"] == "refused"]
    assert len(refused) == 2 + len(OUTSIDE), refused
    assert "'folder_path' is a required property" in refused[0]
    assert "leads out" in refused[-1]
    assert end.status == "completed", end
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meeting"]


OUTSIDE = ("/tmp/x", "../x", "a/../../x", "~/x", "stages", ".", ".pgflow/x", "link/x")
REVIEWED = (
    CONTRACT
    + """
    ## Review Gate

    Is it short enough?
"""
)


@pytest.mark.full
async def test_a_review_sends_back_with_notes_and_takes_what_a_person_has_edited(aflow, tmp_path):
    root = workspace(tmp_path, {"01-a": REVIEWED, "02-b": READS_A})
    run = await begin(aflow, root)
    out = root / "stages/01-a/output/result.md"
    assert out.read_text().startswith("01-a of")
    await answer(aflow, run, "01-a:review", Reject("shorter, please"))
    assert out.read_text().startswith("01-a:rework of"), "the text of the rework"
    out.write_text("edited")
    await answer(aflow, run, "01-a:review#2", Approve())
    end = await ended(run)
    assert (end.status, out.read_text()) == ("completed", "edited")
    assert seen(root)["02-b begins"] == 1


READS_A = CONTRACT.replace("`references/rules.md`", "`../01-a/output/result.md`")
AUDITED = (
    CONTRACT
    + """
    ## Audit

    | Check | Pass Condition |
    |-------|----------------|
    | Good | It is good |
"""
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("message", "asks"), [("good", False), ("bad", False), ("bad worse", True)]
)
async def test_what_fails_its_checks_is_mended_once_and_then_decided_by_a_person(
    aflow, tmp_path, message, asks
):
    root = workspace(tmp_path, {"01-a": AUDITED})
    run = await begin(aflow, root, message=message)
    if asks:
        await answer(aflow, run, "01-a:audit", Reject("do it again"))
    assert (await ended(run)).status == "completed"
    done = [line.removesuffix(" begins") for line in seen(root)]
    turns = {"good": [], "bad": ["01-a:repair", "01-a:check#2"]}.get(
        message, ["01-a:repair", "01-a:check#2", "01-a:rework", "01-a:check#3"]
    )
    assert done == ["01-a", "01-a:check", *turns]


async def test_a_person_decides_at_a_checkpoint_how_the_stage_goes_on(aflow, tmp_path):
    contract = (
        CONTRACT
        + """
    ## Checkpoints

    | After Step | Agent Presents | Human Decides |
    |------------|----------------|---------------|
    | 1 | Three titles | Which one |
    """
    )
    root = workspace(tmp_path, {"01-a": contract})
    run = await begin(aflow, root)
    assert not list((root / "stages/01-a/output").glob("*.md")), "nothing is taken before the end"
    await answer(aflow, run, "01-a:checkpoint", Approve())
    assert (await ended(run)).status == "completed"
    assert (root / "stages/01-a/output/result.md").read_text().startswith("01-a#2 of")


ACTING = """
    name: w
    state:
      one: { type: file, written_by: 01-a }
      two: { type: file, written_by: 02-b }
      three: { type: file, location: nowhere.md }
    compensations: { correct: "Send a correction." }
    stages:
      - { id: 01-a, writes: [one], side_effects: [{ system: email, idempotency_key: one, compensation: correct }] }
      - { id: 02-b, writes: [two], side_effects: [{ system: slack, idempotency_key: one, compensation: "Delete the post." }] }
      - { id: 03-c, reads: [three] }
"""


async def test_acts_of_stages_are_taken_back_in_reverse_when_a_later_stage_fails(
    aflow, conn, tmp_path
):
    root = workspace(tmp_path, {"01-a": CONTRACT, "02-b": CONTRACT, "03-c": CONTRACT}, ACTING)
    end = await ended(await begin(aflow, root))
    assert (end.status, "reads nowhere.md, which is not there" in end.error) == ("failed", True)
    found = [line.removesuffix(" begins") for line in seen(root)]
    assert found == ["01-a", "02-b", "02-b:compensate", "01-a:compensate"]
    names = conn.execute("select name from pgflow.effects order by intended_at").fetchall()
    assert names[:2] == [("01-a",), ("02-b",)]


TWO = """
    name: w
    state:
      one: { type: file, location: one.md, written_by: 01-a }
      two: { type: file, location: two.md, written_by: 01-a }
    stages:
      - { id: 01-a, writes: [one, two] }
"""


@pytest.mark.parametrize(
    ("said", "error"),
    [({"one": "1", "two": "2"}, ""), ("words", "has not written one.md"), ({"x": "1"}, "one.md")],
)
async def test_a_stage_owes_all_that_it_writes(aflow, tmp_path, said, error):
    root = workspace(tmp_path, None, TWO)
    end = await ended(await begin(aflow, root, provider="stub:", stubs={"01-a": said}))
    assert error in end.error
    assert (end.status, (root / "two.md").exists()) == (
        ("failed", False) if error else ("completed", True)
    )


@pytest.mark.full
async def test_a_run_that_is_taken_back_does_the_stage_again(aflow, tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    run = await begin(aflow, root, "again")
    assert (await ended(run)).status == "completed"
    await aflow.app.restart("again", effects="repeat")
    assert (await go_on(aflow, run)).status == "completed"
    assert seen(root)["01-a begins"] == 2


@pytest.mark.full
async def test_a_file_that_the_agent_has_written_itself_stays(aflow, tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    for message in ("one", "two"):  # the second writes the same bytes again
        run = await begin(aflow, root, provider="python:declared_agents:writer", message=message)
        end = await ended(run)
        assert (end.status, end.output) == ("completed", "all of it"), end
        assert (root / "stages/01-a/output/result.md").read_text() == "all of it"


@pytest.mark.full
@pytest.mark.parametrize("name", [path.name for path in icm.find_workspaces(CORPUS)])
async def test_a_workspace_of_others_runs_to_its_end_and_then_has_nothing_to_do(
    aflow, tmp_path, name
):
    (origin,) = (path for path in icm.find_workspaces(CORPUS) if path.name == name)
    root = Path(shutil.copytree(origin, tmp_path / name))
    for _ in range(2):
        before = sum(seen(root).values())
        run = await begin(aflow, root, provider="python:declared_agents:obliging")
        while gates := list(await ask_async(aflow.app, list_gates(run.key, limit=None))):
            await aflow.app.answer(gates[0].gate, Approve(), by="ann")
            await aflow.until_idle()
        end = await ended(run)
        assert (end.status, set(end.states.values())) == ("completed", {"completed"}), end
    assert sum(seen(root).values()) == before, "the second run has found all of it there"
