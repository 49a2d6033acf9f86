"""One graph for every family of declared workflows, to which front ends compile and which runs.

A front end (`pgflow.declare.dag`, `pgflow.declare.sop`, `pgflow.declare.icm`) reads files in their
originals' own terms and returns a `Graph`. Drawing, the dry run and the durable interpreter do not
depend on the family: they see nodes, the edges and conditions between them, what they read and
write, which acts touch the outside world, and where a person is asked. Only a durable run looks at
``family``, to choose its player.

Texts keep their templates (``$node.output``, ``$ARGUMENTS``, ``$INPUTS.name``): they are resolved
when a node is about to run, by `pgflow.declare.text.templates`. Durations are in milliseconds where
the originals use milliseconds; the unit is in the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

NodeId = str
Family = Literal["dag", "sop", "icm"]
TriggerRule = Literal["all_success", "one_success", "none_failed_min_one_success", "all_done"]
Operator = Literal["==", "!=", "<=", ">=", "<", ">"]
Risk = Literal["reversible", "compensable", "irreversible"]


class Part(BaseModel):
    """Base of all parts of a graph: immutable, and without unknown keys. Most files have few kinds
    of parts, so the validator of each is built for the first one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Position(Part):
    """Place in the source. Lines and columns count from 1."""

    file: str
    line: int
    column: int = 1


# What flows between the nodes ---------------------------------------------------------------------


class Input(Part):
    """An input of the workflow. A required one without a default is asked for if it is not given.

    One that is neither required nor has a default has no value if it is not given, and a text that
    mentions it fails. Where such an input reads as empty in its original's terms, its default is
    the empty text. A default that ``is_template`` names other inputs in braces.
    """

    name: str
    required: bool = False
    default: JsonValue = None
    has_default: bool = False
    is_template: bool = False
    description: str = ""
    position: Position | None = None


class Artifact(Part):
    """Something named that nodes read and write: a file, a message from outside, or a value in the
    run's state.
    """

    name: str
    kind: Literal["file", "signal", "value"] = "file"
    location: str | None = None
    written_by: NodeId | None = None
    optional: bool = False
    json_schema: JsonValue = None
    position: Position | None = None


class Use(Part):
    """Something that a node reads or writes: a declared artifact's name, or a path in the
    original's own spelling.

    ``label`` is what the original calls it; ``scope`` is which part of it is read, or the form in
    which it is written.
    """

    artifact: str | None = None
    location: str | None = None
    label: str = ""
    scope: str = ""
    why: str = ""
    optional: bool = False
    position: Position | None = None


class Binding(Part):
    """An argument given to a node by name: a value, or what ``source`` refers to when the node is
    about to run.
    """

    name: str
    value: JsonValue = None
    source: str | None = None
    if_skipped: JsonValue = None
    has_if_skipped: bool = False


# What may happen to a node ------------------------------------------------------------------------


class Retry(Part):
    """Number of tries after a node's first attempt failed, and the wait before the first:
    ``delay_ms`` doubles each time.
    """

    max_retries: int
    delay_ms: int = 3000
    on_error: Literal["transient", "all"] = "transient"


class Effect(Part):
    """An act on another system. ``idempotency_key`` is a path into the state
    (``delivery_target.folder_path``), a text in quotes, or a text with paths in braces
    (``weekly-{run.key}``).
    """

    system: str
    idempotency_key: str | None = None
    compensation: str | None = None
    risk: Risk | None = None
    description: str = ""
    position: Position | None = None


class Gate(Part):
    """A point where the run waits for a person or a message.

    Kinds: ``request`` (the node runs only if someone asks for it), ``interrupt`` (someone lets it
    go on), ``checkpoint`` (inside a node: after step ``after_step`` the agent presents and a person
    decides), ``review`` (what was made is accepted or sent back), ``input`` (a missing parameter is
    given), ``signal`` (a message of that name arrives), ``question`` (inside a node: the agent may
    ask, and goes on with the answer).
    """

    kind: Literal["request", "interrupt", "checkpoint", "review", "input", "signal", "question"]
    at: Literal["before", "inside", "after"]
    name: str = ""
    presents: str = ""
    decides: str = ""
    after_step: str | None = None
    position: Position | None = None


