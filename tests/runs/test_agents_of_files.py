"""Agents of nodes: the provider that a file means, and the one that takes the turns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from runkit import play, write

from pgflow.declare import parse_workflow
from pgflow.declare.durable import Settings
from pgflow.declare.durable.agents import Agent, Agents
from pgflow.declare.durable.config import read_config, with_tiers
from pgflow.declare.durable.frozen import Preset
from pgflow.declare.durable.providers import Turn, TurnFailed, make_provider

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

MODELS = {
    "small": Preset(model="haiku", provider="claude"),
    "@deep": Preset(model="gpt-x", provider="codex", effort="high"),
}


def agent_of(folder: Path, node: str = "", more: str = "", **settings: Any) -> Agent:
    """The agent of the one node of a file."""
    graph = parse_workflow(write(folder, f"- {{id: a, prompt: x{node}}}", more))
    return Agents(graph, Settings(cwd=".", **settings)).of(graph.nodes[0])


@pytest.mark.parametrize(
    ("node", "more", "settings", "word", "spec"),
    [
        ("", "", {}, "", None),
        ("", "", {"provider": "cmd:x"}, "", "cmd:x"),
        (", provider: codex", "", {}, "codex", "codex:"),
        (", provider: pi", "", {}, "pi", None),
        (", provider: codex", "provider: claude", {}, "codex", "codex:"),
        ("", "provider: claude", {}, "claude", "claude:"),
        ("", "", {"assistant": "gemini"}, "gemini", "gemini:"),
        ("", "provider: claude", {"assistant": "gemini"}, "claude", "claude:"),
        (", provider: codex", "", {"provider": "cmd:x"}, "codex", "cmd:x"),
        (", provider: codex", "", {"provider": "cmd:x", "providers": {"codex": "cmd:y"}},
         "codex", "cmd:y"),
        ("", "", {"provider": "cmd:x", "providers": {"codex": "cmd:y"}}, "", "cmd:x"),
        (", provider: pi", "", {"providers": {"pi": "cmd:y"}}, "pi", "cmd:y"),
        (", model: '@deep'", "provider: claude", {"models": MODELS}, "codex", "codex:"),
        (", model: '@deep', provider: pi", "", {"models": MODELS}, "codex", "codex:"),
        ("", "model: '@deep'", {"models": MODELS}, "codex", "codex:"),
    ],
)  # fmt: skip
def test_a_node_has_the_provider_that_its_file_means(tmp_path, node, more, settings, word, spec):
    agent = agent_of(tmp_path, node, more, **settings)
    assert (agent.word, agent.spec) == (word, spec)


@pytest.mark.parametrize(
    ("node", "more", "model", "effort"),
    [
        ("", "", "own", None),
        (", model: opus", "model: sonnet", "opus", None),
        ("", "model: sonnet", "sonnet", None),
        (", provider: codex", "model: sonnet", None, None),
        (", provider: claude", "model: sonnet", "sonnet", None),
        (", model: small", "", "haiku", None),
        ("", "model: small\neffort: low", "haiku", "low"),
        ("", "model: '@deep'", "gpt-x", "high"),
        (", provider: claude", "model: '@deep'", "own", None),
        (", effort: max", "model: '@deep'", "gpt-x", "max"),
        (", model: large", "", "haiku", None),
        (", model: '@none'", "", "@none", None),
    ],
)
def test_a_node_has_the_model_of_its_workflow_unless_another_provider_has_it(
    tmp_path, node, more, model, effort
):
    agent = agent_of(
        tmp_path,
        node,
        more,
        provider="cmd:x",
        models=MODELS,
        assistant="claude",
        assistant_models={"claude": "own"},
    )
    assert (agent.fields.get("model"), agent.fields.get("effort")) == (model, effort)


def test_a_config_has_the_provider_of_nodes_that_name_none(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHON_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/config.yaml").write_text(
        "defaultAssistant: codex\nassistants: {codex: {model: m}, claude: {settingSources: [user]}}"
    )
    found = read_config(tmp_path)
    assert (found.assistant, found.assistant_models) == ("codex", {"codex": "m"})
    (tmp_path / ".archon").mkdir()
    (tmp_path / ".archon/config.yaml").write_text(
        "assistant: claude\nassistants: {codex: {model: n}}"
    )
    found = read_config(tmp_path)
    assert (found.assistant, found.assistant_models) == ("claude", {"codex": "n"})


@pytest.mark.parametrize(
    ("more", "settings", "small"),
    [
        ("provider: claude", {}, "haiku"),
        ("", {"provider": "claude:--verbose"}, "haiku"),
        ("", {"assistant": "codex"}, "gpt-5.3-codex"),
        ("", {"provider": "cmd:x"}, "small"),
        ("", {}, "small"),
        ("provider: claude", {"models": {"large": Preset(model="own")}}, "own"),
        ("provider: claude", {"models": {"@mine": Preset(model="own")}}, "haiku"),
    ],
)
def test_tiers_that_no_config_has_are_those_of_the_provider(tmp_path, more, settings, small):
    graph = parse_workflow(write(tmp_path, "- {id: a, prompt: x, model: small}", more))
    chosen = with_tiers(Settings(cwd=".", **settings), graph)
    assert Agents(graph, chosen).of(graph.nodes[0]).fields["model"] == small


async def test_the_nodes_of_one_file_have_agents_of_their_own(aflow, tmp_path):
    nodes = """
    - {id: a, prompt: x}
    - {id: b, prompt: x, provider: codex, depends_on: [a]}
    - {id: c, prompt: x, provider: pi, depends_on: [b]}
    """
    word = "cmd:sh -c 'echo $PGFLOW_NODE is of {} >> witness; echo done'"
    providers = {"codex": word.format("codex"), "pi": word.format("pi")}
    path = write(tmp_path, nodes)
    run = await play(aflow, path, provider=word.format("none"), providers=providers)
    assert run.status == "completed"
    told = (tmp_path / "witness").read_text().splitlines()
    assert told == ["a is of none", "b is of codex", "c is of pi"]


async def test_a_node_begins_anew_after_one_of_another_provider(aflow, tmp_path):
    nodes = """
    - {id: a, prompt: x}
    - {id: b, prompt: x, model: "@deep", depends_on: [a]}
    - {id: c, prompt: x, model: "@deep", depends_on: [b]}
    """
    agent = "python:declared_agents:remembering"
    run = await play(aflow, write(tmp_path, nodes), provider=agent, models=MODELS)
    assert run.status == "completed"
    assert (tmp_path / "witness").read_text().splitlines() == ["a in None", "b in None", "c in s:b"]


@pytest.mark.full
async def test_a_function_that_is_silent_for_too_long_has_answered_what_it_has_said(
    aflow, tmp_path
):
    path = write(tmp_path, "- {id: a, prompt: one two three, idle_timeout: 1500}")
    run = await play(aflow, path, provider="python:declared_agents:hanging")
    assert run.output == "one two "


def test_a_function_that_has_said_nothing_for_too_long_has_failed():
    turn = Turn("one", "a", "a", ".", {}, idle_seconds=0.2)
    with pytest.raises(TurnFailed, match=r"^the function timed out after 0\.2s of silence$"):
        asyncio.run(make_provider("python:declared_agents:hanging").take(turn))


async def test_a_word_before_the_json_costs_no_second_turn(aflow, tmp_path):
    agent = tmp_path / "agent.sh"
    agent.write_text("#!/bin/sh\necho turn >> witness\necho 'Sure, here you are: {\"n\": 6,'\n")
    agent.chmod(0o755)
    path = write(
        tmp_path,
        """
        - id: a
          prompt: How many?
          output_format: {type: object, properties: {n: {type: number}}, required: [n]}
        - {id: b, bash: echo "it is $a.output.n", depends_on: [a]}
        """,
    )
    run = await play(aflow, path, provider="cmd:./agent.sh")
    assert (run.status, run.output) == ("completed", "it is 6"), run
    assert (tmp_path / "witness").read_text() == "turn\n"
