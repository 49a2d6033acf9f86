"""A graph as a self-contained SVG picture: without scripts, fonts or external references.

From the top: the workflow's name and description, then the nodes by layers, with edges beneath
cards. It follows the reader's light or dark setting, gives screen readers its title, and shows all
facts of a node in a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgflow.declare.drawing.card import (
    BEHIND_PX,
    GROUP_HEADER_PX,
    POINT_PX,
    TEXT_PX,
    Card,
    draw_card,
    draw_header,
    make_card,
    make_header,
    number,
    text,
)
from pgflow.declare.drawing.layout import Box, Placement, Point, Rect, Route, Wire, place
from pgflow.declare.drawing.sketch import Sketch, sketch
from pgflow.declare.drawing.text import markup, shorten, wrap
from pgflow.declare.drawing.theme import style_sheet
from pgflow.declare.graph import Graph

_MARGIN_PX = 28.0
_LEAST_WIDTH_PX = 560.0
_TITLE_PX = 18.0
_CORNER_PX = 8.0
_TIP_LENGTH_PX, _TIP_HALF_PX = 8.0, 4.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph whose nodes and edges have their places."""

    sketch: Sketch
    cards: tuple[Card, ...]
    found: Placement


def draw_svg(graph: Graph) -> str:
    """Return a graph as the text of an SVG file.

    Args:
        graph: Graph that a front end made of a file.

    Returns:
        The whole file, ending with a newline. The same graph gives the same text.

    Raises:
        ImportError: The package that finds the layout is not installed; the message says how to
            install it.
        InvalidArgument: The graph is too large for a picture.
    """
    return "\n".join(_file(lay_out(graph))) + "\n"


def lay_out(graph: Graph, *, has_states: bool = False) -> Drawing:
    """Place the nodes and edges of a graph.

    Args:
        graph: The graph.
        has_states: True to leave room on each node for its state.

    Raises:
        ImportError: The package that finds the layout is not installed.
        InvalidArgument: The graph is too large for a picture.
    """
    drawn = sketch(graph)
    cards = [
        make_header(item, has_state=has_states)
        if item.is_group
        else make_card(item, has_state=has_states)
        for item in drawn.items
    ]
    boxes = [Box(card.width, card.height, card.item.parent) for card in cards]
    wires = [Wire(link.source, link.target) for link in drawn.links]
    return Drawing(drawn, tuple(cards), place(boxes, wires, group_header_px=GROUP_HEADER_PX))


def paint(drawing: Drawing, standings: Sequence[str]) -> str:
    """Return a graph as an element of a page that has the rules of :func:`style_sheet`, coloured by
    the states of its nodes.

    Args:
        drawing: The graph.
        standings: Standings of its nodes, those of a group behind it.
    """
    extent, margin = _extent(drawing.found), 2.0
    width, height = extent.width + 2 * margin, extent.height + 2 * margin
    x, y = margin - extent.x, margin - extent.y
    return "\n".join(
        [
            *_opened(drawing.sketch, width, height),
            f'<g transform="translate({number(x)} {number(y)})">',
            *_body(drawing, standings),
            "</g>",
            "</svg>",
        ]
    )


def _file(drawing: Drawing) -> Iterator[str]:
    extent = _extent(drawing.found)
    width = max(extent.width, _LEAST_WIDTH_PX) + 2 * _MARGIN_PX
    head, head_height = _head(drawing.sketch, width - 2 * _MARGIN_PX)
    height = extent.height + head_height + 2 * _MARGIN_PX
    yield from _opened(drawing.sketch, width, height)
    yield f"<style>\n{style_sheet()}</style>"
    yield f'<rect class="ground" width="{number(width)}" height="{number(height)}"/>'
    yield from head
    x, y = (width - extent.width) / 2 - extent.x, _MARGIN_PX + head_height - extent.y
    yield f'<g transform="translate({number(x)} {number(y)})">'
    yield from _body(drawing)
    yield "</g>"
    yield "</svg>"


