"""The colours of Mermaid pictures, by the kind of work of a node.

Ground, line and text are chosen together: a text has a contrast of at least 4.5 : 1 to its
background, on any page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tone:
    """Colours that belong together."""

    fill: str
    line: str
    text: str


FAMILIES = {
    "agent": Tone("#eef4ff", "#4c7fdb", "#1f4fa3"),
    "code": Tone("#eef6f3", "#4b9a82", "#1d6350"),
    "loop": Tone("#f5f0ff", "#8b67d6", "#5d37a8"),
    "person": Tone("#fff6e5", "#c98a1b", "#7d5200"),
    "stop": Tone("#fff0f0", "#d0575c", "#9c2328"),
    "call": Tone("#ecf6fa", "#3a8fae", "#15607a"),
    "plain": Tone("#f4f5f7", "#c3c8d0", "#4a5260"),
}

_FAMILY_OF = {
    "prompt": "agent", "command": "agent", "bash": "code", "script": "code", "loop": "loop",
    "loop_group": "loop", "approval": "person", "cancel": "stop", "workflow": "call",
    "wait": "plain",
}  # fmt: skip


def family_of(mode: str) -> str:
    """Return the family of colours of a mode."""
    return _FAMILY_OF[mode]
