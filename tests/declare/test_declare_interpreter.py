"""The interpreter: it decides from a declared workflow's state what happens next."""

from __future__ import annotations

from typing import Any

import pytest

from pgflow.declare.graph import (
    Approval,
    Bash,
    Binding,
    Call,
    Cancel,
    Command,
    Decision,
    FanOut,
    Graph,
    Group,
    Loop,
    Node,
    Prompt,
    Retry,
    Script,
    Until,
)
from pgflow.declare.graph import Rework as ReworkText
from pgflow.declare.play.approvals import (
    NoSuchDecision,
    Refused,
    Rework,
    approve,
    asks_after_turn,
    reject,
    respond,
)
from pgflow.declare.play.bindings import bound
from pgflow.declare.play.failures import classify, retry_delay_ms
from pgflow.declare.play.fanout import Child, ChildCall, child_calls, items_of, joined
from pgflow.declare.play.interpreter import (
    CommandUnavailable,
    NextRound,
    Settled,
    State,
    Surroundings,
    Task,
    apply,
    begin,
    judge,
    make_plan,
    open_places,
    receive,
    run_output,
    run_state,
    until_met,
)
from pgflow.declare.text.conditions import parse_condition
from pgflow.declare.text.outputs import Output, UnresolvableReference, completed
from pgflow.declare.text.templates import Variables

RUN = Variables("run-1", "hello", "/art", "/state", "main", inputs={"mode": "fast"})


def prompt(node_id: str, *depends_on: str, text: str = "go", **more: Any) -> Node:
    return Node(id=node_id, body=Prompt(text=text), depends_on=depends_on, **more)


def command_text(name: str) -> str:
    if name == "lost":
        raise CommandUnavailable("Command prompt not found: lost.md")
    return f"<{name}> $ARGUMENTS"


AROUND = Surroundings(RUN, command_text)


class Driver:
    """Carries changes into a state, and does no work of its own."""

    def __init__(self, *nodes: Node, around: Surroundings = AROUND) -> None:
        self.plan, self.around, self.state = make_plan(nodes), around, State()

    def open(self, *within: str) -> list[str]:
        return [place[-1] for place in open_places(self.plan, self.state, within)]

    def begin(self, *place: str) -> Any:
        step = begin(self.plan, self.state, place, self.around)
        if not isinstance(step, Task):
            self.state = apply(self.state, step)
        return step

    def give(self, task: Task, output: Output, channel: Any = None) -> Any:
        change = receive(task, output, channel)
        self.state = apply(self.state, change)
        return change

    def do(self, *place: str, says: Any = "done") -> Any:
        return self.give(self.begin(*place), completed(says))

    def fail(self, *place: str) -> Any:
        return self.give(self.begin(*place), Output("failed", error="boom"))

    def judge(self, *place: str, channel: Any = None) -> Any:
        change = judge(self.plan, self.state, place, channel)
        self.state = apply(self.state, change)
        return change


def test_layers_keep_the_order_of_declaration_and_then_of_release():
    plan = make_plan(
        (prompt("d", "b", "a"), prompt("c", "a"), prompt("b"), prompt("a"), prompt("e", "c"))
    )
    assert plan.layers == (("b", "a"), ("d", "c"), ("e",))
    assert plan.sinks == ("d", "e")


@pytest.mark.parametrize("nodes", [
    [prompt("a", "b"), prompt("b", "a"), prompt("c")], [prompt("a", "nobody")], [prompt("a", "a")],
])  # fmt: skip
def test_a_circle_is_refused(nodes):
    with pytest.raises(ValueError, match="Cycle detected among nodes: a"):
        make_plan(tuple(nodes))


def test_a_layer_opens_when_all_of_the_layer_before_have_ended():
    run = Driver(prompt("a"), prompt("b"), prompt("c", "a"))
    assert run.open() == ["a", "b"]
    run.do("a")
    assert run.open() == ["b"]
    run.fail("b")
    assert run.open() == ["c"]
    run.do("c")
    assert run.open() == []
    assert run_state(run.state) == "failed"


def test_a_state_is_never_altered():
    run = Driver(prompt("a"), prompt("b"))
    before = run.state
    run.do("a")
    assert before.scope.outputs == {}
    assert run.state.scope.outputs.keys() == {"a"}


def test_skipping_goes_on_down_the_line():
    run = Driver(
        prompt("a", when=parse_condition("$INPUTS.mode == 'slow'")),
        prompt("b", "a"),
        prompt("c", "b", trigger_rule="all_done"),
    )
    assert run.begin("a").reason == "when_condition_false"
    assert run.begin("b").reason == "trigger_rule"
    assert isinstance(run.begin("c"), Task)


