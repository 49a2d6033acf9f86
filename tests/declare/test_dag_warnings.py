"""Warnings on a workflow file: of ignored parts, and of those on their way out."""

from __future__ import annotations

import pytest

from pgflow.declare.dag import read_text
from pgflow.declare.dag.keys import THINKING
from tests.kits.dagkit import graph, warnings, workflow

BASH = "- {id: a, bash: x}"
LOOP = "loop: {prompt: p, until: X, max_iterations: 2, interactive: true, gate_message: m}"
GRACE = (
    "'interactive: true' has been applied for this run only (this grace period ends in a future "
    "release — see #2738); add the declaration "
    "to the file to silence this warning."
)
UNATTENDED = "but this workflow does not declare 'interactive: true'. An unattended workflow may never contain a pause node — declare"

NODES = {
    "unknown key": ("- {id: a, bash: x, policy: 1}",
        "Node 'a': unknown key 'policy' will be ignored."),
    "key of workflows": ("- {id: a, bash: x, tags: [q]}",
        ("Node 'a': unknown key 'tags' will be ignored. ('tags' is valid at workflow level, not on "
            "individual nodes.)")),
    "nested key": ("- {id: a, bash: x, retry: {max_attempts: 2, tries: 3}}",
        "Node 'a': unknown key 'retry.tries' will be ignored."),
    "key of an agent": (
        "- {id: a, prompt: x, agents: {q-r: {description: d, prompt: p, turns: 1}}}",
        "Node 'a': unknown key 'agents.q-r.turns' will be ignored."),
    "key in a group": (
        "- {id: g, loop_group: {until: X, max_iterations: 1, nodes: [{id: q, prompt: x, foo: 1}]}}",
        "Node 'g' → loop_group node 'q': unknown key 'foo' will be ignored."),
    "field of loops on a group": ((
        "- {id: g, output_format: {}, loop_group: {until: X, until_field: f, max_iterations: 1, "
            "nodes: [{id: q, prompt: x}]}}"),
        "Node 'g': unknown key 'loop_group.until_field' will be ignored."),
    "useless arguments": ("- {id: a, bash: x, with: {q: 1}}",
        ("Node 'a': 'with' is only supported on command, script, include, and workflow nodes — it "
            "is ignored here")),
}  # fmt: skip

WORKFLOWS = {
    "foo: 1": "Workflow 'w': unknown key 'foo' will be ignored.",
    "retry: {}": "Workflow 'w': unknown key 'retry' will be ignored. ('retry' is valid on "
    "individual nodes, not at workflow level.)",
    "worktree: {enabled: true, path: x}": "Workflow 'w': unknown key 'worktree.path' will be "
    "ignored.",
    "inputs: {q: {default: 1, type: number}}": "Workflow 'w': unknown key 'inputs.q.type' will be "
    "ignored.",
    "modelReasoningEffort: high\neffort: low": (
        "Workflow 'w': 'modelReasoningEffort: high' is deprecated and was IGNORED because this "
        "workflow also declares 'effort: low', which "
        "now applies on every provider including Codex. Delete the 'modelReasoningEffort:' line."
    ),
    "effort: 11": "Invalid 'effort' value ignored: expected one of minimal, low, medium, high, "
    "xhigh, max, ultra, persistent",
    "webSearchMode: on": "Invalid 'webSearchMode' value ignored: expected one of disabled, cached, "
    "live",
    "interactive: 'yes'": "Invalid 'interactive' value ignored: expected true or false",
    "worktree: no": "Invalid 'worktree' block ignored",
    "worktree: {enabled: 1}": "Invalid 'worktree.enabled' value ignored: expected true or false",
    "container: {write_back: never}": "Invalid 'container.write_back' value ignored: expected "
    "'approve' or 'auto'",
    "mutates_checkout: 0": "Invalid 'mutates_checkout' value ignored: expected true or false",
    "tags: x": "Invalid 'tags' block ignored: expected a list of texts",
    "requires: [gitlab]": "Invalid 'requires' entry ignored: expected 'github'",
    "requires: github": "Invalid 'requires' block ignored: expected a list",
    "inputs: [a]": "Invalid 'inputs' block ignored: expected a mapping of names to definitions",
    "inputs: {1a: {}}": "Input '1a' ignored: its name is not an identifier",
    "inputs: {a: {required: 1}}": "Input 'a' ignored: 'required': Invalid input: expected boolean, "
    "received number",
    "inputs: {a: {required: true, default: 1}}": "Input 'a' ignored: it is required and has a "
    "default, which contradict each other",
    "thinking: hard": "Invalid 'thinking' value ignored: Invalid input: expected object, received "
    "string",
    "sandbox: 1": "Invalid 'sandbox' value ignored: Invalid input: expected object, received number",
    "fallbackModel: ' '": "Invalid 'fallbackModel' value ignored: expected a non-empty string",
    "betas: [' ']": "Invalid 'betas' value ignored: expected a non-empty list of texts",
}

