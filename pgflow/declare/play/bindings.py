"""Arguments of a node by name, resolved when it is about to run.

A text that is exactly one reference becomes the value itself, with its type; any other text is a
template. An argument that reads a skipped node may name a value to take instead; a failed node is
never replaced.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pydantic import JsonValue

from pgflow.declare.graph import Binding, Node, NodeId
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.outputs import (
    Output,
    Outputs,
    UnresolvableReference,
    did_you_mean,
    read_field,
    read_input,
    refuse_beyond,
)
from pgflow.declare.text.templates import Reference, Variables, references, resolve

_INPUT = re.compile(r"\$INPUTS\.([a-zA-Z_][a-zA-Z0-9_-]*)")


def bound(node: Node, variables: Variables, outputs: Outputs) -> Variables:
    """Return the variables of a node that has arguments: they are inputs, and win over the run's of
    the same name.

    Args:
        node: The node.
        variables: The run's variables.
        outputs: Outputs of the nodes so far.

    Raises:
        UnresolvableReference: If an argument has no value.
    """
    if not node.arguments:
        return variables
    return replace(
        variables, inputs={**(variables.inputs or {}), **arguments(node, variables, outputs)}
    )


def arguments(node: Node, variables: Variables, outputs: Outputs) -> dict[str, JsonValue]:
    """Return the arguments of a node by name.

    Raises:
        UnresolvableReference: If an argument has no value.
    """
    return {
        binding.name: _value(node.id, binding, variables, outputs) for binding in node.arguments
    }


def _value(node_id: NodeId, binding: Binding, variables: Variables, outputs: Outputs) -> JsonValue:
    """Return the value of one argument."""
    if binding.source is not None:
        return _from_source(node_id, binding, binding.source, outputs)
    return argument_value(binding.value, variables, outputs)


def argument_value(value: JsonValue, variables: Variables, outputs: Outputs) -> JsonValue:
    """Return the value of an argument written as ``value``: itself, the value it refers to, or the
    text of its template.

    Raises:
        UnresolvableReference: If a reference has no value.
    """
    if not isinstance(value, str):
        return value
    if whole := _INPUT.fullmatch(trim(value)):
        return read_input(variables.inputs, whole[1])
    if reference := _whole_reference(value):
        return _referred(reference, outputs)
    return resolve(value, variables, outputs).text


def _whole_reference(text: str) -> Reference | None:
    """Return the reference that a text is, if it is nothing else."""
    stripped = trim(text)
    found = next(references(stripped), None)
    return found if found and found.text == stripped else None


def _referred(reference: Reference, outputs: Outputs) -> JsonValue:
    """Return the value of a reference: a node's value if it gave one, else its text, or a field."""
    node_id = reference.node_id
    if reference.field is not None:
        return read_field(outputs, node_id, reference.field)
    output = outputs.get(node_id)
    if output is None:
        raise UnresolvableReference(
            f"Binding value '${node_id}.output' references node '{node_id}', but no node with that "
            "id has produced output at this "
            "point — the id is either unknown (a typo) or belongs to a node that has not run "
            "before this reference."
            f"{did_you_mean(outputs, node_id)} Fix the id, or add '{node_id}' to depends_on.",
            "unknown-node",
        )
    if output.state == "failed":
        raise UnresolvableReference(
            f"Binding value '${node_id}.output' references node '{node_id}', but it failed "
            f"({output.error}), so its output cannot be "
            "trusted. Fix the failure, or guard the referencing node with a 'when:' condition that "
            "excludes the failed branch.",
            "producer-failed",
        )
    refuse_beyond(output, node_id)
    return output.structured if output.has_structured else output.text


def _from_source(node_id: NodeId, binding: Binding, source: str, outputs: Outputs) -> JsonValue:
    """Return the value of an argument that names its source."""
    reference = _whole_reference(source)
    about = f"Node '{node_id}' binding '{binding.name}'"
    if reference is None:
        raise UnresolvableReference(
            f"{about}: 'from' must be exactly one whole '$node.output' or '$node.output.field' "
            f"reference, got '{source}'.",
            "no-reference",
        )
    producer = outputs.get(reference.node_id)
    if _did_not_run(producer):
        if binding.has_if_skipped:
            return binding.if_skipped
        raise UnresolvableReference(
            f"{about} reads '{source}', but node '{reference.node_id}' did not run (skipped or "
            "pending), so it has no output to read. "
            "Declare 'if_skipped:' on the binding to supply a default for that branch, or guard "
            f"'{node_id}' with a 'when:' condition.",
            "producer-not-run",
        )
    if producer is not None and producer.state == "failed":
        raise UnresolvableReference(
            f"{about} reads '{source}', but node '{reference.node_id}' failed ({producer.error}), "
            "so its output cannot be trusted. A binding never falls back to 'if_skipped' for a "
            f"failed producer — fix the failure, or guard '{node_id}' with a 'when:' condition "
            "that excludes the failed branch.",
            "producer-failed",
        )
    return _referred(reference, outputs)


def _did_not_run(output: Output | None) -> bool:
    """Return True if a node has not run, and perhaps never will."""
    return output is None or output.state in {"skipped", "pending"}