def test_what_cannot_be_understood_is_skipped_and_what_cannot_be_resolved_fails():
    run = Driver(
        prompt("a", when=parse_condition("bogus")),
        prompt("b", when=parse_condition("$x.f == 'y'")),
        prompt("c", text="$x.output.f"),
    )
    assert (
        run.begin("a").output.state,
        run.begin("b").output.state,
        run.begin("c").output.state,
    ) == ("skipped", "failed", "failed")
    assert run.state.scope.outputs["b"].error.startswith("'$x.output.f' references node 'x'")
    assert run_state(run.state) == "failed"


def test_a_run_in_which_nothing_was_done_fails():
    run = Driver(prompt("a", when=parse_condition("bogus")))
    run.begin("a")
    assert run_state(run.state) == "failed"


def test_each_mode_gets_its_text():
    run = Driver(
        Node(id="command", body=Command(name="plan")),
        Node(id="lost", body=Command(name="lost")),
        Node(id="bash", body=Bash(script="echo $ARGUMENTS $WORKFLOW_ID")),
        Node(
            id="script",
            body=Script(script="print('$WORKFLOW_ID $ARGUMENTS')", runtime="uv", inline=True),
        ),
        Node(id="ask", body=Approval(message="$ARGUMENTS?")),
        Node(id="call", body=Call(name="other", message="$nobody.output.f")),
        Node(id="prose", body=Prompt(text="costs $ARGUMENTS", literal=True)),
    )
    assert run.begin("command").text == "<plan> hello"
    assert run.begin("lost").reason == "Command prompt not found: lost.md"
    assert run.begin("bash").text == "echo $ARGUMENTS run-1"
    assert run.begin("script").text == "print('run-1 $ARGUMENTS')"
    assert run.begin("ask").text == "hello?"
    assert run.begin("call").text == ""
    assert run.begin("prose").text == "costs $ARGUMENTS"


def test_a_cancel_node_completes_and_ends_the_run():
    run = Driver(prompt("a"), Node(id="stop", body=Cancel(reason="$a.output!"), depends_on=("a",)))
    run.do("a", says="too big")
    settled = run.begin("stop")
    assert (settled.output.text, settled.cancels, run.state.cancelled) == (
        "too big!",
        True,
        "too big!",
    )
    assert run_state(run.state) == "cancelled"


LOOP = Node(
    id="l", body=Loop(text="try [$LOOP_PREV_OUTPUT]", until=Until(max_iterations=3, signal="DONE"))
)


def test_a_loop_goes_on_until_it_is_told_that_it_is_over():
    run = Driver(LOOP, prompt("after", "l"))
    assert run.begin("l").text == "try []"
    assert isinstance(run.give(run.begin("l"), completed("not yet")), NextRound)
    assert run.open() == ["l"]
    task = run.begin("l")
    assert (task.text, task.round) == ("try [not yet]", 2)
    settled = run.give(task, completed("DONE"), "signal")
    assert (settled.reason, settled.output.text) == (
        "completion signal after 2 iteration(s)",
        "DONE",
    )
    assert run.open() == ["after"]


def test_a_loop_that_never_ends_fails():
    run = Driver(LOOP)
    for _ in range(2):
        run.do("l")
    settled = run.do("l")
    assert settled.output.state == "failed"
    assert settled.reason == "Loop exceeded max iterations (3) without completion signal 'DONE'"


def test_a_loop_whose_turn_fails_fails():
    run = Driver(LOOP)
    run.do("l")
    assert run.fail("l").reason == "boom"


def test_a_loop_under_way_is_not_asked_for_its_condition_again():
    node = LOOP.model_copy(
        update={
            "when": parse_condition("$a.output == 'yes'"),
            "trigger_rule": "one_success",
            "depends_on": ("a",),
        }
    )
    run = Driver(prompt("a"), node)
    run.do("a", says="yes")
    run.do("l")
    run.state = apply(run.state, Settled(("a",), completed("no")))
    assert isinstance(run.begin("l"), Task)


@pytest.mark.parametrize(("until", "value", "channel"), [
    (Until(max_iterations=1, field="ok"), {"ok": True}, "field"),
    (Until(max_iterations=1, field="ok"), {"ok": "true"}, None),
    (Until(max_iterations=1, field="ok"), {"ok": 1}, None),
    (Until(max_iterations=1, field="ok"), '{"ok":true}', None),
    (Until(max_iterations=1, field="ok", signal="DONE"), "DONE", "signal"),
    (Until(max_iterations=1, bash="true"), "DONE", None),
])  # fmt: skip
def test_a_loop_is_over_by_a_field_that_is_true_or_a_signal(until, value, channel):
    assert until_met(until, completed(value)) == channel


