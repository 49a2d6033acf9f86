"""Flaws of the nodes of a workflow file together, and of the workflow as a whole: one small file
for each rule.
"""

from __future__ import annotations

import pytest

from pgflow.declare.dag import read_text
from tests.kits.dagkit import HEAD, errors, workflow

COMPOSED = "In a composed workflow, pass caller data through declared 'inputs:' and caller 'with:' instead of referencing a caller node directly"
BOTH = "- {id: a, bash: x}\n- {id: b, bash: y, depends_on: [a]"

STRUCTURE = {
    "duplicate id": ("- {id: a, bash: x}\n- {id: a, bash: y}", "Duplicate node id: 'a'"),
    "unknown dependency": ("- {id: a, bash: x, depends_on: [b]}",
        "Node 'a' depends_on unknown node 'b'"),
    "cycle": ((
        "- {id: a, bash: x, depends_on: [b]}\n- {id: b, bash: x, depends_on: [a]}\n- {id: c, bash: "
            "x}"), "Cycle detected among nodes: a, b"),
    "unknown reference": ("- {id: a, prompt: $b.output}",
        f"Node 'a' field 'prompt' references unknown node '$b.output'. {COMPOSED}"),
    "unknown reference in a system prompt": ("- {id: a, prompt: x, systemPrompt: $b.output}",
        f"Node 'a' field 'systemPrompt' references unknown node '$b.output'. {COMPOSED}"),
    "unknown reference of an agent": (
        "- {id: a, prompt: x, agents: {q: {description: $b.output, prompt: p}}}",
        f"Node 'a' field 'agents.q.description' references unknown node '$b.output'. {COMPOSED}"),
    "unknown reference in a loop": (
        "- {id: a, loop: {prompt: p, until_bash: 'test $b.output', max_iterations: 2}}",
        f"Node 'a' field 'loop.until_bash' references unknown node '$b.output'. {COMPOSED}"),
    "unknown reference in a rejection": (
        "- {id: a, approval: {message: m, on_reject: {prompt: $b.output}}}",
        ("Node 'a' field 'approval.on_reject.prompt' references unknown node '$b.output'. "
            f"{COMPOSED}")),
    "unknown reference in arguments": ("- {id: a, workflow: w, with: {q: $b.output}}",
        f"Node 'a' field 'with.q' references unknown node '$b.output'. {COMPOSED}"),
    "unknown reference in a binding": ("- {id: a, command: c, with: {q: {from: $b.output}}}",
        f"Node 'a' field 'with.q.from' references unknown node '$b.output'. {COMPOSED}"),
    "unknown reference in a condition": ("- {id: a, bash: x, when: \"$b.status == 'x'\"}",
        f"Node 'a' field 'when' references unknown node '$b.status'. {COMPOSED}"),
    "whole output of prose": (
        "- {id: a, prompt: x}\n- {id: b, bash: y, depends_on: [a], when: \"$a.output == 'BUG'\"}",
        ("Node 'b' field 'when' compares the whole output of AI node 'a' to a literal ('BUG'). "
            "That output is free-form prose, so the "
            "comparison silently fails and 'b' is skipped. Declare 'output_format' on 'a' and "
            "compare a field (e.g. "
            "\"$a.output.status == 'BUG'\"), or produce the value from a 'bash:'/'script:' node")),
    "whole output of a group": ((
        "- {id: a, loop_group: {until: X, max_iterations: 2, nodes: [{id: q, prompt: x}]}}\n"
            "- {id: b, bash: y, depends_on: [a], when: $a.output == true}"),
        ("Node 'b' field 'when' compares the whole output of AI node 'a' to a literal ('true'). "
            "That output is free-form prose, so the "
            "comparison silently fails and 'b' is skipped. A 'loop_group:' node's output is the "
            "last iteration's raw text — unlike a 'prompt:' "
            "node, declaring 'output_format' does not replace it with the JSON document — so "
            "compute the decision in a 'bash:'/'script:' node "
            "(or an 'until_bash' check) and gate on that node's output instead")),
    "unknown session": ("- {id: a, prompt: x, context: {resume: b}}",
        "Node 'a' context.resume references unknown node 'b'"),
    "no session": (
        "- {id: a, bash: x}\n- {id: b, prompt: x, depends_on: [a], context: {resume: a}}",
        ("Node 'b' context.resume source 'a' is not a session-producing command, prompt, or loop "
            "node")),
    "session beside": ("- {id: a, prompt: x}\n- {id: b, prompt: x, context: {resume: a}}",
        "Node 'b' context.resume source 'a' is not an upstream dependency"),
    "session in a group": ((
        "- {id: g, loop_group: {until: X, max_iterations: 2, nodes: [{id: a, prompt: x}, {id: b, "
            "prompt: x, context: {resume: a}}]}}"),
        ("loop_group 'g' body: Node 'b' uses context.resume inside a loop_group body, which is not "
            "supported")),
    "items beside": ("- {id: a, bash: x}\n- {id: b, workflow: w, fan_out: {items: $a.output}}",
        ("Node 'b' fan_out.items references '$a.output', which is not an upstream dependency — "
            "add 'a' to 'b'.depends_on so its item array " "is produced first")),
    "binding beside": (
        "- {id: a, bash: x}\n- {id: b, script: s, runtime: uv, with: {q: $a.output}}",
        ("Node 'b' binding 'with.q' references '$a.output', which is not an upstream dependency "
            "— add 'a' to 'b'.depends_on so its value is " "produced first")),
    "shadowed id": ((
        "- {id: a, bash: x}\n- {id: g, loop_group: {until: X, max_iterations: 2, nodes: [{id: a, "
            "prompt: x}]}}"),
        "loop_group 'g' body: Node id 'a' shadows a node id in the enclosing DAG"),
    "child run in a group": (
        "- {id: g, loop_group: {until: X, max_iterations: 2, nodes: [{id: a, workflow: w}]}}",
        "loop_group 'g' body: 'workflow' (sub-run) is not supported inside a loop_group body"),
    "unknown reference of a group": ((
        "- {id: g, loop_group: {until_bash: 'test $b.output', max_iterations: 2, nodes: [{id: a, "
            "prompt: x}]}}"),
        ("Node 'g' field 'loop_group.until_bash' references unknown node '$b.output'. Expected "
            "a node in the loop_group body or " "current/enclosing DAG scope")),
    "unknown provider of a node": ("- {id: a, prompt: x, provider: gpt}",
        "Node 'a': unknown provider 'gpt'. Registered: claude, codex, opencode, pi, copilot"),
    "session of another provider": ((
        "- {id: a, prompt: x, provider: pi}\n- {id: b, prompt: x, provider: claude, depends_on: "
            "[a], context: {resume: a}}"),
        "Node 'b' context.resume source 'a' uses provider 'pi', but the consumer uses 'claude'"),
    "session that cannot be forked": ((
        "- {id: a, prompt: x, provider: codex}\n- {id: b, prompt: x, provider: codex, depends_on: "
            "[a], context: {resume: a}}"),
        ("Node 'b' context.resume requires immutable session forks, but provider 'codex' does not "
            "support sessionFork")),
    "checkout of an include": ("- {id: a, include: w, mutates_checkout: false}",
        ("DAG node validation failed: Node 'a': 'mutates_checkout' is not supported on an "
            "include node: a composed block shares the run's "
            "single checkout, so concurrency safety is the composing workflow's to declare. Set it "
            "at workflow level, or use a 'workflow:' node "
            "when you want a separate governed run.")),
    "script that leads out": ("- {id: a, script: ../../evil, runtime: uv}",
        "Node 'a': 'script' invalid script name \"../../evil\""),
    "include that leads out": ("- {id: a, include: ../x}",
        "Node 'a': 'include' invalid include name \"../x\""),
    "last round without a group": (
        "- {id: a, bash: x}\n- {id: b, bash: y, when: \"$LOOP_PREV.a.output == 'x'\"}",
        ("Node 'b' field 'when' references unknown node '$LOOP_PREV.a.output'. In a composed "
            "workflow, pass caller data through declared 'inputs:' and caller 'with:' instead of "
            "referencing a caller node directly")),
    "last round of an unknown node": (
        ("- {id: a, bash: x}\n- {id: g, loop_group: {until: X, max_iterations: 2, nodes: "
            "[{id: q, bash: y, when: \"$LOOP_PREV.a.output == 'x'\"}]}}"),
        ("loop_group 'g' body: Node 'q' field 'when' references unknown node "
            "'$LOOP_PREV.a.output'. In a composed workflow, pass caller data through declared "
            "'inputs:' and caller 'with:' instead of referencing a caller node directly")),
    "workflow that leads out": ("- {id: a, workflow: '..\\x'}",
        "Node 'a': 'workflow' invalid workflow name \"..\\x\""),
    "command that leads out": ("- {id: a, command: ../x}",
        "DAG node validation failed: Node 'a': 'command' invalid command name \"../x\""),
}  # fmt: skip

