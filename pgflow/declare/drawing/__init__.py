"""Pictures of a graph: Mermaid text for pages that render it, and self-contained SVG.

Both show what `pgflow.declare.drawing.sketch` selects: every node with its mode, id and subject;
its dependencies and their conditions; and short marks for approvals, external effects, retries and
limits. Text from a file is untrusted: it can neither break the picture nor run code in a browser.

Mermaid needs nothing. For SVG the package graphlay, an optional dependency, places nodes and edges:
``pip install "pgflow-engine[draw]"``.
"""

from __future__ import annotations

from pgflow.declare.drawing.mermaid import draw_mermaid
from pgflow.declare.drawing.svg import draw_svg

__all__ = ["draw_mermaid", "draw_svg"]
