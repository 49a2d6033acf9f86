"""Limits and wishes of files: what a run would not do as it is written is said before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from runkit import play, write

from pgflow.declare import Graph, parse_workflow
from pgflow.declare.durable import Settings, freeze
from pgflow.declare.durable.agents import Agents
from pgflow.declare.durable.limits import overlooked, refused
from pgflow.declare.durable.schemas import misfits

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

READ = "- {id: read, prompt: Read."
UNKEPT = "which this provider does not keep"


def agents_of(graph: Graph, provider: str | None, **providers: str) -> Agents:
    return Agents(graph, Settings(cwd=".", provider=provider, providers=providers))


def warnings_of(graph: Graph, provider: str, **providers: str) -> list[str]:
    settings = Settings(cwd=".", provider=provider, providers=providers)
    return overlooked(freeze(graph), Agents(graph, settings), settings)


def graph_of(folder: Path, nodes: str, more: str = "") -> Graph:
    return parse_workflow(write(folder, nodes, more))


@pytest.mark.parametrize(
    ("nodes", "more", "field", "sentence"),
    [
        (f"{READ}, allowed_tools: [Read]}}", "", "allowed_tools",
         f"node 'read' limits its agent by allowed_tools, {UNKEPT}"),
        (f"{READ}, denied_tools: [Bash]}}", "", "denied_tools",
         f"node 'read' limits its agent by denied_tools, {UNKEPT}"),
        (f"{READ}, maxBudgetUsd: 2}}", "", "maxBudgetUsd",
         f"node 'read' limits its agent by maxBudgetUsd, {UNKEPT}"),
        (f"{READ}}}", "sandbox: {enabled: true}", "sandbox",
         f"the workflow limits its agents by sandbox, {UNKEPT}"),
        (f"{READ}}}", "webSearchMode: disabled", "webSearchMode",
         f"the workflow limits its agents by webSearchMode, {UNKEPT}"),
        (f"{READ}}}", "container: {enabled: true}", "container",
         "the workflow asks for a container, and runs have none"),
    ],
)  # fmt: skip
def test_a_limit_that_is_not_kept_is_refused_by_name(tmp_path, nodes, more, field, sentence):
    graph = graph_of(tmp_path, nodes, more)
    assert refused(graph, agents_of(graph, "cmd:cat")) == [sentence]
    assert refused(graph, agents_of(graph, "cmd:cat"), [field]) == []


def test_a_provider_says_which_limits_it_keeps(tmp_path):
    graph = graph_of(tmp_path, f"{READ}, allowed_tools: [Read]}}")
    assert refused(graph, agents_of(graph, "python:declared_agents:careful")) == []
    assert refused(graph, agents_of(graph, "stub:")) == []


def test_each_provider_is_asked_for_the_limits_of_its_own_nodes(tmp_path):
    nodes = f"{READ}, provider: claude, allowed_tools: [Read]}}\n- {{id: tell, prompt: Tell.}}"
    graph = graph_of(tmp_path, nodes)
    assert refused(graph, agents_of(graph, "cmd:cat", claude="claude:")) == []
    assert len(refused(graph, agents_of(graph, "claude:", claude="cmd:cat"))) == 1
    graph = graph_of(tmp_path, f"{nodes}", "sandbox: {enabled: true}")
    careful = "python:declared_agents:careful"
    assert len(refused(graph, agents_of(graph, careful, claude="cmd:cat"))) == 2
    assert len(refused(graph, agents_of(graph, "cmd:cat", claude=careful))) == 1


@pytest.mark.parametrize(
    ("nodes", "more", "sentence"),
    [
        (f"{READ}, mcp: servers.json}}", "", "asks for mcp, which this provider does not have"),
        (f"{READ}, systemPrompt: Be brief.}}", "", "asks for systemPrompt"),
        (f"{READ}, context: shared}}", "", "asks for context"),
        (f"{READ}, always_run: true, effect: external}}", "", "keeps what an external node has done"),
        (f"{READ}, effect: external, retry: {{max_attempts: 2}}}}", "", "so it is not retried"),
        (f"{READ}, output_format: {{type: 5}}}}", "", "is not a schema and checks nothing"),
        (f"{READ}, output_format: {{$ref: 'https://x.example/s'}}}}", "", "it refers to https://x"),
        (f"{READ}}}", "requires: [github]", "requires: not checked"),
        (f"{READ}}}", "persist_sessions: true", "asks for persist_sessions"),
        (f"{READ}}}", "webSearchMode: live", "asks for webSearchMode"),
        ("- {id: go, command: nonesuch}", "", "will fail: command 'nonesuch' does not exist"),
        ("- {id: go, script: nonesuch, runtime: bun}", "", "script 'nonesuch' does not exist"),
        ("- {id: go, script: 'f()', runtime: bun, deps: [x]}", "", "bun installs none"),
        (f"{READ}}}\n- {{id: more, prompt: Go on., depends_on: [read]}}", "", "do not remember"),
    ],
)  # fmt: skip
def test_a_wish_that_is_not_granted_is_warned_about(tmp_path, nodes, more, sentence):
    said = warnings_of(graph_of(tmp_path, nodes, more), "cmd:cat")
    assert [one for one in said if "--conversation" not in one][0].find(sentence) >= 0


def test_a_field_that_means_nothing_where_it_stands_is_warned_about(tmp_path):
    nodes = """
    - {id: a, bash: echo, model: large}
    - id: b
      allowed_tools: [Read]
      loop: {prompt: x, until: DONE, max_iterations: 2}
    - id: c
      loop_group:
        max_iterations: 2
        until: DONE
        nodes: [{id: d, prompt: y, timeout: 5}]
    """
    assert warnings_of(graph_of(tmp_path, nodes), "stub:") == [
        "node 'a' has model, which means nothing for bash",
        "node 'b' has allowed_tools, which means nothing for loop",
        "node 'd' has timeout, which means nothing for prompt",
    ]


@pytest.mark.full
@pytest.mark.parametrize("ignored", [(), ("allowed_tools",)])
async def test_a_child_is_held_to_the_limits_of_its_own_file(aflow, tmp_path, ignored):
    write(tmp_path, f"{READ}, allowed_tools: [Read]}}", name="kid")
    path = write(tmp_path, "- {id: call, workflow: kid}")
    run = await play(aflow, path, provider="cmd:cat", ignored=ignored)
    if ignored:
        assert run.output == "Read."
    else:
        assert (
            f"workflow 'kid': node 'read' limits its agent by allowed_tools, {UNKEPT}" in run.error
        )


def test_a_schema_fetches_nothing():
    assert misfits("x", {"$ref": "http://127.0.0.1:9/schema"}) == ""
    assert misfits("x", {"$ref": "#/nowhere"}) == ""
    assert misfits("x", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "number"}}}) != ""
