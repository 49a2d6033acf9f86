"""Dry runs: what they tell of a workflow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgflow.declare.graph import (
    Approval,
    Bash,
    Call,
    Cancel,
    Command,
    Decision,
    Effect,
    Gate,
    Graph,
    Group,
    Input,
    Loop,
    Node,
    Prompt,
    Rework,
    Script,
    Until,
)
from pgflow.declare.play.dryrun import DryRun, EndlessDryRun, dry_run
from pgflow.declare.play.interpreter import CommandUnavailable, Task
from pgflow.declare.play.placeholders import NoPlaceholder
from pgflow.declare.text.conditions import parse_condition
from pgflow.declare.text.outputs import Output, Outputs


def prompt(node_id: str, *depends_on: str, text: str = "go", **more: Any) -> Node:
    return Node(id=node_id, body=Prompt(text=text), depends_on=depends_on, **more)


def play(*nodes: Node, inputs: tuple[Input, ...] = (), **more: Any) -> DryRun:
    return dry_run(Graph(name="g", nodes=nodes, inputs=inputs), **({"stubs": {}} | more))


def told(run: DryRun) -> list[tuple[str, str, str | None]]:
    return [(entry.id, entry.state, entry.reason) for entry in run.trace]


def test_a_dry_run_shows_texts_and_outputs_in_the_order_of_layers():
    run = play(
        prompt("c", "a", "b", text="$a.output + $b.output"),
        prompt("a", text="$ARGUMENTS in $ARTIFACTS_DIR, $BASE_BRANCH, $WORKFLOW_ID"),
        Node(id="b", body=Bash(script="echo $a.output $ARGUMENTS > $STATE_DIR/x")),
        stubs={"a": "it's", "b": {"n": 1}, "c": ["C"]},
        message="build",
    )
    assert run.as_json() == {
        "outcome": "completed",
        "summary": '["C"]',
        "missing": [],
        "trace": [{"id": "a", "type": "prompt", "state": "stubbed", "reason": None,
            "text": "build in /DRYRUN/artifacts, dry-run-base, dry-run", "output": "it's"},
            {"id": "b", "type": "bash", "state": "stubbed", "reason": None,
                "text": r"echo 'it'\''s' $ARGUMENTS > /DRYRUN/state/x", "output": '{"n":1}'},
            {"id": "c", "type": "prompt", "state": "stubbed", "reason": None,
                "text": 'it\'s + {"n":1}', "output": '["C"]'}],
    }  # fmt: skip


def test_a_node_without_a_stub_fails_if_it_would_have_run():
    run = play(
        prompt("a"),
        prompt("b", "a"),
        prompt("c", "a", trigger_rule="all_done"),
        stubs={"c": "C", "z": 1, "b": 2},
    )
    assert told(run) == [
        ("a", "failed", "Missing reachable stub for node 'a'"),
        ("b", "skipped", "trigger_rule"),
        ("c", "stubbed", None),
    ]
    assert (run.outcome, run.missing, run.unused, run.summary) == (
        "failed", ("a",), ("b", "z"), "C",
    )  # fmt: skip
    assert run.trace[0].as_json() == {
        "id": "a", "type": "prompt", "state": "failed",
        "reason": "Missing reachable stub for node 'a'", "text": "go",
    }  # fmt: skip


def test_a_run_in_which_all_is_skipped_completes():
    run = play(
        prompt("a", when=parse_condition("$INPUTS.x == 'y'")),
        inputs=(Input(name="x", default="", has_default=True),),
    )
    assert (told(run), run.outcome) == ([("a", "skipped", "when_condition_false")], "completed")


@pytest.mark.parametrize(("stub", "output"), [
    ("", ""), (None, "null"), (42.0, "42"), (1e21, "1e+21"), (True, "true"), ([], "[]"),
    ({"2": 1, "1": 2}, '{"1":2,"2":1}'),
])  # fmt: skip
def test_a_stub_may_be_any_value(stub, output):
    assert play(prompt("a"), stubs={"a": stub}).trace[0].output == output


def test_fields_of_stubs_can_be_read():
    schema = {"type": "object", "properties": {"n": {}, "m": {}}}
    stubs: dict[str, Any] = {"a": {"n": [1]}, "b": "{}", "c": "C"}
    run = play(
        prompt("a", output_schema=schema),
        prompt("b", "a", text="[$a.output.n$a.output.m]"),
        prompt("c", "b", text="$a.output.x"),
        stubs=stubs,
    )
    assert run.trace[1].text == "[[1]]"
    assert run.trace[2].reason is not None
    assert "not declared in node 'a's output_format schema" in run.trace[2].reason


def test_commands_have_a_placeholder_unless_their_texts_are_given():
    def texts(name: str) -> str:
        if name == "lost":
            raise CommandUnavailable("Command prompt not found: lost.md")
        return f"{name}: $INPUTS.x"

    nodes = (
        Node(id="a", body=Command(name="plan")),
        Node(id="b", body=Loop(command="lost", until=Until(max_iterations=1, signal="x"))),
    )
    assert (
        play(*nodes, message="now", stubs={"a": "", "b": "x"}).trace[0].text
        == "Command plan: now\n"
    )
    given = play(
        *nodes,
        stubs={"a": "", "b": "x"},
        inputs=(Input(name="x", default=[1], has_default=True),),
        command_text=texts,
    )
    assert (given.trace[0].text, given.trace[1].reason) == (
        "plan: [1]",
        "Command prompt not found: lost.md",
    )


def test_inputs_have_their_defaults_unless_they_are_given():
    declared = (Input(name="x", default="X", has_default=True), Input(name="y"))
    node = prompt("a", text="$INPUTS.x $INPUTS.y")
    given = dry_run(
        Graph(name="g", nodes=(node,), inputs=declared), stubs={"a": ""}, inputs={"y": 7}
    )
    assert given.trace[0].text == "X 7"
    found = play(node, inputs=declared, stubs={"a": ""}).trace[0].reason
    assert found == "Unknown input '$INPUTS.y'. Did you mean $INPUTS.x?"


def test_a_parameter_that_a_person_would_be_asked_for_is_marked():
    node = prompt(
        "a", text="of $INPUTS.topic", gates=(Gate(kind="input", at="before", name="topic"),)
    )
    run = play(node, stubs={"a": "done"}, inputs=(Input(name="topic", required=True),))
    assert (run.trace[0].text, run.trace[0].reason) == (
        "of <topic>",
        "gates assumed answered: input 'topic'",
    )


def test_approvals_and_gates_count_as_answered():
    gates = (
        Gate(kind="checkpoint", at="inside", after_step="3"),
        Gate(kind="interrupt", at="before", name="send"),
    )
    run = play(
        Node(id="ask", body=Approval(message="ok, $ARGUMENTS?")),
        prompt("a", "ask", text="$ask.output", gates=gates),
        stubs={"a": ""},
        message="you",
    )
    assert [entry.text for entry in run.trace] == ["ok, you?", "approved"]
    assert told(run) == [
        ("ask", "completed", "auto-approved"),
        ("a", "stubbed", "gates assumed answered: checkpoint after step 3, interrupt 'send'"),
    ]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (Node(id="ask", body=Approval(message="ok?")), "approval gate"),
        (prompt("ask", text="ok?", gates=(Gate(kind="review", at="after"),)), "gate: review"),
    ],
)
def test_a_dry_run_can_pause_where_a_person_would_be_asked(node, reason):
    run = play(
        node, prompt("b"), prompt("c", "ask"), stubs={"ask": "", "b": ""}, pause_at_gates=True
    )
    assert (told(run), run.outcome) == ([("ask", "paused", reason)], "paused")
    assert run.trace[0].text == "ok?"


def test_a_cancel_ends_the_trace():
    run = play(
        Node(id="stop", body=Cancel(reason="too $ARGUMENTS")),
        prompt("b"),
        stubs={"b": ""},
        message="big",
    )
    assert run.as_json()["trace"] == [
        {
            "id": "stop",
            "type": "cancel",
            "state": "completed",
            "reason": "workflow cancelled",
            "text": "too big",
            "output": "too big",
        }
    ]
    assert run.outcome == "cancelled"


def test_a_child_run_is_not_played():
    run = play(Node(id="child", body=Call(name="other")), stubs={"child": "C"})
    assert run.trace[0].as_json() == {
        "id": "child",
        "type": "workflow",
        "state": "failed",
        "reason": "Dry-run does not execute reachable workflow nodes",
    }


def test_a_script_is_shown_with_plain_values():
    node = Node(
        id="s",
        body=Script(script="print('$a.output', '$ARGUMENTS')", runtime="uv", inline=True),
        depends_on=("a",),
    )
    found = play(prompt("a"), node, stubs={"a": "it's", "s": ""}).trace[1].text
    assert found == "print('it's', '$ARGUMENTS')"


LOOP = Node(
    id="l", body=Loop(text="[$LOOP_PREV_OUTPUT]", until=Until(max_iterations=3, signal="DONE"))
)


def test_a_loop_ends_with_its_signal_or_fails_with_its_last_text():
    found = told(play(LOOP, stubs={"l": "<x>done</x>"}))
    assert found == [("l", "stubbed", "completion signal after 1 iteration(s)")]
    failed = play(LOOP, stubs={"l": "never"}).trace
    assert [entry.as_json() for entry in failed] == [
        {
            "id": "l",
            "type": "loop",
            "state": "failed",
            "reason": "Loop exceeded max iterations (3) without completion signal 'DONE'",
            "text": "[never]",
        }
    ]


def test_a_check_that_would_run_a_shell_counts_as_passed():
    node = Node(
        id="l", body=Loop(text="go", until=Until(max_iterations=3, signal="DONE", bash="test -f x"))
    )
    reason = "assumed complete after 1 iteration(s) — 'until_bash' is not executed in a dry run"
    assert told(play(node, stubs={"l": "never"})) == [("l", "stubbed", reason)]


def test_a_loop_of_a_thousand_million_rounds_is_told_of_at_once():
    endless = Node(
        id="l",
        body=Loop(
            text="[$LOOP_PREV_OUTPUT]", until=Until(max_iterations=10**9, signal="DONE", field="ok")
        ),
    )
    run = play(endless, stubs={"l": {"ok": False}})
    assert (
        run.trace[0].reason
        == "Loop exceeded max iterations (1000000000) without completion signal 'DONE' or 'ok' "
        "ever being true"
    )
    assert run.trace[0].text == '[{"ok":false}]'


def group(rounds: int, **more: Any) -> Node:
    inside = (prompt("x", text="$a.output $LOOP_PREV.y.output"), prompt("y", "x", text="$x.output"))
    return Node(
        id="g",
        body=Group(until=Until(max_iterations=rounds, signal="DONE", **more), nodes=inside),
        depends_on=("a",),
    )


def test_a_group_tells_of_every_round_and_then_of_itself():
    run = play(prompt("a"), group(2), prompt("b", "g"), stubs={"a": "A", "x": "X", "y": "Y"})
    assert [(entry.id, entry.state, entry.iteration) for entry in run.trace] == [
        ("a", "stubbed", None), ("x", "stubbed", 1), ("y", "stubbed", 1), ("x", "stubbed", 2),
        ("y", "stubbed", 2), ("g", "failed", None), ("b", "skipped", None),
    ]  # fmt: skip
    assert run.trace[3].text == "A $LOOP_PREV.y.output"
    assert list(run.trace[1].as_json()) == [
        "id", "type", "state", "reason", "iteration", "text", "output",
    ]  # fmt: skip
    found = run.trace[5].reason
    assert found == "Loop group exceeded max iterations (2) without completion signal 'DONE'"


def test_a_group_ends_with_what_its_last_node_says():
    run = play(
        prompt("a"),
        group(9),
        prompt("b", "g", text="$g.output"),
        stubs={"a": "A", "x": "X", "y": "all DONE", "b": "B"},
    )
    assert told(run)[3:] == [
        ("g", "completed", "completion signal after 1 iteration(s)"),
        ("b", "stubbed", None),
    ]
    assert (run.trace[3].output, run.trace[4].text) == ("all DONE", "all DONE")


def test_a_group_fails_when_a_stub_is_missing_in_it():
    run = play(prompt("a"), group(9), stubs={"a": "A", "x": "X"})
    assert told(run)[-1] == ("g", "failed", "Loop group body failed at iteration 1")
    assert run.missing == ("y",)


def test_a_cancel_in_a_group_ends_the_run_without_ending_the_group():
    inside = (Node(id="stop", body=Cancel(reason="no")), prompt("never", "stop"))
    run = play(
        Node(id="g", body=Group(until=Until(max_iterations=2, bash="true"), nodes=inside)),
        prompt("b"),
        stubs={"b": ""},
    )
    assert ([entry.id for entry in run.trace], run.outcome) == (["stop"], "cancelled")


def test_a_group_that_goes_on_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr("pgflow.declare.play.dryrun._LONGEST_TRACE", 1000)
    inside = (prompt("x"),)
    endless = Node(
        id="g", body=Group(until=Until(max_iterations=10**9, signal="DONE"), nodes=inside)
    )
    with pytest.raises(EndlessDryRun, match="given up at node 'x' after 1000 entries"):
        play(endless, stubs={"x": "X"})


def test_many_nodes_are_played_in_reasonable_time():
    chain = [
        prompt("n0"),
        *(
            prompt(f"n{number}", f"n{number - 1}", text=f"$n{number - 1}.output")
            for number in range(1, 3000)
        ),
    ]
    run = play(*chain, stubs={node.id: "x" for node in chain})
    assert len(run.trace) == 3000
    assert run.outcome == "completed"


def test_a_trace_can_be_written_whatever_is_in_it():
    run = play(prompt("a", text="$ARGUMENTS"), stubs={"a": "\ud800\x00"}, message="\udcff\u2028")
    assert json.loads(json.dumps(run.as_json())) == run.as_json()


def test_what_has_no_stub_may_be_made_up():
    def made_up(node: Node) -> str:
        if node.id == "odd":
            raise NoPlaceholder("no placeholder fits")
        return f"made up for {node.id}"

    run = play(
        prompt("a"), prompt("b", text="$a.output"), prompt("odd"), stubs={"a": "A"}, made_up=made_up
    )
    assert told(run) == [
        ("a", "stubbed", None),
        ("b", "stubbed", None),
        ("odd", "failed", "no placeholder fits"),
    ]
    assert (run.made_up, run.missing) == (("b",), ("odd",))


def test_code_is_run_only_where_there_is_no_stub_and_nothing_outside_is_done():
    ran = []

    def run_code(task: Task, outputs: Outputs) -> Output:
        ran.append((task.node.id, sorted(outputs)))
        failed = Output("failed", error="exit 1")
        return failed if task.node.id == "bad" else Output("completed", "ran")

    acts = Node(id="acts", body=Bash(script="rm"), effects=(Effect(system="external"),))
    run = play(
        Node(id="a", body=Bash(script="echo")),
        Node(id="b", body=Bash(script="echo"), depends_on=("a",)),
        Node(id="bad", body=Script(script="x", runtime="uv", inline=True), depends_on=("a",)),
        acts,
        prompt("p"),
        stubs={"a": "A"},
        run_code=run_code,
    )
    assert ran == [("b", ["a", "acts", "p"]), ("bad", ["a", "acts", "b", "p"])]
    assert told(run)[-2:] == [("b", "completed", "executed locally"), ("bad", "failed", "exit 1")]
    assert run.missing == ("acts", "p")


ASK = Node(id="ask", body=Approval(message="Go?"))
MEND = Rework(text="Mend: $REJECTION_REASON", max_attempts=2)
REWORKED = Node(id="ask", body=Approval(message="Go?", on_reject=MEND))
NO = Decision(id="reject", label="No")
OFFERED = Node(id="ask", body=Approval(message="Go?", decisions=(NO,)))


@pytest.mark.parametrize(
    ("node", "reasons", "dialect", "outcome", "trace"),
    [
        (ASK, ["no"], "archon", "cancelled", [("ask", "completed", "rejected")]),
        (ASK, ["no"], "ion", "failed", [("ask", "failed", "rejected: no")]),
        (OFFERED, ["no"], "ion", "completed", [("ask", "completed", "rejected")]),
        (REWORKED, ["no"], "archon", "completed",
         [("ask:rework#1", "completed", "rejected: no"), ("ask", "completed", "auto-approved")]),
        (REWORKED, ["no", "never"], "ion", "cancelled",
         [("ask:rework#1", "completed", "rejected: no"), ("ask", "completed", "rejected")]),
    ],
)  # fmt: skip
def test_a_rejection_is_played(node, reasons, dialect, outcome, trace):
    run = play(node, rejections={"ask": reasons}, dialect=dialect)
    assert (run.outcome, told(run), run.unasked) == (outcome, trace, ())


def test_the_work_on_a_rejection_is_shown_with_its_reason():
    run = play(REWORKED, rejections={"ask": ["too late"]}, pause_at_gates=True)
    assert (run.trace[0].text, run.outcome) == ("Mend: too late", "paused")


def test_a_rejection_that_nobody_was_asked_for_is_told():
    skipped = ASK.model_copy(update={"when": parse_condition("$INPUTS.x == 'y'")})
    run = play(
        skipped, inputs=(Input(name="x", default="", has_default=True),), rejections={"ask": ["no"]}
    )
    assert (run.unasked, run.outcome) == (("ask",), "completed")
