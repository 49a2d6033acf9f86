"""Sessions of agents: the conversation that a turn goes on in, which is the same after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clikit import pgflow
from runkit import play, write

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

AGENT = "python:declared_agents:remembering"

NODES = """
- {id: plan, prompt: a}
- {id: check, bash: 'true', depends_on: [plan]}
- {id: build, prompt: b, depends_on: [check]}
- {id: left, prompt: c, depends_on: [build]}
- {id: right, prompt: d, depends_on: [build]}
- {id: join, prompt: e, depends_on: [left, right]}
- {id: other, prompt: f, provider: codex, depends_on: [join]}
- {id: more, prompt: g, provider: codex, depends_on: [other]}
- {id: anew, prompt: h, provider: codex, context: fresh, depends_on: [more]}
- {id: back, prompt: i, context: {resume: plan}, depends_on: [anew]}
- id: form
  prompt: j
  depends_on: [back]
  output_format: {type: object}
- {id: last, prompt: k, depends_on: [form]}
"""

SESSIONS = {
    "plan": None, "build": "s:plan", "left": None, "right": None, "join": None, "other": None,
    "more": "s:other", "anew": None, "back": "s:plan", "form": "s:back", "form:reask#1": None,
    "last": "s:form",
}  # fmt: skip


def sessions(folder: Path) -> dict[str, str | None]:
    """The session that each turn went on in."""
    lines = (folder / "witness").read_text().splitlines()
    told = dict(line.split(" in ") for line in lines)
    assert len(told) == len(lines)
    return {key: None if said == "None" else said for key, said in told.items()}


async def test_a_node_goes_on_in_the_session_of_the_last_one_that_was_alone(aflow, tmp_path):
    run = await play(aflow, write(tmp_path, NODES), provider=AGENT)
    assert run.status == "completed"
    assert sessions(tmp_path) == SESSIONS


@pytest.mark.full
async def test_a_crash_loses_no_session(aflow, tmp_path):
    nodes = """
    - {id: plan, prompt: a}
    - {id: ask, approval: {message: 'Go on?'}, depends_on: [plan]}
    - {id: build, prompt: b, depends_on: [ask]}
    """
    path = write(tmp_path, nodes, "interactive: true")
    run = await play(aflow, path, provider=AGENT, key="crashed")
    assert run.status == "waiting"
    await aflow.crash()
    (gate,) = await aflow.gates("crashed")
    await aflow.answer(gate)
    await aflow.until_idle()
    assert sessions(tmp_path) == {"plan": None, "build": "s:plan"}


@pytest.mark.full
@pytest.mark.parametrize("is_fresh", [False, True])
async def test_the_turns_of_a_loop_go_on_in_their_own_session(aflow, tmp_path, is_fresh):
    nodes = f"""
    - {{id: plan, prompt: a}}
    - id: refine
      depends_on: [plan]
      loop: {{prompt: b, until: DONE, max_iterations: 4, fresh_context: {str(is_fresh).lower()}}}
    - {{id: last, prompt: c, depends_on: [refine]}}
    """
    await play(aflow, write(tmp_path, nodes), provider=AGENT)
    before = (None, None) if is_fresh else ("s:refine#1", "s:refine#2")
    assert sessions(tmp_path) == {
        "plan": None,
        "refine#1": None,
        "refine#2": before[0],
        "refine#3": before[1],
        "last": "s:refine#3",
    }


@pytest.mark.full
async def test_each_round_of_a_group_and_an_included_workflow_begin_anew(aflow, tmp_path):
    write(tmp_path, "- {id: a, prompt: x}\n- {id: b, prompt: y, depends_on: [a]}", name="block")
    nodes = """
    - {id: plan, prompt: a}
    - id: group
      depends_on: [plan]
      loop_group:
        max_iterations: 2
        until: DONE
        nodes:
          - {id: c, prompt: x}
          - {id: d, prompt: 'say DONE', depends_on: [c]}
    - {id: check, include: block, depends_on: [group], trigger_rule: all_done}
    """
    await play(aflow, write(tmp_path, nodes), provider=AGENT)
    told = sessions(tmp_path)
    assert told["check__b"] == "s:check__a"
    assert told["group#1/c"] is None
    assert told["group#1/d"] == "s:group#1/c"
    assert told["group#2/c"] is None
    assert told["check__a"] is None


KEPT = """
- {id: plan, prompt: a}
- {id: build, prompt: b, depends_on: [plan]}
- {id: fresh, prompt: c, context: fresh, depends_on: [build]}
- {id: back, prompt: d, context: {resume: plan}, depends_on: [fresh]}
- {id: out, prompt: e, persist_session: false, depends_on: [back]}
"""


@pytest.mark.full
async def test_a_conversation_goes_on_in_the_next_run_until_it_is_forgotten(aflow, tmp_path, dsn):
    path = write(tmp_path, KEPT, "persist_sessions: true")
    witness = tmp_path / "witness"

    async def again(conversation: str = "pr-7") -> tuple[str | None, ...]:
        witness.write_text("")
        run = await play(aflow, path, provider=AGENT, conversation=conversation)
        assert run.status == "completed", run
        return tuple(sessions(tmp_path).values())

    anew = (None, "s:plan", None, "s:plan", "s:back")
    assert await again() == anew
    assert await again() == ("s:plan", "s:build", None, "s:plan", "s:back")
    assert await again("pr-8") == anew, "another conversation"
    assert await again("") == anew, "no conversation"
    assert pgflow(dsn, "reset-sessions", "w").code == 2
    assert pgflow(dsn, "reset-sessions", "w", "--node", "plan").code == 2
    said = pgflow(dsn, "reset-sessions", "w", "--conversation", "pr-7", "--node", "build")
    assert said.data == {"forgotten": 1}
    assert await again() == ("s:plan", "s:plan", None, "s:plan", "s:back")
    assert pgflow(dsn, "reset-sessions", "w", "--yes", "--json").data == {"forgotten": 6}
    assert await again() == anew


async def test_a_turn_whose_session_is_gone_begins_anew_and_says_so(aflow, tmp_path):
    (tmp_path / "forgotten").touch()
    nodes = "- {id: plan, prompt: a}\n- {id: build, prompt: b, depends_on: [plan]}"
    run = await play(aflow, write(tmp_path, nodes), provider=AGENT)
    assert run.status == "completed", run
    turns = (tmp_path / "witness").read_text().splitlines()
    assert turns == ["plan in None", "build in s:plan", "build in None"]
    found = [(end["id"], end["state"]) for end in run.ends]
    assert found == [("plan", "completed"), ("build", "lost"), ("build", "completed")]


@pytest.mark.full
async def test_a_session_that_is_gone_leaves_the_outputs_of_the_run_before(aflow, tmp_path):
    nodes = """
    - {id: plan, prompt: a, persist_session: true, output_type: plan}
    - {id: draft, prompt: b, output_type: draft, depends_on: [plan]}
    """
    path = write(tmp_path, nodes)
    for key, conversation in (("first", "pr/7"), ("other", ".."), ("none", "")):
        run = await play(aflow, path, provider=AGENT, conversation=conversation, key=key)
        assert run.status == "completed", run
    shared = tmp_path / ".pgflow/scopes/w/pr%2f7/nodes"
    assert sorted(file.name for file in shared.iterdir()) == ["plan.md", "plan.meta.json"]
    found = sorted(one.name for one in (tmp_path / ".pgflow/scopes/w").iterdir())
    assert found == ["%..", "pr%2f7"]
    (tmp_path / "forgotten").touch()
    run = await play(aflow, path, provider=AGENT, conversation="pr/7", key="second")
    (lost,) = [end for end in run.ends if end["state"] == "lost" and end["id"] == "plan"]
    assert lost["reason"] == (
        f"its session is gone: it began anew; plan (plan): {shared / 'plan.md'}"
    )
    assert json.loads((shared / "plan.meta.json").read_text())["runId"] == "second"
