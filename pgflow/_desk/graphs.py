"""Graphs: pictures of runs whose workflow came from a file, made by a drawer that knows such files.

The console does not read files of workflows. It gets a drawer for each workflow that plays graphs.
A drawer gets the input of a run and its progress, and returns a picture and the same in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pgflow.inspect import Progress

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


class GraphNode(Protocol):
    """A node in words."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def mode(self) -> str:
        """Kind of its work."""

    @property
    def depth(self) -> int:
        """Number of groups around it."""

    @property
    def standing(self) -> str:
        """State of it, a word of ``STANDINGS``."""

    @property
    def round(self) -> int | None:
        """Number of its round; None if it is in none."""

    @property
    def why(self) -> str:
        """Reason of its end; empty if there is none."""


class GraphDrawing(Protocol):
    """The graph of a run."""

    @property
    def svg(self) -> str:
        """Element of a page, with all foreign text escaped; empty for none."""

    @property
    def nodes(self) -> Sequence[GraphNode]:
        """Its nodes in words."""


class GraphDrawer(Protocol):
    """Drawer of the runs of a workflow: ``pgflow.declare.GRAPHS`` has one."""

    @property
    def stream(self) -> str:
        """Name of the stream to which such a run publishes its nodes."""

    def __call__(self, given: Any, progress: Progress, *, has_ended: bool) -> GraphDrawing | None:
        """Return the graph of a run; None if its input has none."""
