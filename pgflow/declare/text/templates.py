"""The ``$`` of texts: variables of the run (``$ARGUMENTS``), outputs of nodes
(``$node.output.field``), inputs (``$INPUTS.name``).

A text is read once, from left to right, and inserted values are never read again: neither a
person's message nor a node's output can bring in references of its own. A name has no escape, and
no boundary at its right: ``$ARGUMENTS_X`` is the message and "_X", ``$a.outputs`` is the output and
an "s", and ``${ARGUMENTS}`` is not a reference at all.

Where a text becomes a program, words of a person never become part of it. In shell and script texts
the variables that carry such words stay as they are, and are set as environment variables of the
same names (`environment`). Outputs of nodes are put in as the original puts them in, for a shell as
quoted words. That is how a script is shown. Between a script's own double quotes a quoted word does
not protect, so code that runs a script passes outputs in its environment as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from pgflow.declare.text.javascript import number_text
from pgflow.declare.text.outputs import (
    Inputs,
    Outputs,
    UnresolvableReference,
    has_left,
    read_field,
    read_input,
    refuse_beyond,
    unknown_node,
    value_text,
)
from pgflow.declare.text.tags import without_tags

Surface = Literal["prompt", "tagged", "bash", "script"]
"""Use of a text: something to be read (perhaps with values between tags), or a program."""

_NAME = "[a-zA-Z_][a-zA-Z0-9_-]*"
_FIELD = "[a-zA-Z_][a-zA-Z0-9_]*"
_CONTEXT = r"(?P<context>(?:CONTEXT|EXTERNAL_CONTEXT|ISSUE_CONTEXT)(?![A-Za-z0-9_]))"
_OF_THE_RUN = "WORKFLOW_ID|ARTIFACTS_DIR|STATE_DIR|BASE_BRANCH|DOCS_DIR"
_OF_PEOPLE = "USER_MESSAGE|ARGUMENTS|LOOP_USER_INPUT|REJECTION_REASON|LOOP_PREV_OUTPUT"
_OUTPUTS = (
    rf"LOOP_PREV\.(?P<previous>{_NAME})\.output(?:\.(?P<previous_field>{_FIELD}))?"
    rf"|(?P<node>{_NAME})\.output(?:\.(?P<field>{_FIELD}))?"
)
_REFERENCE = re.compile(rf"\$({_NAME})\.output(?:\.({_FIELD}))?")
_INPUT = re.compile(rf"\$INPUTS\.({_NAME})")
_MENTIONS_CONTEXT = re.compile(rf"\${_CONTEXT}")
_IN_PROMPTS = re.compile(
    rf"\$(?:(?P<variable>{_OF_THE_RUN}|{_OF_PEOPLE})|INPUTS\.(?P<input>{_NAME})|{_CONTEXT}|{_OUTPUTS})"
)
_BETWEEN_TAGS = re.compile(rf"{_IN_PROMPTS.pattern}|\$INPUTS\{{(?P<braced>[^{{}}\n]+)\}}")
_AFTER_VARIABLES = re.compile(rf"\$(?:INPUTS\.(?P<input>{_NAME})|{_CONTEXT}|{_OUTPUTS})")
_IN_PROGRAMS = re.compile(rf"\$(?:(?P<variable>{_OF_THE_RUN})|{_OUTPUTS})")

_PATTERNS: dict[Surface, re.Pattern[str]] = {
    "prompt": _IN_PROMPTS,
    "tagged": _BETWEEN_TAGS,
    "bash": _IN_PROGRAMS,
    "script": _IN_PROGRAMS,
}

SPILL_LENGTH = 32_768
"""Values longer than this (in UTF-16 code units) are handed to a shell in a file."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One mention of a node's output in a text: ``text[start:end]``."""

    node_id: str
    field: str | None
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Previous:
    """Outputs of a group's nodes in the round before.

    Args:
        outputs: Their outputs; empty in the first round.
        direct: The ids of the group's own nodes.
        known: The ids of these and of all nodes in groups within.
    """

    outputs: Outputs
    direct: frozenset[str]
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variables:
    """Values of the variables.

    Args:
        workflow_id: ``$WORKFLOW_ID``, the run's id.
        message: ``$ARGUMENTS`` and ``$USER_MESSAGE``, the message of the person who started it.
        artifacts_dir: ``$ARTIFACTS_DIR``.
        state_dir: ``$STATE_DIR``; a text that mentions it fails if it is empty.
        base_branch: ``$BASE_BRANCH``; a text that mentions it fails if it is empty.
        docs_dir: ``$DOCS_DIR``.
        context: ``$CONTEXT``, the issue that the run is about.
        user_input: ``$LOOP_USER_INPUT``, a person's answer to a loop's last turn.
        rejection_reason: ``$REJECTION_REASON``.
        previous_output: ``$LOOP_PREV_OUTPUT``, the output of a loop's last turn.
        inputs: ``$INPUTS.name``.
        previous: ``$LOOP_PREV.node.output``; outside of groups these mentions stay as they are.
        rereads: True if words of people are read again for the variables that come after them. The
            original does so, and its texts are shown like this; texts that run never are.
    """

    workflow_id: str
    message: str
    artifacts_dir: str
    state_dir: str
    base_branch: str
    docs_dir: str = "docs/"
    context: str = ""
    user_input: str = ""
    rejection_reason: str = ""
    previous_output: str = ""
    inputs: Inputs | None = None
    previous: Previous | None = None
    rereads: bool = False


