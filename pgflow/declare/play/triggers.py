"""Trigger rules: a node runs or not, given how the nodes that it depends on ended."""

from __future__ import annotations

from collections.abc import Collection

from pgflow.declare.graph import TriggerRule
from pgflow.declare.text.outputs import NodeState


def is_triggered(rule: TriggerRule, states: Collection[NodeState]) -> bool:
    """Return True if a node runs; if not, it is skipped.

    Args:
        rule: The node's rule.
        states: States of the nodes that it depends on.
            One of which nothing is known counts as failed.

    Returns:
        True if it runs. A node that depends on none always does.
    """
    if not states:
        return True
    match rule:
        case "all_success":
            return all(state == "completed" for state in states)
        case "one_success":
            return "completed" in states
        case "none_failed_min_one_success":
            return "failed" not in states and "completed" in states
        case "all_done":
            return "pending" not in states and "running" not in states
