"""Child runs: what each is started with,
and what comes of those for the items of a list together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from pgflow.declare.graph import Call, FanOut, Node
from pgflow.declare.play.bindings import arguments
from pgflow.declare.text.javascript import json_text, parse_json
from pgflow.declare.text.outputs import (
    Beyond,
    Inputs,
    Output,
    Outputs,
    UnresolvableReference,
    value_text,
)
from pgflow.declare.text.templates import Variables, resolve


@dataclass(frozen=True, slots=True)
class ChildCall:
    """Message and inputs that a child run is started with."""

    message: str
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class Child:
    """End of a child run.

    Args:
        state: State in which it ended.
        value: Its value, or its text if it gave none.
        error: Reason of the failure or the cancel.
        beyond: File with all of its text, if that is too long for a reference.
    """

    state: Literal["completed", "failed", "cancelled"]
    value: JsonValue = ""
    error: str = ""
    beyond: Beyond | None = None


def child_calls(node: Node, variables: Variables, outputs: Outputs) -> tuple[ChildCall, ...]:
    """Return the child runs that a node starts.

    Args:
        node: A node whose body is a `Call`.
        variables: The variables of the run that starts them.
        outputs: Outputs of its nodes so far.

    Returns:
        One call; or one for each item, which is the child's message and an input of it. A child
        without a message of its own gets that of this run, and so does a block.

    Raises:
        UnresolvableReference: If an argument, the message or the items have no value.
    """
    assert isinstance(node.body, Call)
    given = arguments(node, variables, outputs)
    fan_out = node.body.fan_out
    if fan_out is None:
        template = node.body.message
        return (
            ChildCall(
                variables.message
                if template is None
                else resolve(template, variables, outputs).text,
                given,
            ),
        )
    items = items_of(resolve(fan_out.items, variables, outputs).text)
    return tuple(
        ChildCall(
            variables.message if node.body.is_block else value_text(item),
            {**given, fan_out.item_name: item},
        )
        for item in items
    )


def items_of(text: str) -> list[JsonValue]:
    """Return the items of a resolved ``items`` text.

    Args:
        text: A JSON list. An empty one is allowed: no child runs, and the node completes.

    Raises:
        UnresolvableReference: It is not a JSON list.
    """
    try:
        items = parse_json(text)
    except ValueError:
        items = None
    if not isinstance(items, list):
        raise UnresolvableReference(
            "'fan_out.items' must resolve to a JSON array, and it is none.", "no-array"
        )
    return items


def joined(fan_out: FanOut, children: Sequence[Child]) -> Output:
    """Return the output of a node whose children have all ended.

    Args:
        fan_out: Rule by which the children belong together.
        children: Them, in the order of the items.

    Returns:
        A list of what they gave, in order, with a marker in the place of each that failed; or, if
        all had to succeed, a failure.
    """
    failed = [number for number, child in enumerate(children, 1) if child.state != "completed"]
    if failed and fan_out.join == "all_success":
        first = children[failed[0] - 1]
        return Output(
            "failed",
            error=f"{len(failed)} of {len(children)} children did not complete; number "
            f"{failed[0]}: {first.error}",
        )
    values = [_slot(child) for child in children]
    return Output("completed", json_text(values), structured=values, has_structured=True)


def _slot(child: Child) -> JsonValue:
    """Return the value for one child in the list: its own, or a marker that it failed."""
    if child.state == "completed":
        return child.value
    return {"archon_failed": True, "error": child.error, "status": child.state}
