"""Compiling a workflow file to the graph: every mode and every field arrives."""

from __future__ import annotations

import pytest

from pgflow.declare.dag import read_text
from pgflow.declare.graph import (
    Approval,
    Bash,
    Binding,
    Budget,
    Call,
    Cancel,
    Command,
    Decision,
    FanOut,
    Group,
    Loop,
    Prompt,
    Retry,
    Rework,
    Script,
    Until,
)
from tests.kits.dagkit import graph, node, workflow

BODIES = {
    "prompt: '  hello '": Prompt(text="hello"),
    "command: ' review '": Command(name="review"),
    "bash: ' x '": Bash(script="x"),
    "script: 'print(1)', runtime: uv, deps: [a, b]": Script(script="print(1)", runtime="uv",
        inline=True, dependencies=("a", "b")),
    "script: gather, runtime: bun": Script(script="gather", runtime="bun", inline=False),
    "cancel: ' no '": Cancel(reason="no"),
    "loop: {prompt: ' p ', until: DONE, max_iterations: 3}": Loop(text=" p ",
        until=Until(max_iterations=3, signal="DONE")),
    "loop: {command: c, until_bash: t, max_iterations: 3.0, fresh_context: true, interactive: "
        "true, gate_message: m, signal_completes: true}": Loop(command="c",
        until=Until(max_iterations=3, bash="t"), fresh_context=True, interactive=True,
        gate_message="m", signal_completes=True),
    "approval: {message: m, capture_response: true, on_reject: {prompt: again, max_attempts: 5}}": Approval(message="m",
        capture_response=True, on_reject=Rework(text="again", max_attempts=5)),
    "approval: {message: m, decisions: [{id: approve, label: Yes}, {id: later}]}": Approval(message="m",
        decisions=(Decision(id="approve", label="Yes"), Decision(id="later"))),
    "workflow: ' w2 ', input: hello, isolation: worktree": Call(name="w2", message="hello",
        isolation="worktree"),
    "workflow: w2, fan_out: {items: '[1]', as: thing, max_parallel: 2, join: all_success}": Call(name="w2",
        fan_out=FanOut(items="[1]", item_name="thing", max_parallel=2, join="all_success")),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "body"), BODIES.items())
def test_what_a_node_does_arrives(fields, body):
    assert node(f"- {{id: a, {fields}}}").body == body


def test_what_is_said_of_every_node_arrives():
    text = workflow(
        """
        - {id: first, bash: x}
        - id: ' second '
          description: why
          prompt: x
          depends_on: [first]
          when: $first.output == 'x' || true
          trigger_rule: all_done
          retry: {max_attempts: 2, delay_ms: 1000, on_error: all}
          idle_timeout: 5000
          always_run: true
          output_format: {type: object}
          output_type: plan
          maxBudgetUsd: 1.5
          model: large
          skills: [' a ']
          mcp: ' x.json '
          context: {resume: third}
        - {id: third, prompt: y}
        """
    ).replace("depends_on: [first]", "depends_on: [first, third]")
    second = graph(text).node("second")
    assert second.description == "why"
    assert second.depends_on == ("first", "third")
    assert second.when is not None
    assert (second.when.text, second.when.position.line, second.when.position.column) == (
        "$first.output == 'x' || true",
        10,
        5,
    )
    assert second.trigger_rule == "all_done"
    assert second.retry == Retry(max_retries=2, delay_ms=1000, on_error="all")
    assert (second.idle_timeout_ms, second.always_run, second.output_type) == (5000, True, "plan")
    assert second.output_schema == {"type": "object"}
    assert second.budget == Budget(max_usd=1.5)
    assert second.agent == {
        "model": "large", "skills": ["a"], "mcp": "x.json", "context": {"resume": "third"},
    }  # fmt: skip
    assert (second.position.file, second.position.line, second.position.column) == ("w.yaml", 6, 5)


def test_timeouts_are_of_shells_and_scripts():
    assert node("- {id: a, bash: x, timeout: 30000}").timeout_ms == 30000
    assert node("- {id: a, prompt: x, timeout: 30000}").timeout_ms is None


def test_what_means_nothing_on_a_node_is_dropped():
    shell = node("- {id: a, bash: x, model: large, output_format: {}, retry: {max_attempts: 1}}")
    assert (shell.agent, shell.output_schema, shell.retry) == ({}, {}, Retry(max_retries=1))
    loop = node(
        "- {id: a, model: large, pi: {interactive: true}, loop: {prompt: p, until: X, "
        "max_iterations: 1}}"
    )
    assert loop.agent == {"pi": {"interactive": True}}


def test_arguments_are_values_or_references():
    given = "{x: 1, y: text, z: {from: $b.output.f, if_skipped: null}}"
    nodes = graph(
        workflow(f"- {{id: b, bash: x}}\n- {{id: a, command: c, depends_on: [b], with: {given}}}")
    )
    assert nodes.node("a").arguments == (
        Binding(name="x", value=1),
        Binding(name="y", value="text"),
        Binding(name="z", source="$b.output.f", has_if_skipped=True),
    )
    child = node("- {id: a, workflow: w, with: {x: {from: here}}}")
    assert child.arguments == (Binding(name="x", value={"from": "here"}),)


def test_a_group_has_its_nodes_inside():
    text = "- {id: g, model: m, loop_group: {until: X, until_bash: t, max_iterations: 2, nodes: [{id: a, bash: x}, {id: b, bash: y, depends_on: [a]}]}}"
    group = node(text)
    assert isinstance(group.body, Group)
    assert group.body.until == Until(max_iterations=2, signal="X", bash="t")
    assert [(inner.id, inner.depends_on) for inner in group.body.nodes] == [
        ("a", ()),
        ("b", ("a",)),
    ]
    assert group.agent == {"model": "m"}


def test_inputs_arrive_with_their_defaults_and_places():
    inputs = graph(
        workflow(
            "- {id: a, bash: x}",
            "inputs:\n  q: {default: null, description: what}\n  r: {required: true}",
        )
    ).inputs
    assert [
        (one.name, one.has_default, one.default, one.required, one.description) for one in inputs
    ] == [("q", True, None, False, "what"), ("r", False, None, True, "")]
    assert inputs[1].position is not None
    assert (inputs[1].position.line, inputs[1].position.column) == (5, 3)


def test_a_text_that_includes_something_has_no_graph():
    verdict = read_text(workflow("- {id: a, include: other}"))
    assert verdict.ok
    assert verdict.graph is None
    assert verdict.unresolved


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        workflow(
            "\n".join(f"- {{id: n{k}, bash: x, depends_on: [{f'n{k - 1}' if k else ''}]}}" for k in range(1500))),
        workflow("\n".join(f"- {{id: n{k}, bash: x, depends_on: [z{k}]}}" for k in range(1500))),
        workflow("\n".join(f"- {{id: n{k}, bsh: x}}" for k in range(1500))),
        workflow("- {id: a, prompt: '" + " ".join(f"$z{k}.output" for k in range(5000)) + "'}"),
        workflow("- {id: a, bash: x, " + ", ".join(f"k{k}: 1" for k in range(1500)) + "}"),
        workflow('- {id: a, bash: x}\n- {id: b, bash: y, when: "' + "$a.output == 'x' && " * 3000 + "$a.output == 'x'\"}"),
    ],
    ids=[
        "a long chain",
        "unknown nodes",
        "nodes of no mode",
        "unknown references",
        "unknown keys",
        "a long condition",
    ],
)  # fmt: skip
def test_large_files_are_judged_with_a_bounded_number_of_problems(text):
    assert len(read_text(text).problems) <= 1502
