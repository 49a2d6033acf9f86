"""Outputs of nodes, and reading them: a whole output, one field of it, or an input of the run.

Nothing is dropped silently. A reference to a missing field, to a node that did not run, or to one
that failed, cannot be resolved: it fails the node that wanted to read it, with a message on how to
fix it. Only two things read as empty: a field that the node's schema declares but does not require,
and the whole output of a node that left none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from pgflow.declare.graph import NodeId
from pgflow.declare.text.javascript import WHITE_SPACE, json_text, parse_json
from pgflow.declare.text.spelling import similar
from pgflow.texts import without_secrets

NodeState = Literal["pending", "running", "completed", "failed", "skipped"]

_FENCE = "```"
_OPENING = re.compile(rf"```(?:json)?[{WHITE_SPACE}]*\n")


@dataclass(frozen=True, slots=True)
class Beyond:
    """File with all of an output that is too long for a reference."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Output:
    """State and output of a node.

    Args:
        state: State of the node.
        text: Its output as text; empty unless it completed.
        structured: Its output as a value, if ``has_structured``.
        has_structured: True if it gave a value and not only text.
        declared: The fields that its schema names; None if it has no schema of an object.
        error: Reason of the failure.
        beyond: File with all of it, of which the text is the beginning; None if that is all.
    """

    state: NodeState
    text: str = ""
    structured: JsonValue = None
    has_structured: bool = False
    declared: tuple[str, ...] | None = None
    error: str = ""
    beyond: Beyond | None = None

    def __post_init__(self) -> None:
        if self.error:
            object.__setattr__(self, "error", without_secrets(self.error))


Outputs = Mapping[NodeId, Output]
Inputs = Mapping[str, JsonValue]


class UnresolvableReference(Exception):
    """A reference whose value cannot be had. The node that reads it fails.

    Args:
        message: The trouble, and the remedy.
        reason: A word for programs: ``unknown-node``, ``producer-failed``, ``producer-not-run``,
            ``not-in-schema``, ``missing-key``, ``unparseable``, ``array-aggregate``,
            ``unknown-input``, ``too-long``.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def has_left(output: Output | None) -> bool:
    """Return True if a node has something to show for a round."""
    return output is not None and output.state not in {"skipped", "pending"}


def refuse_beyond(output: Output | None, node_id: NodeId) -> None:
    """Refuse to read an output of which only the beginning is at hand.

    Raises:
        UnresolvableReference: It is one.
    """
    if output is not None and (beyond := output.beyond) is not None:
        raise UnresolvableReference(
            f"'${node_id}.output' has {beyond.size} bytes, which is too long for a reference. Read "
            f"the file {beyond.path} instead, or have node '{node_id}' print less.",
            "too-long",
        )


def completed(value: JsonValue, schema: JsonValue = None) -> Output:
    """Return the output of a node that did its work.

    Args:
        value: Its output: text, or any other value, which is kept beside its JSON text.
        schema: The JSON schema that the node declares.
    """
    declared = declared_fields(schema)
    if isinstance(value, str):
        return Output("completed", value, declared=declared)
    return Output(
        "completed", json_text(value), structured=value, has_structured=True, declared=declared
    )


def declared_fields(schema: JsonValue) -> tuple[str, ...] | None:
    """Return the names of the properties of an object's schema; None if it is not the schema of an
    object.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return tuple(properties) if isinstance(properties, dict) else None


def value_text(value: JsonValue) -> str:
    """Return a value as text: strings as they are, everything else as compact JSON."""
    return value if isinstance(value, str) else json_text(value)


def read_field(outputs: Outputs, node_id: NodeId, field: str) -> JsonValue:
    """Return the value of ``$node.output.field``; empty text where a declared field has none.

    Args:
        outputs: Outputs of the nodes, in the order of their ends.
        node_id: Node of the output.
        field: Name of the field.

    Raises:
        UnresolvableReference: The value cannot be determined.
    """
    output = outputs.get(node_id)
    if output is None:
        raise unknown_node(outputs, node_id, field)
    if output.state in {"skipped", "pending"}:
        raise _unreadable(node_id, field, "producer-not-run")
    if output.state == "failed":
        raise _unreadable(node_id, field, "producer-failed")
    refuse_beyond(output, node_id)
    if output.declared is not None:
        return _declared_field(output, node_id, field)
    if isinstance(output.structured, dict):
        return output.structured.get(field, "")
    fields = _object_in(output.text)
    if fields is None:
        raise _unreadable(node_id, field, _why_no_object(output.text))
    if field not in fields:
        raise _unreadable(node_id, field, "missing-key")
    return fields[field]


