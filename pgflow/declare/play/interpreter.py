"""The interpreter of declared workflows: pure functions over an immutable state that return what
happens next.

It does no I/O. A driver asks which nodes are open (`open_places`), begins them (`begin`), does the
work that comes back as a `Task`, hands in the result (`receive`), judges groups whose nodes have
ended (`judge`), and carries every `Change` into the state (`apply`). The dry run takes outputs from
a file, a durable run from the world, and both get the same decisions from the same state.

Nodes are worked on in layers: a layer is open when all nodes of the layers before it have ended,
however they ended. A failed node stops no other node; trigger rules decide whether those after it
run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from pgflow.declare.graph import (
    Approval,
    Bash,
    Call,
    Cancel,
    Command,
    Graph,
    Group,
    Loop,
    Node,
    Prompt,
    Script,
    Until,
    Wait,
    every_node,
)
from pgflow.declare.graph.plan import Place, Plan, make_plan
from pgflow.declare.play.bindings import bound
from pgflow.declare.play.progress import (
    Change,
    NextRound,
    Round,
    Scope,
    Settled,
    State,
    apply,
    open_places,
    round_at,
    scope_at,
    visible,
)
from pgflow.declare.play.signals import has_signal
from pgflow.declare.play.triggers import is_triggered
from pgflow.declare.text.conditions import holds
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.outputs import NodeState, Output, Outputs, UnresolvableReference
from pgflow.declare.text.templates import Previous, Spill, Surface, Variables, resolve

__all__ = [
    "Change", "Channel", "CommandUnavailable", "NextRound", "Place", "Plan", "Round", "RunState",
    "Settled", "State", "Surroundings", "Task", "apply", "begin", "completion_reason", "first_said",
    "group_output", "judge", "make_plan", "open_places", "receive", "round_at", "run_output",
    "run_state", "until_met",
]  # fmt: skip

Channel = Literal["field", "signal", "check", "assumed"]
"""Cause of a loop's end: a field that is true, a signal, a check that passed, or the assumption
that one would.
"""

RunState = Literal["completed", "failed", "cancelled", "paused"]


class CommandUnavailable(Exception):
    """The text of a command cannot be had. The node that is made of it fails."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Surroundings of a run.

    Args:
        variables: Its variables and inputs.
        command_text: Gives the text of a command by its name, or raises `CommandUnavailable`.
        spill_dir: Folder for long values for shells; None to write none.
        remembers: True if a group's nodes can read what was left in the round before.
    """

    variables: Variables
    command_text: Callable[[str], str]
    spill_dir: str | None = None
    remembers: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """Work for the driver.

    Args:
        place: Place of the node.
        node: The node.
        text: Text to prompt with, run or ask, its references replaced. Empty for a child run, whose
            message its starter resolves.
        round: Number of the turn of a loop, from 1.
        variables: Variables that the text was resolved with; a shell gets them as its environment.
        spills: Files that must be written first.
    """

    place: Place
    node: Node
    text: str
    round: int
    variables: Variables
    spills: tuple[Spill, ...] = ()


def begin(plan: Plan, state: State, place: Place, surroundings: Surroundings) -> Task | Change:
    """Begin an open node, or the next turn of a loop.

    Args:
        plan: The run's plan.
        state: Its progress.
        place: Place of the node.
        surroundings: Surroundings of the run.

    Returns:
        That it ended without work (skipped, failed, or done), that a group goes into its first
        round, or the work to do.
    """
    node, outputs = plan.node(place), visible(state, place)
    turn = round_at(state, place)
    group = round_at(state, place[:-1]) if len(place) > 1 and surroundings.remembers else None
    try:
        if turn is None and (reason := _why_skipped(node, outputs, surroundings, group)):
            return Settled(place, Output("skipped"), reason)
        if isinstance(node.body, Group):
            return NextRound(place, Round(scope=Scope()))
        variables = _variables(plan, state, place, surroundings, turn or Round())
        return _work(node, place, variables, outputs, surroundings, turn or Round())
    except (UnresolvableReference, CommandUnavailable) as error:
        return Settled(place, Output("failed", error=str(error)), str(error))


def _why_skipped(
    node: Node, outputs: Outputs, surroundings: Surroundings, group: Round | None
) -> str | None:
    """Return the reason why a node does not run; None if it does."""
    states: list[NodeState] = [
        outputs[needed].state if needed in outputs else "failed" for needed in node.depends_on
    ]
    if not is_triggered(node.trigger_rule, states):
        return "trigger_rule"
    if node.when is None or not node.when.text:
        return None
    previous = None if group is None else group.previous
    answer = holds(node.when, outputs, surroundings.variables.inputs, previous)
    if answer is None:
        return "when_condition_parse_error"
    return None if answer else "when_condition_false"


def _variables(
    plan: Plan, state: State, place: Place, surroundings: Surroundings, turn: Round
) -> Variables:
    """Return the variables as one node sees them: with its loop's last turn, and its group's last
    round.
    """
    group = round_at(state, place[:-1]) if len(place) > 1 else None
    user_input = turn.user_input or (group.user_input if group else "")
    variables = replace(
        surroundings.variables, previous_output=turn.previous_output, user_input=user_input
    )
    if group is None or not surroundings.remembers:
        return variables
    direct = plan.within(place[:-1]).nodes
    known = tuple(node.id for node in every_node(tuple(direct.values())))
    return replace(variables, previous=Previous(group.previous, frozenset(direct), known))


def _work(
    node: Node,
    place: Place,
    variables: Variables,
    outputs: Outputs,
    surroundings: Surroundings,
    turn: Round,
) -> Task | Settled:
    """Return the work of a node that runs."""
    if isinstance(node.body, Call):
        return Task(place, node, "", turn.number, variables)
    if isinstance(node.body, Prompt) and node.body.literal:
        return Task(place, node, node.body.text, turn.number, variables)
    variables = bound(node, variables, outputs)
    template, surface = _template(node, surroundings)
    resolved = resolve(template, variables, outputs, surface, surroundings.spill_dir)
    if isinstance(node.body, Cancel):
        return Settled(
            place,
            Output("completed", resolved.text),
            "workflow cancelled",
            resolved.text,
            cancels=True,
        )
    return Task(place, node, resolved.text, turn.number, variables, resolved.spills)


def _template(node: Node, surroundings: Surroundings) -> tuple[str, Surface]:
    """Return the text that a node's work is made of, and what becomes of it."""
    match node.body:
        case Prompt(text=text, tagged=True):
            return text, "tagged"
        case (
            Prompt(text=text) | Loop(text=str(text)) | Approval(message=text) | Cancel(reason=text)
        ):
            return text, "prompt"
        case Command(name=name) | Loop(command=str(name)):
            return surroundings.command_text(name), "prompt"
        case Wait(until=until, attention=attention):
            return until or attention or "", "prompt"
        case Bash(script=script):
            return script, "bash"
        case Script(script=script):
            return script, "script"
        case body:
            raise AssertionError(f"A {body.mode} has no text.")


