"""Placeholders: made-up outputs of nodes for dry runs, the smallest that their schemas take.

A loop's placeholder ends the loop. Whether a placeholder fits its schema is for the caller's
validator to say (`Misfits`): rules such as a pattern are beyond what is made up here, and the node
needs a stub of its author's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, Final

from pydantic import JsonValue

from pgflow.declare.graph import Approval, Call, Cancel, Graph, Group, Loop, Node, Wait, every_node
from pgflow.declare.play.interpreter import until_met
from pgflow.declare.text.outputs import completed

Misfits = Callable[[JsonValue, JsonValue], str]
"""Says what a value lacks to fit a schema; nothing if it fits."""

WORD: Final = "TODO"
"""Placeholder for any text."""

_MOST_DEPTH: Final = 30


class NoPlaceholder(ValueError):
    """No output can be made up for a node; the message names it."""


def placeholder(node: Node, misfits: Misfits) -> JsonValue:
    """Make up the output of a node.

    Args:
        node: The node.
        misfits: Validator of schemas.

    Raises:
        NoPlaceholder: The value that is made up does not fit.
    """
    until = node.body.until if isinstance(node.body, Loop) else None
    signal, field = (None, None) if until is None else (until.signal, until.field)
    if node.output_schema is None:
        return {field: True} if field is not None and signal is None else signal or WORD
    value: JsonValue = _value(node.output_schema, node.output_schema, 0)
    if field is not None and isinstance(value, dict):
        value[field] = True
    if wrong := _why_not(node, value, misfits):
        raise NoPlaceholder(f"no placeholder fits node '{node.id}': {wrong}: give it a stub")
    return value


def scaffold(graph: Graph, misfits: Misfits) -> dict[str, JsonValue]:
    """Make up the outputs of all nodes of a workflow that take one, by their ids.

    Args:
        graph: The workflow.
        misfits: Validator of schemas.

    Raises:
        NoPlaceholder: A node has none, or two nodes of one id cannot share one.
    """
    by_id: dict[str, list[Node]] = {}
    for node in every_node(graph.nodes):
        if not isinstance(node.body, Approval | Cancel | Call | Group | Wait):
            by_id.setdefault(node.id, []).append(node)
    return {node_id: _shared(nodes, misfits) for node_id, nodes in by_id.items()}


def _shared(nodes: list[Node], misfits: Misfits) -> JsonValue:
    """Return the placeholder of nodes that have one id, since they are in different groups."""
    for value in (placeholder(node, misfits) for node in nodes):
        if not any(_why_not(node, value, misfits) for node in nodes):
            return value
    raise NoPlaceholder(f"no one placeholder fits all nodes that are called '{nodes[0].id}'")


def _why_not(node: Node, value: JsonValue, misfits: Misfits) -> str:
    """Return the reason why a value is not an output of a node; empty if it is."""
    if node.output_schema is not None and (wrong := misfits(value, node.output_schema)):
        return wrong
    until = node.body.until if isinstance(node.body, Loop) else None
    if until is None or until.bash is not None or until_met(until, completed(value)):
        return ""
    return "it would not end the loop"


# Schemas ------------------------------------------------------------------------------------------


def _value(schema: JsonValue, root: JsonValue, depth: int) -> Any:
    """Return the smallest value of a schema."""
    if not isinstance(schema, dict) or depth > _MOST_DEPTH:
        return WORD
    for known in _given(schema):
        return known
    if (inner := _inner(schema, root)) is not None:
        return _value(inner, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0] if kind else "string"
    match kind:
        case "object":
            return _object(schema, root, depth)
        case "array":
            few = schema.get("minItems")
            return [_value(schema.get("items"), root, depth + 1)] * (_whole(few) if few else 0)
        case "boolean":
            return False
        case "integer" | "number":
            return _number(schema, is_whole=kind == "integer")
        case "null":
            return None
        case _:
            return WORD.ljust(_whole(schema.get("minLength")), "T")[: _longest(schema)]


def _given(schema: dict[str, JsonValue]) -> Iterator[JsonValue]:
    """Yield the values that a schema names itself."""
    for name in ("const", "default"):
        if name in schema:
            yield schema[name]
    for name in ("enum", "examples"):
        if isinstance(listed := schema.get(name), list):
            yield from listed


def _inner(schema: dict[str, JsonValue], root: JsonValue) -> JsonValue:
    """Return the schema that another one refers to, or takes for one of several; None for
    neither.
    """
    if isinstance(reference := schema.get("$ref"), str):
        return _referred(reference, root)
    for name in ("anyOf", "oneOf"):
        if isinstance(several := schema.get(name), list) and several:
            return several[0]
    if isinstance(parts := schema.get("allOf"), list) and parts:
        return _joined([{**schema, "allOf": []}, *parts])
    return None


def _referred(reference: str, root: JsonValue) -> JsonValue:
    found = root
    for name in reference.removeprefix("#").split("/")[1:]:
        own = name.replace("~1", "/").replace("~0", "~")
        found = found.get(own) if isinstance(found, dict) else None
    return {} if found is None else found


def _joined(parts: list[JsonValue]) -> JsonValue:
    """One schema of objects that holds what several ask for."""
    whole: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, dict):
            properties = {**whole.get("properties", {}), **_mapping(part.get("properties"))}
            required = [*whole.get("required", []), *_names(part.get("required"))]
            whole = {**whole, **part, "required": required}
            if properties:
                whole["properties"] = properties
    whole.pop("allOf", None)
    return whole


def _object(schema: dict[str, JsonValue], root: JsonValue, depth: int) -> dict[str, Any]:
    properties = _mapping(schema.get("properties"))
    names = _names(schema.get("required"))
    return {name: _value(properties.get(name), root, depth + 1) for name in names}


def _number(schema: dict[str, JsonValue], *, is_whole: bool) -> Any:
    """Return the smallest number from 0 on that a schema takes, or its own least."""
    least = schema.get("minimum")
    if isinstance(above := schema.get("exclusiveMinimum"), int | float):
        least = above + 1
    if not isinstance(least, int | float):
        most = schema.get("maximum")
        least = most if isinstance(most, int | float) and most < 0 else 0
    return ceil(least) if is_whole else least


def _mapping(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _names(value: JsonValue) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _whole(value: JsonValue) -> int:
    """Return a count of a schema, within reason."""
    return max(0, min(value, 1000)) if isinstance(value, int) else 0


def _longest(schema: dict[str, JsonValue]) -> int | None:
    most = schema.get("maxLength")
    return most if isinstance(most, int) and most >= 0 else None
