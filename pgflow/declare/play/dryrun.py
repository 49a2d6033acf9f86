"""A dry run: outputs come from stubs, and the trace shows the text of each node.

Approvals and gates count as answered, checks of loops that would run a shell as passed, and no
child runs. The rest is decided by the functions of a real run (`pgflow.declare.play.interpreter`),
so the trace shows which nodes run, with which texts, and why the others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import JsonValue

from pgflow.declare.graph import (
    Approval,
    Bash,
    Call,
    Cancel,
    Gate,
    Graph,
    Group,
    Loop,
    Node,
    Script,
    Until,
    Wait,
)
from pgflow.declare.play.approvals import Dialect
from pgflow.declare.play.defaults import SATISFIED, input_values, placeholder_command
from pgflow.declare.play.interpreter import (
    Change,
    Channel,
    NextRound,
    Place,
    RunState,
    Settled,
    State,
    Surroundings,
    Task,
    apply,
    begin,
    first_said,
    group_output,
    judge,
    make_plan,
    receive,
    round_at,
    until_met,
)
from pgflow.declare.play.placeholders import NoPlaceholder
from pgflow.declare.play.progress import visible
from pgflow.declare.play.rejections import Rejections
from pgflow.declare.play.trace import DryRun, Entry
from pgflow.declare.text.outputs import Output, Outputs, completed
from pgflow.declare.text.templates import Variables

__all__ = ["DryRun", "EndlessDryRun", "Entry", "dry_run"]

RunCode = Callable[[Task, Outputs], Output]
"""Runs the shell or program of a node, which can read these outputs."""

_RAN = "executed locally"
_ASSUMED = "assumed over"
_LONGEST_TRACE = 100_000
"""Entries: far more than anyone reads."""


class EndlessDryRun(ValueError):
    """A dry run would not end within reason."""


def dry_run(
    graph: Graph,
    *,
    stubs: Mapping[str, JsonValue],
    message: str = "",
    inputs: Mapping[str, JsonValue] | None = None,
    directory: str = "/DRYRUN",
    command_text: Callable[[str], str] = placeholder_command,
    pause_at_gates: bool = False,
    made_up: Callable[[Node], JsonValue] | None = None,
    run_code: RunCode | None = None,
    rejections: Mapping[str, Sequence[str]] | None = None,
    dialect: Dialect = "archon",
) -> DryRun:
    """Play a workflow on stubs, without running it.

    Args:
        graph: The workflow.
        stubs: Outputs of nodes, by their ids: text, or any JSON value.
        message: Message of the person who starts it.
        inputs: Values of its inputs; the others have their defaults.
        directory: Folder of the run's files, for the texts that mention it.
        command_text: Gives the text of a command by its name, or raises `CommandUnavailable`.
        pause_at_gates: Stop where a person would be asked.
        made_up: Gives the output of a node without a stub, or raises `NoPlaceholder`; None to have
            such nodes fail.
        run_code: Runs shells and programs without a stub, but for those that act on the world.
        rejections: Reasons with which approvals are rejected before they count as answered, by id.
        dialect: Family whose meaning of a rejection holds.

    Returns:
        What would happen. A node without a stub that would have run is shown as failed.

    Raises:
        EndlessDryRun: If groups go on for tens of thousands of rounds.
        ValueError: If nodes depend on each other in a circle.
    """
    variables = Variables(
        workflow_id="dry-run",
        message=message,
        artifacts_dir=f"{directory}/artifacts",
        state_dir=f"{directory}/state",
        base_branch="dry-run-base",
        docs_dir=f"{directory}/docs",
        inputs=_inputs(graph, inputs or {}),
        rereads=True,
    )
    player = _Player(
        graph,
        Surroundings(variables, command_text, remembers=False),
        stubs,
        pause_at_gates,
        made_up,
        run_code,
        Rejections(rejections or {}, dialect),
    )
    player.play_all()
    return player.result()


def _inputs(graph: Graph, given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the values of a run's inputs: those given, the defaults of the others, and a mark
    where a person would be asked for one.
    """
    asked = (gate.name for node in graph.nodes for gate in node.gates if gate.kind == "input")
    marks: dict[str, JsonValue] = {name: f"<{name}>" for name in asked}
    return input_values(graph, marks | dict(given))