def receive(
    task: Task, output: Output, channel: Channel | None = None, user_input: str = ""
) -> Change:
    """Return the change that a task's result makes to its node.

    Args:
        task: The task.
        output: Result of it.
        channel: For a turn of a loop, what says that it was the last (`until_met`, or a check that
            the driver ran).
        user_input: Words of a person to this turn of a loop; the next turn reads it.

    Returns:
        That the node ended, or that a loop goes into its next round.
    """
    if not isinstance(task.node.body, Loop) or output.state != "completed":
        return Settled(task.place, output, output.error or None, task.text)
    until = task.node.body.until
    if channel is not None:
        return Settled(task.place, output, completion_reason(until, channel, task.round), task.text)
    if task.round >= until.max_iterations:
        error = f"Loop exceeded max iterations ({until.max_iterations}) {_unmet(until)}"
        return Settled(task.place, Output("failed", error=error), error, task.text)
    return NextRound(task.place, Round(task.round + 1, output.text, user_input))


def judge(
    plan: Plan, state: State, place: Place, channel: Channel | None, user_input: str = ""
) -> Change:
    """Return the change of a group all of whose nodes have ended.

    Args:
        plan: The run's plan.
        state: Its progress.
        place: The group.
        channel: Cause of the end of the loop, if this round was the last.
        user_input: Words of a person to this round; the next one reads it.

    Returns:
        That the group ended, or that it goes into its next round.
    """
    body, current = plan.node(place).body, round_at(state, place)
    assert isinstance(body, Group)
    assert current is not None
    left = scope_at(state, place).outputs
    if any(output.state == "failed" for output in left.values()):
        return _failed(place, f"Loop group body failed at iteration {current.number}")
    if channel is not None:
        return Settled(
            place,
            group_output(plan, state, place),
            completion_reason(body.until, channel, current.number),
        )
    if current.number >= body.until.max_iterations:
        return _failed(
            place,
            f"Loop group exceeded max iterations ({body.until.max_iterations}) "
            f"{_unmet(body.until)}",
        )
    return NextRound(
        place, Round(current.number + 1, user_input=user_input, previous=left, scope=Scope())
    )