class Pause(Part):
    """Times of a node before its work: it waits for ``until`` (as in ``seven days`` or ``tomorrow
    morning``), and then at most ``deadline_ms`` for its messages. Without them it fails, or is
    skipped.
    """

    until: str | None = None
    deadline_ms: float | None = None
    skips: bool = False


class Check(Part):
    """Something that must hold of what a node made."""

    check: str
    passes_if: str = ""
    position: Position | None = None


class Constraint(Part):
    """One rule for the work, with its RFC 2119 level; ``None`` if the line names none.

    ``scope`` names its subject, if that is not this work as a whole: a substep's number,
    ``parameters``, or the title of a section that applies to every step.
    """

    level: Literal["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"] | None
    text: str
    because: str = ""
    scope: str = ""
    position: Position | None = None


class Substep(Part):
    """A numbered part of the work that a node does in one turn."""

    number: str
    title: str = ""
    position: Position | None = None


class Budget(Part):
    """Limit on the cost of a node."""

    max_usd: float | None = None


class Compensation(Part):
    """Compensation of a node: an instruction in the original's words, or the name of something that
    does it.
    """

    name: str
    description: str = ""
    position: Position | None = None


# Conditions ---------------------------------------------------------------------------------------


class Atom(Part):
    """One comparison: a reference (``$node.output``, ``$node.output.field``, ``$INPUTS.name``), an
    operator, a literal.
    """

    kind: Literal["atom"] = "atom"
    reference: str
    operator: Operator
    literal: str
    is_quoted: bool = False


class Unparsed(Part):
    """A part of a condition that is not a comparison. If it is evaluated, its node fails closed."""

    kind: Literal["unparsed"] = "unparsed"
    text: str


class Condition(Part):
    """Alternatives (``||``) of parts that must all hold (``&&``), looked at from left to right and
    no further than needed.
    """

    text: str
    any_of: tuple[tuple[Annotated[Atom | Unparsed, Field(discriminator="kind")], ...], ...]
    position: Position | None = None


# What a node does ---------------------------------------------------------------------------------


class Prompt(Part):
    """A turn of an agent with the prompt ``text``. A ``literal`` text is prose in which ``$`` means
    nothing. In a ``tagged`` one the values are between tags, which they cannot end.
    """

    mode: Literal["prompt"] = "prompt"
    text: str
    literal: bool = False
    tagged: bool = False
    constraints: tuple[Constraint, ...] = ()
    substeps: tuple[Substep, ...] = ()


class Command(Part):
    """A turn of an agent whose text is a file of that name, found when the node runs."""

    mode: Literal["command"] = "command"
    name: str


class Bash(Part):
    """A shell script. Values reach it as quoted words or environment variables, never as text
    spliced into it.
    """

    mode: Literal["bash"] = "bash"
    script: str


class Script(Part):
    """A program for ``runtime``: its text, or the name of a file of scripts."""

    mode: Literal["script"] = "script"
    script: str
    runtime: Literal["bun", "uv"]
    inline: bool
    dependencies: tuple[str, ...] = ()


class Until(Part):
    """End of a loop. At least one channel is given; ``max_iterations`` bounds it in any case."""

    max_iterations: int
    signal: str | None = None
    bash: str | None = None
    field: str | None = None


class Loop(Part):
    """A turn of an agent, taken again until it says that it is done."""

    mode: Literal["loop"] = "loop"
    text: str | None = None
    command: str | None = None
    until: Until
    fresh_context: bool = False
    interactive: bool = False
    gate_message: str | None = None
    signal_completes: bool = False


class Decision(Part):
    """An answer that an approval may get."""

    id: str
    label: str = ""


class Rework(Part):
    """Rework after a person rejects, and the number of attempts before the answer is final."""

    text: str
    max_attempts: int = 3