@dataclass
class _Player:
    """Plays a graph, one node after the other, and keeps the trace."""

    graph: Graph
    surroundings: Surroundings
    stubs: Mapping[str, JsonValue]
    pause_at_gates: bool
    made_up: Callable[[Node], JsonValue] | None
    run_code: RunCode | None
    rejections: Rejections
    state: State = field(default_factory=State)
    trace: list[Entry] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    invented: set[str] = field(default_factory=set)
    is_paused: bool = False

    def __post_init__(self) -> None:
        self.plan = make_plan(self.graph.nodes)

    @property
    def is_over(self) -> bool:
        """True if nothing more is played: someone is waited for, or a node ended the run."""
        return self.is_paused or self.state.cancelled is not None

    def play_all(self, within: Place = ()) -> None:
        """Play the nodes of the run, or of a group's round, layer by layer."""
        for layer in self.plan.within(within).layers:
            for node_id in layer:
                if not self.is_over:
                    self.play((*within, node_id))

    def play(self, place: Place) -> None:
        """Play a node until it ends, or the run is over."""
        has_ended = False
        while not has_ended and not self.is_over:
            step = begin(self.plan, self.state, place, self.surroundings)
            if isinstance(step, NextRound):
                self.play_group(step)
                return
            change = self.answer(step) if isinstance(step, Task) else step
            has_ended = change is not None and self.accept(change)

    def play_group(self, first: NextRound) -> None:
        """Play a group, round after round."""
        place, body = first.place, self.plan.node(first.place).body
        assert isinstance(body, Group)
        has_ended = self.accept(first)
        while not has_ended:
            self.play_all(place)
            if self.is_over:
                return
            channel = _channel(body.until, group_output(self.plan, self.state, place))
            has_ended = self.accept(judge(self.plan, self.state, place, channel))

    def accept(self, change: Change) -> bool:
        """Carry a change into the state; True if a node ended by it."""
        if isinstance(change, Settled):
            self.note(change)
        self.state = apply(self.state, change)
        return isinstance(change, Settled)

    def answer(self, task: Task) -> Change | None:
        """Answer a task with its stub, or for the person who is not there;
        None if the run waits.
        """
        body = task.node.body
        if isinstance(body, Approval):
            outputs, show = visible(self.state, task.place), partial(self.show_rework, task)
            if (rejected := self.rejections.of(task, body, outputs, show)) is not None:
                return rejected
        asks = isinstance(body, Approval) or (isinstance(body, Wait) and bool(body.attention))
        if self.pause_at_gates and (asks or _waits(task.node)):
            self.pause(task)
            return None
        if isinstance(body, Approval):
            return Settled(task.place, Output("completed", "approved"), "auto-approved", task.text)
        if isinstance(body, Call):
            error = "Dry-run does not execute reachable workflow nodes"
            return Settled(task.place, Output("failed", error=error), error)
        if task.node.id not in self.stubs:
            if isinstance(body, Wait):
                return Settled(task.place, completed(SATISFIED), _ASSUMED, task.text)
            return self.without_stub(task)
        self.used.add(task.node.id)
        return _given(task, self.stubs[task.node.id])

    def without_stub(self, task: Task) -> Change:
        """Run a node's code or make its output up, where that is wanted; else it fails."""
        node = task.node
        if self.run_code is not None and isinstance(node.body, Bash | Script) and not node.effects:
            change = receive(task, self.run_code(task, visible(self.state, task.place)))
            assert isinstance(change, Settled)
            return change if change.output.state == "failed" else replace(change, reason=_RAN)
        error = f"Missing reachable stub for node '{node.id}'"
        if self.made_up is not None:
            try:
                value = self.made_up(node)
            except NoPlaceholder as failure:
                error = str(failure)
            else:
                self.invented.add(node.id)
                return _given(task, value)
        self.missing.add(node.id)
        return receive(task, Output("failed", error=error))

    def show_rework(self, task: Task, key: str, reason: str, text: str) -> None:
        """Show the turn of an agent that works on a rejection."""
        self.add(Entry(key, "prompt", "completed", reason, self.iteration(task.place), text))

    def pause(self, task: Task) -> None:
        """Stop at a node where a person would be asked."""
        reason = (
            "approval gate"
            if isinstance(task.node.body, Approval)
            else "attention"
            if isinstance(task.node.body, Wait)
            else f"gate: {_gates(task.node)}"
        )
        self.add(
            Entry(
                task.node.id,
                task.node.body.mode,
                "paused",
                reason,
                self.iteration(task.place),
                task.text,
            )
        )
        self.is_paused = True

    def note(self, change: Settled) -> None:
        """Put the end of a node into the trace."""
        node, output = self.plan.node(change.place), change.output
        is_stub = output.state == "completed" and not (
            isinstance(node.body, Group | Approval | Cancel) or change.reason in (_RAN, _ASSUMED)
        )
        reason = change.reason or (
            f"gates assumed answered: {_gates(node)}" if is_stub and _waits(node) else None
        )
        text = output.text if output.state == "completed" else None
        state = "stubbed" if is_stub else output.state
        self.add(
            Entry(
                node.id,
                node.body.mode,
                state,
                reason,
                self.iteration(change.place),
                change.text,
                text,
            )
        )

    def add(self, entry: Entry) -> None:
        """Put an entry into the trace, which a group that goes on for long could make endless."""
        if len(self.trace) >= _LONGEST_TRACE:
            raise EndlessDryRun(
                f"The dry run was given up at node '{entry.id}' after {_LONGEST_TRACE} entries: do "
                "groups go on for so long?"
            )
        self.trace.append(entry)

    def iteration(self, place: Place) -> int | None:
        """Return the round, of the group around it, in which a node is played."""
        around = round_at(self.state, place[:-1]) if len(place) > 1 else None
        return around.number if around else None

    def result(self) -> DryRun:
        """Return the result of the dry run."""
        summary = first_said(self.plan, self.state.scope.outputs) or None
        unused = sorted(set(self.stubs) - self.used)
        return DryRun(
            self.outcome(),
            tuple(self.trace),
            summary,
            tuple(sorted(self.missing)),
            tuple(unused),
            tuple(sorted(self.invented)),
            self.rejections.unasked,
        )

    def outcome(self) -> RunState:
        """Return the state in which the run would end. It may complete without having done
        anything, unlike a real one.
        """
        if self.is_paused:
            return "paused"
        if self.state.cancelled is not None:
            return "cancelled"
        return (
            "failed"
            if any(output.state == "failed" for output in self.state.scope.outputs.values())
            else "completed"
        )


