"""Flow charts: a workflow in SQL as boxes in a column, with arrows down and around.

The database draws the workflow as text for Mermaid. Here its nodes get a row each, in the order of
the text. An arrow to the next row is straight, and any other goes around on the right, the longer
the farther out. So a chart needs no layout engine, and fits a phone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape

ROW = 44
BOX_HEIGHT = 28
BOX_WIDTH = 250
LANE = 16
"""Distance between two arrows that go around."""
LABEL_WIDTH = 50
MOST_CHARS = 34
MOST_NODES = 200
_NODE = re.compile(r'  n(\d+)([(\[{]+)"(.*)"[)\]}]+')
_EDGE = re.compile(r"  n(\d+) (-->|-\.->)(?:\|(.*)\|)? n(\d+)")
_SHAPES = {"[": "step", "[[": "child", "{": "choice"}


@dataclass(frozen=True)
class Box:
    """A node.

    Attributes:
        y: Its upper edge.
        label: Its words, cut to the width.
        title: Its words in full.
        shape: ``step``, ``child``, ``choice`` or ``wait``.
    """

    y: int
    label: str
    title: str
    shape: str


@dataclass(frozen=True)
class Arrow:
    """A way from one node to another.

    Attributes:
        path: Its line, as SVG says it.
        label: Condition under which it is taken; empty for none.
        x: Place of the label.
        y: Place of the label.
        is_dashed: True for undo and errors.
    """

    path: str
    label: str
    x: int
    y: int
    is_dashed: bool


@dataclass(frozen=True)
class Flowchart:
    """A chart.

    Attributes:
        boxes: Its nodes.
        arrows: Its ways.
        width: Width of the picture.
        height: Height of the picture.
    """

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    width: int
    height: int


def draw_flowchart(text: str) -> Flowchart:
    """Return the chart of a workflow.

    Args:
        text: Text for Mermaid, from `pgflow.inspect.draw_sql_flow`.
    """
    lines = text.splitlines()
    nodes = [found.groups() for line in lines if (found := _NODE.fullmatch(line))][:MOST_NODES]
    rows = {number: row for row, (number, _, _) in enumerate(nodes)}
    edges = [found.groups() for line in lines if (found := _EDGE.fullmatch(line))]
    ways = [
        (rows[start], rows[end], label or "", line != "-->")
        for start, line, label, end in edges
        if start in rows and end in rows
    ]
    arrows, lanes = [], 0
    for start, end, label, is_dashed in sorted(ways, key=lambda way: abs(way[0] - way[1])):
        is_straight = end == start + 1 and not is_dashed
        lanes += not is_straight
        arrows.append(_arrow(start, end, label, 0 if is_straight else lanes, is_dashed=is_dashed))
    return Flowchart(
        tuple(_box(row, *node[1:]) for row, node in enumerate(nodes)),
        tuple(arrows),
        BOX_WIDTH + LABEL_WIDTH + LANE * lanes + 4,
        ROW * len(nodes),
    )


def _box(row: int, bracket: str, words: str) -> Box:
    title = unescape(words)
    label = title if len(title) <= MOST_CHARS else title[: MOST_CHARS - 1] + "…"
    return Box(row * ROW, label, title, _SHAPES.get(bracket, "wait"))


def _arrow(start: int, end: int, label: str, lane: int, *, is_dashed: bool) -> Arrow:
    if not lane:
        x, y = BOX_WIDTH // 2, start * ROW + BOX_HEIGHT
        return Arrow(f"M{x} {y}V{end * ROW - 2}", label, x + 6, y + 12, is_dashed)
    x, y = BOX_WIDTH + LABEL_WIDTH + LANE * lane, start * ROW + BOX_HEIGHT // 2 + 5
    path = f"M{BOX_WIDTH} {y}H{x}V{end * ROW + BOX_HEIGHT // 2 - 5}H{BOX_WIDTH + 2}"
    return Arrow(path, label, BOX_WIDTH + 4, y + 12, is_dashed)