GROUP = Node(
    id="g",
    body=Group(
        until=Until(max_iterations=2, signal="DONE"),
        nodes=(
            prompt("x", text="$a.output/$LOOP_PREV.y.output"),
            prompt("y", "x", text="$x.output"),
            prompt("z", "x"),
        ),
    ),
    depends_on=("a",),
)


def a_group_at_work() -> Driver:
    run = Driver(prompt("a"), GROUP, prompt("after", "g"))
    run.do("a", says="A")
    assert isinstance(run.begin("g"), NextRound)
    return run


def test_a_group_runs_its_nodes_again_and_lets_them_read_the_round_before():
    run = a_group_at_work()
    assert (run.open(), run.open("g")) == (["g"], ["x"])
    assert run.begin("g", "x").text == "A/"
    run.do("g", "x", says="X1")
    assert run.begin("g", "y").text == "X1"
    run.do("g", "y", says="Y1")
    run.do("g", "z", says=" ")
    assert run.open("g") == []
    assert isinstance(run.judge("g"), NextRound)
    assert run.begin("g", "x").text == "A/Y1"
    run.do("g", "x", says="X2")
    run.do("g", "y", says=" \n")
    run.do("g", "z", says="Z2")
    settled = run.judge("g", channel="signal")
    assert (settled.output.text, settled.reason) == ("Z2", "completion signal after 2 iteration(s)")
    assert run.open() == ["after"]
    assert set(run.state.scope.outputs) == {"a", "g"}


def test_a_group_fails_with_any_of_its_nodes_and_when_it_never_ends():
    run = a_group_at_work()
    run.do("g", "x")
    run.fail("g", "y")
    run.do("g", "z")
    assert run.judge("g", channel="signal").reason == "Loop group body failed at iteration 1"
    run = a_group_at_work()
    for _ in range(2):
        for node_id in ("x", "y", "z"):
            run.do("g", node_id)
        last = run.judge("g")
    assert last.reason == "Loop group exceeded max iterations (2) without completion signal 'DONE'"


def test_groups_within_groups_keep_their_rounds_apart():
    inner = Node(
        id="in",
        body=Group(
            until=Until(max_iterations=9, bash="true"),
            nodes=(prompt("p", text="$LOOP_PREV.p.output"),),
        ),
    )
    outer = Node(
        id="out",
        body=Group(
            until=Until(max_iterations=9, bash="true"),
            nodes=(inner, prompt("q", "in", text="$LOOP_PREV.p.output")),
        ),
    )
    run = Driver(outer)
    run.begin("out")
    run.begin("out", "in")
    run.do("out", "in", "p", says="P1")
    run.judge("out", "in")
    assert run.begin("out", "in", "p").text == "P1"
    run.do("out", "in", "p", says="P2")
    found = run.judge("out", "in", channel="check").reason
    assert found == "'until_bash' passed after 2 iteration(s)"
    assert run.begin("out", "q").text == "$LOOP_PREV.p.output"


def test_a_run_gives_what_it_returns_or_its_first_sink_that_said_something():
    nodes = (prompt("a"), prompt("b"), prompt("c"))
    run = Driver(*nodes)
    run.do("a", says=" ")
    run.do("b", says="B")
    run.do("c", says="C")
    graph = Graph(name="g", nodes=nodes)
    assert run_output(graph, run.plan, run.state) == "B"
    assert run_output(graph.model_copy(update={"returns": "c"}), run.plan, run.state) == "C"
    assert run_output(graph.model_copy(update={"returns": "lost"}), run.plan, run.state) == ""


OUTPUTS = {
    "plan": completed({"green": True}),
    "text": Output("completed", "T"),
    "sk": Output("skipped"),
    "f": Output("failed", error="boom"),
}


def argument(**given: Any) -> Any:
    node = prompt("n", arguments=(Binding(name="x", **given),))
    values = bound(node, RUN, OUTPUTS).inputs
    assert values is not None
    assert values["mode"] == "fast"
    return values["x"]