PAUSES = {
    "- {id: a, approval: {message: m}}": f"Node 'a' is a pause node ('approval:'), {UNATTENDED} "
        "'interactive: true' at the workflow level, or remove " "this gate.",
    f"- {{id: a, {LOOP}}}": (f"Node 'a' is a pause node ('loop.interactive: true'), {UNATTENDED} 'interactive: true' at "
        "the workflow level, or remove the " "node-level 'interactive:'."),
    "- {id: g, loop_group: {until: X, max_iterations: 1, nodes: [{id: q, approval: {message: m}}]}}": (
        f"Node 'q' is a pause node ('approval:'), {UNATTENDED} 'interactive: true' at the workflow "
        "level, or remove this gate."),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "message"), NODES.values(), ids=NODES.keys())
def test_what_is_ignored_of_a_node_is_told(nodes, message):
    assert warnings(workflow(nodes)) == [message]


@pytest.mark.parametrize(("more", "message"), WORKFLOWS.items(), ids=WORKFLOWS.keys())
def test_what_is_ignored_of_a_workflow_is_told(more, message):
    assert warnings(workflow(BASH, more)) == [message]


@pytest.mark.parametrize(("nodes", "message"), PAUSES.items(), ids=PAUSES.keys())
def test_a_workflow_that_asks_a_person_is_taken_to_be_interactive(nodes, message):
    text = workflow(nodes)
    said = warnings(text)
    assert f"Workflow 'w': {message} {GRACE}" in said
    deprecated = (
        "Node 'a': node-level loop 'interactive:' is deprecated. A future release re-expresses"
    )
    assert any(each.startswith(deprecated) for each in said) == ("loop.interactive" in message)
    assert graph(text).interactive
    assert not any(
        "grace period" in said for said in warnings(workflow(nodes, "interactive: true"))
    )


def test_a_gate_where_there_is_none_is_told_with_the_ways_to_have_one():
    (message,) = warnings(workflow("- {id: a, prompt: x, interactive: true}"))
    assert message.startswith(
        "Node 'a': unknown key 'interactive' will be ignored. Nothing on this node gates."
    )


def test_old_ways_of_asking_are_told_to_be_on_their_way_out():
    said = warnings(
        workflow(
            f"""
            - {{id: a, approval: {{message: m, on_reject: {{prompt: p}}}}}}
            - {{id: b, approval: {{message: m, capture_response: true, decisions: [{{id: approve}}]}}}}
            - {{id: c, approval: {{message: m, capture_response: true}}}}
            - {{id: d, {LOOP}}}
            """,
            "interactive: true",
        )
    )
    assert [message.split(". ")[0] for message in said] == [
        "Node 'a': 'approval.on_reject' is deprecated",
        "Node 'b': 'approval.capture_response' is deprecated",
        "Node 'd': node-level loop 'interactive:' is deprecated",
    ]


def test_the_old_effort_is_applied_to_every_node():
    text = workflow(BASH, "modelReasoningEffort: high")
    assert warnings(text)[0].startswith(
        "Workflow 'w': 'modelReasoningEffort: high' is deprecated and has been applied as 'effort: "
        "high'."
    )
    assert graph(text).options == {"effort": "high"}


