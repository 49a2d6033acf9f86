"""A node's card: its text, its size, and its outline by mode.

An agent's turn has round corners and a program square ones; a loop lies on a second card; a
person's answer is a hexagon, the end of a run an octagon, another workflow a box with bars at its
sides. Each card also names its mode, so you need not learn the shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgflow.declare.drawing.layout import Rect
from pgflow.declare.drawing.sketch import Item, Mark
from pgflow.declare.drawing.text import markup, shorten, width_of, wrap
from pgflow.declare.drawing.theme import family_of
from pgflow.texts import visible

NAME_PX, TEXT_PX, SMALL_PX = 13.0, 12.0, 10.5
CHIP_HEIGHT_PX = 17.0
GROUP_HEADER_PX = 52.0

_PADDING_X, _PADDING_Y = 14.0, 11.0
_LEAST_WIDTH, _MOST_WIDTH = 132.0, 300.0
_ROOM = _MOST_WIDTH - 2 * _PADDING_X
_MODE_ROW, _NAME_ROW, _TEXT_ROW, _CHIP_ROW = 17.0, 19.0, 16.0, CHIP_HEIGHT_PX + 4.0
_CHIP_PADDING, _CHIP_GAP, _CHIP_MOST = 6.0, 5.0, 260.0
_GUARD_ROW, _GUARD_EDGES = 14.0, 10.0
_ICON_PX = 17.0
_STATE_ROOM = 16.0 + width_of("completed", SMALL_PX, bold=True)
"""Room for the longest state of a node, so that a picture keeps its shape while its run goes on."""
POINT_PX, BEHIND_PX = 14.0, 4.0
"""Pixels by which the points of a hexagon, and a second card behind the first, reach beyond the
box.
"""

_ICONS = {
    "agent": "M1.5 2.5h11v7.5H6.2l-2.7 2.4V10h-2z",
    "code": "M2 3.5l3.5 3.5L2 10.5M7 11h5.5",
    "loop": "M12 7a5 5 0 1 1-1.6-3.7M12 1.2v2.6H9.4",
    "person": "M7 6.6a2.4 2.4 0 1 0 0-4.8 2.4 2.4 0 0 0 0 4.8z"
    "M2.2 12.6c.5-2.6 2.3-3.8 4.8-3.8s4.3 1.2 4.8 3.8",
    "stop": "M4.6 1.5h4.8l3.1 3.1v4.8l-3.1 3.1H4.6L1.5 9.4V4.6zM4.5 7h5",
    "call": "M1.5 1.5h7v7h-7zM5.5 8.5v4h7v-7h-4",
}


@dataclass(frozen=True, slots=True)
class Chip:
    """A mark with its place in the rows of marks."""

    mark: Mark
    x: float
    row: int
    width: float


@dataclass(frozen=True, slots=True)
class Card:
    """A node with its lines broken and its size known."""

    item: Item
    guard: tuple[str, ...]
    name: str
    lines: tuple[str, ...]
    chips: tuple[Chip, ...]
    width: float
    height: float


def make_card(item: Item, *, has_state: bool = False) -> Card:
    """Break a node's text into lines and measure them, with room for its state."""
    name = shorten(item.name, _ROOM, NAME_PX, monospaced=True)
    guard = (
        tuple(wrap(f"if {item.condition}", _ROOM, SMALL_PX, lines=2, monospaced=True))
        if item.condition
        else ()
    )
    lines = tuple(wrap(item.title or item.about, _ROOM, TEXT_PX, lines=2))
    chips = _arrange(item.marks, _ROOM)
    widths = [width_of(line, SMALL_PX, monospaced=True) for line in guard]
    widths += [
        width_of(name, NAME_PX, monospaced=True),
        _ICON_PX + width_of(item.mode, SMALL_PX, bold=True) + has_state * _STATE_ROOM,
    ]
    widths += [width_of(line, TEXT_PX) for line in lines] + [chip.x + chip.width for chip in chips]
    width = max(_LEAST_WIDTH, max(widths) + 2 * _PADDING_X)
    return Card(
        item, guard, name, lines, chips, width, _guard_height(guard) + _height(lines, chips)
    )


