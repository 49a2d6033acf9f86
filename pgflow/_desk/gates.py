"""Gates: whom one asks, and what becomes of it when its time is over."""

from __future__ import annotations

from collections.abc import Collection

from pgflow.inspect import GateRow

ENDS = {
    "expire": "expires", "reject": "is rejected", "approve": "is approved",
    "escalate": "is escalated",
}  # fmt: skip
"""Words for what becomes of a gate when its time is over."""


def asks(gate: GateRow, names: Collection[str]) -> bool:
    """Return True if a gate asks somebody of these names and roles, as far as they are known."""
    return not gate.approvers or any(name in gate.approvers for name in names)