def _opened(drawn: Sketch, width: float, height: float) -> Iterator[str]:
    """Open the svg element, with a description for screen readers."""
    size = (
        f'width="{number(width)}" height="{number(height)}" '
        f'viewBox="0 0 {number(width)} {number(height)}"'
    )
    said = markup(f"Workflow {drawn.title}: {len(drawn.items)} nodes, {len(drawn.links)} edges")
    yield (
        '<svg xmlns="http://www.w3.org/2000/svg" class="pgflow-graph" role="img" '
        f'aria-label="{said}" {size}>'
    )
    yield f"<title>{said}</title>"


def _extent(found: Placement) -> Rect:
    """Return the rectangle that the drawing covers, with the parts that reach beyond the boxes."""
    rects = [
        Rect(box.x - POINT_PX, box.y, box.width + 2 * POINT_PX, box.height + BEHIND_PX)
        for box in found.boxes
    ]
    rects += [Rect(x, y, 0, 0) for route in found.routes for x, y in route]
    if not rects:
        return Rect(0, 0, 0, 0)
    left, top = min(r.x for r in rects), min(r.y for r in rects)
    return Rect(
        left,
        top,
        max(r.x + r.width for r in rects) - left,
        max(r.y + r.height for r in rects) - top,
    )


def _head(drawn: Sketch, room: float) -> tuple[list[str], float]:
    """Return the lines above the picture, and how high they are."""
    lines = [
        text(
            shorten(drawn.title, room, _TITLE_PX, bold=True),
            _MARGIN_PX,
            _MARGIN_PX + 15,
            _TITLE_PX,
            "ink",
            weight=700,
        )
    ]
    y = _MARGIN_PX + 22
    said = wrap(drawn.about, room, TEXT_PX, lines=2)
    if drawn.inputs:
        said.append(shorten(f"inputs: {', '.join(drawn.inputs)}", room, TEXT_PX))
    for line in said:
        lines.append(text(line, _MARGIN_PX, y + 13, TEXT_PX, "soft"))
        y += 17
    return lines, y + 20 - _MARGIN_PX


def _body(drawing: Drawing, standings: Sequence[str] = ()) -> Iterator[str]:
    """Frames of groups at the bottom, then edges, then cards."""
    stands = standings or [""] * len(drawing.cards)
    placed = list(zip(drawing.cards, drawing.found.boxes, stands, strict=True))
    for card, at, standing in placed:
        if card.item.is_group:
            yield from draw_header(card, at, standing)
    for route in drawing.found.routes:
        yield from _edge(route)
    for card, at, standing in placed:
        if not card.item.is_group:
            yield from draw_card(card, at, standing)


def _edge(route: Route) -> Iterator[str]:
    """Yield a line with round corners, and its tip."""
    (x, y), (before_x, before_y) = route[-1], route[-2]
    length = max(abs(x - before_x) + abs(y - before_y), 1e-6)
    step = ((x - before_x) / length, (y - before_y) / length)
    back = (x - step[0] * _TIP_LENGTH_PX, y - step[1] * _TIP_LENGTH_PX)
    yield f'<path class="edge" d="{_rounded((*route[:-1], back))}"/>'
    sides = [
        (back[0] + side * step[1], back[1] + side * step[0])
        for side in (_TIP_HALF_PX, -_TIP_HALF_PX)
    ]
    yield (
        '<polygon class="tip" points="'
        f'{" ".join(f"{number(px)},{number(py)}" for px, py in ((x, y), *sides))}"/>'
    )


def _rounded(points: Sequence[Point]) -> str:
    """Return a path through the points whose corners are rounded where there is room for it."""
    parts = [f"M{_pair(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        parts.append(
            f"L{_pair(_towards(corner, before))}Q{_pair(corner)} {_pair(_towards(corner, after))}"
        )
    return "".join(parts) + f"L{_pair(points[-1])}"


def _towards(corner: Point, other: Point) -> Point:
    """Return a point so far from the corner as its rounding begins: at most half of the way."""
    way = (other[0] - corner[0], other[1] - corner[1])
    length = (way[0] ** 2 + way[1] ** 2) ** 0.5
    share = min(_CORNER_PX / length, 0.5) if length else 0.0
    return corner[0] + way[0] * share, corner[1] + way[1] * share


def _pair(point: Point) -> str:
    return f"{number(point[0])} {number(point[1])}"