def make_header(item: Item, *, has_state: bool = False) -> Card:
    """Return the head of a group: its name and, in one row, as many marks as there is room for."""
    name = shorten(item.name, _ROOM, NAME_PX, monospaced=True)
    marks = (*([Mark("rule", f"if {item.condition}")] if item.condition else []), *item.marks)
    chips = tuple(chip for chip in _arrange(marks, 2 * _ROOM) if chip.row == 0)
    first = (
        _ICON_PX
        + width_of(item.mode, SMALL_PX, bold=True)
        + 8
        + width_of(name, NAME_PX, monospaced=True)
        + has_state * _STATE_ROOM
    )
    width = max([first, *(chip.x + chip.width for chip in chips)]) + 2 * _PADDING_X
    return Card(item, (), name, (), chips, width, GROUP_HEADER_PX)


def _guard_height(guard: Sequence[str]) -> float:
    return len(guard) * _GUARD_ROW + _GUARD_EDGES if guard else 0.0


def _height(lines: Sequence[str], chips: Sequence[Chip]) -> float:
    rows = chips[-1].row + 1 if chips else 0
    return (
        2 * _PADDING_Y
        + _MODE_ROW
        + _NAME_ROW
        + len(lines) * _TEXT_ROW
        + rows * _CHIP_ROW
        + (3 if rows else -2)
    )


def _arrange(marks: Sequence[Mark], room: float) -> tuple[Chip, ...]:
    """Marks from left to right, a new row where the room ends."""
    chips: list[Chip] = []
    x, row = 0.0, 0
    for mark in marks:
        shown = Mark(mark.kind, shorten(mark.text, _CHIP_MOST - 2 * _CHIP_PADDING, SMALL_PX))
        width = width_of(shown.text, SMALL_PX) + 2 * _CHIP_PADDING
        if x and x + width > room:
            x, row = 0.0, row + 1
        chips.append(Chip(shown, x, row, width))
        x += width + _CHIP_GAP
    return tuple(chips)


# The drawing --------------------------------------------------------------------------------------


def draw_card(card: Card, at: Rect, standing: str = "") -> Iterator[str]:
    """Yield a node's card at its place."""
    family = family_of(card.item.mode)
    yield f"<g{_class(standing)}>{_tooltip(card.item)}"
    yield from _guard(card, at)
    at = _below_guard(card, at)
    yield f'<g class="{family}">'
    yield from _outline(card.item, at)
    left, y = at.x + _PADDING_X, at.y + _PADDING_Y
    yield _mode(card, family, left, y)
    yield from _state(standing, at, y + 9)
    y += _MODE_ROW
    yield text(card.name, left, y + 13, NAME_PX, "ink code", weight=600)
    y += _NAME_ROW
    for line in card.lines:
        yield text(line, left, y + 12, TEXT_PX, "soft")
        y += _TEXT_ROW
    yield "</g>"
    yield from _chips(card.chips, left, y + 4)
    yield "</g>"


def draw_header(card: Card, at: Rect, standing: str = "") -> Iterator[str]:
    """Draw a group's frame and its heading."""
    family = family_of(card.item.mode)
    yield f'<g{_class(standing)}><g class="{family}">{_tooltip(card.item)}'
    yield f'<rect class="group" {_place(at)} rx="12"/>'
    left, y = at.x + _PADDING_X, at.y + _PADDING_Y
    yield _mode(card, family, left, y)
    after = left + _ICON_PX + width_of(card.item.mode, SMALL_PX, bold=True) + 8
    yield text(card.name, after, y + 11, NAME_PX, "ink code", weight=600)
    yield from _state(standing, at, y + 11)
    yield "</g>"
    yield from _chips(card.chips, left, y + 22)
    yield "</g>"


def text(
    words: str,
    x: float,
    y: float,
    size_px: float,
    classes: str,
    *,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    """One line of text with its base line there."""
    said = f' class="{classes}"' if classes else ""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{size_px:g}"'
        f"{said}{bold}{where}>{markup(words)}</text>"
    )


def number(value: float) -> str:
    """Return a coordinate, no more exact than a screen is."""
    return f"{round(value, 1):g}"


def _mode(card: Card, family: str, x: float, y: float) -> str:
    icon = (
        f'<path class="icon" transform="translate({number(x)} {number(y - 1)}) scale(0.86)" '
        f'd="{_ICONS[family]}"/>'
    )
    return icon + text(card.item.mode, x + _ICON_PX, y + 9, SMALL_PX, "mode", weight=600)