@dataclass(frozen=True, slots=True)
class Spill:
    """A value that must be written to a file before the text is run that reads it from there."""

    path: str
    value: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A text whose references are replaced, and the files that it reads."""

    text: str
    spills: tuple[Spill, ...] = ()


def references(text: str) -> Iterator[Reference]:
    """Yield every mention of a node's output, from left to right.

    Args:
        text: A template: a prompt, a script, a message.

    Returns:
        The references, those that the previous round of a group is asked for left out.
    """
    for found in _REFERENCE.finditer(text):
        yield Reference(found[1], found[2], found.start(), found.end(), found[0])


def input_reference(name: str) -> str:
    """Return the placeholder of an input in a tagged text. The name may be any text."""
    return f"$INPUTS.{name}" if re.fullmatch(_NAME, name) else f"$INPUTS{{{name}}}"


def program_references(text: str) -> Iterator[tuple[int, int]]:
    """Yield every mention in a shell script or a program that is replaced before it runs.

    Args:
        text: A script.

    Returns:
        Start and end of each, from left to right: outputs of nodes, also of the round before, and
        variables of the run.
    """
    for found in _IN_PROGRAMS.finditer(text):
        yield found.span()


def value_references(text: str) -> Iterator[tuple[int, int]]:
    """Yield the same without the run's own variables: outputs of agents and programs."""
    for found in _IN_PROGRAMS.finditer(text):
        if found["variable"] is None:
            yield found.span()


def resolve(
    text: str,
    variables: Variables,
    outputs: Outputs,
    surface: Surface = "prompt",
    spill_dir: str | None = None,
) -> Resolved:
    """Replace the references of a text by their values.

    Args:
        text: The template.
        variables: The run's variables and inputs.
        outputs: Outputs of the nodes so far.
        surface: Use of the text: something to be read, a shell script, or a program. Values in a
            ``tagged`` text cannot end the tags around them.
        spill_dir: Folder for long values for a shell; without it they are quoted, however long they
            are.

    Returns:
        The text, and the files that must be written before it is run.

    Raises:
        UnresolvableReference: A reference has no value.
    """
    _refuse_missing(text, variables, surface)
    spills: list[Spill] = []
    written = _writer(surface, spill_dir, spills)
    pattern = _PATTERNS[surface]
    if variables.rereads and surface == "prompt":
        text, pattern = _one_by_one(text, variables), _AFTER_VARIABLES
    inert = without_tags if surface == "tagged" else str
    resolved = pattern.sub(
        lambda found: inert(_replacement(found, variables, outputs, written)), text
    )
    return Resolved(resolved, tuple(spills))


def takes_context(text: str, variables: Variables) -> bool:
    """Return True if the text has a place for the context. If not,
    it is put after a prompt (`with_context`).
    """
    return bool(variables.context) and _MENTIONS_CONTEXT.search(text) is not None


def with_context(text: str, template: str, variables: Variables) -> str:
    """Return a resolved prompt with the context after it, unless its template has a place for the
    context.
    """
    if not variables.context or takes_context(template, variables):
        return text
    return f"{text}\n\n---\n\n{variables.context}"


def environment(variables: Variables) -> dict[str, str]:
    """Return the environment variables through which a shell or a script gets what must not become
    part of its text.
    """
    given = {
        name: _VARIABLES[name](variables)
        for name in (*_OF_THE_RUN.split("|"), *_OF_PEOPLE.split("|"))
    }
    contexts = dict.fromkeys(("CONTEXT", "EXTERNAL_CONTEXT", "ISSUE_CONTEXT"), variables.context)
    return (
        given
        | contexts
        | {
            environment_name(name): value_text(value)
            for name, value in (variables.inputs or {}).items()
        }
    )


def environment_name(name: str) -> str:
    """Return the environment variable that carries the input of that name."""
    return f"INPUTS_{name.upper().replace('-', '_')}"


_VARIABLES: dict[str, Callable[[Variables], str]] = {
    "WORKFLOW_ID": lambda values: values.workflow_id,
    "ARTIFACTS_DIR": lambda values: values.artifacts_dir,
    "STATE_DIR": lambda values: values.state_dir,
    "BASE_BRANCH": lambda values: values.base_branch,
    "DOCS_DIR": lambda values: values.docs_dir or "docs/",
    "USER_MESSAGE": lambda values: values.message,
    "ARGUMENTS": lambda values: values.message,
    "LOOP_USER_INPUT": lambda values: values.user_input,
    "REJECTION_REASON": lambda values: values.rejection_reason,
    "LOOP_PREV_OUTPUT": lambda values: values.previous_output,
}

