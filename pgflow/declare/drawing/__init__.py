"""Pictures of a graph: Mermaid text for pages that render it, and SVG that stands by itself.

Both show the same things, which `pgflow.declare.drawing.sketch` chooses: every node with its
mode, its id and what it is about; who waits for whom and on which condition; and, as short marks,
where a person is asked, what touches the outside world, what is tried again and what is bounded.
Whatever comes from a file is treated as hostile: it can neither break the picture nor say
anything to a browser.

Mermaid needs nothing. For SVG the places of nodes and edges are found by the package graphlay, an
optional dependency: ``pip install "pgflow-engine[draw]"``.
"""

from __future__ import annotations

from pgflow.declare.drawing.mermaid import draw_mermaid
from pgflow.declare.drawing.svg import draw_svg

__all__ = ["draw_mermaid", "draw_svg"]
