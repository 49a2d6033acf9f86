"""A picture of a waterfall: one self-contained SVG, for a report or a ticket.

It has no script and fetches nothing. Names are escaped text.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pgflow.console.waterfall import MARK, Bar, Line, Waterfall
from pgflow.texts import visible

LABEL_WIDTH = 240
AXIS_WIDTH = 640
TOOK_WIDTH = 90
LINE_HEIGHT = 22
HEAD_HEIGHT = 58
MOST_CHARS = 34
STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1c1f23}"
    ".dim{fill:#667}.solid rect{fill:#2f6fd0}.outline rect{fill:#e9f0fb;stroke:#8a9099}"
    ".bad rect{fill:#b3261e;stroke:#b3261e}.open rect{stroke:#2f6fd0;stroke-dasharray:3 2;"
    "fill:#e9f0fb}circle{fill:#8a9099}.notch{stroke:#b3261e;stroke-width:2}"
    ".tick{stroke:#dfe2e6}.page{fill:#fff}"
)


def draw_picture(waterfall: Waterfall, title: str, says: str) -> str:
    """Return a waterfall as SVG.

    Args:
        waterfall: The waterfall.
        title: Its title.
        says: Words below the title.
    """
    return "\n".join(_parts(waterfall, title, says)) + "\n"


def _parts(waterfall: Waterfall, title: str, says: str) -> Iterator[str]:
    width = LABEL_WIDTH + AXIS_WIDTH + TOOK_WIDTH
    height = HEAD_HEIGHT + LINE_HEIGHT * len(waterfall.lines) + 12
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{_text(title)}: {_text(says)}">'
    )
    yield f'<style>{STYLE}</style><rect class="page" width="{width}" height="{height}"/>'
    yield f'<text x="8" y="18" font-weight="bold">{_text(title)}</text>'
    yield f'<text x="8" y="36" class="dim">{_text(says)}</text>'
    for tick in waterfall.ticks:
        x = _x(tick.x)
        yield f'<line class="tick" x1="{x}" x2="{x}" y1="{HEAD_HEIGHT - 4}" y2="{height - 8}"/>'
        yield f'<text class="dim" x="{x}" y="{HEAD_HEIGHT - 8}">{_text(tick.label)}</text>'
    for place, line in enumerate(waterfall.lines):
        yield from _line(line, HEAD_HEIGHT + place * LINE_HEIGHT)
    yield "</svg>"


def _line(line: Line, y: int) -> Iterator[str]:
    yield f"<g><title>{_text(line.title)}</title>"
    notes = f" ({line.notes})" if line.notes else ""
    yield f'<text x="8" y="{y + 15}">{_text(_cut(line.name + notes))}</text>'
    for bar in line.bars:
        yield _bar(bar, line.shape, y + 4)
    x = LABEL_WIDTH + AXIS_WIDTH + 8
    yield f'<text class="dim" x="{x}" y="{y + 15}">{_text(line.took)}</text></g>'


def _bar(bar: Bar, shape: str, y: int) -> str:
    kind = "bad" if bar.is_bad else "open" if bar.is_open else "done"
    drawn = (
        f'<circle cx="{_x(bar.x)}" cy="{y + 7}" r="4"/>'
        if shape == MARK
        else f'<rect x="{_x(bar.x)}" y="{y}" width="{bar.width * AXIS_WIDTH / 100:.2f}" '
        'height="14" rx="2"/>'
    )
    notches = "".join(
        f'<line class="notch" x1="{_x(at)}" x2="{_x(at)}" y1="{y - 2}" y2="{y + 16}"/>'
        for at in bar.notches
    )
    title = _text(bar.title)
    return f'<g class="{shape} {kind}"><title>{title}</title>{drawn}{notches}</g>'


def _x(per_cent: float) -> str:
    return f"{LABEL_WIDTH + per_cent * AXIS_WIDTH / 100:.2f}"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"


def _text(text: str) -> str:
    return escape(visible(text))