FINE = {
    "inputs are no nodes": "- {id: a, prompt: '$INPUTS.output $INPUTS.x'}",
    "braces are no reference": "- {id: a, prompt: '${b.output}'}",
    "a group sees around itself": "- {id: a, bash: x}\n- {id: g, depends_on: [a], loop_group: "
    "{until: X, max_iterations: 2, nodes: "
    "[{id: q, prompt: $a.output}]}}",
    "a group's end sees its nodes": "- {id: g, loop_group: {until_bash: 'test $q.output', "
    "max_iterations: 2, nodes: [{id: q, prompt: x}]}}",
    "a group sees its last round": "- {id: g, loop_group: {until: X, max_iterations: 2, nodes: "
    "[{id: q-r, bash: x}, {id: s, bash: y, when: \"$LOOP_PREV.q-r.output == 'x'\"}]}}",
    "a schema makes prose comparable": "- {id: a, prompt: x, output_format: {type: object}}\n- "
    '{id: b, bash: y, depends_on: [a], when: "$a.output == '
    "'{}'\"}",
    "a field is comparable": "- {id: a, prompt: x}\n- {id: b, bash: y, depends_on: [a], when: "
    "\"$a.output.f == 'x'\"}",
    "a shell's output is comparable": "- {id: a, bash: x}\n- {id: b, bash: y, depends_on: [a], "
    "when: \"$a.output == 'x'\"}",
    "a condition that is none": "- {id: a, bash: x, when: (what) is this}",
    "items of the file's own": "- {id: a, workflow: w, fan_out: {items: '[1, 2]'}}",
    "providers of shells are not asked": "- {id: a, bash: x, provider: gpt}",
    "an inline script may go up": "- {id: a, script: 'cat ../x', runtime: uv}",
}

