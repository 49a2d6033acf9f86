"""A graph as a Mermaid flowchart: text that GitHub and most
documentation sites turn into a picture.

Ids of nodes are not Mermaid's: ``end`` is a keyword there, and others may hold anything. Nodes are
called ``n0``, ``n1``, ... and what the file calls them is in their labels, where every character
that could mean something is written as its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pgflow.declare.drawing.sketch import Item, Sketch, sketch
from pgflow.declare.drawing.theme import FAMILIES, family_of
from pgflow.declare.graph import Graph

_SHAPES = {
    "prompt": ("(", ")"),
    "command": ("(", ")"),
    "bash": ("[", "]"),
    "script": ("[", "]"),
    "loop": ("([", "])"),
    "approval": ("{{", "}}"),
    "cancel": ("([", "])"),
    "wait": ("([", "])"),
    "workflow": ("[[", "]]"),
    "loop_group": ("([", "])"),
}
_MEANINGLESS = frozenset(" -_.,/+*=()")
_LABEL_LIMIT = 60


def draw_mermaid(graph: Graph) -> str:
    """Return a graph as the text of a Mermaid flowchart.

    Args:
        graph: Graph that a front end made of a file.

    Returns:
        Lines that begin with ``flowchart TD`` and end with a newline.
        The same graph gives the same text.
    """
    drawn = sketch(graph)
    alone = _on_edges(drawn)
    lines = ["flowchart TD", *_level(drawn, None, "  ", alone)]
    lines += [_edge(link.source, drawn.items[link.target], alone) for link in drawn.links]
    lines += list(_classes(drawn))
    return "\n".join(lines) + "\n"


def _on_edges(drawn: Sketch) -> set[int]:
    """Return the nodes whose condition is shown on the one edge that leads to them."""
    before = Counter(link.target for link in drawn.links)
    return {item.number for item in drawn.items if item.condition and before[item.number] == 1}


def _level(drawn: Sketch, parent: int | None, indent: str, on_edges: set[int]) -> Iterator[str]:
    """Yield the nodes of a level; a group's are inside its subgraph."""
    for item in drawn.items:
        if item.parent != parent:
            continue
        lines = _lines(item, says_condition=item.number not in on_edges)
        if item.is_group:
            yield f'{indent}subgraph n{item.number}["{", ".join(lines)}"]'
            yield f"{indent}  direction TB"
            yield from _level(drawn, item.number, indent + "  ", on_edges)
            yield f"{indent}end"
        else:
            opening, closing = _SHAPES[item.mode]
            yield f'{indent}n{item.number}{opening}"{"<br/>".join(lines)}"{closing}'


def _lines(item: Item, *, says_condition: bool) -> list[str]:
    lines = [
        f"<b>{_text(item.name)}</b>",
        f"<i>{_text(item.mode)}</i>",
        _text(item.title or item.about),
    ]
    lines += [_text(mark) for mark in item.marks]
    lines += [_text(f"if {item.condition}")] if item.condition and says_condition else []
    return [line for line in lines if line]


def _edge(source: int, target: Item, on_edges: set[int]) -> str:
    label = f'|"{_text(target.condition)}"|' if target.number in on_edges else ""
    return f"  n{source} -->{label} n{target.number}"


def _text(text: str) -> str:
    """Return a text in which Mermaid finds neither an end of a string, nor markup, nor an
    entity.
    """
    cut = text if len(text) <= _LABEL_LIMIT else text[: _LABEL_LIMIT - 1] + "…"
    return "".join(
        char if char.isalnum() or char in _MEANINGLESS else f"#{ord(char)};" for char in cut
    )


def _classes(drawn: Sketch) -> Iterator[str]:
    """Colours, with the text's own beside the ground's: legible on any page."""
    for name, tone in FAMILIES.items():
        members = [f"n{item.number}" for item in drawn.items if family_of(item.mode) == name]
        if members:
            yield f"  classDef on_{name} fill:{tone.fill},stroke:{tone.line},color:{tone.text}"
            yield f"  class {','.join(members)} on_{name}"
