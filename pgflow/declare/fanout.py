"""Child runs for the items of a list: what the list is, and what comes of the children together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from pgflow.declare.graph import FanOut
from pgflow.declare.javascript import json_text, parse_json
from pgflow.declare.outputs import Output, UnresolvableReference


@dataclass(frozen=True, slots=True)
class Child:
    """How a child run ended.

    Args:
        state: How.
        value: What it gave: its value, or its text if it gave none.
        error: Why it failed or was cancelled.
    """

    state: Literal["completed", "failed", "cancelled"]
    value: JsonValue = ""
    error: str = ""


def items_of(text: str) -> list[JsonValue]:
    """The items that a resolved ``items`` text lists.

    Args:
        text: A JSON list. An empty one is allowed: no child runs, and the node completes.

    Raises:
        UnresolvableReference: If it is no JSON list.
    """
    try:
        items = parse_json(text)
    except ValueError:
        items = None
    if not isinstance(items, list):
        raise UnresolvableReference("'fan_out.items' must resolve to a JSON array, and it is none.", "no-array")
    return items


def joined(fan_out: FanOut, children: Sequence[Child]) -> Output:
    """What a node leaves whose children have all ended.

    Args:
        fan_out: How the children belong together.
        children: Them, in the order of the items.

    Returns:
        A list of what they gave, in order, with a marker in the place of each that failed; or, if all had to succeed, a failure.
    """
    failed = [number for number, child in enumerate(children, 1) if child.state != "completed"]
    if failed and fan_out.join == "all_success":
        first = children[failed[0] - 1]
        return Output("failed", error=f"{len(failed)} of {len(children)} children did not complete; number {failed[0]}: {first.error}")
    values = [_slot(child) for child in children]
    return Output("completed", json_text(values), structured=values, has_structured=True)


def _slot(child: Child) -> JsonValue:
    """What stands for one child in the list."""
    if child.state == "completed":
        return child.value
    return {"archon_failed": True, "error": child.error, "status": child.state}