def _failed(place: Place, error: str) -> Settled:
    """Return the change of a node that failed because of the outputs in its round."""
    return Settled(place, Output("failed", error=error), error)


def until_met(until: Until, output: Output) -> Channel | None:
    """Return the channel by which an output ends a loop; None if it does not. A check that runs a
    shell is for the driver to run.
    """
    if (
        until.field is not None
        and isinstance(output.structured, dict)
        and output.structured.get(until.field) is True
    ):
        return "field"
    return "signal" if until.signal is not None and has_signal(output.text, until.signal) else None


def completion_reason(until: Until, channel: Channel, rounds: int) -> str:
    """Return the reason why a loop ended, for a person to read."""
    match channel:
        case "field":
            return f"'{until.field}' is true after {rounds} iteration(s)"
        case "signal":
            return f"completion signal after {rounds} iteration(s)"
        case "check":
            return f"'until_bash' passed after {rounds} iteration(s)"
        case "assumed":
            return (
                f"assumed complete after {rounds} iteration(s) — 'until_bash' "
                "is not executed in a dry run"
            )


def _unmet(until: Until) -> str:
    """Return the channels by which a loop never ended, for an error."""
    channels = []
    if until.signal:
        channels.append(f"completion signal '{until.signal}'")
    if until.bash:
        channels.append("a passing 'until_bash' check")
    if until.field:
        channels.append(f"'{until.field}' ever being true")
    return f"without {' or '.join(channels) or 'a completion channel'}"


def group_output(plan: Plan, state: State, place: Place) -> Output:
    """Return the output of a group whose nodes have ended: the text of its first sink that
    completed with one.
    """
    return Output("completed", first_said(plan.within(place), scope_at(state, place).outputs))


def run_output(graph: Graph, plan: Plan, state: State) -> str:
    """Return the output of a run: that of the node it returns, or of its first sink that completed
    with a text.
    """
    if graph.returns is None:
        return first_said(plan, state.scope.outputs)
    returned = state.scope.outputs.get(graph.returns)
    return returned.text if returned and returned.state == "completed" else ""


def run_state(state: State) -> RunState:
    """Return the end of a run whose nodes have ended: a single failure fails it, and so does having
    done nothing at all.
    """
    if state.cancelled is not None:
        return "cancelled"
    states = {output.state for output in state.scope.outputs.values()}
    return "failed" if "failed" in states or "completed" not in states else "completed"


def first_said(plan: Plan, outputs: Outputs) -> str:
    """Return the text of the first sink that completed with more than blanks."""
    texts = (
        outputs[node_id].text
        for node_id in plan.sinks
        if node_id in outputs and outputs[node_id].state == "completed"
    )
    return next((text for text in texts if trim(text)), "")