def _declared_field(output: Output, node_id: NodeId, field: str) -> JsonValue:
    """Return the value of a field of a node whose schema declares its fields."""
    if field not in (output.declared or ()):
        raise _unreadable(node_id, field, "not-in-schema")
    fields = output.structured if isinstance(output.structured, dict) else _object_in(output.text)
    if fields is None:
        raise _unreadable(node_id, field, _why_no_object(output.text))
    value = fields.get(field)
    return "" if value is None else value


def read_input(inputs: Inputs | None, name: str) -> JsonValue:
    """Return the value of ``$INPUTS.name``.

    Raises:
        UnresolvableReference: If the run has no such input.
    """
    if inputs and name in inputs:
        return inputs[name]
    known = list(inputs or ())
    if meant := similar(name, known):
        hint = f" Did you mean {', '.join(f'$INPUTS.{other}' for other in meant)}?"
    elif known:
        hint = f" Available inputs: {', '.join(f'$INPUTS.{other}' for other in known)}."
    else:
        hint = " This run has no declared inputs."
    raise UnresolvableReference(f"Unknown input '$INPUTS.{name}'.{hint}", "unknown-input")


def _object_in(text: str) -> dict[str, JsonValue] | None:
    """Return the JSON object in a text, as a whole or in its first fence of code."""
    try:
        value = parse_json(fenced(text) or text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def fenced(text: str) -> str:
    """Return the content of the first fence that is closed on a line of its own;
    empty if there is none.
    """
    opening = _OPENING.search(text)
    if opening is None:
        return ""
    start = opening.end()
    end = text.find(_FENCE, start)
    while end >= 0:
        content = end
        while content > start and text[content - 1] in WHITE_SPACE:
            content -= 1
        if "\n" in text[content:end]:
            return text[start:content]
        end = text.find(_FENCE, end + 1)
    return ""


def _why_no_object(text: str) -> str:
    """Return the reason why a text has no fields: it is a JSON list, or not JSON at all."""
    try:
        return "array-aggregate" if isinstance(parse_json(text), list) else "unparseable"
    except ValueError:
        return "unparseable"


_WHY = {
    "not-in-schema": (
        "which is not declared in node '{node}'s output_format schema. Add '{field}' to the schema "
        "(and mark it optional if it can be absent), or fix the reference."
    ),
    "unparseable": (
        "but node '{node}'s output is not a JSON object, so the field cannot be read. "
        "Emit JSON containing '{field}', or reference '${node}.output' (whole text) instead."
    ),
    "array-aggregate": (
        "but node '{node}' is a fan-out and its output is a JSON ARRAY of per-child results (each "
        "element the child's result value, single-encoded — never a JSON string to parse again), "
        "not an object — there is no '{field}' on it and no producer prompt to change, because the "
        "array shape is fixed by the engine. Reference '${node}.output' (the whole array) and read "
        "it in a script node, which is also where a failed child's marker ({{ archon_failed: true, "
        "error, status }}) can be handled. See the fan_out docs."
    ),
    "missing-key": "but node '{node}'s JSON output has no such key. Emit '{field}' in the output, "
    "or fix the reference.",
    "producer-not-run": (
        "but node '{node}' did not run (skipped or pending), so it has no output to read. "
        "Guard this reference with a 'when:' condition, or fix the dependency."
    ),
    "producer-failed": (
        "but node '{node}' failed, so its output cannot be trusted. Guard this reference with a "
        "'when:' condition, or fix the failure."
    ),
}


def _unreadable(node_id: NodeId, field: str, reason: str) -> UnresolvableReference:
    """Return the error for a known node whose field cannot be read."""
    why = _WHY[reason].format(node=node_id, field=field)
    return UnresolvableReference(
        f"'${node_id}.output.{field}' references field '{field}', {why}", reason
    )


def unknown_node(known: Iterable[NodeId], node_id: NodeId, field: str) -> UnresolvableReference:
    """Return the error for a field of a node that has left nothing so far.

    Args:
        known: The ids of those that could be meant.
        node_id: The id that was written.
        field: The field.
    """
    return UnresolvableReference(
        f"'${node_id}.output.{field}' references node '{node_id}', but no node with that id has "
        "produced output at this point — "
        "the id is either unknown (a typo) or belongs to a node that has not run before this "
        "reference."
        f"{did_you_mean(known, node_id)} Fix the id, or ensure '{node_id}' runs first (e.g. add it "
        "to depends_on).",
        "unknown-node",
    )


def did_you_mean(known: Iterable[NodeId], node_id: NodeId) -> str:
    """Return a sentence that names the nodes whose ids are near, or nothing."""
    near = ", ".join(f"'{other}'" for other in similar(node_id, known))
    return f" Did you mean: {near}?" if near else ""