WORKFLOWS = {
    "empty": ("", "YAML file is empty or does not contain an object"),
    "text": ("hello", "YAML file is empty or does not contain an object"),
    "list": ("- 1", "Missing required field 'name'"),
    "two documents": ("name: a\n---\nname: b", "Missing required field 'name'"),
    "no name": ("description: d\nnodes: [{id: a, bash: x}]", "Missing required field 'name'"),
    "number for a name": ("name: 5\ndescription: d\nnodes: [{id: a, bash: x}]",
        "Missing required field 'name'"),
    "no description": ("name: w\ndescription: ''\nnodes: [{id: a, bash: x}]",
        "Missing required field 'description'"),
    "no nodes": (HEAD, "Workflow must have 'nodes:' configuration"),
    "empty nodes": (f"{HEAD}nodes: []", "Workflow must have 'nodes:' configuration"),
    "no yaml": ("name: w: x", "YAML parse error: YAML Parse error: Unexpected token"),
    "provider": (workflow("- {id: a, bash: x}", "provider: gpt"),
        "Unknown provider 'gpt'. Registered: claude, codex, opencode, pi, copilot"),
    "evidence": (workflow("- {id: a, bash: x}", "evidence_policy: true"),
        ("Invalid evidence_policy: expected { required: boolean }. When required is true, the "
            "run is refused terminal 'completed' unless " "$ARTIFACTS_DIR/evidence.json exists.")),
    "inputs of one variable": (workflow("- {id: a, bash: x}", "inputs: {a-b: {}, a_b: {}}"),
        ("Workflow inputs 'a-b' and 'a_b' both map to env var 'INPUTS_A_B' — rename one so each "
            "input has a unique env key")),
    "blank returns": (workflow("- {id: a, bash: x}", "returns: ' '"),
        ("Invalid 'returns': expected the non-empty id of a top-level node whose output is this "
            "workflow's result")),
    "unknown returns": (workflow("- {id: a, bash: x}", "returns: b"),
        "Workflow declares returns: 'b' but no top-level node has that id"),
    "blank outcome": (workflow("- {id: a, bash: x}", "outcome_field: 3"),
        ("Invalid 'outcome_field': expected a non-empty required boolean property name relative to "
            "'returns'")),
    "outcome of nothing": (workflow("- {id: a, bash: x}", "outcome_field: ok"),
        ("Workflow declares outcome_field: 'ok' without returns: — authored outcome must select a "
            "result node explicitly")),
}  # fmt: skip