@pytest.mark.parametrize("other", ["{id: a, bash: x}", "{id: b, bahs: x}", "{id: b, foo2: x}"])
def test_unknown_keys_are_told_beside_errors(other):
    verdict = read_text(workflow(f"- {{id: a, bash: x, foo: 1}}\n- {other}", "bar: 2"))
    said = [problem.message.partition(":")[2] for problem in verdict.warnings]
    assert len(verdict.errors) == 1
    unknown = ["foo", *(key for key in ("bahs", "foo2") if key in other), "bar"]
    assert said == [f" unknown key '{key}' will be ignored." for key in unknown]


@pytest.mark.parametrize(("nodes", "more", "message"), [
    ("- {id: a, prompt: x, thinking: adaptive}", "", f"Node 'a': {THINKING}"),
    ("- {id: a, bash: x}", "thinking: adaptive", THINKING),
    ("- {id: a, cancel: x, mutates_checkout: false}", "",
        ("Node 'a': 'mutates_checkout' is only checked on command, prompt, bash and script "
            "nodes — it is ignored here")),
    ("- {id: a, prompt: x, on_timeout: skip}", "",
        "Node 'a': 'on_timeout' is only supported on bash and script nodes — it is ignored here"),
])  # fmt: skip
def test_what_has_no_meaning_any_more_or_there_is_told(nodes, more, message):
    assert warnings(workflow(nodes, more)) == [message]


def test_a_key_that_is_like_no_other_may_be_newer():
    (problem,) = read_text(workflow("- {id: a, bash: x, quotas: 1}")).warnings
    assert problem.hint == "Is it newer than Archon 0.10.1, which pgflow knows?"


@pytest.mark.parametrize("effort", ["ultra", "persistent"])
def test_the_newest_efforts_are_some(effort):
    assert (
        warnings(workflow(f"- {{id: a, prompt: x, effort: {effort}}}", f"effort: {effort}")) == []
    )


def test_plugins_are_kept_for_the_agent():
    text = workflow("- {id: a, prompt: x, plugins: [p@market]}")
    assert warnings(text) == []
    assert graph(text).nodes[0].agent == {"plugins": ["p@market"]}


def test_a_deprecated_workflow_says_what_to_use_instead():
    more = "deprecated: {message: Use 'other' instead.}"
    assert warnings(workflow("- {id: a, bash: x}", more)) == [
        "Workflow 'w' is deprecated: Use 'other' instead."
    ]
    assert warnings(workflow("- {id: a, bash: x}", "deprecated: yes")) == [
        "Invalid 'deprecated' block ignored: expected a message"
    ]


def test_a_result_of_another_shape_may_be_newer():
    (problem,) = read_text(
        workflow("- {id: a, bash: x}", "returns: {node: a, ends: [done]}")
    ).errors
    assert problem.hint == "Is it newer than Archon 0.10.1, which pgflow knows?"


def test_a_binding_cannot_read_what_the_original_records_of_a_node():
    text = (
        "- {id: a, bash: x}\n"
        "- {id: b, script: print(1), runtime: uv, depends_on: [a], "
        "with: {start: $a.execution.checkoutStart}}"
    )
    (problem,) = read_text(workflow(text)).errors
    assert (
        "'$a.execution.checkoutStart' reads what the original records of a node" in problem.message
    )
    assert problem.message.endswith("Is it newer than Archon 0.10.1, which pgflow knows?")


def test_a_misspelt_key_is_pointed_out():
    (problem,) = read_text(workflow("- {id: a, bash: x, trigger_rul: all_done}")).warnings
    assert (problem.hint, problem.line, problem.column) == ("Did you mean 'trigger_rule'?", 5, 22)


def test_options_that_are_right_are_kept():
    more = """
        provider: claude
        model: sonnet
        worktree: {enabled: false}
        container: {enabled: true, write_back: auto}
        evidence_policy: {required: true}
        mutates_checkout: false
        persist_sessions: true
        tags: [a, ' a ', '', 3, b]
        requires: [github, github]
        thinking: adaptive
        betas: [' x ']
    """
    assert graph(workflow(BASH, more)).options == {
        "provider": "claude", "model": "sonnet", "worktree": {"enabled": False},
        "container": {"enabled": True, "write_back": "auto"}, "evidence_policy": {"required": True},
        "mutates_checkout": False, "persist_sessions": True, "tags": ["a", "b"],
        "requires": ["github"], "thinking": {"type": "adaptive"}, "betas": ["x"],
    }  # fmt: skip
