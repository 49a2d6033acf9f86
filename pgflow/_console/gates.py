"""Gates: their approvers, and what happens at their time limit."""

from __future__ import annotations

from collections.abc import Collection

from pgflow.inspect import GateRow

ENDS = {
    "expire": "expires", "reject": "is rejected", "approve": "is approved",
    "escalate": "is escalated",
}  # fmt: skip
"""Words for what becomes of a gate when its time is over."""


def asks(gate: GateRow, names: Collection[str]) -> bool:
    """Return True if a gate asks one of these names and roles, or names no approvers."""
    return not gate.approvers or any(name in gate.approvers for name in names)