def _given(task: Task, value: JsonValue) -> Change:
    """Return the change that an output which is given makes."""
    body, output = task.node.body, completed(value, task.node.output_schema)
    channel = _channel(body.until, output) if isinstance(body, Loop) else None
    return _last_turns(task, receive(task, output, channel))


def _channel(until: Until, output: Output) -> Channel | None:
    """Return the channel that ends a loop: one that its output meets, else the check that a real
    run would make.
    """
    return until_met(until, output) or ("assumed" if until.bash is not None else None)


def _last_turns(task: Task, change: Change) -> Change:
    """Return a loop's next turn. A stub always answers the same, so all turns from the second on
    are the same: the last is enough.
    """
    if isinstance(change, NextRound) and task.round > 1 and isinstance(task.node.body, Loop):
        return replace(
            change, round=replace(change.round, number=task.node.body.until.max_iterations)
        )
    return change


def _gates(node: Node) -> str:
    """Return a node's gates in a few words."""
    return ", ".join(map(_gate, _waits(node)))


def _waits(node: Node) -> list[Gate]:
    """Return the gates at which a run waits in any case; an agent that may ask need not."""
    return [gate for gate in node.gates if gate.kind != "question"]


def _gate(gate: Gate) -> str:
    """One gate in a few words."""
    name = f" '{gate.name}'" if gate.name else ""
    return f"{gate.kind}{name}" + (f" after step {gate.after_step}" if gate.after_step else "")
