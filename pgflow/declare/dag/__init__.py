"""Workflows in YAML, as Archon and Ion have them: read, judged as the original judges them, and
compiled to the graph.
"""

from __future__ import annotations

from pgflow.declare.dag.reading import discover, read_file, read_text

__all__ = ["discover", "read_file", "read_text"]