@pytest.mark.parametrize(("given", "value"), [
    ({"value": [1, None]}, [1, None]), ({"value": "$plan.output"}, {"green": True}),
    ({"value": " $plan.output.green\n"}, True), ({"value": "is $plan.output.green"}, "is true"),
    ({"value": "$text.output"}, "T"), ({"value": "$INPUTS.mode"}, "fast"),
    ({"value": "$ARGUMENTS $INPUTS.mode"}, "hello fast"), ({"source": "$plan.output.green"}, True),
    ({"source": "$sk.output.x", "if_skipped": None, "has_if_skipped": True}, None),
    ({"source": "$nobody.output", "if_skipped": 7, "has_if_skipped": True}, 7),
])  # fmt: skip
def test_an_argument_keeps_the_type_of_what_it_refers_to(given, value):
    assert argument(**given) == value


@pytest.mark.parametrize(("given", "message"), [
    ({"value": "$plann.output"},
        ("Binding value '$plann.output' references node 'plann', but no node with that id.*Did "
            "you mean: 'plan'?")),
    ({"value": "$f.output"}, "but it failed (boom), so its output cannot be trusted"),
    ({"value": "$INPUTS.mod"}, "Did you mean $INPUTS.mode?"),
    ({"source": "$sk.output"},
        ("Node 'n' binding 'x' reads '$sk.output', but node 'sk' did not run (skipped or "
            "pending)")),
    ({"source": "$f.output", "if_skipped": 1, "has_if_skipped": True},
        "A binding never falls back to 'if_skipped' for a failed producer"),
    ({"source": "see $sk.output"},
        ("'from' must be exactly one whole '$node.output' or '$node.output.field' reference, "
            "got 'see $sk.output'.")),
])  # fmt: skip
def test_an_argument_without_a_value_fails_its_node(given, message):
    with pytest.raises(UnresolvableReference) as caught:
        argument(**given)
    assert all(part in str(caught.value) for part in message.split(".*"))


def test_arguments_win_over_inputs_of_the_run():
    node = Node(id="n", body=Command(name="c"), arguments=(Binding(name="mode", value="slow"),))
    assert bound(node, RUN, {}).inputs == {"mode": "slow"}


def test_a_turn_of_an_agent_is_tried_again_twice_without_being_told():
    node = prompt("a")
    found = [retry_delay_ms(node, attempt, "HTTP 503") for attempt in (1, 2, 3)]
    assert found == [3000, 6000, None]
    assert retry_delay_ms(node, 1, "what is this") is None
    assert retry_delay_ms(node, 1, "timeout: unauthorized") is None


@pytest.mark.parametrize(
    "body", [Bash(script="x"), Script(script="x", runtime="uv", inline=False), LOOP.body]
)
def test_programs_and_loops_are_tried_once_if_nothing_is_said(body):
    assert retry_delay_ms(Node(id="a", body=body), 1, "HTTP 503") is None


def test_a_shell_node_is_tried_again_as_it_declares():
    shell = Node(id="a", body=Bash(script="x"), retry=Retry(max_retries=3, delay_ms=1000))
    assert [
        retry_delay_ms(shell, attempt, "Bash node 'a' failed [exit 1]: boom")
        for attempt in (1, 2, 3, 4)
    ] == [1000, 2000, 4000, None]
    assert retry_delay_ms(shell, 1, "bash node 'a' timed out after 5ms") == 1000
    assert retry_delay_ms(shell, 1, "boom") is None
    stubborn = shell.model_copy(
        update={"retry": Retry(max_retries=1, delay_ms=1000, on_error="all")}
    )
    assert retry_delay_ms(stubborn, 1, "boom") == 1000
    assert retry_delay_ms(stubborn, 1, "Permission denied") is None


def test_what_is_fatal_wins_but_a_wrapper_does_not():
    assert classify("429: usage limit reached") == "FATAL"
    assert classify("Auth error: overloaded") == "TRANSIENT"
    assert classify("auth error") == "FATAL"
    assert classify("it was timed out afterwards") == "UNKNOWN"
    assert classify("kill: (24036) - no such process, HTTP 503") == "TRANSIENT"
    assert classify("HTTP 403: no") == "FATAL"


def test_an_approval_leaves_the_comment_if_it_captures_it():
    assert approve(Approval(message="?"), "fine").text == ""
    assert approve(Approval(message="?", capture_response=True), "fine").text == "fine"
    assert approve(Approval(message="?", capture_response=True), " \n").text == "Approved"


def test_a_rejection_ends_the_run_or_is_worked_on_until_it_is_the_last():
    assert reject(Approval(message="?"), "no") == Refused("no")
    worked_on = Approval(
        message="?", on_reject=ReworkText(text="mend: $REJECTION_REASON", max_attempts=2)
    )
    assert reject(worked_on, "no", rejections=0) == Rework("mend: $REJECTION_REASON")
    assert reject(worked_on, "no", rejections=1) == Refused("no")


