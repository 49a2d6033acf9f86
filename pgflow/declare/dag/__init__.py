"""Workflows in YAML, as Archon and Ion have them: read, judged as the original judges them, and compiled to the graph."""
