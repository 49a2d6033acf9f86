"""Drawings of a graph: Mermaid text for pages that render it, and the states of its nodes in a run.

Mermaid shows what `pgflow.declare.drawing.sketch` selects: every node with its mode, id and
subject; its dependencies and their conditions; and short marks for approvals, external effects,
retries and limits. Text from a file is untrusted: it can neither break the picture nor run code in
a browser.
"""

from __future__ import annotations

from pgflow.declare.drawing.mermaid import draw_mermaid

__all__ = ["draw_mermaid"]