def test_decisions_are_the_output():
    offered = Approval(
        message="?", decisions=(Decision(id="approve"), Decision(id="reject"), Decision(id="later"))
    )
    assert approve(offered, "yes").text == '{"decision":"approve","text":"yes"}'
    assert reject(offered, "no") == completed({"decision": "reject", "text": "no"})
    assert respond(offered, "later").structured == {"decision": "later", "text": ""}
    with pytest.raises(NoSuchDecision, match="Offered: approve, reject, later"):
        respond(offered, "never")


@pytest.mark.parametrize(("more", "is_over", "was_answered", "asks"), [
    ({"interactive": False}, False, False, False), ({}, False, False, True),
    ({}, False, True, True), ({}, True, False, True), ({}, True, True, False),
    ({"signal_completes": True}, True, False, False),
    ({"signal_completes": True}, False, False, True),
])  # fmt: skip
def test_an_interactive_loop_asks_until_a_person_had_a_say_and_it_is_over(
    more, is_over, was_answered, asks
):
    body = LOOP.body.model_copy(update={"interactive": True} | more)
    assert isinstance(body, Loop)
    assert asks_after_turn(body, is_over=is_over, was_answered=was_answered) == asks


def test_what_a_person_says_is_read_by_the_next_turn_only():
    run = Driver(
        LOOP.model_copy(
            update={
                "body": Loop(
                    text="[$LOOP_USER_INPUT]", until=Until(max_iterations=9, signal="DONE")
                )
            }
        )
    )
    run.state = apply(run.state, receive(run.begin("l"), completed("a draft"), None, "shorter"))
    assert run.begin("l").text == "[shorter]"
    run.do("l")
    assert run.begin("l").text == "[]"


CHILDREN = [
    Child("completed", {"v": 1}),
    Child("failed", error="boom"),
    Child("cancelled", error="stopped"),
    Child("completed", "text"),
]


def test_children_leave_a_list_in_which_failures_are_marked():
    output = joined(FanOut(items="[]"), CHILDREN)
    marks = '{"archon_failed":true,"error":"boom","status":"failed"},{"archon_failed":true,"error":"stopped","status":"cancelled"}'
    assert (output.state, output.text) == ("completed", f'[{{"v":1}},{marks},"text"]')
    assert joined(FanOut(items="[]"), []).text == "[]"


def test_children_that_must_all_succeed_fail_with_the_first_that_does_not():
    output = joined(FanOut(items="[]", join="all_success"), CHILDREN)
    assert (output.state, output.error) == (
        "failed",
        "2 of 4 children did not complete; number 2: boom",
    )
    assert joined(FanOut(items="[]", join="all_success"), CHILDREN[:1]).state == "completed"


@pytest.mark.parametrize("text", ["", "{}", "1, 2", "[1,"])
def test_items_must_be_a_list(text):
    with pytest.raises(UnresolvableReference, match="JSON array"):
        items_of(text)


def test_items_are_any_values():
    assert items_of(' [1, "a", {"b": []}] ') == [1, "a", {"b": []}]


def test_a_child_is_started_with_a_message_and_arguments():
    given = (
        Binding(name="plan", value="$plan.output"),
        Binding(name="note", value="for $ARGUMENTS"),
    )
    told = Node(id="c", body=Call(name="other", message="see $text.output"), arguments=given)
    found = child_calls(told, RUN, OUTPUTS)
    assert found == (ChildCall("see T", {"plan": {"green": True}, "note": "for hello"}),)
    found = child_calls(Node(id="c", body=Call(name="other")), RUN, OUTPUTS)
    assert found == (ChildCall("hello", {}),)


def test_each_item_is_the_message_of_a_child_and_an_input():
    outputs = {"list": completed({"files": ["a.py", {"n": 1}]})}
    body = Call(name="other", fan_out=FanOut(items="$list.output.files", item_name="file"))
    node = Node(id="c", body=body, arguments=(Binding(name="mode", value=1),))
    assert child_calls(node, RUN, outputs) == (
        ChildCall("a.py", {"mode": 1, "file": "a.py"}),
        ChildCall('{"n":1}', {"mode": 1, "file": {"n": 1}}),
    )
    with pytest.raises(UnresolvableReference):
        child_calls(node, RUN, {"list": completed({"files": "a.py"})})