def _class(standing: str) -> str:
    return f' class="is-{standing.replace(" ", "-")}"' if standing else ""


def _state(standing: str, at: Rect, y: float) -> Iterator[str]:
    """Draw the node's state at the right edge of its card."""
    if standing and standing != "waiting":
        x = at.x + at.width - _PADDING_X
        yield text(standing, x, y, SMALL_PX, "state", weight=700, anchor="end")


def _guard(card: Card, at: Rect) -> Iterator[str]:
    """Yield the condition, as a bar above the card through which every edge goes."""
    if not card.guard:
        return
    height = _guard_height(card.guard) - 3
    yield f'<g class="plain chip"><rect {_place(Rect(at.x, at.y, at.width, height))} rx="5"/>'
    for row, line in enumerate(card.guard):
        yield text(line, at.x + _PADDING_X, at.y + 13 + row * _GUARD_ROW, SMALL_PX, "code")
    yield "</g>"


def _below_guard(card: Card, at: Rect) -> Rect:
    height = _guard_height(card.guard)
    return Rect(at.x, at.y + height, at.width, at.height - height)


def _chips(chips: Sequence[Chip], x: float, y: float) -> Iterator[str]:
    """Marks as small boxes with a few words in each."""
    for chip in chips:
        at = Rect(x + chip.x, y + chip.row * _CHIP_ROW, chip.width, CHIP_HEIGHT_PX)
        words = text(
            chip.mark.text, at.x + at.width / 2, at.y + 12.3, SMALL_PX, "", anchor="middle"
        )
        yield f'<g class="{family_of(chip.mark.kind)} chip"><rect {_place(at)} rx="4"/>{words}</g>'


def _tooltip(item: Item) -> str:
    lines = [visible(line) for line in item.details.splitlines()]
    return f"<title>{markup(chr(10).join(lines))}</title>"


def _outline(item: Item, at: Rect) -> Iterator[str]:
    """Draw the card's shape. Edges touch the box, so only a second card or a point may reach beyond
    it.
    """
    match item.mode:
        case "approval":
            yield _polygon(_hexagon(at))
        case "cancel":
            yield _polygon(_octagon(at))
        case "loop" | "loop_group":
            yield (
                f'<rect class="box" {_place(_behind(at))} rx="10"/>'
                f'<rect class="box" {_place(at)} rx="10"/>'
            )
        case "workflow":
            inner = Rect(at.x + 5, at.y, at.width - 10, at.height)
            yield f'<rect class="box" {_place(at)} rx="3"/><rect class="box" {_place(inner)}/>'
        case "bash" | "script":
            yield f'<rect class="box" {_place(at)} rx="2"/>'
        case _:
            yield f'<rect class="box" {_place(at)} rx="10"/>'


def _place(at: Rect) -> str:
    return (
        f'x="{number(at.x)}" y="{number(at.y)}" width="{number(at.width)}" '
        f'height="{number(at.height)}"'
    )


def _behind(at: Rect) -> Rect:
    return Rect(at.x + BEHIND_PX, at.y + BEHIND_PX, at.width, at.height)


def _polygon(points: Sequence[tuple[float, float]]) -> str:
    return (
        f'<polygon class="box" points="{" ".join(f"{number(x)},{number(y)}" for x, y in points)}"/>'
    )


def _hexagon(at: Rect) -> list[tuple[float, float]]:
    right, bottom, middle = at.x + at.width, at.y + at.height, at.y + at.height / 2
    return [
        (at.x, at.y),
        (right, at.y),
        (right + POINT_PX, middle),
        (right, bottom),
        (at.x, bottom),
        (at.x - POINT_PX, middle),
    ]


def _octagon(at: Rect) -> list[tuple[float, float]]:
    right, bottom, cut = at.x + at.width, at.y + at.height, 9.0
    upper = [(at.x, at.y + cut), (at.x + cut, at.y), (right - cut, at.y), (right, at.y + cut)]
    return [
        *upper,
        (right, bottom - cut),
        (right - cut, bottom),
        (at.x + cut, bottom),
        (at.x, bottom - cut),
    ]
