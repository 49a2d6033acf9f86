"""Layout of a picture: places for the boxes and ways for the edges, found by graphlay, layered and
with orthogonal edges.

Why graphlay: it respects the size of every node, lays out groups around their members, and gives
the same picture for the same graph on every machine; it is typed, under the MIT licence, and its
wheels hold all they need on Linux, macOS and Windows. It is imported when something is drawn, and
not before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgflow.errors import InvalidArgument

MAX_NODES = 500
MAX_EDGES = 1_500
MAX_WAYPOINTS = 5_000
"""Above this, a layout takes minutes, and the picture would be unreadable."""

GROUP_PADDING_PX = 18.0
LAYER_GAP_PX = 48.0
_CAREFUL_EDGES = 120
"""Up to so many edges the places where they touch the boxes are refined; the time for that grows
with the cube of them.
"""

_OPTIONS: dict[str, Any] = {
    "direction": "topbottom",
    "spacing": {"layer_gap": LAYER_GAP_PX, "node_gap": 36.0, "compound_padding": GROUP_PADDING_PX},
    "limits": {"max_nodes": MAX_NODES, "max_edges": MAX_EDGES, "max_dummies": MAX_WAYPOINTS},
}
_LARGE = {
    "effort": "fast",
    "tuning": {"routing": {"overlap_repair_rounds": 0, "port_relax_rounds": 0}},
}


@dataclass(frozen=True, slots=True)
class Box:
    """A node's size in pixels, and the number of the group it is in."""

    width: float
    height: float
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Wire:
    """An edge between the numbers of two boxes."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Rect:
    """A place: the upper left corner and the size, in pixels."""

    x: float
    y: float
    width: float
    height: float


Point = tuple[float, float]


Route = tuple[Point, ...]
"""The corners of an edge from border to border."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Places of all boxes and routes, in the order they were given."""

    boxes: tuple[Rect, ...]
    routes: tuple[Route, ...]


def place(boxes: Sequence[Box], wires: Sequence[Wire], *, group_header_px: float) -> Placement:
    """Finds a place for every box and a way for every wire.

    Args:
        boxes: Their sizes. That of a group is the least it may have.
        wires: Between boxes of the same group.
        group_header_px: Room to leave at the top of each group.

    Raises:
        ImportError: graphlay is not installed.
        InvalidArgument: The graph is too large for a picture.
    """
    graphlay = _engine()
    options = _OPTIONS | {"spacing": {**_OPTIONS["spacing"], "compound_header": group_header_px}}
    if len(wires) > _CAREFUL_EDGES:
        options |= _LARGE
    try:
        found = graphlay.layout(_request(boxes, wires), preset="process_map", options=options)
    except graphlay.GraphlayError as error:
        raise InvalidArgument(
            f"too large to draw: {len(boxes):,} nodes and {len(wires):,} edges ({error}). Mermaid "
            "and JSON have no such limit"
        ) from error
    rects = tuple(map(_rect, found.nodes))
    routes = [_route(edge) for edge in found.edges]
    for group in sorted({box.parent for box in boxes if box.parent is not None}):
        for number, wire in enumerate(wires):
            if boxes[wire.source].parent == boxes[group].parent:
                routes[number] = _clear_of(
                    routes[number], rects[group], group_header_px, ends_there=wire.target == group
                )
    return Placement(rects, tuple(routes))


def _engine() -> Any:
    try:
        import graphlay
    except ImportError as error:
        raise ImportError(
            'drawing SVG needs graphlay: pip install "pgflow-engine[draw]"'
        ) from error
    return graphlay


def _request(boxes: Sequence[Box], wires: Sequence[Wire]) -> dict[str, Any]:
    nodes = [
        {"size": {"width": math.ceil(box.width), "height": math.ceil(box.height)}}
        | ({} if box.parent is None else {"parent": box.parent})
        for box in boxes
    ]
    edges = [{"source": wire.source, "target": wire.target} for wire in wires]
    return {"nodes": nodes, "edges": edges}


def _rect(node: dict[str, Any]) -> Rect:
    width, height = node["size"]["width"], node["size"]["height"]
    return Rect(node["center"]["x"] - width / 2, node["center"]["y"] - height / 2, width, height)


def _route(edge: dict[str, Any]) -> Route:
    return tuple((point["x"], point["y"]) for point in edge["points"])


def _clear_of(route: Route, frame: Rect, header_px: float, *, ends_there: bool) -> Route:
    """Return the route with its turns above the frame of a group, and its end at it.

    To graphlay a group begins below its header: routes between that layer and the one before may
    turn within the header, and those into the group end there. The room for turns is pressed into
    the gap above; all routes alike, so that none cross.
    """
    begins, share = frame.y - LAYER_GAP_PX, LAYER_GAP_PX / (LAYER_GAP_PX + header_px)

    def raised(point: Point) -> Point:
        is_between = begins < point[1] < frame.y + header_px + 1
        return (point[0], begins + (point[1] - begins) * share) if is_between else point

    first, *turns, last = route
    return (first, *map(raised, turns), raised(last) if ends_there else last)