_Writer = Callable[[JsonValue, str, str | None], str]
"""Writes a value into the text: the value, the node that gave it, and which of its fields it is."""


def _refuse_missing(text: str, variables: Variables, surface: Surface) -> None:
    """Refuse a text that mentions what this run does not have, before anything else that may be
    wrong with it.
    """
    if not variables.base_branch and "$BASE_BRANCH" in text:
        raise UnresolvableReference(
            "No base branch could be resolved. Auto-detection failed and `worktree.baseBranch` is "
            "not set in .archon/config.yaml. "
            "Set the config value or use the --from flag to select a branch (e.g., --from dev).",
            "no-base-branch",
        )
    if not variables.state_dir and "$STATE_DIR" in text:
        raise UnresolvableReference(
            "$STATE_DIR is referenced but no state directory was resolved for this run. $STATE_DIR "
            "is only available inside a "
            "workflow run; if you are seeing this from a workflow node, please report it as a bug.",
            "no-state-dir",
        )
    if surface in ("prompt", "tagged"):
        for found in _INPUT.finditer(text):
            read_input(variables.inputs, found[1])


def _one_by_one(text: str, variables: Variables) -> str:
    """Return the text with one variable replaced after the other, so that a later one is found in
    what an earlier one brought in.
    """
    for name, value in _VARIABLES.items():
        text = text.replace(f"${name}", value(variables))
    return text


def _replacement(
    found: re.Match[str], variables: Variables, outputs: Outputs, written: _Writer
) -> str:
    """Return the text in the place of one reference."""
    parts = found.groupdict()
    if parts.get("variable"):
        return _VARIABLES[parts["variable"]](variables)
    if name := parts.get("input") or parts.get("braced"):
        return value_text(read_input(variables.inputs, name))
    if parts.get("context"):
        return variables.context
    if parts["previous"]:
        return _previous(found, variables.previous, written)
    return _output(outputs, parts["node"], parts["field"], written)


def _output(outputs: Outputs, node_id: str, field: str | None, written: _Writer) -> str:
    """Return the output of a node, or a field of it. A node of which nothing is known reads as
    empty, as in the original.
    """
    if field is not None:
        return written(read_field(outputs, node_id, field), node_id, field)
    output = outputs.get(node_id)
    if output is not None and output.state == "failed":
        raise UnresolvableReference(
            f"'${node_id}.output' references node '{node_id}', but it failed ({output.error}), so "
            "its output cannot be spliced into "
            "this node's prompt/script — a failed producer's stale output is never trusted. Fix "
            "the failure, or guard this node "
            "with a 'when:' condition that excludes the failed branch.",
            "producer-failed",
        )
    refuse_beyond(output, node_id)
    return written(output.text if output else "", node_id, None)


def _previous(found: re.Match[str], previous: Previous | None, written: _Writer) -> str:
    """Return the output of a node of the group in the round before.

    Nothing in the first round. What belongs to a group within is left for that group's own rounds.
    """
    if previous is None:
        return found[0]
    node_id, field = found["previous"], found["previous_field"]
    if has_left(previous.outputs.get(node_id)):
        return _output(previous.outputs, node_id, field, written)
    if node_id in previous.known and node_id not in previous.direct:
        return found[0]
    if field is not None and node_id not in previous.known:
        raise unknown_node(previous.known, node_id, field)
    return written("", node_id, None)


def _writer(surface: Surface, spill_dir: str | None, spills: list[Spill]) -> _Writer:
    """Return the writer of values on a surface: quoted for a shell, as their text elsewhere."""
    if surface != "bash":
        return lambda value, _node_id, _field: _plain(value)

    def quoted(value: JsonValue, node_id: str, field: str | None) -> str:
        text = _plain(value)
        if isinstance(value, int | float):
            return text
        if spill_dir is None or _utf16_length(text) <= SPILL_LENGTH:
            return shell_quoted(text)
        spills.append(
            Spill(f"{spill_dir}/{node_id}{f'.{field}' if field else ''}.nodeoutput", text)
        )
        return f"$(cat {shell_quoted(spills[-1].path)})"

    return quoted


def _plain(value: JsonValue) -> str:
    """Return a value as text. JSON reads 1e999 as a number, which it cannot write."""
    return number_text(value) if isinstance(value, float) else value_text(value)


def shell_quoted(text: str) -> str:
    """Return a text as one word of a shell script."""
    return "'" + text.replace("'", r"'\''") + "'"


def _utf16_length(text: str) -> int:
    """Return the length of a text as JavaScript counts it."""
    return len(text) + sum(character > "\uffff" for character in text)