OUTCOMES = {
    "prompt: x": "Workflow outcome_field: 'ok' selects node 'a', but that node declares no "
        "output_format",
    "prompt: x, output_format: {type: array}": "Workflow outcome_field: 'ok' requires node 'a' "
        "output_format to declare type: object",
    "prompt: x, output_format: {type: object, properties: {q: {}}}": (
        "Workflow outcome_field: 'ok' is not declared in node 'a' output_format properties "
        "(declared: q)"),
    "prompt: x, output_format: {type: object, properties: {ok: {}}}": (
        "Workflow outcome_field: 'ok' must be listed in node 'a' output_format.required"),
    "prompt: x, output_format: {type: object, properties: {ok: {type: string}}, required: [ok]}": (
        "Workflow outcome_field: 'ok' on node 'a' must explicitly declare type: boolean"),
    "loop_group: {until: X, max_iterations: 1, nodes: [{id: q, prompt: x}]}": (
        "Workflow outcome_field: 'ok' cannot select loop_group node 'a' because loop_group "
        "output_format is ignored and its runtime output "
        "is raw text; select a schema-enforced collector node instead"),
    "workflow: w, fan_out: {items: '[]'}": (
        "Workflow outcome_field: 'ok' cannot select fan-out workflow node 'a' because its runtime "
        "output is an aggregate array; select a "
        "collector node with a required boolean output instead"),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "message"), STRUCTURE.values(), ids=STRUCTURE.keys())
def test_what_is_wrong_with_the_nodes_together_is_told(nodes, message):
    assert errors(workflow(nodes)) == [message]


@pytest.mark.parametrize("nodes", FINE.values(), ids=FINE.keys())
def test_what_only_looks_wrong_is_fine(nodes):
    assert errors(workflow(nodes)) == []


@pytest.mark.parametrize(("text", "message"), WORKFLOWS.values(), ids=WORKFLOWS.keys())
def test_what_is_wrong_with_a_workflow_as_a_whole_is_told_first(text, message):
    assert errors(text)[0] == message


@pytest.mark.parametrize(("fields", "message"), OUTCOMES.items(), ids=OUTCOMES.keys())
def test_an_outcome_must_be_a_field_that_is_always_there(fields, message):
    assert errors(workflow(f"- {{id: a, {fields}}}", "returns: a\noutcome_field: ok")) == [message]


def test_steps_of_the_old_form_are_refused_with_a_way_out():
    (message,) = errors(f"{HEAD}steps: [{{command: x}}]")
    assert message.startswith(
        "`steps:` format has been removed. Workflows now use `nodes:` (DAG) format exclusively."
    )


def test_everything_wrong_is_told_the_originals_error_first():
    text = workflow(
        """
        - {id: a, bash: x, depends_on: [zz]}
        - {id: a, prompt: $q.output, provider: gpt}
        """,
        "returns: nowhere\nevidence_policy: 1",
    )
    assert [message[:30] for message in errors(text)] == [
        "Duplicate node id: 'a'", "Node 'a' depends_on unknown no",
        "Node 'a' field 'prompt' refere", "Node 'a': unknown provider 'gp",
        "Invalid evidence_policy: expec", "Workflow declares returns: 'no",
    ]  # fmt: skip


def test_nodes_that_are_wrong_by_themselves_are_told_one_by_one():
    said = errors(
        workflow(
            "- {id: a}\n- {id: b, bash: x, timeout: -1, idle_timeout: 0}\n- {id: c, bash: x, "
            "depends_on: [a, b]}"
        )
    )
    first = "Node 'a': must have either 'command', 'prompt', 'bash', 'loop', 'loop_group', 'approval', 'wait', 'cancel', 'script', 'include', or 'workflow'"
    second = "Node 'b': 'timeout' 'timeout' must be a positive number (ms)"
    third = "Node 'b': 'idle_timeout' 'idle_timeout' must be a finite positive number (ms)"
    assert said == [f"DAG node validation failed: {first}", second, third]


def test_every_problem_has_its_place():
    text = workflow(
        """
        - id: a
          prompt: |
            first line
            second $nowhere.output
        - id: b
          bash: x
          depends_on: [a, zz]
          retry: {max_attempts: 2, tries: 3}
        """
    )
    problems = [(problem.line, problem.column) for problem in read_text(text, "w.yaml").problems]
    assert problems == [(11, 21), (8, 14), (12, 30)]


def test_a_near_miss_is_pointed_out():
    hints = [
        problem.hint
        for problem in read_text(
            workflow("- {id: scope, bash: x}\n- {id: b, bash: x, depends_on: [scop]}")
        ).problems
    ]
    assert hints == ["Did you mean 'scope'?"]
    (problem,) = read_text(workflow("- {id: a, promt: x}")).errors
    assert problem.hint == "Is 'promt' meant to be 'prompt'?"