class Approval(Part):
    """A person is asked. The answer is the node's output where ``capture_response`` or
    ``decisions`` say so.
    """

    mode: Literal["approval"] = "approval"
    message: str
    capture_response: bool = False
    on_reject: Rework | None = None
    decisions: tuple[Decision, ...] = ()


class Cancel(Part):
    """Ends the run as cancelled, with a reason."""

    mode: Literal["cancel"] = "cancel"
    reason: str


class Wait(Part):
    """Waits, while nothing is at work: for a time, an event or a person. One of ``duration_ms``,
    ``until``, ``event`` and ``attention`` is given; an event has a ``deadline_ms``.
    """

    mode: Literal["wait"] = "wait"
    duration_ms: float | None = None
    until: str | None = None
    event: str | None = None
    deadline_ms: float | None = None
    attention: str | None = None


class Group(Part):
    """Nodes that are run together, again until they are done. Their ids are their own; references
    may look outward.
    """

    mode: Literal["loop_group"] = "loop_group"
    until: Until
    nodes: tuple[Node, ...]
    fresh_context: bool = False
    interactive: bool = False
    gate_message: str | None = None
    signal_completes: bool = False


class FanOut(Part):
    """One child run for each item of a list."""

    items: str
    item_name: str = "item"
    max_parallel: int = 5
    join: Literal["all_done", "all_success"] = "all_done"


class Call(Part):
    """A child run of another workflow, or one for each of many items. One of a block is part of
    its parent's run: it reads the same message, and keeps its artifacts there.
    """

    mode: Literal["workflow"] = "workflow"
    name: str
    message: str | None = None
    isolation: Literal["inherit", "worktree"] | None = None
    fan_out: FanOut | None = None
    is_block: bool = False


Body = Annotated[
    Prompt | Command | Bash | Script | Loop | Approval | Cancel | Wait | Group | Call,
    Field(discriminator="mode"),
]


class Node(Part):
    """One piece of work and what must hold before, around and after it."""

    id: NodeId
    body: Body
    title: str = ""
    description: str = ""
    depends_on: tuple[NodeId, ...] = ()
    trigger_rule: TriggerRule = "all_success"
    when: Condition | None = None
    retry: Retry | None = None
    timeout_ms: float | None = None
    skips_when_late: bool = False
    keeps_checkout: bool = False
    pause: Pause | None = None
    idle_timeout_ms: float | None = None
    always_run: bool = False
    output_schema: JsonValue = None
    output_type: str | None = None
    arguments: tuple[Binding, ...] = ()
    reads: tuple[Use, ...] = ()
    writes: tuple[Use, ...] = ()
    effects: tuple[Effect, ...] = ()
    gates: tuple[Gate, ...] = ()
    checks: tuple[Check, ...] = ()
    compensations: tuple[Compensation, ...] = ()
    budget: Budget | None = None
    agent: dict[str, JsonValue] = Field(default_factory=dict)
    position: Position | None = None


class Graph(Part):
    """A workflow: its nodes in the order of their declaration, and options for all of them.

    ``returns`` names the node whose output is the run's; without it, it is the first sink that
    completed with a text. ``options`` are the original's for the run as a whole (provider, model,
    worktree, tags, ...), for the code that runs it. ``family`` is that of its files.
    """

    name: str
    family: Family = "dag"
    description: str = ""
    version: str | None = None
    inputs: tuple[Input, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    nodes: tuple[Node, ...]
    returns: NodeId | None = None
    outcome_field: str | None = None
    interactive: bool = False
    options: dict[str, JsonValue] = Field(default_factory=dict)
    files: tuple[str, ...] = ()

    def node(self, node_id: NodeId) -> Node:
        """Return the node of that id at the top level.

        Raises:
            KeyError: It does not exist.
        """
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)


def every_node(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Yield the nodes and, after each group, those inside it."""
    for node in nodes:
        yield node
        if isinstance(node.body, Group):
            yield from every_node(node.body.nodes)
