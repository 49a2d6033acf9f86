"""Graphs of runs whose workflow came from a file.

The console does not read files of workflows. It gets a drawer for each workflow that plays graphs.
A drawer gets the input of a run and its progress, and returns the states of the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pgflow.inspect import NodeState, Progress

STANDINGS = {
    "waiting": ("queued", "It has not begun."),
    "running": ("running", "It is at work."),
    "asks": ("ask", "It waits for a person."),
    "completed": ("completed", "It has completed."),
    "failed": ("failed", "It has failed."),
    "skipped": ("cancelled", "It was left out."),
    "cut off": ("cancelled", "Its run ended while it was at work."),
}
"""States of a node: the shape beside each word, and its meaning."""


class GraphDrawer(Protocol):
    """Drawer of the runs of a workflow: ``pgflow.declare.GRAPHS`` has one."""

    @property
    def stream(self) -> str:
        """Name of the stream to which such a run publishes its nodes."""

    def __call__(
        self, given: Any, progress: Progress, *, has_ended: bool
    ) -> Sequence[NodeState] | None:
        """Return the nodes of a run's graph; None if its input has no graph."""
